/* Operations on tensors of the batch about which all is decided: the short way of tacit.gradients.traced.
 *
 * What is done here is what `Recorder.handle` would do, for operations of which `remembered.Decisions` knows where examples
 * lie afterwards, for those whose gradient rule it knows, and for those that tell no value of one tensor. Everything else is
 * left to Python, with the premises of what it will decide (premises.h), under which that is found again.
 */

/* Whether a function that tells what is known of a tensor is asked for one whose sizes data did not decide. */
static int tells(Premises *p, PyObject *args) {
    PyObject *value = PyTuple_Size(args) ? PyTuple_GetItem(args, 0) : NULL;
    if (!value || (PyObject *)Py_TYPE(value) != given[TRACED] || !(p->recorder = kept(value, A_RECORDER))) return 0;
    if (kept(p->recorder, A_ACTIVE) != Py_True || kept(p->recorder, A_ISOLATING) != Py_False) return 0;
    PyObject *tag = kept(value, A_TAG);
    return tag && kept(tag, A_BY_DATA) == Py_None;
}

/* Append the function, and the place in the code that calls it, to the calls of this pass. */
static int note_call(PyObject *recorder, PyObject *func) {
    PyObject *frame = (PyObject *)PyEval_GetFrame(), *code = NULL, *name = NULL;
    Py_XINCREF(frame);
    while (frame && frame != Py_None) {
        code = (PyObject *)PyFrame_GetCode((PyFrameObject *)frame);
        Py_DECREF(code); /* the frame has it */
        if (!(name = kept(code, A_CODE_NAME)) || PyUnicode_Compare(name, names[A_MODE])) break;
        PyObject *caller = PyObject_GetAttr(frame, names[A_BACK]); /* of a mode, which is there in some passes only */
        Py_DECREF(frame);
        frame = caller;
    }
    PyObject *last = frame && name ? PyObject_GetAttr(frame, names[A_LAST]) : NULL;
    PyObject *place = last ? PyLong_FromSsize_t((Py_ssize_t)code + PyLong_AsSsize_t(last)) : NULL;
    PyObject *site = place ? PyDict_GetItemWithError(given[SITES], place) : NULL;
    Py_XINCREF(site);
    if (place && !site && !PyErr_Occurred()) site = PyObject_CallFunctionObjArgs(given[SITE], code, last, NULL);
    PyObject *trail = site ? kept(recorder, A_TRAIL) : NULL;
    int noted = trail && PyList_Check(trail) && !PyList_Append(trail, func) && !PyList_Append(trail, site);
    Py_XDECREF(site);
    Py_XDECREF(frame);
    Py_XDECREF(last);
    Py_XDECREF(place);
    return noted;
}

/* By its rule, which says itself where examples lie in what it gives. */
static PyObject *by_rule(PyObject *rule, PyObject *recorder, PyObject *func, PyObject *args, PyObject *kwargs) {
    PyObject *options = kwargs ? kwargs : PyDict_New(), *out = NULL;
    if (options && !PyObject_SetAttr(recorder, names[A_CARRIED_OUT], Py_None))
        out = PyObject_CallFunctionObjArgs(rule, recorder, func, args, options, NULL);
    if (!kwargs) Py_XDECREF(options);
    return out;
}

/* Carry an operation out without following what it does inside, and without a compiler, which would trace the engine. */
static PyObject *carried_out(PyObject *rule, PyObject *recorder, PyObject *func, PyObject *types, PyObject *args,
                             PyObject *kwargs) {
    PyObject *compiler = PyObject_CallFunctionObjArgs(given[COMPILER], Py_None, NULL);
    if (!compiler) return NULL;
    PyObject *out = rule ? by_rule(rule, recorder, func, args, kwargs) :
                           PyObject_CallFunctionObjArgs(given[CARRY_OUT], func, types, args, kwargs, NULL);
    if (compiler != Py_None) {
        PyObject *error, *value, *trace;
        PyErr_Fetch(&error, &value, &trace);
        PyObject *put = PyObject_CallFunctionObjArgs(given[COMPILER], compiler, NULL);
        Py_XDECREF(put);
        PyErr_Restore(error, value, trace);
    }
    Py_DECREF(compiler);
    return out;
}

