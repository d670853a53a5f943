/* call.h - what dispatch, combine and their gradients have in common: a room that rows travel
 * through, single numbers of slots that travel beside them, and the core library's work on rows. */
#ifndef MOETOKEN_MPI_CALL_H
#define MOETOKEN_MPI_CALL_H

#include "exchange.h"
#include "tensors.h"

struct moetoken_mpi_call {
    struct moetoken_mpi_exchange *exchange;
    struct moetoken_mpi_common common;
    int64_t row_bytes, weight_bytes;
    char *room;
    moetoken_options core;                   /* with the workspace of all local work */
    struct moetoken_mpi_transfer *transfers; /* [transfers_num] of rows */
    int64_t transfers_num;
    struct moetoken_mpi_transfer weights_out, weights_back;
    char *slots_at_home; /* [slots used] weights or their gradients, in the order of sending */
    char *slots_at_work; /* [R] the same where the experts are */
    int64_t *slot_rows;  /* [arrived tokens][widest] each slot's row; -1 behind a token's last */
    char *slot_weights;  /* the same shape: weights, and their gradients behind them */
};

/* What travels in a call, and the largest sizes of the core library's work. */
enum moetoken_mpi_way {
    MOETOKEN_MPI_NO_ROWS,
    MOETOKEN_MPI_ROWS_OUT,
    MOETOKEN_MPI_ROWS_BACK
};
struct moetoken_mpi_needs {
    enum moetoken_mpi_way rows;
    bool weights_out, weights_back;
    bool weighted_rows; /* rows are weighted where the experts are */
    int64_t core_tokens, core_slots;
};

/* Takes all memory of the call, whose exchange and common are set. Local. */
moetoken_status moetoken_mpi_call_prepare(struct moetoken_mpi_call *call,
                                          const struct moetoken_mpi_needs *needs);

/* Gives all of it back, but what MPI may still write into. */
void moetoken_mpi_call_free(struct moetoken_mpi_call *call);

/* The agreement before a call of `function`. `marks` are choices that must be alike. */
moetoken_status moetoken_mpi_call_agree(struct moetoken_mpi_call *call, moetoken_status local,
                                        enum moetoken_mpi_function function, int64_t marks);

/* Rows of the room as a tensor; `shape` is its memory. */
DLTensor moetoken_mpi_room_tensor(const struct moetoken_mpi_call *call, int64_t first, int64_t rows,
                                  int64_t shape[2]);

/* to[to_row[i]] = from[from_row[i]], bit copies; from_row NULL: i. Every row of `to` is named. */
moetoken_status moetoken_mpi_copy_rows(const struct moetoken_mpi_call *call, const DLTensor *from,
                                       const int64_t *from_row, const DLTensor *to,
                                       const int64_t *to_row, int64_t count);

/* Numbers of slots between the tensors that hold them and the order of sending. */
void moetoken_mpi_slots_from_home(const struct moetoken_mpi_call *call,
                                  const struct moetoken_mpi_tensor *weights);
void moetoken_mpi_slots_to_home(const struct moetoken_mpi_call *call,
                                const struct moetoken_mpi_tensor *weights);
void moetoken_mpi_slots_from_rows(const struct moetoken_mpi_call *call,
                                  const struct moetoken_mpi_tensor *row_weights);
void moetoken_mpi_slots_to_rows(const struct moetoken_mpi_call *call,
                                const struct moetoken_mpi_tensor *row_weights);

#endif
