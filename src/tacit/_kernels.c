/* Inner loops in one pass over memory: what other modules do with arrays where this is not compiled (tacit._compiled).
 *
 * flushes(threads) -> whether              one of so many threads takes denormal numbers for zero; None if unknown
 * keystream(key, out)                      AES-256 in counter mode, from counter 0 on
 * noise(keys, out, std, grid, piece, threads)  out = normal values, each `piece` of them from the keystream of its own key
 *                                          (_loops/noise.h); with a grid: (value + out / grid), rounded, times grid
 * outer_sum(narrow, wide, out, rows, call, threads)  out = sum over records of column (of `rows` entries) times row,
 *                                          `call` of them at a time in float32, then the sums of calls, one by one
 * product_sum(left, right, weights, out, call, threads)  the same, weighted, for any number of rows (_loops/products.h)
 * linear(x, weight, bias, out, terms, turned, threads)  out = x weight + bias, which may be empty, by the same products: a row
 *                                          is the same beside any others; where it is turned, each row of weight is an output
 * squares(rows, out, threads)              the sum of the squares of each row, one row for every entry of `out`
 * digest(words, key, threads) -> whole number  below 2^61, which other words have with probability 2^-27 for a random key
 * windows_form(*windows, out)              out = the gradient of a convolution for every record (_loops/windows.h), with
 * windows_squares(*windows, out)           *windows = image, grad, starts, entries, records, images, blocks, threads;
 * windows_sum(*windows, weights, out)      their squared norms; and their weighted sum, one record after the other
 * max_pool(images, out, *sizes, threads)   out = the maxima of windows, *sizes = height, width, and twice each: kernel,
 *                                          stride, padding
 * max_pool_placed(images, places, out, *sizes, threads)  also the place of each in its window, in a byte
 * max_unpool(grads, places, images, *sizes, threads)  images = the gradients of such maxima, brought back there
 * lstm_forward(gates, cells, squashed, outs, cell, at, steps, hidden, threads)  one step of an LSTM (_loops/recurrent.h):
 * lstm_backward(gates, cells, squashed, d_gates, d_cell, d_state, at, steps, hidden, threads)  step `at` of each record
 *
 * Arguments are buffers or tensors: keys of AES and keystreams of bytes, other words, keys, starts and entries of 32 bits, the rest
 * float32. Sizes are checked here. The constant `aes` says whether this processor has the instructions for the first two,
 * which refuse otherwise.
 */
#define Py_LIMITED_API 0x030B0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <dlfcn.h>
#include <fenv.h>
#include <limits.h>
#include <math.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if defined(__GNUC__)
#define INLINE static inline __attribute__((always_inline))
#define FETCH(address) __builtin_prefetch(address)
#else
#define INLINE static inline
#define FETCH(address)
#endif

INLINE size_t at_most(size_t count, size_t most) { return count < most ? count : most; }

#include "_loops/aes.h"
#include "_loops/digest.h"
#include "_loops/noise.h"
#include "_loops/pooling.h"
#include "_loops/products.h"
#include "_loops/recurrent.h"
#include "_loops/sums.h"
#include "_loops/threads.h"
#include "_loops/windows.h"

#include "_loops/versions.h" /* of all of these */

/* A whole number that an attribute of an object is, or that a method of it returns. */
static size_t asked(PyObject *object, const char *name, int method) {
    PyObject *found = method ? PyObject_CallMethod(object, name, NULL) : PyObject_GetAttrString(object, name);
    size_t number = found ? PyLong_AsSize_t(found) : 0;
    Py_XDECREF(found);
    return number;
}

/* The memory of a buffer, or of a tensor, which the arguments keep: through an array it would be marked, for good, as one
 * that others may write to. */
static int look_at(PyObject *given, Py_buffer *view, int writable) {
    if (PyObject_CheckBuffer(given)) return PyObject_GetBuffer(given, view, writable ? PyBUF_WRITABLE : PyBUF_SIMPLE);
    *view = (Py_buffer){.buf = (void *)asked(given, "data_ptr", 1)};
    if (!PyErr_Occurred()) view->len = (Py_ssize_t)asked(given, "nbytes", 0);
    int there = !PyErr_Occurred() && (view->buf || !view->len) && asked(given, "is_cpu", 0) &&
                asked(given, "is_contiguous", 1) && !asked(given, "is_neg", 1);
    if (!there && !PyErr_Occurred())
        PyErr_SetString(PyExc_BufferError, "the tensor is not contiguous in the memory of the processor.");
    return PyErr_Occurred() ? -1 : 0;
}

