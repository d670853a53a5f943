/* xla_ffi.c - the four operators as XLA custom calls: buffers of a compiled JAX program ->
 * DLTensors over the same memory -> the library.
 *
 * Attributes are int64 scalars: "arguments" and "results" are masks that say which of the
 * operator's tensors the call carries (bit i: the i-th of its table below), the others are the
 * operator's numbers. A call may be batched by vmap: then each buffer has the same number of
 * leading dimensions more than its table says, of the batch's size or, when it is the same for the
 * whole batch, of size 1. */
#include "xla_call.h"

static moetoken_status run_unpermute_grad(const void *args, const moetoken_options *options)
{
    return moetoken_unpermute_grad(args, options);
}

static moetoken_status run_unpermute(const void *args, const moetoken_options *options)
{
    return moetoken_unpermute(args, options);
}

static moetoken_status run_permute(const void *args, const moetoken_options *options)
{
    return moetoken_permute(args, options);
}

static moetoken_status run_permute_grad(const void *args, const moetoken_options *options)
{
    return moetoken_permute_grad(args, options);
}

MOETOKEN_API xla_handler moetoken_xla_unpermute_grad, moetoken_xla_unpermute, moetoken_xla_permute,
    moetoken_xla_permute_grad, moetoken_xla_unpermute_grad_by_ids, moetoken_xla_unpermute_by_ids,
    moetoken_xla_permute_by_ids, moetoken_xla_permute_grad_by_ids;

struct xla_error *moetoken_xla_unpermute_grad(struct xla_call_frame *frame)
{
    static const int ranks[] = {2, 1, 1, 2, 2, 2, 2, 2};
    struct xla_call call;
    struct xla_error *error;
    if (xla_call_answered(frame, &call, ranks, 6, 2, &error))
        return error;
    DLTensor unread; /* stands for permuted_tokens, which the library wants to see described */
    if (!call.tensors[4] && call.tensors[5] && call.tensors[6] && !call.tensors[7]) {
        unread = *call.tensors[6];
        unread.data = NULL;
        call.tensors[4] = &unread;
    }
    moetoken_unpermute_grad_args args = {.unpermuted_tokens_grad = call.tensors[0],
                                         .out_index = call.tensors[1],
                                         .permute_token_id = call.tensors[2],
                                         .routing_map = call.tensors[3],
                                         .permuted_tokens = call.tensors[4],
                                         .probs = call.tensors[5],
                                         .drop_and_pad =
                                             xla_call_number(&call, "drop_and_pad") != 0,
                                         .permuted_tokens_grad = call.tensors[6],
                                         .probs_grad = call.tensors[7]};
    return xla_call_run(&call, run_unpermute_grad, &args);
}

struct xla_error *moetoken_xla_unpermute(struct xla_call_frame *frame)
{
    static const int ranks[] = {2, 1, 2, 2, 2, 1, 1, 1};
    struct xla_call call;
    struct xla_error *error;
    if (xla_call_answered(frame, &call, ranks, 4, 4, &error))
        return error;
    moetoken_unpermute_args args = {.permuted_tokens = call.tensors[0],
                                    .sorted_indices = call.tensors[1],
                                    .routing_map = call.tensors[2],
                                    .probs = call.tensors[3],
                                    .drop_and_pad = xla_call_number(&call, "drop_and_pad") != 0,
                                    .unpermuted_tokens = call.tensors[4],
                                    .out_index = call.tensors[5],
                                    .permute_token_id = call.tensors[6],
                                    .permuted_probs = call.tensors[7]};
    return xla_call_run(&call, run_unpermute, &args);
}

struct xla_error *moetoken_xla_permute(struct xla_call_frame *frame)
{
    static const int ranks[] = {2, 2, 2, 2, 1, 1};
    struct xla_call call;
    struct xla_error *error;
    if (xla_call_answered(frame, &call, ranks, 3, 3, &error))
        return error;
    moetoken_permute_args args = {.tokens = call.tensors[0],
                                  .routing_map = call.tensors[1],
                                  .probs = call.tensors[2],
                                  .num_out_tokens = xla_call_number(&call, "num_out_tokens"),
                                  .drop_and_pad = xla_call_number(&call, "drop_and_pad") != 0,
                                  .permuted_tokens = call.tensors[3],
                                  .permuted_probs = call.tensors[4],
                                  .sorted_indices = call.tensors[5]};
    return xla_call_run(&call, run_permute, &args);
}

