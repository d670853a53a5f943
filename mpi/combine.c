/* combine.c - rows back to their tokens: combine, and the gradient of dispatch, which adds up what
 * came back in the same way. */
#include "call.h"

#include <string.h>

static moetoken_status begin_call(moetoken_mpi_exchange *exchange, struct moetoken_mpi_call *call)
{
    if (!exchange)
        return moetoken_mpi_fail(MOETOKEN_ERR_NULL, "exchange is NULL");
    memset(call, 0, sizeof *call);
    call->exchange = exchange;
    return moetoken_mpi_may_call(exchange->comm);
}

/* The core library's largest work on this way. */
static void inward_needs(const struct moetoken_mpi_exchange *exchange,
                         struct moetoken_mpi_needs *needs)
{
    needs->core_tokens = exchange->rows > exchange->tokens ? exchange->rows : exchange->tokens;
    needs->core_slots = exchange->rows > exchange->slots ? exchange->rows : exchange->slots;
}

/* Packs the rows, sends them and waits for those of this rank's slots. */
static moetoken_status bring_back(struct moetoken_mpi_call *call, const DLTensor *rows)
{
    struct moetoken_mpi_exchange *exchange = call->exchange;
    int64_t shape[2];
    DLTensor room = moetoken_mpi_room_tensor(call, 0, exchange->rows, shape);
    moetoken_status status =
        moetoken_mpi_copy_rows(call, rows, NULL, &room, exchange->pack_row_place, exchange->rows);
    char *returned = call->room + exchange->rows_away * call->row_bytes;
    if (!status)
        status =
            moetoken_mpi_transfer_start(exchange->comm, call->room, returned, &call->transfers[0]);
    return status ? status : moetoken_mpi_transfer_wait(exchange->comm, &call->transfers[0]);
}

static moetoken_status check_combine(struct moetoken_mpi_call *call,
                                     const moetoken_mpi_combine_args *args)
{
    const struct moetoken_mpi_exchange *exchange = call->exchange;
    int64_t tokens = exchange->tokens;
    if (!args)
        return moetoken_mpi_fail(MOETOKEN_ERR_NULL, "args is NULL");
    if (args->struct_size && args->struct_size != sizeof *args)
        return moetoken_mpi_fail(MOETOKEN_ERR_OPTION, "args.struct_size is %zu, expected %zu",
                                 args->struct_size, sizeof *args);
    if (!args->rows || !args->tokens)
        return moetoken_mpi_fail(MOETOKEN_ERR_NULL, "%s is NULL", args->rows ? "tokens" : "rows");
    if (args->residual2 && !args->residual)
        return moetoken_mpi_fail(MOETOKEN_ERR_NULL, "residual is NULL, which residual2 needs");
    struct moetoken_mpi_argument arguments[] = {
        {.name = "rows", .tensor = args->rows, .ndim = 2, .rows = exchange->rows},
        {.name = "weights",
         .tensor = args->weights,
         .weights_like = true,
         .ndim = 2,
         .rows = tokens,
         .columns = exchange->slots_per_token},
        {.name = "residual", .tensor = args->residual, .ndim = 2, .rows = tokens},
        {.name = "residual2", .tensor = args->residual2, .ndim = 2, .rows = tokens},
        {.name = "tokens", .tensor = args->tokens, .output = true, .ndim = 2, .rows = tokens}};
    return moetoken_mpi_check_arguments(arguments, 5, -1, -1, &call->common);
}

static moetoken_status add_up(struct moetoken_mpi_call *call, const moetoken_mpi_combine_args *args)
{
    struct moetoken_mpi_exchange *exchange = call->exchange;
    int64_t shape[2];
    DLTensor returned = moetoken_mpi_room_tensor(call, exchange->rows_away, exchange->used, shape);
    DLTensor places = moetoken_tensor(exchange->slot_place, MOETOKEN_I64, 1, &exchange->slots);
    moetoken_unpermute_args core = {.struct_size = sizeof core,
                                    .permuted_tokens = &returned,
                                    .sorted_indices = &places,
                                    .weights = args->weights,
                                    .residual = args->residual,
                                    .residual2 = args->residual2,
                                    .unpermuted_tokens = args->tokens};
    return moetoken_mpi_fail_as_core(moetoken_unpermute(&core, &call->core));
}

moetoken_status moetoken_mpi_combine(moetoken_mpi_exchange *exchange,
                                     const moetoken_mpi_combine_args *args)
{
    struct moetoken_mpi_call call;
    moetoken_status status = begin_call(exchange, &call);
    if (status)
        return status;
    status = check_combine(&call, args);
    if (!status) {
        struct moetoken_mpi_needs needs = {.rows = MOETOKEN_MPI_ROWS_BACK};
        inward_needs(exchange, &needs);
        status = moetoken_mpi_call_prepare(&call, &needs);
    }
    call.common.weights_type = -1; /* weights stay at home: nobody else need have any */
    status = moetoken_mpi_call_agree(&call, status, MOETOKEN_MPI_COMBINE, 0);
    if (!status)
        status = bring_back(&call, args->rows);
    if (!status)
        status = add_up(&call, args);
    moetoken_mpi_call_free(&call);
    return status;
}

/* ---- the gradient of dispatch --------------------------------------------------------------- */