/* The arguments as buffers, the one at `written` writable; on failure nothing stays taken. */
static int take(PyObject *const *arguments, Py_buffer *views, int count, int written) {
    for (int i = 0; i < count; i++)
        if (look_at(arguments[i], views + i, i == written) < 0) {
            while (i--) PyBuffer_Release(views + i);
            return -1;
        }
    return 0;
}

static void give_back(Py_buffer *views, int count) {
    while (count--) PyBuffer_Release(views + count);
}

/* How many numbers of 4 bytes there are for each of `count` things, or 0 where that is no whole number. */
static size_t for_each(Py_ssize_t bytes, size_t count) {
    return count && (size_t)bytes % 4 == 0 && (size_t)bytes / 4 % count == 0 ? (size_t)bytes / 4 / count : 0;
}

/* How many parts of at most so many, or of one, that is. */
static size_t parts(size_t count, size_t most) { return most ? (count + most - 1) / most : count; }

static int is_count(size_t threads) { return 0 < threads && threads <= UINT_MAX; }

static PyObject *flushes(PyObject *module, PyObject *threads) {
    size_t count = PyLong_AsSize_t(threads);
    if (PyErr_Occurred()) return NULL;
    if (!is_count(count)) return PyErr_Format(PyExc_ValueError, "%zu threads cannot be asked.", count);
    int found = flushing(count);
    if (found < 0) Py_RETURN_NONE;
    return PyBool_FromLong(found);
}

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
} Noise;

