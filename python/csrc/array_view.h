/* array_view.h - a Python array, of whatever library, as a DLTensor over its own memory.
 *
 * First stop of every call from Python: object -> DLTensor. Nothing is copied; what a DLTensor says
 * is checked by the library, which is handed it next. */
#ifndef MOETOKEN_PYTHON_ARRAY_VIEW_H
#define MOETOKEN_PYTHON_ARRAY_VIEW_H

#include <stdbool.h>

#include <dlpack/dlpack.h>

#include "cpython_abi.h"

#define ARRAY_VIEW_MAX_NDIM 4 /* tensors of a higher rank are refused by rank alone */

struct array_view {
    DLTensor tensor;
    int64_t shape[ARRAY_VIEW_MAX_NDIM], strides[ARRAY_VIEW_MAX_NDIM];
    PyObject *keeper; /* a capsule that holds the shape, or NULL */
    Py_buffer buffer; /* to be released when buffer.obj is set */
};

enum array_view_result {
    ARRAY_VIEW_OK,
    ARRAY_VIEW_ABSENT,  /* None */
    ARRAY_VIEW_STRIDES, /* byte strides that the library cannot take: a copy is needed. All but the
                           tensor's strides, which are in bytes, is as it should be */
    ARRAY_VIEW_ERROR    /* a Python exception is set */
};

/* Opens `object`, called `name` in messages, for reading or, with `writes`, for writing. Whatever
 * the result, array_view_close() must follow. */
enum array_view_result array_view_open(struct array_view *view, PyObject *object, const char *name,
                                       bool writes);
void array_view_close(struct array_view *view);

/* Once, with the GIL held, before anything else; numpy_array is numpy.ndarray. False: a Python
 * exception is set. */
bool array_view_setup(PyObject *numpy_array);

#endif
