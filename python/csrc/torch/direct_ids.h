/* direct_ids.h - the operators by expert ids on plain tensors, as Python functions.
 *
 * Arguments and results are those of the operators in moetoken/torch/_by_ids.py, but that a
 * result which is not wanted is None; NotImplemented: this is not the way for the call. */
#ifndef MOETOKEN_PYTHON_TORCH_DIRECT_IDS_H
#define MOETOKEN_PYTHON_TORCH_DIRECT_IDS_H

#include "../cpython_abi.h"

PyObject *python_direct_permute_by_ids(PyObject *self, PyObject *const *values, Py_ssize_t count);
PyObject *python_direct_permute_grad_by_ids(PyObject *self, PyObject *const *values,
                                            Py_ssize_t count);
PyObject *python_direct_unpermute_by_ids(PyObject *self, PyObject *const *values, Py_ssize_t count);
PyObject *python_direct_unpermute_grad_by_ids(PyObject *self, PyObject *const *values,
                                              Py_ssize_t count);

#endif
