/* plan_send.c - the tokens' side of a plan: which tokens leave for which rank, in which order, and
 * where their slots' rows will come back. */
#include "exchange.h"

#include <stdlib.h>
#include <string.h>

/* A slot begins a token on its way to a rank when no earlier slot of the token goes there. */
static bool leads(const struct moetoken_mpi_exchange *exchange, const int64_t *ids, int64_t k)
{
    if (exchange->flags & MOETOKEN_MPI_EVERY_SLOT)
        return true;
    int64_t rank = ids[k] / exchange->own_experts;
    for (int64_t before = 0; before < k; before++)
        if (ids[before] >= 0 && ids[before] / exchange->own_experts == rank)
            return false;
    return true;
}

/* Whether slot k of a token travels with slot `leader`. */
static bool follows(const struct moetoken_mpi_exchange *exchange, const int64_t *ids,
                    int64_t leader, int64_t k)
{
    if (exchange->flags & MOETOKEN_MPI_EVERY_SLOT)
        return k == leader;
    return ids[k] >= 0 && ids[k] / exchange->own_experts == ids[leader] / exchange->own_experts;
}

/* The first group of its rank that needs the token, and how many slots travel with it. */
static int64_t first_group(const struct moetoken_mpi_exchange *exchange, const int64_t *ids,
                           int64_t leader, int64_t *slots)
{
    int64_t group = exchange->groups;
    *slots = 0;
    for (int64_t k = leader; k < exchange->slots_per_token; k++) {
        if (!follows(exchange, ids, leader, k))
            continue;
        int64_t own = moetoken_mpi_group_of(exchange, ids[k] % exchange->own_experts);
        group = own < group ? own : group;
        ++*slots;
    }
    return group;
}

void moetoken_mpi_plan_count(struct moetoken_mpi_exchange *exchange, const int64_t *ids,
                             const int64_t *rows_per_expert, int64_t *blocks)
{
    int64_t block = moetoken_mpi_block_size(exchange), own = exchange->own_experts;
    int size = exchange->comm->size;
    for (int rank = 0; rank < size; rank++) {
        memcpy(blocks + rank * block, rows_per_expert + rank * own, (size_t)own * sizeof *blocks);
        memset(blocks + rank * block + own, 0, (size_t)exchange->groups * sizeof *blocks);
    }
    exchange->tokens_away = exchange->tokens_stay = 0;
    for (int64_t t = 0; t < exchange->tokens; t++) {
        const int64_t *of_token = ids + t * exchange->slots_per_token;
        for (int64_t k = 0; k < exchange->slots_per_token; k++) {
            if (of_token[k] < 0 || !leads(exchange, of_token, k))
                continue;
            int64_t slots, rank = of_token[k] / own;
            blocks[rank * block + own + first_group(exchange, of_token, k, &slots)]++;
            ++*(rank == exchange->comm->rank ? &exchange->tokens_stay : &exchange->tokens_away);
        }
    }
}

/* Where the tokens and the slots of each rank and group begin: [P][G]. */
static void begin_sending(struct moetoken_mpi_exchange *exchange, const int64_t *blocks,
                          int64_t *next_token)
{
    int64_t block = moetoken_mpi_block_size(exchange), token = 0;
    int size = exchange->comm->size, self = exchange->comm->rank;
    for (int i = 0; i < size; i++) { /* the others in order, then this rank */
        int rank = i == size - 1 ? self : i < self ? i : i + 1;
        for (int64_t g = 0; g < exchange->groups; g++) {
            int64_t count = blocks[rank * block + exchange->own_experts + g];
            next_token[rank * exchange->groups + g] = token;
            exchange->token_first[g * size + rank] = token;
            exchange->token_count[g * size + rank] = rank == self ? 0 : count;
            token += count;
        }
    }
    int64_t slot = 0;
    for (int i = 0; i < size; i++) { /* this rank, then the others in order */
        int rank = i == 0 ? self : i <= self ? i - 1 : i;
        int64_t count = 0;
        for (int64_t e = 0; e < exchange->own_experts; e++)
            count += blocks[rank * block + e];
        exchange->slot_first[rank] = slot;
        exchange->slot_count[rank] = count;
        exchange->slot_count_away[rank] = rank == self ? 0 : count;
        slot += count;
    }
    exchange->slots_stay = exchange->slot_count[self];
}

