/* Operations on tensors of the batch about which all is decided: the short way of tacit.gradients.traced.
 *
 * What is done here is what `Recorder.handle` would do, for operations of which `remembered.Decisions` knows where examples
 * lie afterwards, for those whose gradient rule is known, and for those that tell no value of one tensor. Everything else is left to Python: whatever is not as it
 * was when the decision was made is found by the same comparisons, in the same order, as `Decisions.premises` makes them.
 */

enum { DECIDED = 1, ENTRYWISE = 2, BY_SHAPES = 4, SIZED = 8, TELLS = 16, RULED = 32 };

/* Given once, by `follow_with`. */
enum { TRACED, TENSOR, PARAMETER, FORM, CONSTANTS, FLAGS, CARRY_OUT, TRANSFORM, COMPILER, GRAD_ENABLED, SITES, SITE, OTHERWISE, GIVEN };
static PyObject *given[GIVEN];

enum {
    A_RECORDER, A_TAG, A_EPOCH, A_FORM, A_ENTERED, A_CLASS, A_OF_FORM, A_BY_DATA, A_ACTIVE, A_ISOLATING, A_OF_BATCH, A_BATCH,
    A_DECISIONS, A_FOUND, A_TRAIL, A_CARRIED_OUT, A_FAILED, A_START, A_STOP, A_STEP, A_TRAINED, A_SHAPE, A_DTYPE, A_CODE_NAME,
    A_LAST, A_BACK, A_MODE, A_RULES, A_GET_FORM, NAMES
};
static const char *const name_texts[NAMES] = {
    "_recorder", "_tag", "_epoch", "_form", "_entered", "__class__", "tag", "by_data", "active", "isolating", "epoch", "batch",
    "decisions", "found", "trail", "_carried_out", "note_failure", "start", "stop", "step", "requires_grad", "shape", "dtype",
    "co_name", "f_lasti", "f_back", "__torch_function__", "rules", "form",
};
static PyObject *names[NAMES];

static PyObject *follow_with(PyObject *module, PyObject *const *arguments, Py_ssize_t count) {
    if (count != GIVEN) return PyErr_Format(PyExc_TypeError, "follow_with takes %d arguments.", GIVEN);
    for (int i = 0; i < NAMES; i++)
        if (!names[i] && !(names[i] = PyUnicode_InternFromString(name_texts[i]))) return NULL;
    for (int i = 0; i < GIVEN; i++) {
        Py_INCREF(arguments[i]);
        Py_XDECREF(given[i]);
        given[i] = arguments[i];
    }
    Py_RETURN_NONE;
}

/* An attribute of an object that somebody else keeps too, so that it may be looked at without a reference of its own. */
static PyObject *kept(PyObject *object, int name) {
    PyObject *found = PyObject_GetAttr(object, names[name]);
    Py_XDECREF(found);
    return found;
}

/* What a decision depends on, and the values that are still to be looked at. */
enum { MOST_PREMISES = 96 };
typedef struct {
    PyObject *left[MOST_PREMISES], *found[MOST_PREMISES], *seen[MOST_PREMISES];
    int lefts, founds, seens;
    PyObject *recorder, *epoch;
    long flags;
} Premises;

static int is_to_be_seen(Premises *p, PyObject *value) {
    if (p->lefts == MOST_PREMISES) return 0;
    p->left[p->lefts++] = value;
    return 1;
}

/* Takes over the reference; fails, with an error or without, where there is nothing to add or no place. */
static int add(Premises *p, PyObject *value) {
    if (!value) return 0;
    if (p->founds == MOST_PREMISES) return Py_DECREF(value), 0;
    p->found[p->founds++] = value;
    return 1;
}

static int add_kept(Premises *p, PyObject *value) {
    Py_XINCREF(value);
    return add(p, value);
}