static int mark_one(PyObject *out, Premises *p, PyObject *form) {
    int is_new = (PyObject *)Py_TYPE(out) == given[TENSOR];
    if (!is_new && (PyObject *)Py_TYPE(out) != given[TRACED]) {
        PyErr_SetString(PyExc_TypeError, "an operation on the batch gives something else than before.");
        return 0;
    }
    int first = is_new ? PyObject_SetAttr(out, names[A_CLASS], given[TRACED]) :
                         PyObject_SetAttr(out, names[A_ENTERED], Py_False);
    return !first && !PyObject_SetAttr(out, names[A_RECORDER], p->recorder) &&
           !PyObject_SetAttr(out, names[A_TAG], kept(form, A_OF_FORM)) && !PyObject_SetAttr(out, names[A_EPOCH], p->epoch) &&
           !PyObject_SetAttr(out, names[A_FORM], form);
}

static int marked(PyObject *out, Premises *p, PyObject *form) {
    int right = 1;
    if (PyList_Check(form))
        for (Py_ssize_t i = 0; right && i < PyList_Size(form); i++) {
            PyObject *one = PySequence_GetItem(out, i);
            right = one && mark_one(one, p, PyList_GetItem(form, i));
            Py_XDECREF(one);
        }
    else
        right = mark_one(out, p, form);
    return right && !PyObject_SetAttr(p->recorder, names[A_CARRIED_OUT], out);
}

static void note_failure(PyObject *recorder) {
    if (!PyErr_ExceptionMatches(PyExc_RuntimeError) && !PyErr_ExceptionMatches(PyExc_IndexError)) return;
    PyObject *error, *value, *trace;
    PyErr_Fetch(&error, &value, &trace);
    PyObject *noted = PyObject_CallMethodObjArgs(recorder, names[A_FAILED], NULL);
    Py_XDECREF(noted);
    PyErr_Restore(error, value, trace);
}

/* `__torch_function__` of tensors of the batch: (func, types, args, kwargs). */
static PyObject *follow(PyObject *module, PyObject *const *arguments, Py_ssize_t count) {
    if (count < 3 || count > 4 || !given[TRACED]) return PyErr_Format(PyExc_TypeError, "follow takes 3 or 4 arguments.");
    PyObject *func = arguments[0], *types = arguments[1], *args = arguments[2], *kwargs = count > 3 ? arguments[3] : NULL;
    if (kwargs == Py_None) kwargs = NULL;
    PyObject *flags = PyDict_GetItemWithError(given[FLAGS], func), *form = NULL, *out = NULL;
    Premises p;
    p.lefts = p.founds = p.seens = p.ruled = 0;
    p.recorder = p.epoch = p.decisions = p.key = NULL;
    p.flags = flags ? PyLong_AsLong(flags) : 0;
    int known = 0;
    if (p.flags && PyTuple_Check(args))
        known = p.flags & TELLS ? tells(&p, args) : (form = decision(&p, func, args, kwargs)) != NULL;
    known = known && !PyErr_Occurred();
    if (known) {
        PyObject *recorder = p.recorder;
        Py_INCREF(recorder); /* `SITE` and the operation run other code, which may be the last to use these */
        Py_XINCREF(form);
        Py_XINCREF(p.epoch);
        int ruled = form && (PyObject *)Py_TYPE(form) != given[FORM] && !PyList_Check(form);
        known = note_call(recorder, func);
        if (known) out = carried_out(ruled ? form : NULL, recorder, func, types, args, kwargs);
        if (known && !out && form) note_failure(recorder);
        if (out && form && !ruled && !marked(out, &p, form)) Py_CLEAR(out);
        Py_DECREF(recorder);
        Py_XDECREF(form);
        Py_XDECREF(p.epoch);
    }
    while (p.founds) Py_DECREF(p.found[--p.founds]);
    int interrupted = !known && PyErr_Occurred() && !PyErr_ExceptionMatches(PyExc_Exception); /* Ctrl-C */
    if (!known && !interrupted) {
        PyErr_Clear();
        out = PyObject_CallFunctionObjArgs(given[OTHERWISE], func, types, args, kwargs ? kwargs : Py_None,
                                           p.key ? p.key : Py_None, NULL);
    }
    Py_XDECREF(p.key);
    return out;
}
