/* call.c - memory, agreement and local work of a call. */
#include "call.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

static moetoken_status prepare_core(struct moetoken_mpi_call *call,
                                    const struct moetoken_mpi_needs *needs)
{
    size_t bytes = 0;
    moetoken_status status = moetoken_mpi_fail_as_core(
        moetoken_workspace_size(needs->core_tokens, needs->core_slots, &bytes));
    call->core = call->exchange->comm->core;
    if (!status)
        status = moetoken_mpi_allocate(&call->core.workspace, (int64_t)(bytes / 8 + 1), 8, NULL);
    call->core.workspace_bytes = bytes;
    if (call->core.workspace && !bytes)
        call->core.workspace_bytes = 8;
    return status;
}

static moetoken_status prepare_room(struct moetoken_mpi_call *call, int64_t rows)
{
    int64_t bytes = 0;
    if (!__builtin_mul_overflow(rows, call->row_bytes, &bytes))
        call->room = moetoken_mpi_room_take(call->exchange->comm, (size_t)bytes);
    if (!call->room)
        return moetoken_mpi_fail(MOETOKEN_ERR_MEMORY, "no memory for %lld rows of %lld bytes",
                                 (long long)rows, (long long)call->row_bytes);
    return MOETOKEN_OK;
}

static moetoken_status prepare_weights(struct moetoken_mpi_call *call,
                                       const struct moetoken_mpi_needs *needs)
{
    struct moetoken_mpi_exchange *exchange = call->exchange;
    struct moetoken_mpi_side home = {exchange->slot_count, exchange->slot_first};
    struct moetoken_mpi_side work = {exchange->row_count, exchange->row_first};
    size_t size = (size_t)call->weight_bytes;
    moetoken_status status = MOETOKEN_OK;
    call->weights_out.send = call->weights_back.receive = home;
    call->weights_out.receive = call->weights_back.send = work;
    if (needs->weights_out || needs->weights_back) {
        status = moetoken_mpi_allocate(&call->slots_at_home, exchange->used, size, NULL);
        if (!status)
            status = moetoken_mpi_allocate(&call->slots_at_work, exchange->rows, size, NULL);
    }
    if (!status && needs->weights_out)
        status = moetoken_mpi_transfer_prepare(exchange->comm, size, &call->weights_out);
    if (!status && needs->weights_back)
        status = moetoken_mpi_transfer_prepare(exchange->comm, size, &call->weights_back);
    if (status || !needs->weighted_rows)
        return status;
    int64_t slots = exchange->tokens_arrived * exchange->widest;
    status = moetoken_mpi_allocate(&call->slot_rows, slots, sizeof(int64_t), NULL);
    return status ? status : moetoken_mpi_allocate(&call->slot_weights, slots, 2 * size, NULL);
}

/* The sides of transfer i: group i's tokens to their experts, or all rows back. */
static void choose_sides(const struct moetoken_mpi_exchange *exchange, bool back, int64_t i,
                         struct moetoken_mpi_transfer *transfer)
{
    int64_t cell = i * exchange->comm->size;
    if (back) {
        transfer->send =
            (struct moetoken_mpi_side){exchange->row_count_away, exchange->row_pack_first};
        transfer->receive =
            (struct moetoken_mpi_side){exchange->slot_count_away, exchange->slot_first};
    } else {
        transfer->send =
            (struct moetoken_mpi_side){exchange->token_count + cell, exchange->token_first + cell};
        transfer->receive = (struct moetoken_mpi_side){exchange->token_count_in + cell,
                                                       exchange->token_first_in + cell};
    }
}

static moetoken_status prepare_rows(struct moetoken_mpi_call *call,
                                    const struct moetoken_mpi_needs *needs)
{
    struct moetoken_mpi_exchange *exchange = call->exchange;
    int64_t count = needs->rows == MOETOKEN_MPI_ROWS_OUT    ? exchange->groups
                    : needs->rows == MOETOKEN_MPI_ROWS_BACK ? 1
                                                            : 0;
    moetoken_status status =
        moetoken_mpi_allocate(&call->transfers, count, sizeof *call->transfers, NULL);
    if (status)
        return status;
    memset(call->transfers, 0, (size_t)count * sizeof *call->transfers);
    call->transfers_num = count;
    for (int64_t i = 0; i < count && !status; i++) {
        choose_sides(exchange, needs->rows == MOETOKEN_MPI_ROWS_BACK, i, &call->transfers[i]);
        status = moetoken_mpi_transfer_prepare(exchange->comm, (size_t)call->row_bytes,
                                               &call->transfers[i]);
    }
    return status;
}

static int64_t type_bytes(int64_t type)
{
    return type < 0 ? 0 : moetoken_dtype((moetoken_type)type).bits / 8;
}

moetoken_status moetoken_mpi_call_prepare(struct moetoken_mpi_call *call,
                                          const struct moetoken_mpi_needs *needs)
{
    const struct moetoken_mpi_exchange *exchange = call->exchange;
    int64_t rows = 0;
    call->weight_bytes = type_bytes(call->common.weights_type);
    if (needs->rows != MOETOKEN_MPI_NO_ROWS)
        call->row_bytes = call->common.hidden * type_bytes(call->common.type);
    if (needs->rows == MOETOKEN_MPI_ROWS_OUT)
        rows = exchange->tokens_away + exchange->tokens_arrived;
    if (needs->rows == MOETOKEN_MPI_ROWS_BACK)
        rows = exchange->rows_away + exchange->used;
    moetoken_status status = prepare_core(call, needs);
    if (!status)
        status = prepare_room(call, rows);
    if (!status)
        status = prepare_rows(call, needs);
    return status ? status : prepare_weights(call, needs);
}