static moetoken_status check_pairs(const moetoken_mpi_dispatch_grad_args *args)
{
    if (!args)
        return moetoken_mpi_fail(MOETOKEN_ERR_NULL, "args is NULL");
    if (args->struct_size && args->struct_size != sizeof *args)
        return moetoken_mpi_fail(MOETOKEN_ERR_OPTION, "args.struct_size is %zu, expected %zu",
                                 args->struct_size, sizeof *args);
    if (!args->rows_grad != !args->tokens_grad)
        return moetoken_mpi_fail(MOETOKEN_ERR_NULL, "%s is given without %s",
                                 args->rows_grad ? "rows_grad" : "tokens_grad",
                                 args->rows_grad ? "tokens_grad" : "rows_grad");
    if (!args->row_weights_grad != !args->weights_grad)
        return moetoken_mpi_fail(MOETOKEN_ERR_NULL, "%s is given without %s",
                                 args->weights_grad ? "weights_grad" : "row_weights_grad",
                                 args->weights_grad ? "row_weights_grad" : "weights_grad");
    if (!args->rows_grad && !args->row_weights_grad)
        return moetoken_mpi_fail(MOETOKEN_ERR_NULL, "rows_grad and row_weights_grad are NULL");
    return MOETOKEN_OK;
}

static moetoken_status check_dispatch_grad(struct moetoken_mpi_call *call,
                                           const moetoken_mpi_dispatch_grad_args *args,
                                           struct moetoken_mpi_tensor *row_weights)
{
    const struct moetoken_mpi_exchange *exchange = call->exchange;
    moetoken_status status = check_pairs(args);
    if (status)
        return status;
    struct moetoken_mpi_argument arguments[] = {
        {.name = "rows_grad", .tensor = args->rows_grad, .ndim = 2, .rows = exchange->rows},
        {.name = "row_weights_grad",
         .tensor = args->row_weights_grad,
         .weights_like = true,
         .ndim = 1,
         .rows = exchange->rows,
         .columns = 1},
        {.name = "tokens_grad",
         .tensor = args->tokens_grad,
         .output = true,
         .ndim = 2,
         .rows = exchange->tokens},
        {.name = "weights_grad",
         .tensor = args->weights_grad,
         .weights_like = true,
         .output = true,
         .ndim = 2,
         .rows = exchange->tokens,
         .columns = exchange->slots_per_token}};
    status = moetoken_mpi_check_arguments(arguments, 4, -1, -1, &call->common);
    *row_weights = arguments[1].view;
    return status;
}

static moetoken_status sum_gradients(struct moetoken_mpi_call *call,
                                     const moetoken_mpi_dispatch_grad_args *args)
{
    struct moetoken_mpi_exchange *exchange = call->exchange;
    int64_t shape[2];
    DLTensor returned = {0}, numbers = {0};
    if (args->rows_grad)
        returned = moetoken_mpi_room_tensor(call, exchange->rows_away, exchange->used, shape);
    if (args->row_weights_grad)
        numbers = moetoken_tensor(call->slots_at_home, (moetoken_type)call->common.weights_type, 1,
                                  &exchange->used);
    DLTensor places = moetoken_tensor(exchange->slot_place, MOETOKEN_I64, 1, &exchange->slots);
    moetoken_permute_grad_args core = {.struct_size = sizeof core,
                                       .permuted_tokens_grad = args->rows_grad ? &returned : NULL,
                                       .permuted_probs_grad =
                                           args->row_weights_grad ? &numbers : NULL,
                                       .sorted_indices = &places,
                                       .tokens_num = exchange->tokens,
                                       .tokens_grad = args->tokens_grad,
                                       .weights_grad = args->weights_grad};
    return moetoken_mpi_fail_as_core(moetoken_permute_grad(&core, &call->core));
}

moetoken_status moetoken_mpi_dispatch_grad(moetoken_mpi_exchange *exchange,
                                           const moetoken_mpi_dispatch_grad_args *args)
{
    struct moetoken_mpi_call call;
    moetoken_status status = begin_call(exchange, &call);
    if (status)
        return status;
    struct moetoken_mpi_tensor row_weights = {0};
    status = check_dispatch_grad(&call, args, &row_weights);
    bool rows = args && args->rows_grad, weights = args && args->row_weights_grad;
    if (!status) {
        struct moetoken_mpi_needs needs = {
            .rows = rows ? MOETOKEN_MPI_ROWS_BACK : MOETOKEN_MPI_NO_ROWS, .weights_back = weights};
        inward_needs(exchange, &needs);
        status = moetoken_mpi_call_prepare(&call, &needs);
    }
    status = moetoken_mpi_call_agree(&call, status, MOETOKEN_MPI_DISPATCH_GRAD, 0);
    if (!status && weights) {
        moetoken_mpi_slots_from_rows(&call, &row_weights);
        status = moetoken_mpi_transfer_start(exchange->comm, call.slots_at_work, call.slots_at_home,
                                             &call.weights_back);
    }
    if (!status && rows)
        status = bring_back(&call, args->rows_grad);
    if (!status && weights)
        status = moetoken_mpi_transfer_wait(exchange->comm, &call.weights_back);
    if (!status)
        status = sum_gradients(&call, args);
    moetoken_mpi_call_free(&call);
    return status;
}
