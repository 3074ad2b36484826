/* Sums, squares and digests from Python: sizes are checked here, and parts are given to threads. */

typedef struct {
    const float *narrow, *wide;
    float *out;
    size_t records, rows, columns, call, tasks;
} OuterSum;

static void some_columns(const void *given, size_t i) {
    const OuterSum *o = given;
    size_t tiles = (o->columns + COLUMNS - 1) / COLUMNS, first = tiles * i / o->tasks * COLUMNS;
    size_t end = tiles * (i + 1) / o->tasks * COLUMNS;
    if (end > o->columns) end = o->columns;
    best.outer_sum(o->narrow, o->wide, o->out, o->records, o->rows, o->columns, o->call, first, end);
}

static PyObject *outer_sum(PyObject *module, PyObject *const *arguments, Py_ssize_t count) {
    Py_buffer views[3]; /* narrow, wide, out */
    if (count != 6) return PyErr_Format(PyExc_TypeError, "outer_sum takes 6 arguments, not %zd.", count);
    size_t rows = PyLong_AsSize_t(arguments[3]), call = PyLong_AsSize_t(arguments[4]);
    size_t threads = PyLong_AsSize_t(arguments[5]);
    if (PyErr_Occurred() || take(arguments, views, 3, 2) < 0) return NULL;
    size_t records = rows ? (size_t)views[0].len / 4 / rows : 0, columns = rows ? (size_t)views[2].len / 4 / rows : 0;
    int fits = 0 < call && call <= CALL && COLUMNS <= columns && (size_t)views[0].len == 4 * records * rows &&
               (size_t)views[2].len == 4 * rows * columns && (size_t)views[1].len % 4 == 0 && is_count(threads) &&
               (records ? (size_t)views[1].len / 4 / records == columns && (size_t)views[1].len / 4 % records == 0
                        : views[1].len == 0);
    if (fits) {
        size_t tiles = (columns + COLUMNS - 1) / COLUMNS, tasks = threads < tiles ? threads : tiles;
        OuterSum given = {views[0].buf, views[1].buf, views[2].buf, records, rows, columns, call, tasks};
        Py_BEGIN_ALLOW_THREADS
        in_parallel(some_columns, &given, tasks, threads);
        Py_END_ALLOW_THREADS
    }
    give_back(views, 3);
    if (!fits) return PyErr_Format(PyExc_ValueError, "the factors do not fit a sum of %zu rows.", rows);
    Py_RETURN_NONE;
}

typedef struct {
    const float *rows;
    float *out;
    size_t count, width, tasks;
} Squares;

static void some_rows(const void *given, size_t i) {
    const Squares *s = given;
    size_t first = s->count * i / s->tasks, end = s->count * (i + 1) / s->tasks;
    best.squares(s->rows + first * s->width, s->out + first, end - first, s->width);
}

static PyObject *squares(PyObject *module, PyObject *const *arguments, Py_ssize_t count) {
    Py_buffer views[2]; /* rows, out */
    if (count != 3) return PyErr_Format(PyExc_TypeError, "squares takes 3 arguments, not %zd.", count);
    size_t threads = PyLong_AsSize_t(arguments[2]);
    if (PyErr_Occurred() || take(arguments, views, 2, 1) < 0) return NULL;
    size_t records = (size_t)views[1].len / 4, width = records ? (size_t)views[0].len / 4 / records : 0;
    int fits = (size_t)views[0].len == 4 * records * width && is_count(threads);
    if (fits) {
        Squares given = {views[0].buf, views[1].buf, records, width, threads < records ? threads : records};
        Py_BEGIN_ALLOW_THREADS
        in_parallel(some_rows, &given, given.tasks, threads);
        Py_END_ALLOW_THREADS
    }
    give_back(views, 2);
    if (!fits) return PyErr_Format(PyExc_ValueError, "the entries do not make %zu rows.", records);
    Py_RETURN_NONE;
}

static void some_words(const void *given, size_t i) { best.strip(given, i); }

static PyObject *digest(PyObject *module, PyObject *const *arguments, Py_ssize_t count) {
    Py_buffer views[2]; /* words, key */
    if (count != 3) return PyErr_Format(PyExc_TypeError, "digest takes 3 arguments, not %zd.", count);
    size_t threads = PyLong_AsSize_t(arguments[2]), strips = 0;
    if (PyErr_Occurred() || take(arguments, views, 2, -1) < 0) return NULL;
    int fits = views[0].len % 4 == 0 && views[1].len == 4 * (PORTION + 2) && is_count(threads);
    uint64_t found = 0;
    Digest d = {.words = views[0].buf, .key = views[1].buf, .size = (size_t)views[0].len / 4};
    if (fits) {
        strips = parts(d.size, STRIP * PORTION);
        d.point = ((uint64_t)d.key[PORTION] << 32 | d.key[PORTION + 1]) % PRIME;
        d.found = malloc((strips + 1) * sizeof(*d.found));
    }
    if (d.found) {
        Py_BEGIN_ALLOW_THREADS
        in_parallel(some_words, &d, strips, threads);
        found = digest_of(&d, strips);
        Py_END_ALLOW_THREADS
    }
    free(d.found);
    give_back(views, 2);
    if (!fits) return PyErr_Format(PyExc_ValueError, "whole words, and a key of %d, are wanted.", PORTION + 2);
    return d.found ? PyLong_FromUnsignedLongLong(found) : PyErr_NoMemory();
}
