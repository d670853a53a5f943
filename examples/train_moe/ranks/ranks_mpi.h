/* ranks_mpi.h - what ranks_mpi.c tells exchange_mpi.c. */
#ifndef TRAIN_MOE_RANKS_MPI_H
#define TRAIN_MOE_RANKS_MPI_H

#include <mpi.h>

/* All ranks; errors end the job. */
MPI_Comm ranks_comm(void);

/* The same complaint on every rank: rank 0 prints it and ends them all. */
_Noreturn void give_up_together(void);

#endif
