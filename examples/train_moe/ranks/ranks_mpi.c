/* ranks_mpi.c - the processes of an MPI job. */
#include "ranks_mpi.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ranks.h"

#define PIECE (INT64_C(1) << 24) /* bytes of one message of ranks_collect */

enum {
    TAG_RELAY,
    TAG_COLLECT,
    MOST_PENDING = 64
};

static struct {
    MPI_Comm comm;
    int rank, count;
    char complaint[1024];
    MPI_Request pending[MOST_PENDING]; /* sums on their way to the next rank */
    int pending_count;
} ranks;

/* ---- who they are --------------------------------------------------------------------------- */

void ranks_open(int *argc, char ***argv)
{
    int provided;
    MPI_Init_thread(argc, argv, MPI_THREAD_FUNNELED, &provided);
    MPI_Comm_dup(MPI_COMM_WORLD, &ranks.comm);
    MPI_Comm_rank(ranks.comm, &ranks.rank);
    MPI_Comm_size(ranks.comm, &ranks.count);
    if (provided < MPI_THREAD_FUNNELED) {
        complain("this MPI allows no threads");
        give_up_together();
    }
    if (ranks.rank != 0 && !freopen("/dev/null", "w", stdout)) {
        complain("cannot open /dev/null");
        give_up();
    }
}

void ranks_close(void)
{
    MPI_Comm_free(&ranks.comm);
    MPI_Finalize();
}

int ranks_count(void)
{
    return ranks.count;
}

int ranks_rank(void)
{
    return ranks.rank;
}

MPI_Comm ranks_comm(void)
{
    return ranks.comm;
}

struct share ranks_share(int64_t count)
{
    return (struct share){count * ranks.rank / ranks.count, count * (ranks.rank + 1) / ranks.count};
}

/* ---- what goes wrong ------------------------------------------------------------------------ */

void complain(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(ranks.complaint, sizeof ranks.complaint, format, arguments);
    va_end(arguments);
}

static void print_complaint(bool name_rank)
{
    if (name_rank)
        fprintf(stderr, "train_moe: rank %d: %s\n", ranks.rank, ranks.complaint);
    else
        fprintf(stderr, "train_moe: %s\n", ranks.complaint);
    fflush(stderr);
}

bool ranks_agree(bool good)
{
    int first = good ? ranks.count : ranks.rank, bad = !good;
    MPI_Allreduce(MPI_IN_PLACE, &first, 1, MPI_INT, MPI_MIN, ranks.comm);
    MPI_Allreduce(MPI_IN_PLACE, &bad, 1, MPI_INT, MPI_SUM, ranks.comm);
    if (first == ranks.rank)
        print_complaint(bad < ranks.count);
    return bad == 0;
}

void give_up(void)
{
    print_complaint(ranks.count > 1);
    MPI_Abort(ranks.comm, 1);
    exit(1);
}

void give_up_together(void)
{
    if (ranks.rank != 0)
        MPI_Barrier(ranks.comm); /* rank 0 never comes: it ends this rank */
    print_complaint(false);
    MPI_Abort(ranks.comm, 1);
    exit(1);
}

/* ---- what is passed on ---------------------------------------------------------------------- */

static void wait_pending(void)
{
    MPI_Status statuses[MOST_PENDING];
    MPI_Waitall(ranks.pending_count, ranks.pending, statuses);
    ranks.pending_count = 0;
}

void ranks_relay_receive(void *sum, int64_t bytes)
{
    if (ranks.rank > 0)
        MPI_Recv(sum, (int)bytes, MPI_BYTE, ranks.rank - 1, TAG_RELAY, ranks.comm,
                 MPI_STATUS_IGNORE);
}

/* Without waiting: the next rank may have other sums to finish first. */
void ranks_relay_pass(const void *sum, int64_t bytes)
{
    if (ranks.rank + 1 == ranks.count)
        return;
    if (ranks.pending_count == MOST_PENDING)
        wait_pending();
    MPI_Isend(sum, (int)bytes, MPI_BYTE, ranks.rank + 1, TAG_RELAY, ranks.comm,
              &ranks.pending[ranks.pending_count++]);
}

void ranks_relay_finish(void *sum, int64_t bytes)
{
    wait_pending();
    MPI_Bcast(sum, (int)bytes, MPI_BYTE, ranks.count - 1, ranks.comm);
}

void ranks_add_counts(int64_t *counts, int64_t n)
{
    MPI_Allreduce(MPI_IN_PLACE, counts, (int)n, MPI_INT64_T, MPI_SUM, ranks.comm);
}

/* What MPI_MAX makes of a NaN is left to each MPI. */
double ranks_largest(double value)
{
    double largest = isnan(value) ? (double)INFINITY : value;
    MPI_Allreduce(MPI_IN_PLACE, &largest, 1, MPI_DOUBLE, MPI_MAX, ranks.comm);
    return largest;
}

bool ranks_same(uint64_t value)
{
    uint64_t expected = value;
    MPI_Bcast(&expected, 1, MPI_UINT64_T, 0, ranks.comm);
    return value == expected;
}

static int64_t piece_at(int64_t at, int64_t bytes)
{
    return bytes - at < PIECE ? bytes - at : PIECE;
}

static void receive_pieces(int rank, int64_t bytes,
                           void (*take)(void *context, const void *piece, int64_t count),
                           void *context)
{
    void *piece = malloc((size_t)piece_at(0, bytes) + 1);
    if (!piece) {
        complain("no memory for a piece of the parameters of rank %d", rank);
        give_up();
    }
    for (int64_t at = 0; at < bytes; at += PIECE) {
        MPI_Recv(piece, (int)piece_at(at, bytes), MPI_BYTE, rank, TAG_COLLECT, ranks.comm,
                 MPI_STATUS_IGNORE);
        take(context, piece, piece_at(at, bytes));
    }
    free(piece);
}

void ranks_collect(const void *part, int64_t bytes,
                   void (*take)(void *context, const void *piece, int64_t count), void *context)
{
    if (ranks.rank == 0) {
        take(context, part, bytes);
        for (int rank = 1; rank < ranks.count; rank++)
            receive_pieces(rank, bytes, take, context);
        return;
    }
    for (int64_t at = 0; at < bytes; at += PIECE)
        MPI_Send((const char *)part + at, (int)piece_at(at, bytes), MPI_BYTE, 0, TAG_COLLECT,
                 ranks.comm);
}
