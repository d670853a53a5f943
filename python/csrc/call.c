/* call.c - Python values -> tensors and options; a status -> a Python result. */
#include "call.h"

#include <string.h>

/* The library sees a type's DLPack code; the caller knows it by the name his arrays have for it.
 * "out_index is of DLPack type (...), expected ..." -> "out_index is uint32, expected ...".
 * False: no exception is set, there is no better name. */
static bool raise_type_by_name(const struct call *call, const char *message)
{
    static const char before[] = " is of DLPack type (", after[] = "), ";
    const char *found = strstr(message, before);
    const char *rest = found ? strstr(found, after) : NULL;
    for (int i = 0; rest && i < call->arrays_count; i++) {
        size_t length = strlen(call->names[i]);
        if (length != (size_t)(found - message) || strncmp(message, call->names[i], length) != 0)
            continue;
        PyObject *dtype = PyObject_GetAttrString(call->values[i], "dtype");
        if (dtype) {
            PyErr_Format(PyExc_TypeError, "%s is %S, %s", call->names[i], dtype,
                         rest + sizeof after - 1);
            Py_DecRef(dtype);
            return true;
        }
        PyErr_Clear(); /* a plain buffer */
    }
    return false;
}

static PyObject *raise_status(const struct call *call, moetoken_status status)
{
    if (status == MOETOKEN_ERR_TYPE && raise_type_by_name(call, moetoken_last_error()))
        return NULL;
    PyObject *exception = PyExc_ValueError;
    if (status == MOETOKEN_ERR_TYPE)
        exception = PyExc_TypeError;
    else if (status == MOETOKEN_ERR_INDEX)
        exception = PyExc_IndexError;
    else if (status == MOETOKEN_ERR_MEMORY)
        exception = PyExc_MemoryError;
    PyErr_SetString(exception, moetoken_last_error());
    return NULL;
}

bool call_read_number(PyObject *value, int64_t *number)
{
    *number = PyLong_AsLongLong(value);
    return *number != -1 || !PyErr_Occurred();
}

/* The last two values of every call: flags and threads. */
static bool read_options(PyObject *const *values, moetoken_options *options)
{
    int64_t flags, threads;
    if (!call_read_number(values[0], &flags) || !call_read_number(values[1], &threads))
        return false;
    if (threads < 0 || threads > INT32_MAX) {
        PyErr_Format(PyExc_ValueError, "threads = %lld, expected 0 to %d", (long long)threads,
                     INT32_MAX);
        return false;
    }
    *options = (moetoken_options){.flags = (uint32_t)flags, .threads = (int32_t)threads};
    return true;
}

PyObject *call_new_reference(PyObject *object)
{
    Py_IncRef(object);
    return object;
}

/* Opens the first `inputs` + `outputs` values. NULL when all went well, else what to return:
 * an exception (*failed) or NotImplemented. */
static PyObject *open_arrays(struct call *call, int inputs, int outputs, bool *failed)
{
    *failed = true;
    call->arrays_count = inputs + outputs;
    for (int i = 0; i < call->arrays_count; i++) {
        enum array_view_result result =
            array_view_open(&call->views[i], call->values[i], call->names[i], i >= inputs);
        call->opened_count = i + 1;
        if (result == ARRAY_VIEW_ERROR)
            return NULL;
        if (result == ARRAY_VIEW_STRIDES)
            return call_new_reference(Py_NotImplemented);
        call->tensors[i] = result == ARRAY_VIEW_ABSENT ? NULL : &call->views[i].tensor;
    }
    *failed = false;
    return NULL;
}

void call_close(struct call *call)
{
    for (int i = 0; i < call->opened_count; i++)
        array_view_close(&call->views[i]);
}

bool call_begin(struct call *call, const char *const *names, PyObject *const *values, int inputs,
                int outputs, Py_ssize_t count, Py_ssize_t expected, PyObject **result)
{
    *result = NULL;
    call->names = names;
    call->values = values;
    call->opened_count = 0;
    if (count != expected) {
        PyErr_Format(PyExc_TypeError, "%zd arguments, expected %zd", count, expected);
        return false;
    }
    if (!read_options(values + expected - 2, &call->options))
        return false;
    bool failed;
    *result = open_arrays(call, inputs, outputs, &failed);
    if (failed)
        call_close(call);
    return !failed;
}

PyObject *call_finish(struct call *call, moetoken_status status)
{
    call_close(call);
    return status == MOETOKEN_OK ? call_new_reference(Py_None) : raise_status(call, status);
}
