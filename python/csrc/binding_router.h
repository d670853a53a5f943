/* binding_router.h - the router's functions, as Python functions. */
#ifndef MOETOKEN_PYTHON_BINDING_ROUTER_H
#define MOETOKEN_PYTHON_BINDING_ROUTER_H

#include "cpython_abi.h"

PyObject *python_router(PyObject *self, PyObject *const *values, Py_ssize_t count);
PyObject *python_router_grad(PyObject *self, PyObject *const *values, Py_ssize_t count);
PyObject *python_router_balance_loss(PyObject *self, PyObject *const *values, Py_ssize_t count);
PyObject *python_router_z_loss(PyObject *self, PyObject *const *values, Py_ssize_t count);
PyObject *python_router_update_bias(PyObject *self, PyObject *const *values, Py_ssize_t count);
PyObject *python_router_drop(PyObject *self, PyObject *const *values, Py_ssize_t count);

/* The settings that a name, as bytes, stands for: a tuple in the order of read_config(). */
PyObject *python_router_recipe(PyObject *self, PyObject *const *values, Py_ssize_t count);

#endif
