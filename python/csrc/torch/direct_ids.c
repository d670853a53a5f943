/* direct_ids.c - the four operators by expert ids on plain tensors, outputs included. */
#include "direct_ids.h"

#include "direct.h"

/* tokens, expert_ids, weights, experts_num, expert_begin, expert_end, capacity, rows_num. */
PyObject *python_direct_permute_by_ids(PyObject *self, PyObject *const *values, Py_ssize_t count)
{
    (void)self;
    struct direct call;
    direct_begin(&call, values, 3, count, 8);
    int64_t tokens_num = direct_size(&call, 1, 2, 0), topk = direct_size(&call, 1, 2, 1),
            experts_num = direct_number(&call, 3), begin = direct_number(&call, 4),
            end = direct_number(&call, 5), capacity = direct_number(&call, 6),
            rows_num = direct_number(&call, 7), slots_num;
    call.failed = call.failed || __builtin_mul_overflow(tokens_num, topk, &slots_num);
    if (call.failed)
        return direct_finish(&call, 5);
    const DLTensor *tokens = call.inputs[0], *weights = call.inputs[2];
    int64_t hidden_size = tokens ? direct_size(&call, 0, 2, 1) : 0;
    DLDataType index_type = call.inputs[1]->dtype;
    bool is_empty = begin == end; /* the library takes [0, 0) for all experts */
    moetoken_permute_args args = {
        .struct_size = sizeof args,
        .tokens = tokens,
        .expert_ids = call.inputs[1],
        .weights = weights,
        .experts_num = experts_num,
        .expert_begin = is_empty ? experts_num : begin,
        .expert_end = is_empty ? experts_num : end,
        .capacity = capacity,
        .permuted_tokens =
            tokens ? direct_rows(&call, 0, tokens->dtype, rows_num, hidden_size) : NULL,
        .permuted_probs = weights ? direct_vector(&call, 1, weights->dtype, rows_num) : NULL,
        .sorted_indices = direct_vector(&call, 2, index_type, slots_num),
        .source_slots = direct_vector(&call, 3, index_type, rows_num),
        .rows_per_expert = direct_vector(&call, 4, moetoken_dtype(MOETOKEN_I64), end - begin)};
    direct_run_permute(&call, &args);
    return direct_finish(&call, 5);
}

/* permuted_tokens_grad, permuted_weights_grad, sorted_indices, tokens_num. */
PyObject *python_direct_permute_grad_by_ids(PyObject *self, PyObject *const *values,
                                            Py_ssize_t count)
{
    (void)self;
    struct direct call;
    direct_begin(&call, values, 3, count, 4);
    int64_t slots_num = direct_size(&call, 2, 1, 0), tokens_num = direct_number(&call, 3);
    call.failed = call.failed || tokens_num < 0;
    if (call.failed)
        return direct_finish(&call, 2);
    const DLTensor *rows = call.inputs[0], *row_weights = call.inputs[1];
    int64_t hidden_size = rows ? direct_size(&call, 0, 2, 1) : 0,
            topk = tokens_num ? slots_num / tokens_num : 0;
    moetoken_permute_grad_args args = {
        .struct_size = sizeof args,
        .permuted_tokens_grad = rows,
        .permuted_probs_grad = row_weights,
        .sorted_indices = call.inputs[2],
        .tokens_num = tokens_num,
        .tokens_grad = rows ? direct_rows(&call, 0, rows->dtype, tokens_num, hidden_size) : NULL,
        .weights_grad =
            row_weights ? direct_matrix(&call, 1, row_weights->dtype, tokens_num, topk) : NULL};
    direct_run_permute_grad(&call, &args);
    return direct_finish(&call, 2);
}

/* permuted_tokens, sorted_indices, weights, residual, residual2, expert_bias, expert_ids,
 * tokens_num. */
PyObject *python_direct_unpermute_by_ids(PyObject *self, PyObject *const *values, Py_ssize_t count)
{
    (void)self;
    struct direct call;
    direct_begin(&call, values, 7, count, 8);
    int64_t hidden_size = direct_size(&call, 0, 2, 1), tokens_num = direct_number(&call, 7);
    if (call.failed)
        return direct_finish_single(&call);
    if (!call.inputs[2] && !call.inputs[6]) /* no weights, no ids: a row may come twice */
        call.options.flags = MOETOKEN_REPEATED_ROWS;
    moetoken_unpermute_args args = {
        .struct_size = sizeof args,
        .permuted_tokens = call.inputs[0],
        .sorted_indices = call.inputs[1],
        .weights = call.inputs[2],
        .residual = call.inputs[3],
        .residual2 = call.inputs[4],
        .expert_bias = call.inputs[5],
        .expert_ids = call.inputs[6],
        .unpermuted_tokens = direct_rows(&call, 0, call.inputs[0]->dtype, tokens_num, hidden_size)};
    direct_run_unpermute(&call, &args);
    return direct_finish_single(&call);
}

/* unpermuted_tokens_grad, sorted_indices, permuted_tokens, weights, expert_bias, expert_ids,
 * rows_num, wants_rows, wants_weights. */
PyObject *python_direct_unpermute_grad_by_ids(PyObject *self, PyObject *const *values,
                                              Py_ssize_t count)
{
    (void)self;
    struct direct call;
    direct_begin(&call, values, 6, count, 9);
    int64_t hidden_size = direct_size(&call, 0, 2, 1), rows_num = direct_number(&call, 6);
    bool wants_rows = direct_flag(&call, 7), wants_weights = direct_flag(&call, 8);
    if (call.failed)
        return direct_finish(&call, 2);
    const DLTensor *g = call.inputs[0], *weights = call.inputs[3];
    int64_t tokens_num = wants_weights ? direct_size(&call, 3, 2, 0) : 0,
            topk = wants_weights ? direct_size(&call, 3, 2, 1) : 0;
    if (call.failed)
        return direct_finish(&call, 2);
    moetoken_unpermute_grad_args args = {
        .struct_size = sizeof args,
        .unpermuted_tokens_grad = g,
        .out_index = call.inputs[1],
        .permuted_tokens = call.inputs[2],
        .weights = weights,
        .expert_bias = call.inputs[4],
        .expert_ids = call.inputs[5],
        .permuted_tokens_grad =
            wants_rows ? direct_rows(&call, 0, g->dtype, rows_num, hidden_size) : NULL,
        .weights_grad =
            wants_weights ? direct_matrix(&call, 1, weights->dtype, tokens_num, topk) : NULL};
    direct_run_unpermute_grad(&call, &args);
    return direct_finish(&call, 2);
}
