/* transfer.c - messages from rank to rank, none where there is nothing to say. Rows are a datatype,
 * so that MPI's counts are rows, not bytes; more rows than it can count go in pieces.
 *
 * Not MPI_Ialltoallv: its displacements overflow where its counts would still fit, it talks to
 * ranks that get nothing too, and Open MPI 4's can keep ranks waiting for ever. */
#include "transfer.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

/* MPI-4 counts in MPI_Count where it is asked to. */
#if MPI_VERSION >= 4
#define COUNT_MAX INT64_MAX
typedef MPI_Count count_type;
static int send_rows(const void *rows, count_type count, MPI_Datatype row, int rank, int tag,
                     MPI_Comm comm, MPI_Request *request)
{
    return MPI_Isend_c(rows, count, row, rank, tag, comm, request);
}
static int receive_rows(void *rows, count_type count, MPI_Datatype row, int rank, int tag,
                        MPI_Comm comm, MPI_Request *request)
{
    return MPI_Irecv_c(rows, count, row, rank, tag, comm, request);
}
#else
#define COUNT_MAX ((int64_t)INT_MAX)
typedef int count_type;
static int send_rows(const void *rows, count_type count, MPI_Datatype row, int rank, int tag,
                     MPI_Comm comm, MPI_Request *request)
{
    return MPI_Isend(rows, count, row, rank, tag, comm, request);
}
static int receive_rows(void *rows, count_type count, MPI_Datatype row, int rank, int tag,
                        MPI_Comm comm, MPI_Request *request)
{
    return MPI_Irecv(rows, count, row, rank, tag, comm, request);
}
#endif

int64_t moetoken_mpi_pieces(int64_t count, int64_t piece_rows)
{
    return count / piece_rows + (count % piece_rows != 0);
}

int64_t moetoken_mpi_piece_rows(const struct moetoken_mpi_comm *comm)
{
    return comm->piece_rows && comm->piece_rows < COUNT_MAX ? comm->piece_rows : COUNT_MAX;
}

moetoken_status moetoken_mpi_transfer_prepare(const struct moetoken_mpi_comm *comm,
                                              size_t row_bytes,
                                              struct moetoken_mpi_transfer *transfer)
{
    if (row_bytes > INT_MAX)
        return moetoken_mpi_fail(MOETOKEN_ERR_OVERFLOW,
                                 "a row of %zu bytes is longer than MPI can count", row_bytes);
    int64_t piece_rows = moetoken_mpi_piece_rows(comm);
    transfer->row_bytes = row_bytes;
    transfer->requests_num = 0;
    for (int rank = 0; rank < comm->size; rank++)
        transfer->requests_num += moetoken_mpi_pieces(transfer->send.count[rank], piece_rows) +
                                  moetoken_mpi_pieces(transfer->receive.count[rank], piece_rows);
    moetoken_status status = moetoken_mpi_allocate(&transfer->requests, transfer->requests_num,
                                                   sizeof(MPI_Request), NULL);
    if (status)
        return status;
    for (int64_t i = 0; i < transfer->requests_num; i++)
        transfer->requests[i] = MPI_REQUEST_NULL;
    if (MPI_Type_contiguous((int)row_bytes, MPI_BYTE, &transfer->row) != MPI_SUCCESS)
        return moetoken_mpi_fail(MOETOKEN_ERR_MPI, "MPI_Type_contiguous of %zu bytes failed",
                                 row_bytes);
    transfer->row_made = true;
    MPI_Type_commit(&transfer->row);
    return MOETOKEN_OK;
}

/* One rank's rows. */
struct stretch {
    char *rows;
    int64_t count;
    int rank, tag;
    bool sending;
};

/* Posts the pieces of a stretch; returns the next free request. */
static MPI_Request *post(struct moetoken_mpi_comm *comm,
                         const struct moetoken_mpi_transfer *transfer, struct stretch stretch,
                         MPI_Request *request, int *code)
{
    int64_t most = moetoken_mpi_piece_rows(comm);
    for (int64_t done = 0; done < stretch.count && *code == MPI_SUCCESS; request++) {
        int64_t some = stretch.count - done < most ? stretch.count - done : most;
        char *rows = stretch.rows + done * (int64_t)transfer->row_bytes;
        *code = stretch.sending ? send_rows(rows, (count_type)some, transfer->row, stretch.rank,
                                            stretch.tag, comm->comm, request)
                                : receive_rows(rows, (count_type)some, transfer->row, stretch.rank,
                                               stretch.tag, comm->comm, request);
        done += some;
    }
    return request;
}

moetoken_status moetoken_mpi_transfer_start(struct moetoken_mpi_comm *comm, const void *send,
                                            void *receive, struct moetoken_mpi_transfer *transfer)
{
    int code = MPI_SUCCESS, tag = comm->next_tag, size = comm->size;
    comm->next_tag = (comm->next_tag + 1) % 32768; /* every MPI has tags up to 32767 */
    MPI_Request *request = transfer->requests;
    const struct moetoken_mpi_side *in = &transfer->receive, *out = &transfer->send;
    /* Receives first, so that what comes has its place; ranks in rising distance, so that not all
     * send to the same one. */
    for (int distance = 0; distance < size; distance++) {
        int from = (comm->rank + size - distance) % size;
        struct stretch stretch = {(char *)receive + in->first[from] * (int64_t)transfer->row_bytes,
                                  in->count[from], from, tag, false};
        request = post(comm, transfer, stretch, request, &code);
    }
    for (int distance = 0; distance < size; distance++) {
        int to = (comm->rank + distance) % size;
        /* NOLINTNEXTLINE(performance-no-int-to-ptr): takes const away; it is only read */
        struct stretch stretch = {(char *)(uintptr_t)send +
                                      out->first[to] * (int64_t)transfer->row_bytes,
                                  out->count[to], to, tag, true};
        request = post(comm, transfer, stretch, request, &code);
    }
    return moetoken_mpi_check(comm, code, "sending rows");
}

moetoken_status moetoken_mpi_transfer_wait(struct moetoken_mpi_comm *comm,
                                           struct moetoken_mpi_transfer *transfer)
{
    return moetoken_mpi_wait(comm, transfer->requests, transfer->requests_num);
}

void moetoken_mpi_transfer_free(const struct moetoken_mpi_comm *comm,
                                struct moetoken_mpi_transfer *transfer)
{
    if (comm->broken)
        return;
    if (transfer->row_made)
        MPI_Type_free(&transfer->row);
    free(transfer->requests);
    memset(transfer, 0, sizeof *transfer);
}
