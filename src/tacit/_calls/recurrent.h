/* Steps of an LSTM from Python: sizes are checked here, and records are given to threads. */

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
