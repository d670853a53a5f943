/* xla_ffi_router.c - the router's functions as XLA custom calls, like the operators in xla_ffi.c.
 *
 * The settings of a moetoken_router_config are attributes of their own names; eps, scale and coeff
 * are float64. */
#include "xla_call.h"

#include <moetoken/router.h>
#include <stdlib.h>

MOETOKEN_API xla_handler moetoken_xla_router, moetoken_xla_router_grad,
    moetoken_xla_router_balance_loss, moetoken_xla_router_z_loss, moetoken_xla_router_drop;

static moetoken_router_config read_config(struct xla_call *call)
{
    return (moetoken_router_config){.topk = xla_call_number(call, "topk"),
                                    .score = (int32_t)xla_call_number(call, "score"),
                                    .normalize = xla_call_number(call, "normalize") != 0,
                                    .normalize_scores =
                                        xla_call_number(call, "normalize_scores") != 0,
                                    .groups_num = xla_call_number(call, "groups_num"),
                                    .groups_top = xla_call_number(call, "groups_top"),
                                    .group_score_count = xla_call_number(call, "group_score_count"),
                                    .eps = xla_call_real(call, "eps"),
                                    .scale = xla_call_real(call, "scale")};
}

static moetoken_status run_router(const void *args, const moetoken_options *options)
{
    return moetoken_router(args, options);
}

static moetoken_status run_router_grad(const void *args, const moetoken_options *options)
{
    return moetoken_router_grad(args, options);
}

static moetoken_status run_balance_loss(const void *args, const moetoken_options *options)
{
    return moetoken_router_balance_loss(args, options);
}

static moetoken_status run_z_loss(const void *args, const moetoken_options *options)
{
    return moetoken_router_z_loss(args, options);
}

static moetoken_status run_drop(const void *args, const moetoken_options *options)
{
    return moetoken_router_drop(args, options);
}

struct xla_error *moetoken_xla_router(struct xla_call_frame *frame)
{
    static const int ranks[] = {2, 1, 1, 2, 2, 2};
    struct xla_call call;
    struct xla_error *error;
    if (xla_call_answered(frame, &call, ranks, 3, 3, &error))
        return error;
    moetoken_router_args args = {.struct_size = sizeof args,
                                 .logits = call.tensors[0],
                                 .bias = call.tensors[1],
                                 .token_mask = call.tensors[2],
                                 .config = read_config(&call),
                                 .expert_ids = call.tensors[3],
                                 .weights = call.tensors[4],
                                 .scores = call.tensors[5]};
    return xla_call_run(&call, run_router, &args);
}

struct xla_error *moetoken_xla_router_grad(struct xla_call_frame *frame)
{
    static const int ranks[] = {2, 1, 2, 2, 2, 2};
    struct xla_call call;
    struct xla_error *error;
    if (xla_call_answered(frame, &call, ranks, 5, 1, &error))
        return error;
    moetoken_router_grad_args args = {.struct_size = sizeof args,
                                      .logits = call.tensors[0],
                                      .token_mask = call.tensors[1],
                                      .expert_ids = call.tensors[2],
                                      .config = read_config(&call),
                                      .weights_grad = call.tensors[3],
                                      .scores_grad = call.tensors[4],
                                      .logits_grad = call.tensors[5]};
    return xla_call_run(&call, run_router_grad, &args);
}

/* JAX has no int64 unless it is asked to: counts of int32 become int64 in memory of their own, to
 * be freed. NULL: they are as they should be, or there is no memory, which call->problem says. */
static int64_t *widen_counts(struct xla_call *call, int i, struct xla_buffer *wide)
{
    const struct xla_buffer *counts = call->buffers[i];
    if (!counts || counts->type != XLA_TYPE_S32)
        return NULL;
    int64_t elements = 1;
    for (int64_t dim = 0; dim < counts->rank; dim++)
        elements *= counts->shape[dim];
    int64_t *memory = malloc((size_t)(elements + 1) * sizeof *memory);
    if (!memory) {
        call->problem = "no memory for the counts";
        return NULL;
    }
    for (int64_t j = 0; j < elements; j++)
        memory[j] = ((const int32_t *)counts->data)[j];
    *wide = *counts;
    wide->type = XLA_TYPE_S64;
    wide->data = memory;
    call->buffers[i] = wide;
    call->storage[i].dtype = moetoken_dtype(MOETOKEN_I64);
    return memory;
}

struct xla_error *moetoken_xla_router_balance_loss(struct xla_call_frame *frame)
{
    static const int ranks[] = {2, 1, 1, 1, 2};
    struct xla_call call;
    struct xla_error *error;
    if (xla_call_answered(frame, &call, ranks, 3, 2, &error))
        return error;
    DLTensor unread; /* stands for the scores, which the library wants to see described */
    if (!call.tensors[0] && call.tensors[4]) {
        unread = *call.tensors[4];
        unread.data = NULL;
        call.tensors[0] = &unread;
    }
    struct xla_buffer wide;
    int64_t *memory = widen_counts(&call, 1, &wide);
    moetoken_router_balance_loss_args args = {.struct_size = sizeof args,
                                              .scores = call.tensors[0],
                                              .rows_per_expert = call.tensors[1],
                                              .topk = xla_call_number(&call, "topk"),
                                              .total_tokens =
                                                  xla_call_number(&call, "total_tokens"),
                                              .coeff = xla_call_real(&call, "coeff"),
                                              .loss_grad = call.tensors[2],
                                              .loss = call.tensors[3],
                                              .scores_grad = call.tensors[4]};
    error = xla_call_run(&call, run_balance_loss, &args);
    free(memory);
    return error;
}

struct xla_error *moetoken_xla_router_z_loss(struct xla_call_frame *frame)
{
    static const int ranks[] = {2, 1, 1, 1, 2};
    struct xla_call call;
    struct xla_error *error;
    if (xla_call_answered(frame, &call, ranks, 3, 2, &error))
        return error;
    moetoken_router_z_loss_args args = {.struct_size = sizeof args,
                                        .logits = call.tensors[0],
                                        .token_mask = call.tensors[1],
                                        .coeff = xla_call_real(&call, "coeff"),
                                        .loss_grad = call.tensors[2],
                                        .loss = call.tensors[3],
                                        .logits_grad = call.tensors[4]};
    return xla_call_run(&call, run_z_loss, &args);
}

struct xla_error *moetoken_xla_router_drop(struct xla_call_frame *frame)
{
    static const int ranks[] = {2, 2, 2};
    struct xla_call call;
    struct xla_error *error;
    if (xla_call_answered(frame, &call, ranks, 2, 1, &error))
        return error;
    moetoken_router_drop_args args = {.struct_size = sizeof args,
                                      .expert_ids = call.tensors[0],
                                      .weights = call.tensors[1],
                                      .experts_num = xla_call_number(&call, "experts_num"),
                                      .capacity = xla_call_number(&call, "capacity"),
                                      .kept_ids = call.tensors[2]};
    return xla_call_run(&call, run_drop, &args);
}
