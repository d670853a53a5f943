/* mpi_counts_test.c - more rows than int counts, with nothing allocated: the plan of two ranks'
 * tables alone, and messages of rows without bytes. One rank. */
#include "exchange.h"
#include "ranks_case.h"

#include <limits.h>
#include <stdlib.h>

static void pieces(void)
{
    ranks_require(moetoken_mpi_pieces(0, INT_MAX) == 0, "pieces of nothing");
    ranks_require(moetoken_mpi_pieces(INT_MAX, INT_MAX) == 1, "one piece");
    ranks_require(moetoken_mpi_pieces(INT64_C(2147483648), INT_MAX) == 2, "2^31 rows");
    ranks_require(moetoken_mpi_pieces(INT64_C(6442450941), INT_MAX) == 3, "3 * (2^31 - 1) rows");
    ranks_require(moetoken_mpi_pieces(INT64_C(6442450942), INT_MAX) == 4, "and one more");
}

/* Rank 1 of three, two experts each in two groups; tables of what rank 0, 1 and 2 have for it: rows
 * of its first and second expert, tokens with its first and second group. */
static void sizes(void)
{
    const int64_t big = INT64_C(5000000000);
    int64_t blocks[] = {big, 1, big, 1, 2, 3, 2, 3, 4, big, 4, big};
    int64_t rows_per_expert[2], group_rows[3], cells[2][6], lists[4][3];
    struct moetoken_mpi_comm comm = {.rank = 1, .size = 3};
    struct moetoken_mpi_exchange exchange = {.comm = &comm,
                                             .own_experts = 2,
                                             .groups = 2,
                                             .rows_per_expert = rows_per_expert,
                                             .group_rows = group_rows,
                                             .token_count_in = cells[0],
                                             .token_first_in = cells[1],
                                             .row_count = lists[0],
                                             .row_count_away = lists[1],
                                             .row_first = lists[2],
                                             .row_pack_first = lists[3]};
    moetoken_mpi_plan_sizes(&exchange, blocks);
    ranks_require(exchange.rows == 2 * big + 10, "R");
    ranks_require(rows_per_expert[0] == big + 6 && rows_per_expert[1] == big + 4, "per expert");
    ranks_require(group_rows[1] == big + 6 && group_rows[2] == 2 * big + 10, "groups");
    /* Slots of this rank first, then of ranks 0 and 2. */
    ranks_require(exchange.row_first[1] == 0 && exchange.row_first[0] == 5 &&
                      exchange.row_first[2] == big + 6,
                  "row_first");
    ranks_require(exchange.rows_away == 2 * big + 5, "rows_away");
    /* On the way back this rank's are last. */
    ranks_require(exchange.row_pack_first[0] == 0 && exchange.row_pack_first[2] == big + 1 &&
                      exchange.row_pack_first[1] == 2 * big + 5,
                  "row_pack_first");
    ranks_require(exchange.tokens_arrived == 2 * big + 10, "tokens_arrived");
    ranks_require(exchange.token_first_in[2] == big + 6 && exchange.token_first_in[5] == big + 10,
                  "token_first_in");
}

/* 2^33 rows of no bytes to this very rank: their numbers are real, their memory is not. */
static void messages(int64_t piece_rows, int64_t expected_requests)
{
    const int64_t count = INT64_C(1) << 33, first = 5;
    char nothing[8] = "";
    struct moetoken_mpi_comm comm = {.size = 1, .timeout = 60, .piece_rows = piece_rows};
    MPI_Comm_dup(MPI_COMM_WORLD, &comm.comm);
    struct moetoken_mpi_transfer transfer = {.send = {&count, &first}, .receive = {&count, &first}};
    ranks_require(moetoken_mpi_transfer_prepare(&comm, 0, &transfer) == MOETOKEN_OK, "prepare: %s",
                  moetoken_mpi_last_error());
    ranks_require(transfer.requests_num == expected_requests, "%lld messages",
                  (long long)transfer.requests_num);
    ranks_require(moetoken_mpi_transfer_start(&comm, nothing, nothing, &transfer) == MOETOKEN_OK &&
                      moetoken_mpi_transfer_wait(&comm, &transfer) == MOETOKEN_OK,
                  "transfer: %s", moetoken_mpi_last_error());
    moetoken_mpi_transfer_free(&comm, &transfer);
    ranks_require(moetoken_mpi_transfer_prepare(&comm, (size_t)INT_MAX + 1, &transfer) ==
                      MOETOKEN_ERR_OVERFLOW,
                  "a row of 2^31 bytes");
    MPI_Comm_free(&comm.comm);
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    pieces();
    sizes();
    /* 2^33 = 4 * (2^31 - 1) + 4 rows: five pieces each way, or one where MPI counts so far. */
    messages(INT_MAX, 10);
    messages(0, moetoken_mpi_piece_rows(&(struct moetoken_mpi_comm){0}) > INT_MAX ? 2 : 10);
    messages(INT64_C(1) << 30, 16);
    MPI_Finalize();
    return 0;
}
