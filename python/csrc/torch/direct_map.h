/* direct_map.h - the operators by routing map on plain tensors, as Python functions.
 *
 * Arguments and results are those of the operators in moetoken/torch/_operators.py, but that a
 * result which is not wanted is None; NotImplemented: this is not the way for the call. */
#ifndef MOETOKEN_PYTHON_TORCH_DIRECT_MAP_H
#define MOETOKEN_PYTHON_TORCH_DIRECT_MAP_H

#include "../cpython_abi.h"

PyObject *python_direct_permute(PyObject *self, PyObject *const *values, Py_ssize_t count);
PyObject *python_direct_permute_grad(PyObject *self, PyObject *const *values, Py_ssize_t count);
PyObject *python_direct_unpermute(PyObject *self, PyObject *const *values, Py_ssize_t count);
PyObject *python_direct_unpermute_grad(PyObject *self, PyObject *const *values, Py_ssize_t count);

#endif
