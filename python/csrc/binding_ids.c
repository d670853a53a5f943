/* binding_ids.c - the operators on a routing by expert ids, as Python functions.
 *
 * As those of binding.c: arrays by position, inputs before outputs, then numbers, flags, threads.
 * Messages have the library's names; moetoken.ids has its own for a few and puts them in. */
#include "binding_ids.h"

#include "call.h"

static const char *const permute_names[] = {"tokens",          "expert_ids",       "weights",
                                            "permuted_tokens", "permuted_weights", "sorted_indices",
                                            "source_slots",    "rows_per_expert"};

/* 3 inputs, 5 outputs, experts_num, expert_begin, expert_end, capacity, flags, threads. */
PyObject *python_permute_by_ids(PyObject *self, PyObject *const *values, Py_ssize_t count)
{
    (void)self;
    struct call call;
    PyObject *result;
    if (!call_begin(&call, permute_names, values, 3, 5, count, 14, &result))
        return result;
    moetoken_permute_args args = {.struct_size = sizeof args,
                                  .tokens = call.tensors[0],
                                  .expert_ids = call.tensors[1],
                                  .weights = call.tensors[2],
                                  .permuted_tokens = call.tensors[3],
                                  .permuted_probs = call.tensors[4],
                                  .sorted_indices = call.tensors[5],
                                  .source_slots = call.tensors[6],
                                  .rows_per_expert = call.tensors[7]};
    if (!call_read_number(values[8], &args.experts_num) ||
        !call_read_number(values[9], &args.expert_begin) ||
        !call_read_number(values[10], &args.expert_end) ||
        !call_read_number(values[11], &args.capacity)) {
        call_close(&call);
        return NULL;
    }
    PyThreadState *state = PyEval_SaveThread();
    moetoken_status status = moetoken_permute(&args, &call.options);
    PyEval_RestoreThread(state);
    return call_finish(&call, status);
}

static const char *const permute_grad_names[] = {"permuted_tokens_grad", "permuted_probs_grad",
                                                 "sorted_indices", "tokens_grad", "weights_grad"};

/* 3 inputs, 2 outputs, tokens_num, flags, threads. */
PyObject *python_permute_grad_by_ids(PyObject *self, PyObject *const *values, Py_ssize_t count)
{
    (void)self;
    struct call call;
    PyObject *result;
    if (!call_begin(&call, permute_grad_names, values, 3, 2, count, 8, &result))
        return result;
    moetoken_permute_grad_args args = {.struct_size = sizeof args,
                                       .permuted_tokens_grad = call.tensors[0],
                                       .permuted_probs_grad = call.tensors[1],
                                       .sorted_indices = call.tensors[2],
                                       .tokens_grad = call.tensors[3],
                                       .weights_grad = call.tensors[4]};
    if (!call_read_number(values[5], &args.tokens_num)) {
        call_close(&call);
        return NULL;
    }
    PyThreadState *state = PyEval_SaveThread();
    moetoken_status status = moetoken_permute_grad(&args, &call.options);
    PyEval_RestoreThread(state);
    return call_finish(&call, status);
}

static const char *const unpermute_names[] = {"permuted_tokens", "sorted_indices",   "weights",
                                              "residual",        "residual2",        "expert_bias",
                                              "expert_ids",      "unpermuted_tokens"};

/* 7 inputs, 1 output, flags, threads. */
PyObject *python_unpermute_by_ids(PyObject *self, PyObject *const *values, Py_ssize_t count)
{
    (void)self;
    struct call call;
    PyObject *result;
    if (!call_begin(&call, unpermute_names, values, 7, 1, count, 10, &result))
        return result;
    moetoken_unpermute_args args = {.struct_size = sizeof args,
                                    .permuted_tokens = call.tensors[0],
                                    .sorted_indices = call.tensors[1],
                                    .weights = call.tensors[2],
                                    .residual = call.tensors[3],
                                    .residual2 = call.tensors[4],
                                    .expert_bias = call.tensors[5],
                                    .expert_ids = call.tensors[6],
                                    .unpermuted_tokens = call.tensors[7]};
    PyThreadState *state = PyEval_SaveThread();
    moetoken_status status = moetoken_unpermute(&args, &call.options);
    PyEval_RestoreThread(state);
    return call_finish(&call, status);
}

static const char *const unpermute_grad_names[] = {"unpermuted_tokens_grad",
                                                   "out_index",
                                                   "permuted_tokens",
                                                   "weights",
                                                   "expert_bias",
                                                   "expert_ids",
                                                   "permuted_tokens_grad",
                                                   "weights_grad"};

/* 6 inputs, 2 outputs, flags, threads. */
PyObject *python_unpermute_grad_by_ids(PyObject *self, PyObject *const *values, Py_ssize_t count)
{
    (void)self;
    struct call call;
    PyObject *result;
    if (!call_begin(&call, unpermute_grad_names, values, 6, 2, count, 10, &result))
        return result;
    moetoken_unpermute_grad_args args = {.struct_size = sizeof args,
                                         .unpermuted_tokens_grad = call.tensors[0],
                                         .out_index = call.tensors[1],
                                         .permuted_tokens = call.tensors[2],
                                         .weights = call.tensors[3],
                                         .expert_bias = call.tensors[4],
                                         .expert_ids = call.tensors[5],
                                         .permuted_tokens_grad = call.tensors[6],
                                         .weights_grad = call.tensors[7]};
    PyThreadState *state = PyEval_SaveThread();
    moetoken_status status = moetoken_unpermute_grad(&args, &call.options);
    PyEval_RestoreThread(state);
    return call_finish(&call, status);
}
