/* transfer.h - rows from every rank to every rank, with 64-bit counts whatever MPI's are. */
#ifndef MOETOKEN_MPI_TRANSFER_H
#define MOETOKEN_MPI_TRANSFER_H

#include "comm.h"

/* How many rows go to or come from each rank, and where in the buffer the first one is: [P]. */
struct moetoken_mpi_side {
    const int64_t *count, *first;
};

struct moetoken_mpi_transfer {
    struct moetoken_mpi_side send, receive;
    size_t row_bytes;
    MPI_Datatype row;
    bool row_made;
    MPI_Request *requests;
    int64_t requests_num;
};

/* The messages that `count` rows take. */
int64_t moetoken_mpi_pieces(int64_t count, int64_t piece_rows);

/* Most rows of a message: what the options say, or what MPI can count. */
int64_t moetoken_mpi_piece_rows(const struct moetoken_mpi_comm *comm);

/* Takes all the memory that the transfer will need. Local. Both sides are set, and must stay until
 * the end; what one rank sends to another is what that one receives. */
moetoken_status moetoken_mpi_transfer_prepare(const struct moetoken_mpi_comm *comm,
                                              size_t row_bytes,
                                              struct moetoken_mpi_transfer *transfer);

/* Rows are on their way. Every rank starts its transfers in the same order. */
moetoken_status moetoken_mpi_transfer_start(struct moetoken_mpi_comm *comm, const void *send,
                                            void *receive, struct moetoken_mpi_transfer *transfer);

/* Waits until this rank's rows have left and arrived. */
moetoken_status moetoken_mpi_transfer_wait(struct moetoken_mpi_comm *comm,
                                           struct moetoken_mpi_transfer *transfer);

/* Frees what prepare took; nothing where the comm is broken. A zero transfer is fine. */
void moetoken_mpi_transfer_free(const struct moetoken_mpi_comm *comm,
                                struct moetoken_mpi_transfer *transfer);

#endif
