/* exchange.h - what a plan found out: the order in which tokens leave, arrive and become rows, and
 * rows go back.
 *
 * Tokens leave through a room of rows, and rows go back through another:
 *
 *     dispatch   [tokens to others | tokens that stay | tokens from others]
 *     combine    [rows to others | rows that stay | rows from others]
 *
 * What stays lies between the two, so that one copy fills what is sent and what stays, and one
 * reads what stays and what came. "Arrived" numbers count from the second part on. */
#ifndef MOETOKEN_MPI_EXCHANGE_H
#define MOETOKEN_MPI_EXCHANGE_H

#include "transfer.h"

struct moetoken_mpi_exchange {
    struct moetoken_mpi_comm *comm;
    int64_t tokens, slots_per_token, experts, own_experts, groups; /* T, K, E, E', G */
    int64_t slots, used, rows;                                     /* T*K, not -1, R */
    uint32_t flags;
    size_t bytes;

    int64_t *rows_per_expert; /* [E'] */
    int64_t *group_rows;      /* [G+1] */

    /* Tokens leaving: numbers of their own, by rank (this one last), group, token. */
    int64_t tokens_away, tokens_stay, tokens_arrived; /* arrived: with those that stay */
    int64_t *pack_token, *pack_place;                 /* [away + stay], by token */
    int64_t *token_count, *token_first; /* [G][P] sent to others; first: of everybody's */
    int64_t *token_count_in, *token_first_in;

    /* This rank's slots as rows come back: by rank (this one first), in the order of sending. */
    int64_t slots_stay, *slot_count, *slot_count_away, *slot_first; /* [P] */
    int64_t *slot_place;                                            /* [T*K] -1: unused */

    /* Slots that arrived, by rank (this one first), in the order of sending. */
    int64_t rows_away, *row_count, *row_count_away, *row_first; /* [P] */
    int64_t *row_pack_first;            /* [P] where a rank's rows begin when they go back */
    int64_t *slot_token;                /* [R] the arrived token */
    int64_t *slot_row;                  /* [R] its row */
    int64_t *pack_row_place;            /* [R] of a row: its place when it goes back */
    int64_t *gather_token, *gather_row; /* [R] the same as slot_..., sorted by group; the row counts
                                           from the group's first */
    int64_t widest;                     /* the most slots of an arrived token */
};

/* A slot on its way to the rank of its expert: its number among all slots of its rank that go
 * there, by expert, then in slot order; doubled, and 1 added for the first slot of a token. */
#define MOETOKEN_MPI_FIRST_SLOT 1

/* Tables of E' + G numbers from and to each rank: rows for each of its experts, then tokens that
 * leave with each group. */
static inline int64_t moetoken_mpi_block_size(const struct moetoken_mpi_exchange *exchange)
{
    return exchange->own_experts + exchange->groups;
}

/* The group of one of a rank's own experts: groups differ by one expert at most, larger ones first.
 */
static inline int64_t moetoken_mpi_group_of(const struct moetoken_mpi_exchange *exchange,
                                            int64_t own_expert)
{
    int64_t small = exchange->own_experts / exchange->groups;
    int64_t larger = exchange->own_experts % exchange->groups;
    if (own_expert < larger * (small + 1))
        return own_expert / (small + 1);
    return larger + (own_expert - larger * (small + 1)) / small;
}

static inline int64_t moetoken_mpi_group_begin(const struct moetoken_mpi_exchange *exchange,
                                               int64_t group)
{
    int64_t small = exchange->own_experts / exchange->groups;
    int64_t larger = exchange->own_experts % exchange->groups;
    return group * small + (group < larger ? group : larger);
}

/* plan_send.c: how many tokens and rows go where, into `blocks`; then the lists of what goes, and
 * the slots' words, in the order of sending. `sorted` is each slot's row in one process. */
void moetoken_mpi_plan_count(struct moetoken_mpi_exchange *exchange, const int64_t *ids,
                             const int64_t *rows_per_expert, int64_t *blocks);
moetoken_status moetoken_mpi_plan_send(struct moetoken_mpi_exchange *exchange, const int64_t *ids,
                                       const int64_t *rows_per_expert, const int64_t *sorted,
                                       const int64_t *blocks, int64_t *words);

/* plan_receive.c: the sizes of what comes, from the other ranks' blocks; then its rows. */
void moetoken_mpi_plan_sizes(struct moetoken_mpi_exchange *exchange, const int64_t *blocks);
void moetoken_mpi_plan_receive(struct moetoken_mpi_exchange *exchange, const int64_t *blocks,
                               const int64_t *words, int64_t *scratch);

#endif