struct xla_error *moetoken_xla_permute_grad(struct xla_call_frame *frame)
{
    static const int ranks[] = {2, 1, 1, 2, 2, 2};
    struct xla_call call;
    struct xla_error *error;
    if (xla_call_answered(frame, &call, ranks, 4, 2, &error))
        return error;
    moetoken_permute_grad_args args = {.permuted_tokens_grad = call.tensors[0],
                                       .permuted_probs_grad = call.tensors[1],
                                       .sorted_indices = call.tensors[2],
                                       .routing_map = call.tensors[3],
                                       .tokens_num = xla_call_number(&call, "tokens_num"),
                                       .experts_num = xla_call_number(&call, "experts_num"),
                                       .drop_and_pad = xla_call_number(&call, "drop_and_pad") != 0,
                                       .tokens_grad = call.tensors[4],
                                       .probs_grad = call.tensors[5]};
    return xla_call_run(&call, run_permute_grad, &args);
}

/* ---- on a routing by expert ids: the same operators with other tensors ----------------------- */

struct xla_error *moetoken_xla_permute_by_ids(struct xla_call_frame *frame)
{
    static const int ranks[] = {2, 2, 2, 2, 1, 1, 1};
    struct xla_call call;
    struct xla_error *error;
    if (xla_call_answered(frame, &call, ranks, 3, 4, &error))
        return error;
    moetoken_permute_args args = {.struct_size = sizeof args,
                                  .tokens = call.tensors[0],
                                  .expert_ids = call.tensors[1],
                                  .weights = call.tensors[2],
                                  .experts_num = xla_call_number(&call, "experts_num"),
                                  .expert_begin = xla_call_number(&call, "expert_begin"),
                                  .expert_end = xla_call_number(&call, "expert_end"),
                                  .capacity = xla_call_number(&call, "capacity"),
                                  .permuted_tokens = call.tensors[3],
                                  .permuted_probs = call.tensors[4],
                                  .sorted_indices = call.tensors[5],
                                  .source_slots = call.tensors[6]};
    return xla_call_run(&call, run_permute, &args);
}

struct xla_error *moetoken_xla_permute_grad_by_ids(struct xla_call_frame *frame)
{
    static const int ranks[] = {2, 1, 1, 2, 2};
    struct xla_call call;
    struct xla_error *error;
    if (xla_call_answered(frame, &call, ranks, 3, 2, &error))
        return error;
    moetoken_permute_grad_args args = {.struct_size = sizeof args,
                                       .permuted_tokens_grad = call.tensors[0],
                                       .permuted_probs_grad = call.tensors[1],
                                       .sorted_indices = call.tensors[2],
                                       .tokens_num = xla_call_number(&call, "tokens_num"),
                                       .tokens_grad = call.tensors[3],
                                       .weights_grad = call.tensors[4]};
    return xla_call_run(&call, run_permute_grad, &args);
}

struct xla_error *moetoken_xla_unpermute_by_ids(struct xla_call_frame *frame)
{
    static const int ranks[] = {2, 1, 2, 2, 2, 2, 2, 2};
    struct xla_call call;
    struct xla_error *error;
    if (xla_call_answered(frame, &call, ranks, 7, 1, &error))
        return error;
    moetoken_unpermute_args args = {.struct_size = sizeof args,
                                    .permuted_tokens = call.tensors[0],
                                    .sorted_indices = call.tensors[1],
                                    .weights = call.tensors[2],
                                    .residual = call.tensors[3],
                                    .residual2 = call.tensors[4],
                                    .expert_bias = call.tensors[5],
                                    .expert_ids = call.tensors[6],
                                    .unpermuted_tokens = call.tensors[7]};
    return xla_call_run(&call, run_unpermute, &args);
}

struct xla_error *moetoken_xla_unpermute_grad_by_ids(struct xla_call_frame *frame)
{
    static const int ranks[] = {2, 1, 2, 2, 2, 2, 2, 2};
    struct xla_call call;
    struct xla_error *error;
    if (xla_call_answered(frame, &call, ranks, 6, 2, &error))
        return error;
    moetoken_unpermute_grad_args args = {.struct_size = sizeof args,
                                         .unpermuted_tokens_grad = call.tensors[0],
                                         .out_index = call.tensors[1],
                                         .permuted_tokens = call.tensors[2],
                                         .weights = call.tensors[3],
                                         .expert_bias = call.tensors[4],
                                         .expert_ids = call.tensors[5],
                                         .permuted_tokens_grad = call.tensors[6],
                                         .weights_grad = call.tensors[7]};
    return xla_call_run(&call, run_unpermute_grad, &args);
}
