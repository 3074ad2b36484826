/* Noise from Python: sizes are checked here, and pieces are given to threads. */

static PyObject *no_aes(void) {
    return PyErr_Format(PyExc_RuntimeError, "this processor has no instructions for AES.");
}

static PyObject *keystream(PyObject *module, PyObject *const *arguments, Py_ssize_t count) {
    Py_buffer views[2]; /* key, out */
    if (count != 2) return PyErr_Format(PyExc_TypeError, "keystream takes 2 arguments, not %zd.", count);
    if (!aes.blocks) return no_aes();
    if (take(arguments, views, 2, 1) < 0) return NULL;
    int fits = views[0].len == KEY;
    if (fits) {
        RoundKeys keys;
        uint8_t made[16 * AT_ONCE], *out = views[1].buf;
        size_t size = (size_t)views[1].len;
        aes.expand(views[0].buf, keys);
        for (size_t start = 0; start < size; start += sizeof(made)) {
            aes.blocks(keys, start / 16, made);
            memcpy(out + start, made, at_most(size - start, sizeof(made)));
        }
        wipe(keys, sizeof(keys));
        wipe(made, sizeof(made));
    }
    give_back(views, 2);
    if (!fits) return PyErr_Format(PyExc_ValueError, "a key of %d bytes is wanted.", KEY);
    Py_RETURN_NONE;
}

typedef struct {
    const uint8_t *keys;
    float *out;
    size_t size, piece;
    float std, grid;
    const Past *past;
} Noise;

static void one_piece(const void *given, size_t i) {
    const Noise *n = given;
    size_t first = i * n->piece;
    best.normal(n->keys + KEY * i, n->out + first, at_most(n->size - first, n->piece), n->std, n->grid, n->past, first);
}

static PyObject *noise(PyObject *module, PyObject *const *arguments, Py_ssize_t count) {
    Py_buffer views[2]; /* keys, out */
    if (count != 6) return PyErr_Format(PyExc_TypeError, "noise takes 6 arguments, not %zd.", count);
    if (!aes.blocks) return no_aes();
    Noise given = {.std = (float)PyFloat_AsDouble(arguments[2]), .grid = (float)PyFloat_AsDouble(arguments[3])};
    size_t threads = PyLong_AsSize_t(arguments[5]), pieces = 0;
    given.piece = PyLong_AsSize_t(arguments[4]);
    if (PyErr_Occurred() || take(arguments, views, 2, 1) < 0) return NULL;
    given.keys = views[0].buf, given.out = views[1].buf, given.size = (size_t)views[1].len / 4;
    if (given.piece) pieces = given.size / given.piece + (given.size % given.piece != 0);
    int fits = given.piece && views[1].len % 4 == 0 && (size_t)views[0].len == KEY * pieces && is_count(threads);
    if (fits) {
        Py_BEGIN_ALLOW_THREADS
        in_parallel(one_piece, &given, pieces, threads);
        Py_END_ALLOW_THREADS
    }
    give_back(views, 2);
    if (!fits) return PyErr_Format(PyExc_ValueError, "the keys do not fit %zu values.", given.size);
    Py_RETURN_NONE;
}

typedef struct {
    Noise noise;
    const float *weights;
    size_t streams, stride;
} Mixed;

static void one_mixed_piece(const void *given, size_t i) {
    const Mixed *m = given;
    const Noise *n = &m->noise;
    size_t first = i * n->piece;
    best.mixed(n->keys + KEY * i, m->stride, m->weights, m->streams, n->out + first,
               at_most(n->size - first, n->piece), n->std, n->grid);
}

static PyObject *mixed_noise(PyObject *module, PyObject *const *arguments, Py_ssize_t count) {
    Py_buffer views[3]; /* keys, weights, out */
    if (count != 7) return PyErr_Format(PyExc_TypeError, "mixed_noise takes 7 arguments, not %zd.", count);
    if (!aes.blocks) return no_aes();
    Mixed given = {.noise = {.std = (float)PyFloat_AsDouble(arguments[3]), .grid = (float)PyFloat_AsDouble(arguments[4])}};
    Noise *noise = &given.noise;
    size_t threads = PyLong_AsSize_t(arguments[6]), pieces = 0;
    noise->piece = PyLong_AsSize_t(arguments[5]);
    if (PyErr_Occurred() || take(arguments, views, 3, 2) < 0) return NULL;
    noise->keys = views[0].buf, noise->out = views[2].buf, noise->size = (size_t)views[2].len / 4;
    given.weights = views[1].buf, given.streams = (size_t)views[1].len / 4;
    if (noise->piece) pieces = noise->size / noise->piece + (noise->size % noise->piece != 0);
    given.stride = KEY * pieces;
    int fits = noise->piece && views[1].len % 4 == 0 && views[2].len % 4 == 0 && is_count(threads) && given.streams &&
               given.streams <= STREAMS && (size_t)views[0].len == given.stride * given.streams;
    if (fits) {
        Py_BEGIN_ALLOW_THREADS
        in_parallel(one_mixed_piece, &given, pieces, threads);
        Py_END_ALLOW_THREADS
    }
    give_back(views, 3);
    if (!fits)
        return PyErr_Format(PyExc_ValueError, "the keys do not fit %zu values of %zu streams.", noise->size, given.streams);
    Py_RETURN_NONE;
}

static PyObject *recursive_noise(PyObject *module, PyObject *const *arguments, Py_ssize_t count) {
    Py_buffer views[5]; /* keys, weights, decays, rows, out */
    if (count != 10) return PyErr_Format(PyExc_TypeError, "recursive_noise takes 10 arguments, not %zd.", count);
    if (!aes.blocks) return no_aes();
    Noise given = {.std = (float)PyFloat_AsDouble(arguments[6]), .grid = (float)PyFloat_AsDouble(arguments[7])};
    Past past = {.at = PyLong_AsSize_t(arguments[5])};
    size_t threads = PyLong_AsSize_t(arguments[9]), pieces = 0;
    given.piece = PyLong_AsSize_t(arguments[8]);
    if (PyErr_Occurred() || take(arguments, views, 5, 4) < 0) return NULL;
    given.keys = views[0].buf, given.out = views[4].buf, given.size = (size_t)views[4].len / 4, given.past = &past;
    past.weights = views[1].buf, past.decays = views[2].len ? views[2].buf : NULL, past.rows = views[3].buf;
    past.count = (size_t)views[1].len / 4, past.stride = given.size;
    if (given.piece) pieces = given.size / given.piece + (given.size % given.piece != 0);
    int fits = given.piece && views[4].len % 4 == 0 && (size_t)views[0].len == KEY * pieces && is_count(threads) &&
               views[1].len % 4 == 0 && (size_t)views[3].len == (size_t)views[1].len * given.size &&
               (past.decays ? views[2].len == views[1].len : past.at < past.count);
    if (fits) {
        Py_BEGIN_ALLOW_THREADS
        in_parallel(one_piece, &given, pieces, threads);
        Py_END_ALLOW_THREADS
    }
    give_back(views, 5);
    if (!fits)
        return PyErr_Format(PyExc_ValueError, "the keys or rows do not fit %zu values of %zu rows.", given.size, past.count);
    Py_RETURN_NONE;
}
