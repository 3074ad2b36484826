/* Maxima over windows from Python: sizes are checked here, and planes are given to threads. */

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
