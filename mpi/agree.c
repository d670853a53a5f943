/* agree.c - all ranks go on, or none: a fault of one becomes the same error everywhere. */
#include "comm.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* What the reduction to minima carries: the first rank with a fault, and the smallest and minus
 * the largest of each value, which cancel where all agree. */
enum {
    FAULT,
    VALUES
};

static moetoken_status minima(struct moetoken_mpi_comm *comm)
{
    MPI_Request request;
    struct moetoken_mpi_talk *talk = &comm->talk;
    int code = MPI_Iallreduce(talk->mine, talk->all, MOETOKEN_MPI_SUMMARY, MPI_INT64_T, MPI_MIN,
                              comm->comm, &request);
    moetoken_status status = moetoken_mpi_check(comm, code, "MPI_Iallreduce");
    return status ? status : moetoken_mpi_wait(comm, &request, 1);
}

static moetoken_status broadcast(struct moetoken_mpi_comm *comm, void *data, size_t bytes, int root)
{
    MPI_Request request;
    int code = MPI_Ibcast(data, (int)bytes, MPI_BYTE, root, comm->comm, &request);
    moetoken_status status = moetoken_mpi_check(comm, code, "MPI_Ibcast");
    return status ? status : moetoken_mpi_wait(comm, &request, 1);
}

/* The first faulty rank's status and message to everybody. */
static moetoken_status spread_fault(struct moetoken_mpi_comm *comm, int root, moetoken_status local)
{
    struct moetoken_mpi_talk *talk = &comm->talk;
    talk->status = (int64_t)local;
    snprintf(talk->text, sizeof talk->text, "%s", moetoken_mpi_last_error());
    moetoken_status status = broadcast(comm, &talk->status, sizeof talk->status, root);
    if (!status)
        status = broadcast(comm, talk->text, sizeof talk->text, root);
    if (status)
        return status;
    talk->text[sizeof talk->text - 1] = '\0';
    return moetoken_mpi_fail((moetoken_status)talk->status, "rank %d: %s", root, talk->text);
}

/* Names the first rank whose value is not rank 0's, by a second reduction that only errors pay. */
static moetoken_status name_difference(struct moetoken_mpi_comm *comm,
                                       const struct moetoken_mpi_shared *shared, int which)
{
    struct moetoken_mpi_talk *talk = &comm->talk;
    talk->status = shared->value[which];
    moetoken_status status = broadcast(comm, &talk->status, sizeof talk->status, 0);
    if (status)
        return status;
    int64_t first = talk->status;
    talk->mine[FAULT] = shared->value[which] == first ? comm->size : comm->rank;
    status = minima(comm);
    if (status)
        return status;
    int rank = (int)talk->all[FAULT];
    moetoken_status difference = shared->status[which];
    if (comm->rank == rank)
        moetoken_mpi_fail(difference, "%s %" PRId64 " where rank 0 has %" PRId64,
                          shared->what[which], shared->value[which], first);
    return spread_fault(comm, rank, difference);
}

moetoken_status moetoken_mpi_agree(struct moetoken_mpi_comm *comm, moetoken_status local,
                                   const struct moetoken_mpi_shared *shared)
{
    struct moetoken_mpi_talk *talk = &comm->talk;
    talk->mine[FAULT] = local ? comm->rank : comm->size;
    for (int i = 0; i < MOETOKEN_MPI_SHARED; i++) {
        bool counts = !local && shared->what[i];
        talk->mine[VALUES + 2 * i] = counts ? shared->value[i] : INT64_MAX;
        talk->mine[VALUES + 2 * i + 1] = counts ? -shared->value[i] : INT64_MAX;
    }
    moetoken_status status = minima(comm);
    if (status)
        return status;
    if (talk->all[FAULT] < comm->size)
        return spread_fault(comm, (int)talk->all[FAULT], local);
    for (int i = 0; i < MOETOKEN_MPI_SHARED; i++) {
        int64_t least = talk->all[VALUES + 2 * i];
        if (least != INT64_MAX && least != -talk->all[VALUES + 2 * i + 1])
            return name_difference(comm, shared, i);
    }
    return MOETOKEN_OK;
}
