/* outward.c - tokens through the room to their experts. */
#include "outward.h"

static int64_t larger(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

void moetoken_mpi_outward_needs(const struct moetoken_mpi_exchange *exchange,
                                struct moetoken_mpi_needs *needs)
{
    int64_t slots = exchange->tokens_away + exchange->tokens_stay;
    needs->core_tokens = larger(exchange->tokens, exchange->tokens_arrived);
    needs->core_slots = larger(slots, exchange->rows);
    if (needs->weighted_rows)
        needs->core_slots = larger(needs->core_slots, exchange->tokens_arrived * exchange->widest);
}

moetoken_status moetoken_mpi_send_outward(struct moetoken_mpi_call *call, const DLTensor *tokens,
                                          bool weighted)
{
    struct moetoken_mpi_exchange *exchange = call->exchange;
    int64_t shape[2], packed = exchange->tokens_away + exchange->tokens_stay;
    DLTensor room = moetoken_mpi_room_tensor(call, 0, packed, shape);
    moetoken_status status = moetoken_mpi_copy_rows(call, tokens, exchange->pack_token, &room,
                                                    exchange->pack_place, packed);
    if (!status && weighted)
        status = moetoken_mpi_transfer_start(exchange->comm, call->slots_at_home,
                                             call->slots_at_work, &call->weights_out);
    char *arrived = call->room + exchange->tokens_away * call->row_bytes;
    for (int64_t i = 0; i < call->transfers_num && !status; i++)
        status =
            moetoken_mpi_transfer_start(exchange->comm, call->room, arrived, &call->transfers[i]);
    return status;
}

moetoken_status moetoken_mpi_receive_group(struct moetoken_mpi_call *call, int64_t group,
                                           const DLTensor *rows)
{
    const struct moetoken_mpi_exchange *exchange = call->exchange;
    moetoken_status status = moetoken_mpi_transfer_wait(exchange->comm, &call->transfers[group]);
    if (status)
        return status;
    int64_t shape[2], first = exchange->group_rows[group];
    DLTensor arrived =
        moetoken_mpi_room_tensor(call, exchange->tokens_away, exchange->tokens_arrived, shape);
    bool grouped = exchange->groups > 1;
    return moetoken_mpi_copy_rows(
        call, &arrived, (grouped ? exchange->gather_token : exchange->slot_token) + first, rows,
        (grouped ? exchange->gather_row : exchange->slot_row) + first,
        exchange->group_rows[group + 1] - first);
}
