/* What Python hands over: memory, and numbers. */

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
