/* combine_grad.c - the gradient of combine: tokens' gradients to the experts, weighted there, and
 * the weights' gradients back. */
#include "call.h"
#include "outward.h"

#include <string.h>

static moetoken_status check(struct moetoken_mpi_call *call,
                             const moetoken_mpi_combine_grad_args *args,
                             struct moetoken_mpi_tensor *weights,
                             struct moetoken_mpi_tensor *weights_grad)
{
    const struct moetoken_mpi_exchange *exchange = call->exchange;
    int64_t tokens = exchange->tokens, slots_per_token = exchange->slots_per_token;
    if (!args)
        return moetoken_mpi_fail(MOETOKEN_ERR_NULL, "args is NULL");
    if (args->struct_size && args->struct_size != sizeof *args)
        return moetoken_mpi_fail(MOETOKEN_ERR_OPTION, "args.struct_size is %zu, expected %zu",
                                 args->struct_size, sizeof *args);
    if (!args->tokens_grad || !args->rows_grad)
        return moetoken_mpi_fail(MOETOKEN_ERR_NULL, "%s is NULL",
                                 args->tokens_grad ? "rows_grad" : "tokens_grad");
    if (args->weights_grad && (!args->weights || !args->rows))
        return moetoken_mpi_fail(MOETOKEN_ERR_NULL, "%s is NULL, which weights_grad needs",
                                 args->weights ? "rows" : "weights");
    struct moetoken_mpi_argument arguments[] = {
        {.name = "tokens_grad", .tensor = args->tokens_grad, .ndim = 2, .rows = tokens},
        {.name = "weights",
         .tensor = args->weights,
         .weights_like = true,
         .ndim = 2,
         .rows = tokens,
         .columns = slots_per_token},
        {.name = "rows", .tensor = args->rows, .ndim = 2, .rows = exchange->rows},
        {.name = "rows_grad",
         .tensor = args->rows_grad,
         .output = true,
         .ndim = 2,
         .rows = exchange->rows},
        {.name = "weights_grad",
         .tensor = args->weights_grad,
         .weights_like = true,
         .output = true,
         .ndim = 2,
         .rows = tokens,
         .columns = slots_per_token}};
    moetoken_status status = moetoken_mpi_check_arguments(arguments, 5, 2, 3, &call->common);
    *weights = arguments[1].view;
    *weights_grad = arguments[4].view;
    return status;
}

/* The slots of each arrived token side by side, as the core library takes them. */
static void spread_slots(const struct moetoken_mpi_call *call)
{
    const struct moetoken_mpi_exchange *exchange = call->exchange;
    int64_t widest = exchange->widest, cells = exchange->tokens_arrived * widest;
    int64_t token = -1, k = 0;
    for (int64_t i = 0; i < cells; i++)
        call->slot_rows[i] = -1;
    memset(call->slot_weights, 0, (size_t)(cells * 2 * call->weight_bytes));
    for (int64_t slot = 0; slot < exchange->rows; slot++) {
        k = exchange->slot_token[slot] == token ? k + 1 : 0;
        token = exchange->slot_token[slot];
        call->slot_rows[token * widest + k] = exchange->slot_row[slot];
        memcpy(call->slot_weights + (token * widest + k) * call->weight_bytes,
               call->slots_at_work + slot * call->weight_bytes, (size_t)call->weight_bytes);
    }
}

/* The other way for the gradients, which lie behind the weights. */
static void collect_slots(const struct moetoken_mpi_call *call)
{
    const struct moetoken_mpi_exchange *exchange = call->exchange;
    int64_t widest = exchange->widest, token = -1, k = 0;
    const char *grads = call->slot_weights + exchange->tokens_arrived * widest * call->weight_bytes;
    for (int64_t slot = 0; slot < exchange->rows; slot++) {
        k = exchange->slot_token[slot] == token ? k + 1 : 0;
        token = exchange->slot_token[slot];
        memcpy(call->slots_at_work + slot * call->weight_bytes,
               grads + (token * widest + k) * call->weight_bytes, (size_t)call->weight_bytes);
    }
}