static int add_traced(Premises *p, PyObject *value) {
    PyObject *form = kept(value, A_FORM), *recorder = form ? kept(value, A_RECORDER) : NULL;
    if (!recorder || (PyObject *)Py_TYPE(form) != given[FORM]) return 0;
    if (!p->recorder) {
        p->recorder = recorder;
        if (kept(recorder, A_ACTIVE) != Py_True || kept(recorder, A_ISOLATING) != Py_False) return 0;
        if (!(p->epoch = kept(recorder, A_OF_BATCH))) return 0;
    } else if (recorder != p->recorder)
        return 0;
    PyObject *tag = kept(form, A_OF_FORM), *epoch = kept(value, A_EPOCH);
    if (!tag || !epoch || tag != kept(value, A_TAG)) return 0;
    if (epoch != p->epoch && PyObject_RichCompareBool(epoch, p->epoch, Py_EQ) != 1) return 0;
    if (p->seens && !(p->flags & ENTRYWISE)) {
        if (p->flags & SIZED) return 0;
        for (int i = 0; i < p->seens; i++)
            if (p->seen[i] == value) return 0;
    }
    if (p->seens == MOST_PREMISES) return 0;
    p->seen[p->seens++] = value;
    return add_kept(p, form);
}

static int add_parts(Premises *p, PyObject *value, PyTypeObject *type) {
    Py_ssize_t length = PySequence_Size(value);
    PyObject *number = PyLong_FromSsize_t(length);
    if (!number || !add(p, PyTuple_Pack(2, (PyObject *)type, number))) return Py_XDECREF(number), 0;
    Py_DECREF(number);
    for (Py_ssize_t i = 0; i < length; i++)
        if (!is_to_be_seen(p, type == &PyTuple_Type ? PyTuple_GetItem(value, i) : PyList_GetItem(value, i))) return 0;
    return 1;
}

static int add_premise(Premises *p, PyObject *value) {
    PyTypeObject *type = Py_TYPE(value);
    int entrywise = (p->flags & ENTRYWISE) != 0;
    if ((PyObject *)type == given[TRACED]) return add_traced(p, value);
    if (type == &PyLong_Type) return add_kept(p, entrywise ? (PyObject *)type : value);
    if (type == &PyFloat_Type || type == &PyBool_Type)
        return entrywise ? add_kept(p, (PyObject *)type) : add(p, PyTuple_Pack(2, (PyObject *)type, value));
    if (type == &PyTuple_Type || type == &PyList_Type) return add_parts(p, value, type);
    if (type == &PySlice_Type)
        return add_kept(p, (PyObject *)type) && is_to_be_seen(p, kept(value, A_START)) &&
               is_to_be_seen(p, kept(value, A_STOP)) && is_to_be_seen(p, kept(value, A_STEP));
    if (p->flags & RULED && (PyObject *)type == given[PARAMETER])
        return add(p, PyObject_GetAttr(value, names[A_TRAINED])) && add(p, PyObject_GetAttr(value, names[A_SHAPE])) &&
               add(p, PyObject_GetAttr(value, names[A_DTYPE]));
    if ((PyObject *)type == given[TENSOR] || (PyObject *)type == given[PARAMETER]) {
        if (!entrywise && !(p->flags & BY_SHAPES)) return 0; /* its values may decide */
        return kept(value, A_TRAINED) == Py_False && add(p, PyObject_GetAttr(value, names[A_SHAPE])) &&
               add(p, PyObject_GetAttr(value, names[A_DTYPE]));
    }
    int constant = PySet_Contains(given[CONSTANTS], (PyObject *)type);
    return constant == 1 && add_kept(p, value);
}

