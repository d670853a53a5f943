/* direct.h - one call on plain tensors that makes its own outputs: objects -> DLTensors -> results.
 *
 * What every function of direct_map.c and direct_ids.c begins and ends with. Whatever goes wrong -
 * a value of another kind, sizes that do not fit, an error of the library - ends in NotImplemented:
 * the caller then goes the long way, which says what is wrong. So none of the steps below tells of
 * a failure; after one, those that follow do nothing. */
#ifndef MOETOKEN_PYTHON_TORCH_DIRECT_H
#define MOETOKEN_PYTHON_TORCH_DIRECT_H

#include <moetoken/moetoken.h>

#include "../cpython_abi.h"

#define DIRECT_MAX_INPUTS  7
#define DIRECT_MAX_OUTPUTS 5

struct direct_output {
    DLTensor tensor;
    int64_t shape[2];
    PyObject *object; /* NULL: not made */
};

struct direct {
    PyObject *const *values;
    bool failed;
    DLTensor storage[DIRECT_MAX_INPUTS];
    const DLTensor *inputs[DIRECT_MAX_INPUTS]; /* NULL: None was given */
    struct direct_output outputs[DIRECT_MAX_OUTPUTS];
    moetoken_options options;
};

/* `count` values were given, `expected` are needed, of which the first `inputs` are plain tensors
 * (plain.h) or None. */
void direct_begin(struct direct *call, PyObject *const *values, int inputs, Py_ssize_t count,
                  Py_ssize_t expected);

/* Value i as a number; as True or False. */
int64_t direct_number(struct direct *call, int i);
bool direct_flag(struct direct *call, int i);

/* A size of input i, which must be there and have `ndim` dimensions. */
int64_t direct_size(struct direct *call, int i, int ndim, int dim);

/* Output i, new: [rows, columns], which may be large, and [first] or [first, second]. */
const DLTensor *direct_rows(struct direct *call, int i, DLDataType type, int64_t rows,
                            int64_t columns);
const DLTensor *direct_vector(struct direct *call, int i, DLDataType type, int64_t size);
const DLTensor *direct_matrix(struct direct *call, int i, DLDataType type, int64_t first,
                              int64_t second);

/* Run the operator without the GIL, unless something has failed before. */
void direct_run_permute(struct direct *call, const moetoken_permute_args *args);
void direct_run_permute_grad(struct direct *call, const moetoken_permute_grad_args *args);
void direct_run_unpermute(struct direct *call, const moetoken_unpermute_args *args);
void direct_run_unpermute_grad(struct direct *call, const moetoken_unpermute_grad_args *args);

/* The tuple of the first `count` outputs, None for those that were not made; or NotImplemented. */
PyObject *direct_finish(struct direct *call, int count);

/* The same for an operator with one output. */
PyObject *direct_finish_single(struct direct *call);

#endif
