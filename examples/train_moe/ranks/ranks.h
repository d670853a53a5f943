/* ranks.h - the processes that train one model together: who they are, what they pass on, and how
 * they end.
 *
 * ranks_single.c is for one process; ranks_mpi.c for those of an MPI job. A program links one of
 * them. Sums over all tokens go from rank to rank as a relay: a rank takes over the sum of the
 * ranks before it, adds its own tokens and passes it on. As rank by rank is token by token, the
 * order of the additions, and so every bit, is that of a single process. */
#ifndef TRAIN_MOE_RANKS_H
#define TRAIN_MOE_RANKS_H

#include <stdbool.h>
#include <stdint.h>

/* First and last thing that main does. Standard output is rank 0's alone. */
void ranks_open(int *argc, char ***argv);
void ranks_close(void);

int ranks_count(void);
int ranks_rank(void);

/* Items [begin, end) of `count` are this rank's: consecutive, and as even as can be. */
struct share {
    int64_t begin, end;
};
struct share ranks_share(int64_t count);

/* ---- what goes wrong ------------------------------------------------------------------------ */

/* Says what is wrong, without "train_moe: " and a new line. One process prints it at once, many
 * keep it until ranks_agree or give_up. */
void complain(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Collective: whether all is good on every rank. Otherwise the first rank where it is not prints
 * its complaint, and says who it is unless it went wrong everywhere. */
bool ranks_agree(bool good);

/* Prints the complaint and ends all ranks. */
_Noreturn void give_up(void);

/* ---- what is passed on: collective calls ---------------------------------------------------- */

/* Takes the sum over from the rank before. Rank 0, which has none, keeps what is there. */
void ranks_relay_receive(void *sum, int64_t bytes);
/* To the rank after this one. The sum must stay as it is until ranks_relay_finish. */
void ranks_relay_pass(const void *sum, int64_t bytes);
/* The last rank's sum to all. */
void ranks_relay_finish(void *sum, int64_t bytes);

/* Counts are exact in whatever order they are added. */
void ranks_add_counts(int64_t *counts, int64_t n);

double ranks_largest(double value);

/* Whether rank 0 has this value too. */
bool ranks_same(uint64_t value);

/* Hands the parts of all ranks, equally long, to `take` on rank 0: rank by rank, in pieces. */
void ranks_collect(const void *part, int64_t bytes,
                   void (*take)(void *context, const void *piece, int64_t count), void *context);

#endif
