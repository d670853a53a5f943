/* plan.c - the collective part of a plan: check, agree, tell each other the counts, then the slots.
 *
 * Two agreements: on the arguments, and, when the sizes are known, on the memory. */
#include "exchange.h"
#include "tensors.h"

#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

/* What a plan needs while it is made. */
struct making {
    int64_t *ids, *sorted;           /* [T*K] each slot's expert, and its row in one process */
    int64_t *per_expert;             /* [E] rows of this rank's tokens */
    int64_t *blocks_out, *blocks_in; /* [P][E'+G] */
    int64_t *words_out, *words_in;   /* [slots used], [R] */
    int64_t *scratch;
};

static moetoken_status check_plan(const struct moetoken_mpi_comm *comm,
                                  const moetoken_mpi_plan_args *args, moetoken_mpi_exchange **made,
                                  struct moetoken_mpi_tensor *ids)
{
    if (!args || !made)
        return moetoken_mpi_fail(MOETOKEN_ERR_NULL, "%s is NULL", args ? "exchange" : "args");
    if (args->struct_size && args->struct_size != sizeof *args)
        return moetoken_mpi_fail(MOETOKEN_ERR_OPTION, "args.struct_size is %zu, expected %zu",
                                 args->struct_size, sizeof *args);
    if (args->flags & ~MOETOKEN_MPI_EVERY_SLOT)
        return moetoken_mpi_fail(MOETOKEN_ERR_OPTION, "flags 0x%x are unknown",
                                 (unsigned)(args->flags & ~MOETOKEN_MPI_EVERY_SLOT));
    moetoken_status status =
        moetoken_mpi_tensor_make(ids, "expert_ids", args->expert_ids, MOETOKEN_MPI_INDICES, 2);
    if (status)
        return status;
    if (args->experts_num <= 0 || args->experts_num % comm->size)
        return moetoken_mpi_fail(MOETOKEN_ERR_SHAPE,
                                 "experts_num = %" PRId64 " is not a positive multiple of the %d "
                                 "ranks",
                                 args->experts_num, comm->size);
    int64_t own = args->experts_num / comm->size;
    if (args->groups_num < 0 || args->groups_num > own)
        return moetoken_mpi_fail(MOETOKEN_ERR_OPTION,
                                 "groups_num = %" PRId64 " is outside [0, %" PRId64 "], the "
                                 "experts of a rank",
                                 args->groups_num, own);
    if (own + args->groups_num > INT_MAX - 1)
        return moetoken_mpi_fail(MOETOKEN_ERR_OVERFLOW,
                                 "experts_num = %" PRId64 " is more than MPI can count",
                                 args->experts_num);
    return MOETOKEN_OK;
}

/* The core library checks the ids and sorts the slots. */
static moetoken_status sort_slots(const struct moetoken_mpi_comm *comm, const DLTensor *expert_ids,
                                  const struct moetoken_mpi_tensor *ids,
                                  const struct moetoken_mpi_exchange *exchange,
                                  const struct making *making)
{
    int64_t slots = exchange->slots, experts = exchange->experts;
    DLTensor sorted = moetoken_tensor(making->sorted, MOETOKEN_I64, 1, &slots);
    DLTensor counts = moetoken_tensor(making->per_expert, MOETOKEN_I64, 1, &experts);
    moetoken_permute_args args = {.struct_size = sizeof args,
                                  .expert_ids = expert_ids,
                                  .experts_num = exchange->experts,
                                  .sorted_indices = &sorted,
                                  .rows_per_expert = &counts};
    moetoken_status status = moetoken_mpi_fail_as_core(moetoken_permute(&args, &comm->core));
    if (status)
        return status;
    for (int64_t t = 0; t < ids->shape[0]; t++)
        for (int64_t k = 0; k < ids->shape[1]; k++)
            making->ids[t * ids->shape[1] + k] = moetoken_mpi_tensor_index(ids, t, k);
    return MOETOKEN_OK;
}

