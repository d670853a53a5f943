/* outward.h - the way from the tokens to the experts, which dispatch and combine_grad go. */
#ifndef MOETOKEN_MPI_OUTWARD_H
#define MOETOKEN_MPI_OUTWARD_H

#include "call.h"

/* The core library's largest work on this way. */
void moetoken_mpi_outward_needs(const struct moetoken_mpi_exchange *exchange,
                                struct moetoken_mpi_needs *needs);

/* Packs the tokens and sends all groups, and the slots' numbers when `weighted`. */
moetoken_status moetoken_mpi_send_outward(struct moetoken_mpi_call *call, const DLTensor *tokens,
                                          bool weighted);

/* Waits for a group's tokens and copies them to its rows. */
moetoken_status moetoken_mpi_receive_group(struct moetoken_mpi_call *call, int64_t group,
                                           const DLTensor *rows);

#endif
