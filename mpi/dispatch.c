/* dispatch.c - tokens to their experts: dispatch, whole and by groups. */
#include "call.h"
#include "outward.h"

#include <stdlib.h>
#include <string.h>

/* A dispatch between begin and the end of its last group. Its tensors are copies: the caller's
 * descriptions may be gone. */
struct moetoken_mpi_pending {
    struct moetoken_mpi_call call;
    int64_t next_group;
    bool weighted;
    int64_t shape[2], strides[2]; /* of a group's rows */
    struct moetoken_mpi_tensor row_weights;
    struct moetoken_mpi_tensor rows_view;
};

static moetoken_status check(struct moetoken_mpi_pending *pending,
                             const moetoken_mpi_dispatch_args *args,
                             struct moetoken_mpi_tensor *weights)
{
    struct moetoken_mpi_call *call = &pending->call;
    const struct moetoken_mpi_exchange *exchange = call->exchange;
    if (!args)
        return moetoken_mpi_fail(MOETOKEN_ERR_NULL, "args is NULL");
    if (args->struct_size && args->struct_size != sizeof *args)
        return moetoken_mpi_fail(MOETOKEN_ERR_OPTION, "args.struct_size is %zu, expected %zu",
                                 args->struct_size, sizeof *args);
    if (!args->tokens || !args->rows)
        return moetoken_mpi_fail(MOETOKEN_ERR_NULL, "%s is NULL", args->tokens ? "rows" : "tokens");
    if (!args->weights != !args->row_weights)
        return moetoken_mpi_fail(MOETOKEN_ERR_NULL, "%s is given without %s",
                                 args->weights ? "weights" : "row_weights",
                                 args->weights ? "row_weights" : "weights");
    int64_t slots_per_token = exchange->slots_per_token;
    struct moetoken_mpi_argument arguments[] = {
        {.name = "tokens", .tensor = args->tokens, .ndim = 2, .rows = exchange->tokens},
        {.name = "weights",
         .tensor = args->weights,
         .weights_like = true,
         .ndim = 2,
         .rows = exchange->tokens,
         .columns = slots_per_token},
        {.name = "rows", .tensor = args->rows, .output = true, .ndim = 2, .rows = exchange->rows},
        {.name = "row_weights",
         .tensor = args->row_weights,
         .weights_like = true,
         .output = true,
         .ndim = 1,
         .rows = exchange->rows,
         .columns = 1}};
    moetoken_status status = moetoken_mpi_check_arguments(arguments, 4, -1, -1, &call->common);
    *weights = arguments[1].view;
    pending->weighted = args->weights != NULL;
    pending->rows_view = arguments[2].view;
    pending->row_weights = arguments[3].view;
    return status;
}

/* The rows of a group, as a tensor. */
static DLTensor rows_of_group(struct moetoken_mpi_pending *pending, int64_t group)
{
    const struct moetoken_mpi_exchange *exchange = pending->call.exchange;
    const struct moetoken_mpi_tensor *rows = &pending->rows_view;
    int64_t first = exchange->group_rows[group];
    pending->shape[0] = exchange->group_rows[group + 1] - first;
    pending->shape[1] = rows->shape[1];
    for (int i = 0; i < 2; i++)
        pending->strides[i] = rows->stride[i] / rows->size;
    DLTensor tensor =
        moetoken_tensor(moetoken_mpi_tensor_at(rows, first, 0), rows->type, 2, pending->shape);
    tensor.strides = pending->strides;
    return tensor;
}

static moetoken_status begin(struct moetoken_mpi_pending *pending,
                             const moetoken_mpi_dispatch_args *args, moetoken_status status)
{
    struct moetoken_mpi_call *call = &pending->call;
    struct moetoken_mpi_tensor weights = {0};
    if (!status)
        status = check(pending, args, &weights);
    if (!status) {
        struct moetoken_mpi_needs needs = {.rows = MOETOKEN_MPI_ROWS_OUT,
                                           .weights_out = pending->weighted};
        moetoken_mpi_outward_needs(call->exchange, &needs);
        status = moetoken_mpi_call_prepare(call, &needs);
    }
    status = moetoken_mpi_call_agree(call, status, MOETOKEN_MPI_DISPATCH, 0);
    if (!status && pending->weighted)
        moetoken_mpi_slots_from_home(call, &weights);
    return status ? status : moetoken_mpi_send_outward(call, args->tokens, pending->weighted);
}

moetoken_status moetoken_mpi_dispatch_begin(moetoken_mpi_exchange *exchange,
                                            const moetoken_mpi_dispatch_args *args,
                                            moetoken_mpi_pending **begun)
{
    if (!exchange)
        return moetoken_mpi_fail(MOETOKEN_ERR_NULL, "exchange is NULL");
    moetoken_status status = moetoken_mpi_may_call(exchange->comm);
    if (status)
        return status;
    struct moetoken_mpi_pending stand_in = {.call = {.exchange = exchange}};
    struct moetoken_mpi_pending *pending = calloc(1, sizeof *pending);
    if (!pending)
        status = moetoken_mpi_fail(MOETOKEN_ERR_MEMORY, "no memory for a dispatch");
    else
        pending->call.exchange = exchange;
    if (!begun)
        status = moetoken_mpi_fail(MOETOKEN_ERR_NULL, "pending is NULL");
    status = begin(pending ? pending : &stand_in, args, status);
    if (status && pending) {
        moetoken_mpi_call_free(&pending->call);
        if (!exchange->comm->broken)
            free(pending);
    }
    if (begun)
        *begun = status ? NULL : pending;
    return status;
}

moetoken_status moetoken_mpi_dispatch_end(moetoken_mpi_pending *pending, int64_t group)
{
    if (!pending)
        return moetoken_mpi_fail(MOETOKEN_ERR_NULL, "pending is NULL");
    struct moetoken_mpi_call *call = &pending->call;
    struct moetoken_mpi_exchange *exchange = call->exchange;
    if (group != pending->next_group)
        return moetoken_mpi_fail(MOETOKEN_ERR_OPTION, "group = %lld, expected %lld",
                                 (long long)group, (long long)pending->next_group);
    moetoken_status status = moetoken_mpi_may_call(exchange->comm);
    if (!status && group == 0 && pending->weighted) {
        status = moetoken_mpi_transfer_wait(exchange->comm, &call->weights_out);
        if (!status)
            moetoken_mpi_slots_to_rows(call, &pending->row_weights);
    }
    if (!status) {
        DLTensor rows = rows_of_group(pending, group);
        status = moetoken_mpi_receive_group(call, group, &rows);
    }
    pending->next_group++;
    if (status || pending->next_group == exchange->groups) {
        moetoken_mpi_call_free(call);
        if (!exchange->comm->broken)
            free(pending);
    }
    return status;
}

moetoken_status moetoken_mpi_dispatch(moetoken_mpi_exchange *exchange,
                                      const moetoken_mpi_dispatch_args *args)
{
    moetoken_mpi_pending *pending;
    moetoken_status status = moetoken_mpi_dispatch_begin(exchange, args, &pending);
    for (int64_t group = 0; !status && group < exchange->groups; group++)
        status = moetoken_mpi_dispatch_end(pending, group);
    return status;
}
