/* Gradients of convolutions from Python: sizes are checked here, and records are given to threads. */

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
