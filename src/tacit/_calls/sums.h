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

/* The squares of the rows of several tensors: `out` has a row for each. */
static PyObject *squares_each(PyObject *module, PyObject *const *arguments, Py_ssize_t count) {
    Py_buffer out, view;
    if (count < 3) return PyErr_Format(PyExc_TypeError, "squares_each takes memory, threads and tensors.");
    size_t threads = PyLong_AsSize_t(arguments[1]), several = (size_t)count - 2;
    if (PyErr_Occurred() || look_at(arguments[0], &out, 1) < 0) return NULL;
    size_t records = for_each(out.len, several);
    int fits = is_count(threads) && (size_t)out.len == 4 * several * records;
    for (size_t i = 0; fits && i < several; i++) {
        if (look_at(arguments[2 + i], &view, 0) < 0) {
            PyBuffer_Release(&out);
            return NULL;
        }
        size_t width = for_each(view.len, records);
        fits = (size_t)view.len == 4 * records * width;
        Squares given = {view.buf, (float *)out.buf + i * records, records, width, at_most(threads, records)};
        if (fits) {
            Py_BEGIN_ALLOW_THREADS
            in_parallel(some_rows, &given, given.tasks, threads);
            Py_END_ALLOW_THREADS
        }
        PyBuffer_Release(&view);
    }
    PyBuffer_Release(&out);
    if (!fits) return PyErr_Format(PyExc_ValueError, "the entries do not make %zu rows.", records);
    Py_RETURN_NONE;
}

/* The weighted sum of the rows of several tensors, each followed by the memory for its sum. */
static PyObject *row_sums(PyObject *module, PyObject *const *arguments, Py_ssize_t count) {
    Py_buffer weights, views[2]; /* rows, out */
    if (count < 3 || count % 2 == 0) return PyErr_Format(PyExc_TypeError, "row_sums takes weights, two numbers, pairs.");
    size_t call = PyLong_AsSize_t(arguments[1]), threads = PyLong_AsSize_t(arguments[2]);
    if (PyErr_Occurred() || look_at(arguments[0], &weights, 0) < 0) return NULL;
    size_t records = (size_t)weights.len / 4;
    int fits = 0 < call && call <= CALL && weights.len % 4 == 0 && is_count(threads);
    for (Py_ssize_t i = 3; fits && i < count; i += 2) {
        if (take(arguments + i, views, 2, 1) < 0) {
            PyBuffer_Release(&weights);
            return NULL;
        }
        size_t columns = (size_t)views[1].len / 4, tiles = (columns + COLUMNS - 1) / COLUMNS;
        fits = views[1].len % 4 == 0 && (size_t)views[0].len == 4 * records * columns;
        OuterSum given = {weights.buf, views[0].buf, views[1].buf, records, 1, columns, call, at_most(threads, tiles)};
        if (fits && columns) {
            Py_BEGIN_ALLOW_THREADS
            in_parallel(some_columns, &given, given.tasks, threads);
            Py_END_ALLOW_THREADS
        }
        give_back(views, 2);
    }
    PyBuffer_Release(&weights);
    if (!fits) return PyErr_Format(PyExc_ValueError, "the rows are not as many as the weights, %zu.", records);
    Py_RETURN_NONE;
}

typedef struct {
    const float *left, *right;
    float *out, *of_right;
    size_t count, widths[2], tasks;
} Pairs;

static void some_pairs(const void *given, size_t i) {
    const Pairs *p = given;
    size_t first = p->count * i / p->tasks, n = p->count * (i + 1) / p->tasks - first;
    float *out = p->out + first, *of_right = p->of_right + first;
    float least[2] = {FLT_MIN * (float)p->widths[0], FLT_MIN * (float)p->widths[1]};
    best.squares(p->left + first * p->widths[0], out, n, p->widths[0]);
    best.squares(p->right + first * p->widths[1], of_right, n, p->widths[1]);
    for (size_t j = 0; j < n; j++) out[j] = (out[j] + least[0]) * (of_right[j] + least[1]);
}

static PyObject *outer_squares(PyObject *module, PyObject *const *arguments, Py_ssize_t count) {
    Py_buffer views[4]; /* left, right, out, of_right */
    if (count != 5) return PyErr_Format(PyExc_TypeError, "outer_squares takes 5 arguments, not %zd.", count);
    size_t threads = PyLong_AsSize_t(arguments[4]);
    if (PyErr_Occurred()) return NULL;
    for (int i = 0; i < 4; i++)
        if (look_at(arguments[i], views + i, i > 1) < 0) {
            give_back(views, i);
            return NULL;
        }
    Pairs p = {.left = views[0].buf, .right = views[1].buf, .out = views[2].buf, .of_right = views[3].buf};
    p.count = (size_t)views[2].len / 4;
    for (int i = 0; i < 2; i++) p.widths[i] = for_each(views[i].len, p.count);
    int fits = is_count(threads) && views[2].len % 4 == 0 && views[3].len == views[2].len;
    for (int i = 0; i < 2; i++) fits = fits && (size_t)views[i].len == 4 * p.count * p.widths[i];
    if (fits && p.count) {
        p.tasks = at_most(threads, p.count);
        Py_BEGIN_ALLOW_THREADS
        in_parallel(some_pairs, &p, p.tasks, threads);
        Py_END_ALLOW_THREADS
    }
    give_back(views, 4);
    if (!fits) return PyErr_Format(PyExc_ValueError, "the entries do not make %zu rows.", p.count);
    Py_RETURN_NONE;
}