static void one_piece(const void *given, size_t i) {
    const Noise *n = given;
    size_t first = i * n->piece;
    best.normal(n->keys + KEY * i, n->out + first, at_most(n->size - first, n->piece), n->std, n->grid);
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

static void some_panels(const void *given, size_t i) { best.panels(given, i); }

static void some_products(const void *given, size_t i) {
    Products *p = (Products *)given;
    size_t panels = p->turned_left ? 1 : parts(parts(p->rows, best.height), p->tasks);
    float *left = malloc(panels * best.height * p->records * sizeof(float) + 64);
    if (left)
        best.products(p, i, (float *)((uintptr_t)left + (64 - (uintptr_t)left % 64)));
    else
        atomic_store(&p->failed, 1);
    free(left);
}

/* In as many tasks as let the left factor stay in the cache, and all threads work for as long. */
static void multiply(Products *p, size_t threads) {
    p->width = p->turned_left && p->columns <= best.length ? best.length : 2 * best.length;
    size_t panels = parts(p->columns, p->width), blocks = parts(panels, RIGHT_BYTES / 4 / p->width / p->records);
    size_t rows = parts(p->rows, best.height), tasks = parts(rows, LEFT_BYTES / 4 / best.height / p->records);
    p->tasks = at_most(parts(tasks, threads) * threads, rows);
    float *memory = malloc(parts(panels, blocks) * p->width * p->records * sizeof(float) + 64);
    p->panels = (float *)((uintptr_t)memory + (64 - (uintptr_t)memory % 64));
    atomic_store(&p->failed, !memory);
    for (size_t i = 0; memory && i < blocks; i++) {
        p->first = panels * i / blocks * p->width, p->end = at_most(panels * (i + 1) / blocks * p->width, p->columns);
        in_parallel(some_panels, p, parts(p->end - p->first, PANELS * p->width), threads);
        in_parallel(some_products, p, p->tasks, threads);
    }
    free(memory);
}

static PyObject *product_sum(PyObject *module, PyObject *const *arguments, Py_ssize_t count) {
    Py_buffer views[4]; /* left, right, weights, out */
    if (count != 6) return PyErr_Format(PyExc_TypeError, "product_sum takes 6 arguments, not %zd.", count);
    Products p = {.call = PyLong_AsSize_t(arguments[4])};
    size_t threads = PyLong_AsSize_t(arguments[5]), entries = 0;
    if (PyErr_Occurred() || take(arguments, views, 4, 3) < 0) return NULL;
    p.left = views[0].buf, p.right = views[1].buf, p.weights = views[2].buf, p.out = views[3].buf;
    p.records = for_each(views[2].len, 1);
    p.rows = for_each(views[0].len, p.records), p.columns = for_each(views[1].len, p.records);
    int fits = 0 < p.call && p.call <= CALL && is_count(threads) && p.rows && p.columns &&
               !__builtin_mul_overflow(p.rows, p.columns, &entries) && for_each(views[3].len, 1) == entries;
    if (fits) {
        Py_BEGIN_ALLOW_THREADS
        multiply(&p, threads);
        Py_END_ALLOW_THREADS
    }
    give_back(views, 4);
    if (!fits) return PyErr_Format(PyExc_ValueError, "the factors and weights do not fit a sum of %zu rows.", p.rows);
    if (atomic_load(&p.failed)) return PyErr_NoMemory();
    Py_RETURN_NONE;
}

static PyObject *linear(PyObject *module, PyObject *const *arguments, Py_ssize_t count) {
    Py_buffer views[4]; /* x, weight, bias, out */
    if (count != 7) return PyErr_Format(PyExc_TypeError, "linear takes 7 arguments, not %zd.", count);
    Products p = {.turned_left = 1, .call = CALL, .records = PyLong_AsSize_t(arguments[4])};
    size_t turned = PyLong_AsSize_t(arguments[5]), threads = PyLong_AsSize_t(arguments[6]), entries = 0;
    if (PyErr_Occurred() || take(arguments, views, 4, 3) < 0) return NULL;
    p.left = views[0].buf, p.right = views[1].buf, p.out = views[3].buf, p.turned_right = turned != 0;
    p.bias = views[2].len ? views[2].buf : NULL;
    p.rows = for_each(views[0].len, p.records), p.columns = for_each(views[1].len, p.records);
    int fits = is_count(threads) && p.rows && p.columns && !__builtin_mul_overflow(p.rows, p.columns, &entries) &&
               for_each(views[3].len, 1) == entries && (!p.bias || for_each(views[2].len, 1) == p.columns);
    if (fits) {
        Py_BEGIN_ALLOW_THREADS
        multiply(&p, threads);
        Py_END_ALLOW_THREADS
    }
    give_back(views, 4);
    if (!fits) return PyErr_Format(PyExc_ValueError, "the sizes do not fit a map of %zu rows.", p.rows);
    if (atomic_load(&p.failed)) return PyErr_NoMemory();
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

static void pool_planes(const void *given, size_t i) {
    Pooling *p = (Pooling *)given;
    size_t lines = p->rows * p->pitch + p->kernel[1], windows = p->rows * p->pitch / p->stride[1];
    float *line = malloc(2 * (lines + windows) * sizeof(float)), *row = line + lines, *found = row + lines;
    if (line)
        for (size_t j = 0; j < lines; j++) line[j] = -INFINITY, row[j] = NOWHERE;
    else
        atomic_store(&p->failed, 1);
    for (size_t k = p->planes * i / p->tasks; line && k < p->planes * (i + 1) / p->tasks; k++)
        best.pool(p, k, line, row, found, found + windows);
    free(line);
}

static void unpool_planes(const void *given, size_t i) {
    const Pooling *p = given;
    for (size_t k = p->planes * i / p->tasks; k < p->planes * (i + 1) / p->tasks; k++)
        unpool(p, p->images, k, p->out + k * p->height * p->width);
}

/* Windows that each have an entry of the image, from height, width, kernel, stride and padding; false otherwise, and where
 * so many numbers are not images and their maxima. */
static int windowed(Pooling *p, const size_t *sizes, size_t images, size_t maxima) {
    size_t out[2], plane, reduced;
    p->height = sizes[0], p->width = sizes[1];
    for (int d = 0; d < 2; d++) {
        p->kernel[d] = sizes[2 + d], p->stride[d] = sizes[4 + d], p->padding[d] = sizes[6 + d];
        for (int i = 0; i < 3; i++) /* sums and products of two of these do not wrap */
            if (!sizes[d] || sizes[d + 2 * i] > INT32_MAX) return 0;
        if (!p->stride[d] || !p->kernel[d] || p->padding[d] > p->kernel[d] / 2) return 0;
        if (p->kernel[d] > sizes[d] + 2 * p->padding[d]) return 0;
        out[d] = (sizes[d] + 2 * p->padding[d] - p->kernel[d]) / p->stride[d] + 1;
    }
    p->rows = out[0], p->columns = out[1];
    if (p->columns == 1) p->stride[1] = 1; /* there is no next one */
    p->pitch = ((out[1] - 1) * p->stride[1] + p->kernel[1] + p->stride[1] - 1) / p->stride[1] * p->stride[1];
    plane = p->height * p->width, reduced = out[0] * out[1], p->planes = images / plane;
    return p->pitch <= SIZE_MAX / 64 / p->rows && images % plane == 0 && maxima % reduced == 0 &&
           maxima / reduced == p->planes;
}

/* `max_pool`, `max_pool_placed` and `max_unpool`: from the first to the last, with the places if there are any. */
static PyObject *pool(PyObject *const *arguments, Py_ssize_t count, int placed, int back) {
    int taken = 2 + placed;
    if (count != taken + 9)
        return PyErr_Format(PyExc_TypeError, "there are %zd arguments instead of %d.", count, taken + 9);
    size_t sizes[9]; /* height, width, kernel, stride and padding, threads */
    for (int i = 0; i < 9; i++) sizes[i] = PyLong_AsSize_t(arguments[taken + i]);
    if (PyErr_Occurred()) return NULL;
    Py_buffer views[3]; /* images or grads, places, out or images */
    for (int i = 0; i < taken; i++)
        if (look_at(arguments[i], views + i, i && !(back && i == 1)) < 0) {
            give_back(views, i);
            return NULL;
        }
    Py_buffer *last = views + taken - 1;
    size_t first = for_each(views[0].len, 1), made = for_each(last->len, 1), maxima = back ? first : made;
    Pooling p = {.images = views[0].buf, .out = last->buf, .places = placed ? views[1].buf : NULL};
    int fits = is_count(sizes[8]) && windowed(&p, sizes, back ? made : first, maxima) &&
               (!placed || ((size_t)views[1].len == maxima && p.kernel[0] * p.kernel[1] <= 256));
    if (fits) {
        p.tasks = at_most(sizes[8], p.planes);
        for (size_t k = 0; k < 256; k++) /* in the padding a number larger than any row or column */
            p.down[k] = k / p.kernel[1] - p.padding[0], p.along[k] = k % p.kernel[1] - p.padding[1];
        Py_BEGIN_ALLOW_THREADS
        in_parallel(back ? unpool_planes : pool_planes, &p, p.tasks, sizes[8]);
        Py_END_ALLOW_THREADS
    }
    give_back(views, taken);
    if (!fits) return PyErr_Format(PyExc_ValueError, "the sizes do not fit windows of %zu by %zu.", sizes[2], sizes[3]);
    if (atomic_load(&p.failed)) return PyErr_NoMemory();
    Py_RETURN_NONE;
}

static PyObject *max_pool(PyObject *module, PyObject *const *arguments, Py_ssize_t count) {
    return pool(arguments, count, 0, 0);
}

static PyObject *max_pool_placed(PyObject *module, PyObject *const *arguments, Py_ssize_t count) {
    return pool(arguments, count, 1, 0);
}

static PyObject *max_unpool(PyObject *module, PyObject *const *arguments, Py_ssize_t count) {
    return pool(arguments, count, 1, 1);
}

/* The largest of some offsets, or -1 if one is negative or there are none. */
static int64_t largest(const int32_t *offsets, size_t count) {
    int64_t found = -1;
    for (size_t i = 0; i < count; i++) {
        if (offsets[i] < 0) return -1;
        if (offsets[i] > found) found = offsets[i];
    }
    return found;
}

/* Windows from image, grad, starts and entries; false where their sizes do not fit. */
static int cut(Windows *w, const Py_buffer *views) {
    size_t all;
    w->image = views[0].buf, w->grad = views[1].buf, w->starts = views[2].buf, w->entries = views[3].buf;
    w->places = for_each(views[2].len, 1), w->window = for_each(views[3].len, 1);
    if (!w->places || !w->window || __builtin_mul_overflow(w->records, w->images, &all) ||
        __builtin_mul_overflow(all, w->blocks, &all))
        return 0;
    size_t rows = for_each(views[1].len, all);
    int64_t last = largest(w->starts, w->places), beyond = largest(w->entries, w->window);
    w->extent = for_each(views[0].len, all), w->outputs = rows / w->places;
    return w->outputs && rows % w->places == 0 && last >= 0 && beyond >= 0 && last + beyond <= INT32_MAX &&
           (size_t)(last + beyond) < w->extent;
}

typedef struct {
    Windows windows;
    const float *weights;
    float *out;
} Convolution;

static void form_one(const void *given, size_t i) {
    const Convolution *c = given;
    best.form(&c->windows, i, c->out + i * c->windows.blocks * c->windows.outputs * c->windows.window);
}

static void measure_one(const void *given, size_t i) {
    const Convolution *c = given;
    c->out[i] = best.measure(&c->windows, i);
}

static void add_one(const void *given, size_t i) {
    const Convolution *c = given;
    best.add(&c->windows, c->weights, i, c->out);
}

/* `windows_*`: eight arguments for the windows, weights if there are any, and what is written. */
static PyObject *convolve(PyObject *const *arguments, Py_ssize_t count, void (*task)(const void *, size_t)) {
    Py_ssize_t wanted = task == add_one ? 10 : 9;
    if (count != wanted) return PyErr_Format(PyExc_TypeError, "there are %zd arguments instead of %zd.", count, wanted);
    size_t sizes[4]; /* records, images, blocks, threads */
    for (int i = 0; i < 4; i++) sizes[i] = PyLong_AsSize_t(arguments[4 + i]);
    PyObject *const buffers[6] = {arguments[0], arguments[1],         arguments[2],
                                  arguments[3], arguments[count - 1], arguments[8]};
    Py_buffer views[6]; /* image, grad, starts, entries, out, weights */
    int taken = task == add_one ? 6 : 5;
    if (PyErr_Occurred() || take(buffers, views, taken, 4) < 0) return NULL;
    Convolution c = {.windows = {.records = sizes[0], .images = sizes[1], .blocks = sizes[2]}};
    Windows *w = &c.windows;
    int fits = cut(w, views) && is_count(sizes[3]);
    if (fits) {
        size_t of_one = for_each(views[4].len, task == form_one ? w->records : 1);
        fits = task == measure_one ? of_one == w->records
                                   : of_one % w->window == 0 && of_one / w->window == w->blocks * w->outputs;
        fits = fits && (task != add_one || for_each(views[5].len, 1) == w->records);
    }
    if (fits) {
        c.weights = task == add_one ? views[5].buf : NULL, c.out = views[4].buf;
        Py_BEGIN_ALLOW_THREADS
        in_parallel(task, &c, task == add_one ? pieces_of(w) : w->records, sizes[3]);
        Py_END_ALLOW_THREADS
    }
    give_back(views, taken);
    if (!fits) return PyErr_Format(PyExc_ValueError, "the sizes do not fit windows of %zu records.", sizes[0]);
    Py_RETURN_NONE;
}

static PyObject *windows_form(PyObject *module, PyObject *const *arguments, Py_ssize_t count) {
    return convolve(arguments, count, form_one);
}

static PyObject *windows_squares(PyObject *module, PyObject *const *arguments, Py_ssize_t count) {
    return convolve(arguments, count, measure_one);
}

static PyObject *windows_sum(PyObject *module, PyObject *const *arguments, Py_ssize_t count) {
    return convolve(arguments, count, add_one);
}

/* Of every record a row of `steps` times `hidden` numbers, or four times as many gates, and a state of `hidden`. */
typedef struct {
    float *gates, *cells, *squashed, *written, *cell, *state;
    size_t at, steps, hidden, records, tasks;
} Step;

static void some_forward(const void *given, size_t task) {
    const Step *s = given;
    for (size_t i = s->records * task / s->tasks; i < s->records * (task + 1) / s->tasks; i++) {
        size_t here = (i * s->steps + s->at) * s->hidden;
        best.lstm_forward(s->gates + 4 * here, s->cell + i * s->hidden, s->cells + here, s->squashed + here,
                          s->written + here, s->hidden);
    }
}

static void some_backward(const void *given, size_t task) {
    const Step *s = given;
    for (size_t i = s->records * task / s->tasks; i < s->records * (task + 1) / s->tasks; i++) {
        size_t here = (i * s->steps + s->at) * s->hidden, own = i * s->hidden;
        best.lstm_backward(s->gates + 4 * here, s->cells + here, s->squashed + here, s->state + own, s->cell + own,
                           s->written + 4 * here, s->hidden);
    }
}

/* `lstm_forward`: gates, cells, squashed, outs and cell are written; `lstm_backward`: d_gates and d_cell. */
static PyObject *lstm(PyObject *const *arguments, Py_ssize_t count, int backward) {
    Py_buffer views[6]; /* gates, cells, squashed, outs or d_gates, cell or d_cell, and backwards d_state */
    int taken = 5 + backward, first = backward ? 3 : 0;
    if (count != taken + 4)
        return PyErr_Format(PyExc_TypeError, "there are %zd arguments instead of %d.", count, taken + 4);
    size_t numbers[4]; /* at, steps, hidden, threads */
    for (int i = 0; i < 4; i++) numbers[i] = PyLong_AsSize_t(arguments[taken + i]);
    if (PyErr_Occurred()) return NULL;
    for (int i = 0; i < taken; i++)
        if (look_at(arguments[i], views + i, first <= i && i < 5) < 0) {
            give_back(views, i);
            return NULL;
        }
    Step s = {views[0].buf, views[1].buf, views[2].buf, views[3].buf, views[4].buf, backward ? views[5].buf : NULL,
              numbers[0], numbers[1], numbers[2], 0, 0};
    s.records = for_each(views[4].len, s.hidden);
    Py_ssize_t all = views[1].len;
    int fits = s.records && s.at < s.steps && is_count(numbers[3]) && for_each(all, s.steps) == s.records * s.hidden &&
               views[2].len == all && views[0].len / 4 == all && views[0].len % 4 == 0 &&
               (backward ? views[3].len == views[0].len && views[5].len == views[4].len : views[3].len == all);
    if (fits) {
        s.tasks = numbers[3] < s.records ? numbers[3] : s.records;
        Py_BEGIN_ALLOW_THREADS
        in_parallel(backward ? some_backward : some_forward, &s, s.tasks, numbers[3]);
        Py_END_ALLOW_THREADS
    }
    give_back(views, taken);
    if (!fits) return PyErr_Format(PyExc_ValueError, "the sizes do not fit %zu steps of %zu.", s.steps, s.hidden);
    Py_RETURN_NONE;
}

static PyObject *lstm_forward(PyObject *module, PyObject *const *arguments, Py_ssize_t count) {
    return lstm(arguments, count, 0);
}

static PyObject *lstm_backward(PyObject *module, PyObject *const *arguments, Py_ssize_t count) {
    return lstm(arguments, count, 1);
}

#define FUNCTION(name) {#name, (PyCFunction)(void (*)(void))name, METH_FASTCALL, "See the top of _kernels.c."}

static PyMethodDef methods[] = {
    {"flushes", flushes, METH_O, "See the top of _kernels.c."},
    FUNCTION(keystream),
    FUNCTION(noise),
    FUNCTION(outer_sum),
    FUNCTION(product_sum),
    FUNCTION(linear),
    FUNCTION(squares),
    FUNCTION(digest),
    FUNCTION(max_pool),
    FUNCTION(max_pool_placed),
    FUNCTION(max_unpool),
    FUNCTION(windows_form),
    FUNCTION(windows_squares),
    FUNCTION(windows_sum),
    FUNCTION(lstm_forward),
    FUNCTION(lstm_backward),
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "tacit._kernels", "Compiled inner loops.", -1, methods,
};

PyMODINIT_FUNC PyInit__kernels(void) {
    best = BEST;
    aes = AES;
    PyObject *module = PyModule_Create(&definition);
    if (module && (PyModule_AddIntConstant(module, "wide", best.length > PANEL_COLUMNS / 8) < 0 ||
                   PyModule_AddIntConstant(module, "aes", aes.blocks != NULL) < 0))
        Py_CLEAR(module);
    return module;
}