/* The form of what an operation gives, or its rule, borrowed; NULL, with an error or without, where it is for Python to say. */
static PyObject *decision(Premises *p, PyObject *func, PyObject *args, PyObject *kwargs) {
    PyObject *key = NULL, *form = NULL;
    if (!add_kept(p, func) || !add_kept(p, Py_None)) return NULL; /* the batch's size goes into the second place */
    for (Py_ssize_t i = 0, n = PyTuple_Size(args); i < n; i++)
        if (!is_to_be_seen(p, PyTuple_GetItem(args, i))) return NULL;
    if (kwargs && PyDict_Size(kwargs)) {
        PyObject *keyword, *value, *keywords = PyTuple_New(PyDict_Size(kwargs));
        Py_ssize_t at = 0, i = 0;
        if (!keywords) return NULL;
        for (; PyDict_Next(kwargs, &at, &keyword, &value); i++) {
            Py_INCREF(keyword);
            PyTuple_SetItem(keywords, i, keyword);
            if (!is_to_be_seen(p, value)) return Py_DECREF(keywords), NULL;
        }
        if (!add(p, keywords)) return NULL;
    }
    for (int i = 0; i < p->lefts; i++) /* which become more where a value has parts */
        if (!p->left[i] || !add_premise(p, p->left[i])) return NULL;
    if (!p->seens) return NULL;
    PyObject *batch = kept(p->recorder, A_BATCH);
    if (!batch || Py_TYPE(batch) != &PyLong_Type || PyLong_AsLong(batch) < 2) return NULL;
    Py_INCREF(batch);
    Py_DECREF(p->found[1]);
    p->found[1] = batch;
    if (p->flags & RULED) {
        PyObject *enabled = PyObject_CallNoArgs(given[GRAD_ENABLED]);
        Py_XDECREF(enabled);
        if (enabled != Py_True) return NULL;
    }
    PyObject *transform = PyObject_CallNoArgs(given[TRANSFORM]);
    Py_XDECREF(transform);
    if (transform != Py_None || !(key = PyTuple_New(p->founds))) return NULL;
    for (int i = 0; i < p->founds; i++) {
        Py_INCREF(p->found[i]);
        PyTuple_SetItem(key, i, p->found[i]);
    }
    int ruled = (p->flags & RULED) != 0;
    PyObject *decisions = kept(p->recorder, A_DECISIONS), *table = decisions ? kept(decisions, ruled ? A_RULES : A_FOUND) : NULL;
    if (table && PyDict_Check(table)) form = PyDict_GetItemWithError(table, key);
    Py_DECREF(key);
    return form && (ruled || (PyObject *)Py_TYPE(form) == given[FORM]) ? form : NULL;
}

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
    if (out && (PyObject *)Py_TYPE(out) == given[TRACED]) { /* what comes next can be found by its form */
        PyObject *form = PyObject_CallMethodObjArgs(kept(recorder, A_DECISIONS), names[A_GET_FORM], out, NULL);
        if (!form) Py_CLEAR(out);
        Py_XDECREF(form);
    }
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

static int marked(PyObject *out, Premises *p, PyObject *form) {
    int is_new = (PyObject *)Py_TYPE(out) == given[TENSOR];
    if (!is_new && (PyObject *)Py_TYPE(out) != given[TRACED]) {
        PyErr_SetString(PyExc_TypeError, "an operation on the batch gives something else than before.");
        return 0;
    }
    int first = is_new ? PyObject_SetAttr(out, names[A_CLASS], given[TRACED]) :
                         PyObject_SetAttr(out, names[A_ENTERED], Py_False);
    return !first && !PyObject_SetAttr(out, names[A_RECORDER], p->recorder) &&
           !PyObject_SetAttr(out, names[A_TAG], kept(form, A_OF_FORM)) && !PyObject_SetAttr(out, names[A_EPOCH], p->epoch) &&
           !PyObject_SetAttr(out, names[A_FORM], form) && !PyObject_SetAttr(p->recorder, names[A_CARRIED_OUT], out);
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
    p.lefts = p.founds = p.seens = 0;
    p.recorder = p.epoch = NULL;
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
        int ruled = (p.flags & RULED) != 0;
        known = note_call(recorder, func);
        if (known) out = carried_out(ruled ? form : NULL, recorder, func, types, args, kwargs);
        if (known && !out && form) note_failure(recorder);
        if (out && form && !ruled && !marked(out, &p, form)) Py_CLEAR(out);
        Py_DECREF(recorder);
        Py_XDECREF(form);
        Py_XDECREF(p.epoch);
    }
    while (p.founds) Py_DECREF(p.found[--p.founds]);
    if (known) return out;
    PyErr_Clear();
    return PyObject_CallFunctionObjArgs(given[OTHERWISE], func, types, args, kwargs, NULL);
}
