/* call.h - one call from Python: its values as tensors and options, its end as a Python result.
 *
 * What every function of binding.c and binding_ids.c begins and ends with. */
#ifndef MOETOKEN_PYTHON_CALL_H
#define MOETOKEN_PYTHON_CALL_H

#include <moetoken/moetoken.h>

#include "array_view.h"

#define CALL_MAX_ARRAYS 12

/* One call's arrays, in the order of `names`. */
struct call {
    const char *const *names;
    PyObject *const *values;
    int arrays_count, opened_count;
    struct array_view views[CALL_MAX_ARRAYS];
    const DLTensor *tensors[CALL_MAX_ARRAYS]; /* NULL: None was given */
    moetoken_options options;
};

/* Opens the first `inputs` + `outputs` values, called `names` in messages, and reads the last two,
 * flags and threads; `count` values were given, `expected` are needed. False: *result is to be
 * returned - NULL with an exception, or NotImplemented - and nothing is open. */
bool call_begin(struct call *call, const char *const *names, PyObject *const *values, int inputs,
                int outputs, Py_ssize_t count, Py_ssize_t expected, PyObject **result);

/* Closes the arrays. None, or the exception for the status, with the library's message. */
PyObject *call_finish(struct call *call, moetoken_status status);

void call_close(struct call *call);

/* Reads a number; false with an exception when it is none. */
bool call_read_number(PyObject *value, int64_t *number);

PyObject *call_new_reference(PyObject *object);

#endif