/* rows_grad, and the weights' gradients of the slots that are here. */
static moetoken_status weigh_rows(struct moetoken_mpi_call *call,
                                  const moetoken_mpi_combine_grad_args *args)
{
    struct moetoken_mpi_exchange *exchange = call->exchange;
    int64_t shape[2], slots = exchange->tokens_arrived * exchange->widest;
    int64_t token_slots[2] = {exchange->tokens_arrived, exchange->widest};
    moetoken_type type = (moetoken_type)call->common.weights_type;
    spread_slots(call);
    if (slots == 0)
        return MOETOKEN_OK;
    DLTensor arrived =
        moetoken_mpi_room_tensor(call, exchange->tokens_away, exchange->tokens_arrived, shape);
    DLTensor rows = moetoken_tensor(call->slot_rows, MOETOKEN_I64, 1, &slots);
    DLTensor weights = moetoken_tensor(call->slot_weights, type, 2, token_slots);
    DLTensor grads =
        moetoken_tensor(call->slot_weights + slots * call->weight_bytes, type, 2, token_slots);
    moetoken_unpermute_grad_args core = {.struct_size = sizeof core,
                                         .unpermuted_tokens_grad = &arrived,
                                         .out_index = &rows,
                                         .permuted_tokens = args->weights_grad ? args->rows : NULL,
                                         .permuted_tokens_grad = args->rows_grad,
                                         .weights = &weights,
                                         .weights_grad = args->weights_grad ? &grads : NULL};
    moetoken_status status = moetoken_mpi_fail_as_core(moetoken_unpermute_grad(&core, &call->core));
    if (!status && args->weights_grad)
        collect_slots(call);
    return status;
}

/* Without weights the gradient of a row is that of its token. */
static moetoken_status copy_groups(struct moetoken_mpi_call *call,
                                   const moetoken_mpi_combine_grad_args *args)
{
    const struct moetoken_mpi_exchange *exchange = call->exchange;
    moetoken_status status = MOETOKEN_OK;
    for (int64_t group = 0; group < exchange->groups && !status; group++)
        status = moetoken_mpi_transfer_wait(exchange->comm, &call->transfers[group]);
    if (status)
        return status;
    int64_t shape[2];
    DLTensor arrived =
        moetoken_mpi_room_tensor(call, exchange->tokens_away, exchange->tokens_arrived, shape);
    return moetoken_mpi_copy_rows(call, &arrived, exchange->slot_token, args->rows_grad,
                                  exchange->slot_row, exchange->rows);
}

static moetoken_status weigh_groups(struct moetoken_mpi_call *call,
                                    const moetoken_mpi_combine_grad_args *args,
                                    const struct moetoken_mpi_tensor *weights_grad)
{
    const struct moetoken_mpi_exchange *exchange = call->exchange;
    moetoken_status status = moetoken_mpi_transfer_wait(exchange->comm, &call->weights_out);
    for (int64_t group = 0; group < exchange->groups && !status; group++)
        status = moetoken_mpi_transfer_wait(exchange->comm, &call->transfers[group]);
    if (!status)
        status = weigh_rows(call, args);
    if (status || !args->weights_grad)
        return status;
    status = moetoken_mpi_transfer_start(exchange->comm, call->slots_at_work, call->slots_at_home,
                                         &call->weights_back);
    if (!status)
        status = moetoken_mpi_transfer_wait(exchange->comm, &call->weights_back);
    if (!status)
        moetoken_mpi_slots_to_home(call, weights_grad);
    return status;
}

moetoken_status moetoken_mpi_combine_grad(moetoken_mpi_exchange *exchange,
                                          const moetoken_mpi_combine_grad_args *args)
{
    if (!exchange)
        return moetoken_mpi_fail(MOETOKEN_ERR_NULL, "exchange is NULL");
    struct moetoken_mpi_call call = {.exchange = exchange};
    moetoken_status status = moetoken_mpi_may_call(exchange->comm);
    if (status)
        return status;
    struct moetoken_mpi_tensor weights = {0}, weights_grad = {0};
    status = check(&call, args, &weights, &weights_grad);
    bool weighted = args && args->weights, wants_grad = args && args->weights_grad;
    if (!status) {
        struct moetoken_mpi_needs needs = {.rows = MOETOKEN_MPI_ROWS_OUT,
                                           .weights_out = weighted,
                                           .weights_back = wants_grad,
                                           .weighted_rows = weighted};
        moetoken_mpi_outward_needs(exchange, &needs);
        status = moetoken_mpi_call_prepare(&call, &needs);
    }
    status = moetoken_mpi_call_agree(&call, status, MOETOKEN_MPI_COMBINE_GRAD, wants_grad);
    if (!status && weighted)
        moetoken_mpi_slots_from_home(&call, &weights);
    if (!status)
        status = moetoken_mpi_send_outward(&call, args->tokens_grad, weighted);
    if (!status)
        status = weighted ? weigh_groups(&call, args, &weights_grad) : copy_groups(&call, args);
    moetoken_mpi_call_free(&call);
    return status;
}
