/* Matrix products from Python: sizes are checked here, and panels are given to threads. */

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

/* What both return: left, right, weights or bias and out were taken, and fit so far. */
static PyObject *multiplied(Products *p, Py_buffer *views, int fits, size_t threads) {
    size_t entries = 0;
    p->left = views[0].buf, p->right = views[1].buf, p->out = views[3].buf;
    p->rows = for_each(views[0].len, p->records), p->columns = for_each(views[1].len, p->records);
    fits = fits && is_count(threads) && p->rows && p->columns &&
           !__builtin_mul_overflow(p->rows, p->columns, &entries) && for_each(views[3].len, 1) == entries &&
           (!p->bias || for_each(views[2].len, 1) == p->columns);
    if (fits) {
        Py_BEGIN_ALLOW_THREADS
        multiply(p, threads);
        Py_END_ALLOW_THREADS
    }
    give_back(views, 4);
    if (!fits) return PyErr_Format(PyExc_ValueError, "the factors do not fit a product of %zu rows.", p->rows);
    if (atomic_load(&p->failed)) return PyErr_NoMemory();
    Py_RETURN_NONE;
}

static PyObject *product_sum(PyObject *module, PyObject *const *arguments, Py_ssize_t count) {
    Py_buffer views[4]; /* left, right, weights, out */
    if (count != 6) return PyErr_Format(PyExc_TypeError, "product_sum takes 6 arguments, not %zd.", count);
    Products p = {.call = PyLong_AsSize_t(arguments[4])};
    size_t threads = PyLong_AsSize_t(arguments[5]);
    if (PyErr_Occurred() || take(arguments, views, 4, 3) < 0) return NULL;
    p.weights = views[2].buf, p.records = for_each(views[2].len, 1);
    return multiplied(&p, views, 0 < p.call && p.call <= CALL, threads);
}

static PyObject *linear(PyObject *module, PyObject *const *arguments, Py_ssize_t count) {
    Py_buffer views[4]; /* x, weight, bias, out */
    if (count != 7) return PyErr_Format(PyExc_TypeError, "linear takes 7 arguments, not %zd.", count);
    Products p = {.turned_left = 1, .call = CALL, .records = PyLong_AsSize_t(arguments[4])};
    size_t turned = PyLong_AsSize_t(arguments[5]), threads = PyLong_AsSize_t(arguments[6]);
    if (PyErr_Occurred() || take(arguments, views, 4, 3) < 0) return NULL;
    p.bias = views[2].len ? views[2].buf : NULL, p.turned_right = turned != 0;
    return multiplied(&p, views, 1, threads);
}