static moetoken_status allocate_first(struct moetoken_mpi_exchange *exchange, struct making *making)
{
    int64_t size = exchange->comm->size, cells = size * exchange->groups, slots = exchange->slots;
    int64_t blocks = size * moetoken_mpi_block_size(exchange);
    size_t *total = &exchange->bytes;
    struct {
        int64_t **list, count;
        size_t *total;
    } wanted[] = {{&making->ids, slots, NULL},
                  {&making->sorted, slots, NULL},
                  {&making->per_expert, exchange->experts, NULL},
                  {&making->blocks_out, blocks, NULL},
                  {&making->blocks_in, blocks, NULL},
                  {&exchange->rows_per_expert, exchange->own_experts, total},
                  {&exchange->group_rows, exchange->groups + 1, total},
                  {&exchange->token_count, 4 * cells, total},
                  {&exchange->slot_count, 7 * size, total},
                  {&exchange->slot_place, slots, total}};
    for (size_t i = 0; i < sizeof wanted / sizeof wanted[0]; i++) {
        moetoken_status status = moetoken_mpi_allocate(wanted[i].list, wanted[i].count,
                                                       sizeof(int64_t), wanted[i].total);
        if (status)
            return status;
    }
    exchange->token_first = exchange->token_count + cells;
    exchange->token_count_in = exchange->token_count + 2 * cells;
    exchange->token_first_in = exchange->token_count + 3 * cells;
    exchange->slot_count_away = exchange->slot_count + size;
    exchange->slot_first = exchange->slot_count + 2 * size;
    exchange->row_count = exchange->slot_count + 3 * size;
    exchange->row_count_away = exchange->slot_count + 4 * size;
    exchange->row_first = exchange->slot_count + 5 * size;
    exchange->row_pack_first = exchange->slot_count + 6 * size;
    return MOETOKEN_OK;
}

static moetoken_status allocate_rest(struct moetoken_mpi_exchange *exchange, struct making *making)
{
    int64_t sent = exchange->tokens_away + exchange->tokens_stay, rows = exchange->rows;
    int64_t own = exchange->own_experts, grouped = exchange->groups > 1 ? rows : 0;
    size_t *total = &exchange->bytes;
    struct {
        int64_t **list, count;
        size_t *total;
    } wanted[] = {
        {&exchange->pack_token, sent, total},       {&exchange->pack_place, sent, total},
        {&making->words_out, exchange->used, NULL}, {&making->words_in, rows, NULL},
        {&making->scratch, 3 * own + 1, NULL},      {&exchange->slot_token, rows, total},
        {&exchange->slot_row, rows, total},         {&exchange->pack_row_place, rows, total},
        {&exchange->gather_token, grouped, total},  {&exchange->gather_row, grouped, total}};
    for (size_t i = 0; i < sizeof wanted / sizeof wanted[0]; i++) {
        moetoken_status status = moetoken_mpi_allocate(wanted[i].list, wanted[i].count,
                                                       sizeof(int64_t), wanted[i].total);
        if (status)
            return status;
    }
    return MOETOKEN_OK;
}

/* Counts from and to every rank. */
static moetoken_status trade_counts(struct moetoken_mpi_exchange *exchange,
                                    const struct making *making)
{
    int block = (int)moetoken_mpi_block_size(exchange);
    MPI_Request request;
    int code = MPI_Ialltoall(making->blocks_out, block, MPI_INT64_T, making->blocks_in, block,
                             MPI_INT64_T, exchange->comm->comm, &request);
    moetoken_status status = moetoken_mpi_check(exchange->comm, code, "MPI_Ialltoall");
    return status ? status : moetoken_mpi_wait(exchange->comm, &request, 1);
}

/* Slots' words to the ranks of their experts; their memory is agreed upon in between. */
static moetoken_status trade_words(struct moetoken_mpi_exchange *exchange, struct making *making)
{
    struct moetoken_mpi_comm *comm = exchange->comm;
    struct moetoken_mpi_transfer words = {.send = {exchange->slot_count, exchange->slot_first},
                                          .receive = {exchange->row_count, exchange->row_first}};
    moetoken_status status = allocate_rest(exchange, making);
    if (!status)
        status = moetoken_mpi_plan_send(exchange, making->ids, making->per_expert, making->sorted,
                                        making->blocks_out, making->words_out);
    if (!status)
        status = moetoken_mpi_transfer_prepare(comm, sizeof(int64_t), &words);
    struct moetoken_mpi_shared shared = {.what = {MOETOKEN_MPI_FUNCTION},
                                         .value = {MOETOKEN_MPI_PLAN_GOES_ON},
                                         .status = {MOETOKEN_ERR_OPTION}};
    status = moetoken_mpi_agree(comm, status, &shared);
    if (!status)
        status = moetoken_mpi_transfer_start(comm, making->words_out, making->words_in, &words);
    if (!status)
        status = moetoken_mpi_transfer_wait(comm, &words);
    moetoken_mpi_transfer_free(comm, &words);
    return status;
}

