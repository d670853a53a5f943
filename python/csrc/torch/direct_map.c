/* direct_map.c - the four operators by routing map on plain tensors, outputs included. */
#include "direct_map.h"

#include "direct.h"
#include "plain.h"

/* Values i and i + 1: mask_fill_slots (-1: there is none) and tolerate_routing_mismatch. */
static void read_flags(struct direct *call, int mask, int tolerate)
{
    if (mask >= 0 && direct_flag(call, mask))
        call->options.flags |= MOETOKEN_MASK_FILL_SLOTS;
    if (direct_flag(call, tolerate))
        call->options.flags |= MOETOKEN_TOLERATE_ROUTING_MISMATCH;
}

/* tokens, routing_map, probs, num_out_tokens, rows_num, drop_and_pad, index_dtype. */
PyObject *python_direct_permute(PyObject *self, PyObject *const *values, Py_ssize_t count)
{
    (void)self;
    struct direct call;
    direct_begin(&call, values, 3, count, 7);
    int64_t hidden_size = direct_size(&call, 0, 2, 1), slots_num = direct_number(&call, 3),
            rows_num = direct_number(&call, 4);
    bool drop_and_pad = direct_flag(&call, 5);
    DLDataType index_type;
    call.failed = call.failed || !torch_index_type(values[6], &index_type);
    if (call.failed)
        return direct_finish(&call, 3);
    const DLTensor *probs = call.inputs[2];
    moetoken_permute_args args = {
        .struct_size = sizeof args,
        .tokens = call.inputs[0],
        .routing_map = call.inputs[1],
        .probs = probs,
        .num_out_tokens = slots_num,
        .drop_and_pad = drop_and_pad,
        .permuted_tokens = direct_rows(&call, 0, call.inputs[0]->dtype, rows_num, hidden_size),
        .permuted_probs = probs ? direct_vector(&call, 1, probs->dtype, rows_num) : NULL,
        .sorted_indices = direct_vector(&call, 2, index_type, slots_num)};
    direct_run_permute(&call, &args);
    return direct_finish(&call, 3);
}

/* permuted_tokens_grad, permuted_probs_grad, sorted_indices, routing_map, tokens_num, experts_num,
 * drop_and_pad, tolerate_routing_mismatch. */
PyObject *python_direct_permute_grad(PyObject *self, PyObject *const *values, Py_ssize_t count)
{
    (void)self;
    struct direct call;
    direct_begin(&call, values, 4, count, 8);
    int64_t tokens_num = direct_number(&call, 4), experts_num = direct_number(&call, 5);
    bool drop_and_pad = direct_flag(&call, 6);
    if (!call.failed)
        read_flags(&call, -1, 7);
    if (call.failed)
        return direct_finish(&call, 2);
    const DLTensor *rows = call.inputs[0], *row_probs = call.inputs[1];
    int64_t hidden_size = rows ? direct_size(&call, 0, 2, 1) : 0;
    moetoken_permute_grad_args args = {
        .struct_size = sizeof args,
        .permuted_tokens_grad = rows,
        .permuted_probs_grad = row_probs,
        .sorted_indices = call.inputs[2],
        .routing_map = call.inputs[3],
        .tokens_num = tokens_num,
        .experts_num = experts_num,
        .drop_and_pad = drop_and_pad,
        .tokens_grad = rows ? direct_rows(&call, 0, rows->dtype, tokens_num, hidden_size) : NULL,
        .probs_grad =
            row_probs ? direct_matrix(&call, 1, row_probs->dtype, tokens_num, experts_num) : NULL};
    direct_run_permute_grad(&call, &args);
    return direct_finish(&call, 2);
}

/* permuted_tokens, sorted_indices, routing_map, probs, tokens_num, hidden_size, drop_and_pad,
 * mask_fill_slots, tolerate_routing_mismatch. */
