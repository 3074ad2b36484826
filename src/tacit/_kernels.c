/* Inner loops in one pass over memory: what other modules do with arrays where this is not compiled (tacit._compiled).
 *
 * flushes(threads) -> whether              one of so many threads takes denormal numbers for zero; None if unknown
 * keystream(key, out)                      AES-256 in counter mode, from counter 0 on
 * noise(keys, out, std, grid, piece, threads)  out = normal values, each `piece` of them from the keystream of its own key
 *                                          (_loops/noise.h); with a grid: (value + out / grid), rounded, times grid
 * mixed_noise(keys, weights, out, std, grid, piece, threads)  the same for the weighted sum of several streams, at most 64,
 *                                          with the keys of one after those of the other
 * recursive_noise(keys, weights, decays, rows, out, at, std, grid, piece, threads)  as noise, of standard normals less the
 *                                          weighted sum of rows; without decays row `at` becomes the result, with them each row
 *                                          becomes decay * row + the result
 * outer_sum(narrow, wide, out, rows, call, threads)  out = sum over records of column (of `rows` entries) times row,
 *                                          `call` of them at a time in float32, then the sums of calls, one by one
 * product_sum(left, right, weights, out, call, threads)  the same, weighted, for any number of rows (_loops/products.h)
 * linear(x, weight, bias, out, terms, turned, threads)  out = x weight + bias, which may be empty, by the same products: a row
 *                                          is the same beside any others; where it is turned, each row of weight is an output
 * squares(rows, out, threads)              the sum of the squares of each row, one row for every entry of `out`
 * squares_each(out, threads, *tensors)     the same for several tensors, a row of `out` for each
 * row_sums(weights, call, threads, *pairs)  out = the weighted sum of rows, as outer_sum, for pairs of rows and out
 * outer_squares(left, right, out, of_right, threads)  the squares of rows of two matrices multiplied, those too small for
 *                                          float32 taken for its smallest number; and those of the right one as they are
 * roots(more, factor, out, *squares) -> whether they are finite  out = (the root of the sum of squares + more) * factor; an argument
 *                                          may be squares of several rows
 * quotients(bound, norms, out) -> the largest norm, or NaN if one is  out = bound / norm, at most 1
 * divide(by, threads, *tensors)            every entry divided, in place
 * digests(key, threads, *words) -> whole numbers  below 2^61, which other words have with probability 2^-27 for a random key
 * windows_form(*windows, out)              out = the gradient of a convolution for every record (_loops/windows.h), with
 * windows_squares(*windows, out)           *windows = image, grad, starts, entries, records, images, blocks, threads;
 * windows_sum(*windows, weights, out)      their squared norms; and their weighted sum, one record after the other
 * max_pool(images, out, *sizes, threads)   out = the maxima of windows, *sizes = height, width, and twice each: kernel,
 *                                          stride, padding
 * max_pool_placed(images, places, out, *sizes, threads)  also the place of each in its window, in a byte
 * max_unpool(grads, places, images, *sizes, threads)  images = the gradients of such maxima, brought back there
 * follow(func, types, args, kwargs) -> what func gives   operations on tensors of the batch (_calls/following.h), after
 * follow_with(*classes_and_functions)      has said what they are made of
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
#include <float.h>
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

#include "_calls/arguments.h"
#include "_calls/premises.h"
#include "_calls/following.h"
#include "_calls/noise.h"
#include "_calls/pooling.h"
#include "_calls/products.h"
#include "_calls/recurrent.h"
#include "_calls/sums.h"
#include "_calls/windows.h"

static PyObject *flushes(PyObject *module, PyObject *threads) {
    size_t count = PyLong_AsSize_t(threads);
    if (PyErr_Occurred()) return NULL;
    if (!is_count(count)) return PyErr_Format(PyExc_ValueError, "%zu threads cannot be asked.", count);
    int found = flushing(count);
    if (found < 0) Py_RETURN_NONE;
    return PyBool_FromLong(found);
}

#define FUNCTION(name) {#name, (PyCFunction)(void (*)(void))name, METH_FASTCALL, "See the top of _kernels.c."}

static PyMethodDef methods[] = {
    {"flushes", flushes, METH_O, "See the top of _kernels.c."},
    FUNCTION(keystream),
    FUNCTION(noise),
    FUNCTION(mixed_noise),
    FUNCTION(recursive_noise),
    FUNCTION(outer_sum),
    FUNCTION(product_sum),
    FUNCTION(linear),
    FUNCTION(squares),
    FUNCTION(squares_each),
    FUNCTION(row_sums),
    FUNCTION(outer_squares),
    FUNCTION(roots),
    FUNCTION(quotients),
    FUNCTION(divide),
    FUNCTION(digests),
    FUNCTION(follow),
    FUNCTION(follow_with),
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
    PyObject *module = prepare_questions() < 0 ? NULL : PyModule_Create(&definition);
    if (module && (PyModule_AddIntConstant(module, "wide", best.length > PANEL_COLUMNS / 8) < 0 ||
                   PyModule_AddIntConstant(module, "aes", aes.blocks != NULL) < 0 ||
                   PyModule_AddIntConstant(module, "follow_takes", GIVEN) < 0))
        Py_CLEAR(module);
    return module;
}
