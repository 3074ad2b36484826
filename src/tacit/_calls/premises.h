/* All that a decision of `remembered.Decisions` depends on: the function, the size of the batch, arguments other than
 * tensors, the forms of tensors of the batch (where examples lie, shape, type), shapes and types of others, and the entries
 * of constant indices.
 *
 * There are no premises, and nothing is remembered, where a decision depends on more: in a batch of one, under a transform
 * of functions, for a tensor of another batch or in an irregular order, for a trained tensor (but for parameters, and for
 * single entries, beside one tensor of the batch), for other values, and where the same tensor is given twice, which may be told apart from two that are alike
 * (but for functions of single entries, where that does not matter).
 */

enum { DECIDED = 1, ENTRYWISE = 2, BY_SHAPES = 4, SIZED = 8, TELLS = 16, RULED = 32, INDEXED = 64 };

/* Given once, by `follow_with`. */
enum { TRACED, TENSOR, PARAMETER, FORM, CONSTANTS, FLAGS, CARRY_OUT, TRANSFORM, COMPILER, GRAD_ENABLED, SITES, SITE, INDEX_ENTRIES, OTHERWISE, GIVEN };
static PyObject *given[GIVEN];

enum {
    A_RECORDER, A_TAG, A_EPOCH, A_FORM, A_ENTERED, A_CLASS, A_OF_FORM, A_BY_DATA, A_ACTIVE, A_ISOLATING, A_OF_BATCH, A_BATCH,
    A_DECISIONS, A_FOUND, A_TRAIL, A_CARRIED_OUT, A_FAILED, A_START, A_STOP, A_STEP, A_TRAINED, A_SHAPE, A_DTYPE, A_CODE_NAME,
    A_LAST, A_BACK, A_MODE, A_GET_FORM, NAMES
};
static const char *const name_texts[NAMES] = {
    "_recorder", "_tag", "_epoch", "_form", "_entered", "__class__", "tag", "by_data", "active", "isolating", "epoch", "batch",
    "decisions", "found", "trail", "_carried_out", "note_failure", "start", "stop", "step", "requires_grad", "shape", "dtype",
    "co_name", "f_lasti", "f_back", "__torch_function__", "form",
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

/* Return a borrowed reference to an attribute, which the object keeps. */
static PyObject *kept(PyObject *object, int name) {
    PyObject *found = PyObject_GetAttr(object, names[name]);
    Py_XDECREF(found);
    return found;
}

/* What a decision depends on, and the values that are still to be looked at. */
enum { MOST_PREMISES = 96 };
typedef struct {
    PyObject *left[MOST_PREMISES], *found[MOST_PREMISES], *seen[MOST_PREMISES];
    int lefts, founds, seens, ruled; /* whether parameters are among them */
    PyObject *recorder, *epoch, *decisions, *key;
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

/* Whether decisions are remembered for the batch that a tensor is of. */
static int begin(Premises *p, PyObject *recorder) {
    p->recorder = recorder;
    if (kept(recorder, A_ACTIVE) != Py_True || kept(recorder, A_ISOLATING) != Py_False) return 0;
    PyObject *batch = kept(recorder, A_BATCH);
    if (!batch || Py_TYPE(batch) != &PyLong_Type || PyLong_AsLong(batch) < 2) return 0;
    Py_INCREF(batch);
    Py_DECREF(p->found[1]); /* its place */
    p->found[1] = batch;
    return (p->epoch = kept(recorder, A_OF_BATCH)) && (p->decisions = kept(recorder, A_DECISIONS));
}

static int add_traced(Premises *p, PyObject *value) {
    PyObject *recorder = kept(value, A_RECORDER), *epoch = recorder ? kept(value, A_EPOCH) : NULL;
    if (!epoch || (!p->recorder && !begin(p, recorder)) || recorder != p->recorder) return 0;
    if (epoch != p->epoch && PyObject_RichCompareBool(epoch, p->epoch, Py_EQ) != 1) return 0;
    if (p->seens && !(p->flags & ENTRYWISE)) {
        if (p->flags & SIZED) return 0;
        for (int i = 0; i < p->seens; i++)
            if (p->seen[i] == value) return 0;
    }
    if (p->seens == MOST_PREMISES) return 0;
    p->seen[p->seens++] = value;
    PyObject *form = kept(value, A_FORM), *tag = kept(value, A_TAG);
    if (!form || !tag) return 0;
    if ((PyObject *)Py_TYPE(form) == given[FORM] && kept(form, A_OF_FORM) == tag) return add_kept(p, form);
    form = PyObject_CallMethodObjArgs(p->decisions, names[A_GET_FORM], value, NULL); /* the first time, or it has changed */
    return add(p, form) && form != Py_None;
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
    int is_parameter = (PyObject *)type == given[PARAMETER], is_tensor = is_parameter || (PyObject *)type == given[TENSOR];
    if ((is_parameter && p->flags & RULED) || (is_tensor && entrywise && kept(value, A_TRAINED) == Py_True))
        return (p->ruled = 1) && add(p, PyObject_GetAttr(value, names[A_TRAINED])) && add(p, PyObject_GetAttr(value, names[A_SHAPE])) &&
               add(p, PyObject_GetAttr(value, names[A_DTYPE]));
    if (is_tensor) {
        if (kept(value, A_TRAINED) != Py_False) return 0;
        if (entrywise || p->flags & BY_SHAPES)
            return add(p, PyObject_GetAttr(value, names[A_SHAPE])) && add(p, PyObject_GetAttr(value, names[A_DTYPE]));
        if (!(p->flags & INDEXED)) return 0; /* its values may decide */
        PyObject *entries = PyObject_CallFunctionObjArgs(given[INDEX_ENTRIES], value, NULL);
        return add(p, entries) && entries != Py_None;
    }
    int constant = PySet_Contains(given[CONSTANTS], (PyObject *)type);
    return constant == 1 && add_kept(p, value);
}

/* All that the arguments of an operation have to do with what is decided about it; whether that can be listed. */
static int add_arguments(Premises *p, PyObject *args, PyObject *kwargs) {
    Py_ssize_t count = PyTuple_Size(args);
    for (Py_ssize_t i = 0; i < count; i++)
        if (!is_to_be_seen(p, PyTuple_GetItem(args, i))) return 0;
    if (kwargs && PyDict_Size(kwargs)) {
        PyObject *keyword, *value, *keywords = PyTuple_New(PyDict_Size(kwargs));
        Py_ssize_t at = 0, i = 0;
        if (!keywords) return 0;
        for (; PyDict_Next(kwargs, &at, &keyword, &value); i++) {
            Py_INCREF(keyword);
            PyTuple_SetItem(keywords, i, keyword);
            if (!is_to_be_seen(p, value)) return Py_DECREF(keywords), 0;
        }
        if (!add(p, keywords)) return 0;
    }
    for (int i = 0; i < p->lefts; i++) /* which become more where a value has parts */
        if (!p->left[i] || !add_premise(p, p->left[i])) return 0;
    return p->ruled ? p->seens == 1 : p->seens > 0;
}

/* What is decided under these premises: a form, a list of forms, or a rule; or NULL, with a key to remember it by if it
 * is to be. */
static PyObject *decision(Premises *p, PyObject *func, PyObject *args, PyObject *kwargs) {
    if (!add_kept(p, func) || !add_kept(p, Py_None) || !add_arguments(p, args, kwargs)) return NULL;
    if (p->ruled) {
        PyObject *enabled = PyObject_CallNoArgs(given[GRAD_ENABLED]);
        Py_XDECREF(enabled);
        if (enabled != Py_True) return NULL;
    }
    PyObject *transform = PyObject_CallNoArgs(given[TRANSFORM]), *key;
    Py_XDECREF(transform);
    if (transform != Py_None || !(key = PyTuple_New(p->founds))) return NULL;
    for (int i = 0; i < p->founds; i++) {
        Py_INCREF(p->found[i]);
        PyTuple_SetItem(key, i, p->found[i]);
    }
    p->key = key;
    PyObject *table = kept(p->decisions, A_FOUND);
    return table && PyDict_Check(table) ? PyDict_GetItemWithError(table, key) : NULL;
}