void moetoken_mpi_call_free(struct moetoken_mpi_call *call)
{
    struct moetoken_mpi_comm *comm = call->exchange->comm;
    if (comm->broken)
        return;
    for (int64_t i = 0; i < call->transfers_num; i++)
        moetoken_mpi_transfer_free(comm, &call->transfers[i]);
    moetoken_mpi_transfer_free(comm, &call->weights_out);
    moetoken_mpi_transfer_free(comm, &call->weights_back);
    moetoken_mpi_room_give(comm, call->room);
    free(call->core.workspace);
    free(call->transfers);
    free(call->slots_at_home);
    free(call->slots_at_work);
    free(call->slot_rows);
    free(call->slot_weights);
}

moetoken_status moetoken_mpi_call_agree(struct moetoken_mpi_call *call, moetoken_status local,
                                        enum moetoken_mpi_function function, int64_t marks)
{
    struct moetoken_mpi_shared shared = {
        .what = {MOETOKEN_MPI_FUNCTION, "has hidden size", "has tokens of type number",
                 "has weights of type number", "has another choice of arguments, number"},
        .value = {function, call->common.hidden, call->common.type, call->common.weights_type,
                  marks},
        .status = {MOETOKEN_ERR_OPTION, MOETOKEN_ERR_SHAPE, MOETOKEN_ERR_TYPE, MOETOKEN_ERR_TYPE,
                   MOETOKEN_ERR_NULL}};
    return moetoken_mpi_agree(call->exchange->comm, local, &shared);
}

DLTensor moetoken_mpi_room_tensor(const struct moetoken_mpi_call *call, int64_t first, int64_t rows,
                                  int64_t shape[2])
{
    shape[0] = rows;
    shape[1] = call->common.hidden;
    return moetoken_tensor(call->room + first * call->row_bytes, (moetoken_type)call->common.type,
                           2, shape);
}

moetoken_status moetoken_mpi_copy_rows(const struct moetoken_mpi_call *call, const DLTensor *from,
                                       const int64_t *from_row, const DLTensor *to,
                                       const int64_t *to_row, int64_t count)
{
    /* The gradient of an unweighted combine is a copy of rows, from any to any place. */
    /* NOLINTBEGIN(performance-no-int-to-ptr): takes const away; inputs are only read */
    DLTensor from_rows = moetoken_tensor((void *)(uintptr_t)from_row, MOETOKEN_I64, 1, &count);
    DLTensor to_rows = moetoken_tensor((void *)(uintptr_t)to_row, MOETOKEN_I64, 1, &count);
    /* NOLINTEND(performance-no-int-to-ptr) */
    moetoken_unpermute_grad_args args = {.struct_size = sizeof args,
                                         .unpermuted_tokens_grad = from,
                                         .out_index = &to_rows,
                                         .permute_token_id = from_row ? &from_rows : NULL,
                                         .permuted_tokens_grad = to};
    if (count == 0)
        return MOETOKEN_OK;
    return moetoken_mpi_fail_as_core(moetoken_unpermute_grad(&args, &call->core));
}

/* One number, of 2, 4 or 8 bytes. */
static void copy_number(char *to, const char *from, int64_t bytes)
{
    memcpy(to, from, (size_t)bytes);
}

void moetoken_mpi_slots_from_home(const struct moetoken_mpi_call *call,
                                  const struct moetoken_mpi_tensor *weights)
{
    const int64_t *place = call->exchange->slot_place;
    for (int64_t t = 0; t < weights->shape[0]; t++)
        for (int64_t k = 0; k < weights->shape[1]; k++, place++)
            if (*place >= 0)
                copy_number(call->slots_at_home + *place * call->weight_bytes,
                            moetoken_mpi_tensor_at(weights, t, k), call->weight_bytes);
}

void moetoken_mpi_slots_to_home(const struct moetoken_mpi_call *call,
                                const struct moetoken_mpi_tensor *weights)
{
    static const char zero[8];
    const int64_t *place = call->exchange->slot_place;
    for (int64_t t = 0; t < weights->shape[0]; t++)
        for (int64_t k = 0; k < weights->shape[1]; k++, place++)
            copy_number(moetoken_mpi_tensor_at(weights, t, k),
                        *place < 0 ? zero : call->slots_at_home + *place * call->weight_bytes,
                        call->weight_bytes);
}

void moetoken_mpi_slots_from_rows(const struct moetoken_mpi_call *call,
                                  const struct moetoken_mpi_tensor *row_weights)
{
    for (int64_t slot = 0; slot < call->exchange->rows; slot++)
        copy_number(call->slots_at_work + slot * call->weight_bytes,
                    moetoken_mpi_tensor_at(row_weights, call->exchange->slot_row[slot], 0),
                    call->weight_bytes);
}

void moetoken_mpi_slots_to_rows(const struct moetoken_mpi_call *call,
                                const struct moetoken_mpi_tensor *row_weights)
{
    for (int64_t slot = 0; slot < call->exchange->rows; slot++)
        copy_number(moetoken_mpi_tensor_at(row_weights, call->exchange->slot_row[slot], 0),
                    call->slots_at_work + slot * call->weight_bytes, call->weight_bytes);
}
