/* comm.h - a duplicated communicator and what goes with it: messages, waiting with a limit, the
 * room that rows travel through, and the agreement of all ranks that comes before every exchange.
 */
#ifndef MOETOKEN_MPI_COMM_H
#define MOETOKEN_MPI_COMM_H

#include <moetoken/mpi.h>

/* The most values that a call asks all ranks to have in common. */
#define MOETOKEN_MPI_SHARED  8
#define MOETOKEN_MPI_SUMMARY (1 + 2 * MOETOKEN_MPI_SHARED)

/* What agreements send and receive. It lives as long as the comm, and longer where a call did not
 * end: MPI may write into it then. */
struct moetoken_mpi_talk {
    int64_t mine[MOETOKEN_MPI_SUMMARY], all[MOETOKEN_MPI_SUMMARY];
    int64_t status;
    char text[400];
};

struct moetoken_mpi_comm {
    MPI_Comm comm;
    int rank, size;
    double timeout; /* seconds */
    int64_t piece_rows;
    moetoken_options core; /* isa_mask and threads of the local work */
    bool any_thread;       /* threads other than the one that initialised MPI may call */
    bool broken;           /* an exchange did not end: nobody knows what is still on its way */
    int next_tag;
    char *room; /* reused by one call at a time */
    size_t room_bytes;
    bool room_taken;
    struct moetoken_mpi_talk talk;
};

/* Sets the calling thread's message, as printf would, and returns `status`. */
moetoken_status moetoken_mpi_fail(moetoken_status status, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* The core library's message becomes this library's. Returns `status`. */
moetoken_status moetoken_mpi_fail_as_core(moetoken_status status);

/* MOETOKEN_ERR_MPI with MPI's words unless `code` is MPI_SUCCESS; the comm is broken then. */
moetoken_status moetoken_mpi_check(struct moetoken_mpi_comm *comm, int code, const char *what);

/* That this thread may call now; the one fault that others learn of by waiting. */
moetoken_status moetoken_mpi_may_call(const struct moetoken_mpi_comm *comm);

/* Waits until all requests are done, MOETOKEN_ERR_MPI when that takes longer than the timeout. */
moetoken_status moetoken_mpi_wait(struct moetoken_mpi_comm *comm, MPI_Request *requests,
                                  int64_t count);

/* The first value that ranks agree upon: the function called. */
#define MOETOKEN_MPI_FUNCTION "calls function number"
enum moetoken_mpi_function {
    MOETOKEN_MPI_OPEN,
    MOETOKEN_MPI_PLAN,
    MOETOKEN_MPI_PLAN_GOES_ON,
    MOETOKEN_MPI_DISPATCH,
    MOETOKEN_MPI_DISPATCH_GRAD,
    MOETOKEN_MPI_COMBINE,
    MOETOKEN_MPI_COMBINE_GRAD
};

/* What all ranks must have in common. */
struct moetoken_mpi_shared {
    const char *what[MOETOKEN_MPI_SHARED]; /* "hidden size"; NULL: not used */
    int64_t value[MOETOKEN_MPI_SHARED];
    moetoken_status status[MOETOKEN_MPI_SHARED]; /* when they differ */
};

/* Collective: MOETOKEN_OK everywhere when `local` is so on every rank and the values are the same.
 * Else the same status and message on every rank. */
moetoken_status moetoken_mpi_agree(struct moetoken_mpi_comm *comm, moetoken_status local,
                                   const struct moetoken_mpi_shared *shared);

/* Memory of `bytes` for rows, or NULL; given back by the same call. Lost where the comm is broken:
 * MPI may still write there. */
char *moetoken_mpi_room_take(struct moetoken_mpi_comm *comm, size_t bytes);
void moetoken_mpi_room_give(struct moetoken_mpi_comm *comm, char *room);

/* count * size bytes, or MOETOKEN_ERR_MEMORY; never NULL for 0. *total grows by the bytes. */
moetoken_status moetoken_mpi_allocate(void *pointer_to, int64_t count, size_t size, size_t *total);

#endif