PyObject *python_direct_unpermute(PyObject *self, PyObject *const *values, Py_ssize_t count)
{
    (void)self;
    struct direct call;
    direct_begin(&call, values, 4, count, 9);
    int64_t slots_num = direct_size(&call, 1, 1, 0);
    int64_t shape[2] = {direct_number(&call, 4), direct_number(&call, 5)};
    bool drop_and_pad = direct_flag(&call, 6);
    read_flags(&call, 7, 8);
    call.failed = call.failed || !call.inputs[0];
    if (call.failed)
        return direct_finish(&call, 3);
    DLDataType index_type = call.inputs[1]->dtype;
    slots_num = drop_and_pad ? slots_num : 0;
    const DLTensor *out_index = direct_vector(&call, 1, index_type, slots_num),
                   *token_id = direct_vector(&call, 2, index_type, slots_num);
    moetoken_unpermute_args args = {
        .struct_size = sizeof args,
        .permuted_tokens = call.inputs[0],
        .sorted_indices = call.inputs[1],
        .routing_map = call.inputs[2],
        .probs = call.inputs[3],
        .restore_shape = shape,
        .drop_and_pad = drop_and_pad,
        .unpermuted_tokens = direct_rows(&call, 0, call.inputs[0]->dtype, shape[0], shape[1]),
        .out_index = drop_and_pad ? out_index : NULL,
        .permute_token_id = drop_and_pad ? token_id : NULL};
    direct_run_unpermute(&call, &args);
    return direct_finish(&call, 3);
}

/* Rows that the library asks for but, in this call, does not read. */
static const DLTensor *unread_rows(DLTensor *tensor, const DLTensor *like, int64_t shape[2])
{
    static double nothing;
    static int64_t strides[2];
    *tensor = (DLTensor){.data = &nothing,
                         .device = {kDLCPU, 0},
                         .ndim = 2,
                         .dtype = like->dtype,
                         .shape = shape,
                         .strides = strides};
    return tensor;
}

/* unpermuted_tokens_grad, out_index, permute_token_id, routing_map, permuted_tokens, probs,
 * rows_num, drop_and_pad, wants_tokens_grad, wants_probs_grad, mask_fill_slots,
 * tolerate_routing_mismatch. */
PyObject *python_direct_unpermute_grad(PyObject *self, PyObject *const *values, Py_ssize_t count)
{
    (void)self;
    struct direct call;
    direct_begin(&call, values, 6, count, 12);
    int64_t shape[2] = {direct_number(&call, 6), direct_size(&call, 0, 2, 1)};
    bool drop_and_pad = direct_flag(&call, 7), wants_rows = direct_flag(&call, 8),
         wants_probs = direct_flag(&call, 9);
    read_flags(&call, 10, 11);
    if (call.failed)
        return direct_finish(&call, 2);
    const DLTensor *g = call.inputs[0], *rows = call.inputs[4], *probs = call.inputs[5];
    DLTensor unread;
    if (probs && !rows && !wants_probs)
        rows = unread_rows(&unread, g, shape);
    wants_probs = wants_probs && probs;
    int64_t tokens_num = probs ? direct_size(&call, 5, 2, 0) : 0,
            experts_num = probs ? direct_size(&call, 5, 2, 1) : 0;
    moetoken_unpermute_grad_args args = {
        .struct_size = sizeof args,
        .unpermuted_tokens_grad = g,
        .out_index = call.inputs[1],
        .permute_token_id = call.inputs[2],
        .routing_map = call.inputs[3],
        .permuted_tokens = rows,
        .probs = probs,
        .drop_and_pad = drop_and_pad,
        .permuted_tokens_grad =
            wants_rows ? direct_rows(&call, 0, g->dtype, shape[0], shape[1]) : NULL,
        .probs_grad =
            wants_probs ? direct_matrix(&call, 1, probs->dtype, tokens_num, experts_num) : NULL};
    direct_run_unpermute_grad(&call, &args);
    return direct_finish(&call, 2);
}