/* Turns the slots of each rank and group, which next_slot counts, into where they begin. */
static void begin_slots(const struct moetoken_mpi_exchange *exchange, int64_t *next_slot)
{
    for (int rank = 0; rank < exchange->comm->size; rank++) {
        int64_t slot = exchange->slot_first[rank];
        for (int64_t g = 0; g < exchange->groups; g++) {
            int64_t *next = &next_slot[rank * exchange->groups + g], count = *next;
            *next = slot;
            slot += count;
        }
    }
}

static void count_slots(const struct moetoken_mpi_exchange *exchange, const int64_t *ids,
                        int64_t *next_slot)
{
    memset(next_slot, 0, (size_t)(exchange->comm->size * exchange->groups) * sizeof *next_slot);
    for (int64_t t = 0; t < exchange->tokens; t++) {
        const int64_t *of_token = ids + t * exchange->slots_per_token;
        for (int64_t k = 0; k < exchange->slots_per_token; k++) {
            if (of_token[k] < 0 || !leads(exchange, of_token, k))
                continue;
            int64_t slots, group = first_group(exchange, of_token, k, &slots);
            next_slot[of_token[k] / exchange->own_experts * exchange->groups + group] += slots;
        }
    }
}

/* The slots that travel with a leader: their words and where their rows will come back. */
static void send_slots(struct moetoken_mpi_exchange *exchange, const int64_t *ids, int64_t token,
                       int64_t leader, const int64_t *rank_begin, const int64_t *sorted,
                       int64_t *next_slot, int64_t *words)
{
    const int64_t *of_token = ids + token * exchange->slots_per_token;
    int64_t rank = of_token[leader] / exchange->own_experts;
    for (int64_t k = leader; k < exchange->slots_per_token; k++) {
        if (!follows(exchange, of_token, leader, k))
            continue;
        int64_t slot = token * exchange->slots_per_token + k, place = (*next_slot)++;
        exchange->slot_place[slot] = place;
        words[place] = (sorted[slot] - rank_begin[rank]) * 2;
        if (k == leader)
            words[place] += MOETOKEN_MPI_FIRST_SLOT;
    }
}

static void send_tokens(struct moetoken_mpi_exchange *exchange, const int64_t *ids,
                        const int64_t *sorted, const int64_t *rank_begin, int64_t *next_token,
                        int64_t *next_slot, int64_t *words)
{
    int64_t packed = 0;
    for (int64_t t = 0; t < exchange->tokens; t++) {
        const int64_t *of_token = ids + t * exchange->slots_per_token;
        for (int64_t k = 0; k < exchange->slots_per_token; k++) {
            if (of_token[k] < 0)
                exchange->slot_place[t * exchange->slots_per_token + k] = -1;
            if (of_token[k] < 0 || !leads(exchange, of_token, k))
                continue;
            int64_t slots, group = first_group(exchange, of_token, k, &slots);
            int64_t at = of_token[k] / exchange->own_experts * exchange->groups + group;
            exchange->pack_token[packed] = t;
            exchange->pack_place[packed++] = next_token[at]++;
            send_slots(exchange, ids, t, k, rank_begin, sorted, &next_slot[at], words);
        }
    }
}

moetoken_status moetoken_mpi_plan_send(struct moetoken_mpi_exchange *exchange, const int64_t *ids,
                                       const int64_t *rows_per_expert, const int64_t *sorted,
                                       const int64_t *blocks, int64_t *words)
{
    int64_t *next, size = exchange->comm->size, cells = size * exchange->groups;
    moetoken_status status = moetoken_mpi_allocate(&next, 2 * cells + size, sizeof *next, NULL);
    if (status)
        return status;
    int64_t *next_token = next, *next_slot = next + cells, *rank_begin = next + 2 * cells;
    int64_t rows = 0;
    for (int64_t e = 0; e < exchange->experts; e++) {
        if (e % exchange->own_experts == 0)
            rank_begin[e / exchange->own_experts] = rows;
        rows += rows_per_expert[e];
    }
    begin_sending(exchange, blocks, next_token);
    count_slots(exchange, ids, next_slot);
    begin_slots(exchange, next_slot);
    send_tokens(exchange, ids, sorted, rank_begin, next_token, next_slot, words);
    free(next);
    return MOETOKEN_OK;
}
