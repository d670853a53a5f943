/* binding_ids.h - the four operators by expert ids, as Python functions. */
#ifndef MOETOKEN_PYTHON_BINDING_IDS_H
#define MOETOKEN_PYTHON_BINDING_IDS_H

#include "cpython_abi.h"

PyObject *python_permute_by_ids(PyObject *self, PyObject *const *values, Py_ssize_t count);
PyObject *python_permute_grad_by_ids(PyObject *self, PyObject *const *values, Py_ssize_t count);
PyObject *python_unpermute_by_ids(PyObject *self, PyObject *const *values, Py_ssize_t count);
PyObject *python_unpermute_grad_by_ids(PyObject *self, PyObject *const *values, Py_ssize_t count);

#endif
