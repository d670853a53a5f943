/* plain.h - whether PyTorch's dispatcher would do anything with a call but call the operator.
 *
 * The dispatcher records gradients, traces, vectorizes, serves tensor subclasses and the profiler.
 * It knows what to do by sets of keys, one that each tensor has and one of the thread; the sets of
 * tensors and threads with which nothing special is going on are learnt in Python, once. */
#ifndef MOETOKEN_PYTHON_TORCH_PLAIN_H
#define MOETOKEN_PYTHON_TORCH_PLAIN_H

#include "../array_view.h"

enum torch_plainness {
    TORCH_NOT_PLAIN,
    TORCH_PLAIN,
    TORCH_PLAIN_BUT_RECORDED /* for a gradient */
};

/* torch.Tensor, torch.nn.Parameter, torch.int32, torch.int64; PyTorch's functions for the keys of a
 * tensor and of a thread, for whether a profiler listens, and for the state of a trace (None:
 * none); two sets of keys of tensors and two of threads, as numbers. True, or False where this
 * PyTorch has not what the functions of direct.h need. */
PyObject *python_torch_setup(PyObject *self, PyObject *const *values, Py_ssize_t count);

/* An enum torch_plainness for the arguments of an operator. */
PyObject *python_torch_plainness(PyObject *self, PyObject *const *values, Py_ssize_t count);

/* The memory of a plain CPU tensor; false without an exception for anything else. */
bool torch_open(PyObject *object, DLTensor *tensor);

/* torch.int32 or torch.int64 as DLPack's type; false for anything else. */
bool torch_index_type(PyObject *dtype, DLDataType *type);

/* The functions that make tensors. */
const struct dlpack_exchange_table *torch_exchange_table(void);

#endif
