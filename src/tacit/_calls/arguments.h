/* What Python hands over: memory, and numbers. */

/* What tensors are asked; the texts are made when the module is loaded. */
enum { DATA_PTR, NBYTES, IS_CPU, IS_CONTIGUOUS, IS_NEG, QUESTIONS };
static const char *const questions[QUESTIONS] = {"data_ptr", "nbytes", "is_cpu", "is_contiguous", "is_neg"};
static PyObject *question[QUESTIONS];

static int prepare_questions(void) {
    for (int i = 0; i < QUESTIONS; i++)
        if (!question[i] && !(question[i] = PyUnicode_InternFromString(questions[i]))) return -1;
    return 0;
}

/* A whole number that an attribute of an object is, or that a method of it returns. */
static size_t asked(PyObject *object, int which, int method) {
    PyObject *found = PyObject_GetAttr(object, question[which]);
    if (found && method) {
        PyObject *answer = PyObject_CallNoArgs(found);
        Py_DECREF(found);
        found = answer;
    }
    size_t number = !found ? 0 : found == Py_True ? 1 : found == Py_False ? 0 : PyLong_AsSize_t(found);
    Py_XDECREF(found);
    return number;
}

/* The memory of a buffer, or of a tensor, which the arguments keep: through an array it would be marked, for good, as one
 * that others may write to. */
static int look_at(PyObject *given, Py_buffer *view, int writable) {
    if (PyObject_CheckBuffer(given)) return PyObject_GetBuffer(given, view, writable ? PyBUF_WRITABLE : PyBUF_SIMPLE);
    *view = (Py_buffer){.buf = (void *)asked(given, DATA_PTR, 1)};
    if (!PyErr_Occurred()) view->len = (Py_ssize_t)asked(given, NBYTES, 0);
    int there = !PyErr_Occurred() && (view->buf || !view->len) && asked(given, IS_CPU, 0) &&
                asked(given, IS_CONTIGUOUS, 1) && !asked(given, IS_NEG, 1);
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