/* The roots of sums of squares, enlarged; whether all are finite. */
static PyObject *roots(PyObject *module, PyObject *const *arguments, Py_ssize_t count) {
    Py_buffer out, view;
    if (count < 3) return PyErr_Format(PyExc_TypeError, "roots takes a sum, a factor and memory first.");
    float more = (float)PyFloat_AsDouble(arguments[0]), factor = (float)PyFloat_AsDouble(arguments[1]);
    if (PyErr_Occurred() || look_at(arguments[2], &out, 1) < 0) return NULL;
    size_t n = (size_t)out.len / 4;
    float *found = out.buf;
    int fits = out.len % 4 == 0, finite = 1;
    if (fits) memset(found, 0, 4 * n);
    for (Py_ssize_t i = 3; fits && i < count; i++) {
        if (look_at(arguments[i], &view, 0) < 0) {
            PyBuffer_Release(&out);
            return NULL;
        }
        fits = n ? view.len && view.len % out.len == 0 : !view.len;
        const float *squares = view.buf, *end = squares + view.len / 4;
        for (; fits && squares < end; squares += n) /* one row after the other */
            for (size_t j = 0; j < n; j++) found[j] += squares[j];
        PyBuffer_Release(&view);
    }
    for (size_t j = 0; fits && j < n; j++) {
        found[j] = (sqrtf(found[j]) + more) * factor;
        finite &= found[j] <= FLT_MAX;
    }
    PyBuffer_Release(&out);
    if (!fits) return PyErr_Format(PyExc_ValueError, "the squares are not as many as the roots, %zu.", n);
    return PyBool_FromLong(finite);
}

/* The largest norm, NaN if one is. */
static PyObject *quotients(PyObject *module, PyObject *const *arguments, Py_ssize_t count) {
    Py_buffer views[2]; /* norms, out */
    if (count != 3) return PyErr_Format(PyExc_TypeError, "quotients takes 3 arguments, not %zd.", count);
    float bound = (float)PyFloat_AsDouble(arguments[0]), largest = 0;
    if (PyErr_Occurred() || take(arguments + 1, views, 2, 1) < 0) return NULL;
    int fits = views[0].len == views[1].len && views[0].len % 4 == 0;
    const float *norms = views[0].buf;
    float *out = views[1].buf;
    for (size_t i = 0; fits && i < (size_t)views[0].len / 4; i++) {
        float quotient = bound / norms[i];
        out[i] = quotient > 1.0f ? 1.0f : quotient;
        largest = norms[i] <= largest ? largest : isnan(largest) ? largest : norms[i];
    }
    give_back(views, 2);
    if (!fits) return PyErr_Format(PyExc_ValueError, "there are not as many quotients as norms.");
    return PyFloat_FromDouble(largest);
}

typedef struct {
    float *out, by;
    size_t size;
} Quotient;

#define QUOTIENTS 32768 /* that one task takes */

static void some_quotients(const void *given, size_t i) {
    const Quotient *q = given;
    size_t end = at_most((i + 1) * QUOTIENTS, q->size);
    for (size_t j = i * QUOTIENTS; j < end; j++) q->out[j] /= q->by;
}

static PyObject *divide(PyObject *module, PyObject *const *arguments, Py_ssize_t count) {
    Py_buffer view;
    if (count < 2) return PyErr_Format(PyExc_TypeError, "divide takes a divisor and a number of threads first.");
    Quotient q = {.by = (float)PyFloat_AsDouble(arguments[0])};
    size_t threads = PyLong_AsSize_t(arguments[1]);
    if (PyErr_Occurred()) return NULL;
    if (!is_count(threads)) return PyErr_Format(PyExc_ValueError, "%zu threads cannot divide.", threads);
    for (Py_ssize_t i = 2; i < count; i++) {
        if (look_at(arguments[i], &view, 1) < 0) return NULL;
        q.out = view.buf, q.size = (size_t)view.len / 4;
        Py_BEGIN_ALLOW_THREADS
        in_parallel(some_quotients, &q, parts(q.size, QUOTIENTS), threads);
        Py_END_ALLOW_THREADS
        PyBuffer_Release(&view);
    }
    Py_RETURN_NONE;
}

static void some_words(const void *given, size_t i) { best.strip(given, i); }

/* Of one tensor's words; NULL where that is refused. */
static PyObject *digest_words(PyObject *given, const Py_buffer *key, size_t threads) {
    Py_buffer view;
    if (look_at(given, &view, 0) < 0) return NULL;
    uint64_t found = 0;
    Digest d = {.words = view.buf, .key = key->buf, .size = (size_t)view.len / 4};
    size_t strips = parts(d.size, STRIP * PORTION);
    int fits = view.len % 4 == 0;
    if (fits) {
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
    PyBuffer_Release(&view);
    if (!fits) return PyErr_Format(PyExc_ValueError, "whole words are wanted.");
    return d.found ? PyLong_FromUnsignedLongLong(found) : PyErr_NoMemory();
}

static PyObject *digests(PyObject *module, PyObject *const *arguments, Py_ssize_t count) {
    Py_buffer key;
    if (count < 2) return PyErr_Format(PyExc_TypeError, "digests takes a key and a number of threads first.");
    size_t threads = PyLong_AsSize_t(arguments[1]);
    if (PyErr_Occurred() || look_at(arguments[0], &key, 0) < 0) return NULL;
    PyObject *found = NULL;
    if (key.len == 4 * (PORTION + 2) && is_count(threads))
        found = PyTuple_New(count - 2);
    else
        PyErr_Format(PyExc_ValueError, "a key of %d words and a number of threads are wanted.", PORTION + 2);
    for (Py_ssize_t i = 2; found && i < count; i++) {
        PyObject *one = digest_words(arguments[i], &key, threads);
        if (!one || PyTuple_SetItem(found, i - 2, one) < 0) Py_CLEAR(found);
    }
    PyBuffer_Release(&key);
    return found;
}
