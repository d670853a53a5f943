/* plan_receive.c - the experts' side of a plan: the rows of the slots that arrive. */
#include "exchange.h"

#include <string.h>

/* Rows of each expert and group, and whose rows go back from where. */
static void place_rows(struct moetoken_mpi_exchange *exchange, const int64_t *blocks)
{
    int64_t block = moetoken_mpi_block_size(exchange);
    int size = exchange->comm->size, self = exchange->comm->rank;
    exchange->rows = 0;
    for (int64_t e = 0; e < exchange->own_experts; e++) {
        if (e == moetoken_mpi_group_begin(exchange, moetoken_mpi_group_of(exchange, e)))
            exchange->group_rows[moetoken_mpi_group_of(exchange, e)] = exchange->rows;
        exchange->rows_per_expert[e] = 0;
        for (int rank = 0; rank < size; rank++)
            exchange->rows_per_expert[e] += blocks[rank * block + e];
        exchange->rows += exchange->rows_per_expert[e];
    }
    exchange->group_rows[exchange->groups] = exchange->rows;
    int64_t slot = 0;
    for (int i = 0; i < size; i++) { /* this rank, then the others in order */
        int rank = i == 0 ? self : i <= self ? i - 1 : i;
        int64_t count = 0;
        for (int64_t e = 0; e < exchange->own_experts; e++)
            count += blocks[rank * block + e];
        exchange->row_first[rank] = slot;
        exchange->row_count[rank] = count;
        exchange->row_count_away[rank] = rank == self ? 0 : count;
        slot += count;
    }
    /* On the way back this rank's own rows come last. */
    exchange->rows_away = exchange->rows - exchange->row_count[self];
    for (int rank = 0; rank < size; rank++)
        exchange->row_pack_first[rank] =
            rank == self ? exchange->rows_away
                         : exchange->row_first[rank] - exchange->row_count[self];
}

void moetoken_mpi_plan_sizes(struct moetoken_mpi_exchange *exchange, const int64_t *blocks)
{
    int64_t block = moetoken_mpi_block_size(exchange), token = 0;
    int size = exchange->comm->size, self = exchange->comm->rank;
    place_rows(exchange, blocks);
    for (int i = 0; i < size; i++) {
        int rank = i == 0 ? self : i <= self ? i - 1 : i;
        for (int64_t g = 0; g < exchange->groups; g++) {
            int64_t count = blocks[rank * block + exchange->own_experts + g];
            exchange->token_first_in[g * size + rank] = token;
            exchange->token_count_in[g * size + rank] = rank == self ? 0 : count;
            token += count;
        }
    }
    exchange->tokens_arrived = token;
}

/* Where the rows of each expert begin for tokens of this rank, [E'], and the numbers of its slots
 * there, [E'+1]; `before` holds the rows of earlier ranks, and is moved on to the next. */
static void begin_rank(const struct moetoken_mpi_exchange *exchange, const int64_t *block,
                       int64_t *number, int64_t *row, int64_t *before)
{
    int64_t rows = 0;
    number[0] = 0;
    for (int64_t e = 0; e < exchange->own_experts; e++) {
        number[e + 1] = number[e] + block[e];
        row[e] = rows + before[e];
        rows += exchange->rows_per_expert[e];
        before[e] += block[e];
    }
}

/* The expert whose slots have this number: the last that begins there or before, by halving. */
static int64_t find_expert(const int64_t *number, int64_t experts, int64_t wanted)
{
    int64_t first = 0, last = experts - 1;
    while (first < last) {
        int64_t middle = first + (last - first + 1) / 2;
        if (number[middle] <= wanted)
            first = middle;
        else
            last = middle - 1;
    }
    return first;
}

/* The slots of one rank's tokens; token numbers begin at `token`. */
static void receive_rank(struct moetoken_mpi_exchange *exchange, int rank, const int64_t *words,
                         int64_t token, const int64_t *number, const int64_t *row)
{
    int64_t slots_of_token = 0;
    token--;
    for (int64_t i = 0; i < exchange->row_count[rank]; i++) {
        int64_t slot = exchange->row_first[rank] + i, wanted = words[slot] / 2;
        bool first = words[slot] & MOETOKEN_MPI_FIRST_SLOT;
        token += first;
        slots_of_token = first ? 1 : slots_of_token + 1;
        exchange->widest = slots_of_token > exchange->widest ? slots_of_token : exchange->widest;
        int64_t expert = find_expert(number, exchange->own_experts, wanted);
        exchange->slot_token[slot] = token;
        exchange->slot_row[slot] = row[expert] + wanted - number[expert];
        exchange->pack_row_place[exchange->slot_row[slot]] = exchange->row_pack_first[rank] + i;
    }
}

/* The slots once more, those of group 0 first, tokens ascending in each. */
static void sort_by_group(struct moetoken_mpi_exchange *exchange, int64_t *next)
{
    memcpy(next, exchange->group_rows, (size_t)exchange->groups * sizeof *next);
    for (int64_t slot = 0; slot < exchange->rows; slot++) {
        int64_t row = exchange->slot_row[slot], group = 0, last = exchange->groups - 1;
        while (group < last && row >= exchange->group_rows[group + 1])
            group++;
        int64_t at = next[group]++;
        exchange->gather_token[at] = exchange->slot_token[slot];
        exchange->gather_row[at] = row - exchange->group_rows[group];
    }
}

void moetoken_mpi_plan_receive(struct moetoken_mpi_exchange *exchange, const int64_t *blocks,
                               const int64_t *words, int64_t *scratch)
{
    int64_t own = exchange->own_experts, *number = scratch, *row = number + own + 1;
    int64_t *before = row + own;
    memset(before, 0, (size_t)own * sizeof *before);
    exchange->widest = 0;
    for (int rank = 0; rank < exchange->comm->size; rank++) {
        begin_rank(exchange, blocks + rank * moetoken_mpi_block_size(exchange), number, row,
                   before);
        receive_rank(exchange, rank, words, exchange->token_first_in[rank], number, row);
    }
    if (exchange->groups > 1)
        sort_by_group(exchange, before);
}
