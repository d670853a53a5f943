/* binding_buffers.h - outputs over memory of the buffer cache, as Python functions. */
#ifndef MOETOKEN_PYTHON_BINDING_BUFFERS_H
#define MOETOKEN_PYTHON_BINDING_BUFFERS_H

#include "dlpack_exchange.h"

/* A tensor over memory of the cache, made by the functions of a table: type and [rows, columns] are
 * read from `tensor`, its memory is written there. NULL: there is no memory or, with an exception,
 * the function failed. */
PyObject *buffer_tensor_new(const struct dlpack_exchange_table *table, DLTensor *tensor);

/* bytes -> (address, handle), or None: no memory, or the cache is off. */
PyObject *python_buffer_take(PyObject *self, PyObject *const *values, Py_ssize_t count);

/* The handle of a buffer that no array uses any more. */
PyObject *python_buffer_give(PyObject *self, PyObject *const *values, Py_ssize_t count);

/* A tensor, rows, columns -> a new one of that shape, with the type and library of the first and
 * any content; None where there is no memory, the cache is off, or this is not the way for it. */
PyObject *python_new_tensor(PyObject *self, PyObject *const *values, Py_ssize_t count);

/* The most bytes that may wait; None asks for nothing but the bytes' return to the system. */
PyObject *python_buffer_limit(PyObject *self, PyObject *const *values, Py_ssize_t count);

/* Four tuples (current, peak, gained, lost), in the order of struct buffer_stats. */
PyObject *python_buffer_stats(PyObject *self, PyObject *const *values, Py_ssize_t count);

#endif