static moetoken_status make(struct moetoken_mpi_exchange *exchange,
                            const moetoken_mpi_plan_args *args,
                            const struct moetoken_mpi_tensor *ids, struct making *making,
                            moetoken_status status)
{
    struct moetoken_mpi_comm *comm = exchange->comm;
    if (!status) {
        exchange->tokens = ids->shape[0];
        exchange->slots_per_token = ids->shape[1];
        exchange->slots = exchange->tokens * exchange->slots_per_token;
        exchange->experts = args->experts_num;
        exchange->own_experts = args->experts_num / comm->size;
        exchange->groups = args->groups_num ? args->groups_num : 1;
        exchange->flags = args->flags;
        status = allocate_first(exchange, making);
    }
    if (!status)
        status = sort_slots(comm, args->expert_ids, ids, exchange, making);
    struct moetoken_mpi_shared shared = {
        .what = {MOETOKEN_MPI_FUNCTION, "slots of a token:", "experts_num", "groups_num", "flags"},
        .value = {MOETOKEN_MPI_PLAN, exchange->slots_per_token, exchange->experts, exchange->groups,
                  exchange->flags},
        .status = {MOETOKEN_ERR_OPTION, MOETOKEN_ERR_SHAPE, MOETOKEN_ERR_SHAPE, MOETOKEN_ERR_OPTION,
                   MOETOKEN_ERR_OPTION}};
    status = moetoken_mpi_agree(comm, status, &shared);
    if (status)
        return status;
    moetoken_mpi_plan_count(exchange, making->ids, making->per_expert, making->blocks_out);
    for (int64_t e = 0; e < exchange->experts; e++)
        exchange->used += making->per_expert[e];
    status = trade_counts(exchange, making);
    if (status)
        return status;
    moetoken_mpi_plan_sizes(exchange, making->blocks_in);
    status = trade_words(exchange, making);
    if (status)
        return status;
    moetoken_mpi_plan_receive(exchange, making->blocks_in, making->words_in, making->scratch);
    return MOETOKEN_OK;
}

moetoken_status moetoken_mpi_plan(moetoken_mpi_comm *comm, const moetoken_mpi_plan_args *args,
                                  moetoken_mpi_exchange **made)
{
    if (!comm)
        return moetoken_mpi_fail(MOETOKEN_ERR_NULL, "comm is NULL");
    moetoken_status status = moetoken_mpi_may_call(comm);
    if (status)
        return status;
    struct moetoken_mpi_tensor ids = {0};
    struct making making = {0};
    struct moetoken_mpi_exchange nothing = {.comm = comm}, *exchange = calloc(1, sizeof *exchange);
    if (!exchange)
        status = moetoken_mpi_fail(MOETOKEN_ERR_MEMORY, "no memory for an exchange");
    else
        exchange->comm = comm;
    if (!status)
        status = check_plan(comm, args, made, &ids);
    status = make(exchange ? exchange : &nothing, args, &ids, &making, status);
    if (comm->broken) /* MPI may still write into any of it */
        return status;
    int64_t *lists[] = {making.ids,       making.sorted,    making.per_expert, making.blocks_out,
                        making.blocks_in, making.words_out, making.words_in,   making.scratch};
    for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++)
        free(lists[i]);
    if (status)
        moetoken_mpi_exchange_free(exchange);
    else
        *made = exchange;
    return status;
}

moetoken_status moetoken_mpi_exchange_get(const moetoken_mpi_exchange *exchange,
                                          moetoken_mpi_exchange_info *info)
{
    if (!exchange || !info)
        return moetoken_mpi_fail(MOETOKEN_ERR_NULL, "%s is NULL", exchange ? "info" : "exchange");
    if (info->struct_size && info->struct_size != sizeof *info)
        return moetoken_mpi_fail(MOETOKEN_ERR_OPTION, "info.struct_size is %zu, expected %zu",
                                 info->struct_size, sizeof *info);
    int64_t begin = exchange->comm->rank * exchange->own_experts;
    *info = (moetoken_mpi_exchange_info){.struct_size = info->struct_size,
                                         .tokens_num = exchange->tokens,
                                         .slots_per_token = exchange->slots_per_token,
                                         .experts_num = exchange->experts,
                                         .expert_begin = begin,
                                         .expert_end = begin + exchange->own_experts,
                                         .rows_num = exchange->rows,
                                         .rows_per_expert = exchange->rows_per_expert,
                                         .groups_num = exchange->groups,
                                         .group_rows = exchange->group_rows,
                                         .slots_used = exchange->used,
                                         .tokens_sent = exchange->tokens_away,
                                         .tokens_received =
                                             exchange->tokens_arrived - exchange->tokens_stay,
                                         .slots_sent = exchange->used - exchange->slots_stay,
                                         .slots_received = exchange->rows_away,
                                         .bytes = exchange->bytes + sizeof *exchange};
    return MOETOKEN_OK;
}

void moetoken_mpi_exchange_free(moetoken_mpi_exchange *exchange)
{
    if (!exchange || exchange->comm->broken)
        return;
    int64_t *lists[] = {exchange->rows_per_expert, exchange->group_rows,   exchange->token_count,
                        exchange->slot_count,      exchange->slot_place,   exchange->pack_token,
                        exchange->pack_place,      exchange->slot_token,   exchange->slot_row,
                        exchange->pack_row_place,  exchange->gather_token, exchange->gather_row};
    for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++)
        free(lists[i]);
    free(exchange);
}
