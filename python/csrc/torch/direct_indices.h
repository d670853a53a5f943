/* direct_indices.h - the index tensors of the drop-ins on plain tensors, as Python functions.
 *
 * In PyTorch's operations each of them is several passes, and at a few tokens several times what
 * the operator costs that it is for. NotImplemented: PyTorch's operations are to do it. */
#ifndef MOETOKEN_PYTHON_TORCH_DIRECT_INDICES_H
#define MOETOKEN_PYTHON_TORCH_DIRECT_INDICES_H

#include "../cpython_abi.h"

/* indices, rows_num -> the same, -1 for those outside [0, rows_num). */
PyObject *python_direct_within(PyObject *self, PyObject *const *values, Py_ssize_t count);

/* Expert ids -> the row of each slot (int32) when slots are sorted by expert; -1 for ids below 0.
 */
PyObject *python_direct_rows_of_slots(PyObject *self, PyObject *const *values, Py_ssize_t count);

/* routing_map, rows_num or None -> (token, expert) of each row in expert order (int64): set pairs,
 * and unset ones where rows_num says more; None: as many as there are set pairs. */
PyObject *python_direct_map_rows(PyObject *self, PyObject *const *values, Py_ssize_t count);

/* routing_map, the token of each row in expert order -> the row of each slot, K slots a token with
 * K the most set pairs of one, -1 where a slot is unused. */
PyObject *python_direct_map_slots(PyObject *self, PyObject *const *values, Py_ssize_t count);

#endif
