/* comm.c - opening and closing, messages, waiting, memory. */
#include "comm.h"

#include <inttypes.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DEFAULT_TIMEOUT_MS 600000

static _Thread_local char last_error[512];

const char *moetoken_mpi_last_error(void)
{
    return last_error;
}

moetoken_status moetoken_mpi_fail(moetoken_status status, const char *format, ...)
{
    char text[sizeof last_error]; /* an argument may be the last message itself */
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    memcpy(last_error, text, sizeof text);
    return status;
}

moetoken_status moetoken_mpi_fail_as_core(moetoken_status status)
{
    return status == MOETOKEN_OK ? status : moetoken_mpi_fail(status, "%s", moetoken_last_error());
}

moetoken_status moetoken_mpi_check(struct moetoken_mpi_comm *comm, int code, const char *what)
{
    if (code == MPI_SUCCESS)
        return MOETOKEN_OK;
    char text[MPI_MAX_ERROR_STRING] = "";
    int length = 0;
    MPI_Error_string(code, text, &length);
    comm->broken = true;
    return moetoken_mpi_fail(MOETOKEN_ERR_MPI, "%s: %.300s", what, text);
}

moetoken_status moetoken_mpi_may_call(const struct moetoken_mpi_comm *comm)
{
    if (comm->broken)
        return moetoken_mpi_fail(MOETOKEN_ERR_MPI,
                                 "an earlier call on this communicator did not end: it cannot be "
                                 "used any more");
    int main_thread = 1;
    if (!comm->any_thread)
        MPI_Is_thread_main(&main_thread);
    if (!main_thread)
        return moetoken_mpi_fail(MOETOKEN_ERR_OPTION,
                                 "called by another thread than the one that initialised MPI, "
                                 "which takes MPI_THREAD_SERIALIZED");
    return MOETOKEN_OK;
}

moetoken_status moetoken_mpi_wait(struct moetoken_mpi_comm *comm, MPI_Request *requests,
                                  int64_t count)
{
    double deadline = MPI_Wtime() + comm->timeout;
    /* MPI counts requests in int; those that are done are MPI_REQUEST_NULL and cost nothing. */
    for (int64_t first = 0; first < count;) {
        int some = count - first < 4096 ? (int)(count - first) : 4096;
        int done = 0;
        moetoken_status status = moetoken_mpi_check(
            comm, MPI_Testall(some, requests + first, &done, MPI_STATUSES_IGNORE), "MPI_Testall");
        if (status)
            return status;
        if (done) {
            first += some;
            continue;
        }
        if (MPI_Wtime() > deadline) {
            comm->broken = true;
            return moetoken_mpi_fail(MOETOKEN_ERR_MPI,
                                     "waited %.1f seconds for the other ranks: one has died, or "
                                     "has not made the same call",
                                     comm->timeout);
        }
        sched_yield(); /* there may be more ranks than processors */
    }
    return MOETOKEN_OK;
}

char *moetoken_mpi_room_take(struct moetoken_mpi_comm *comm, size_t bytes)
{
    if (comm->room_taken)
        return malloc(bytes ? bytes : 1);
    if (comm->room_bytes < bytes || !comm->room) {
        char *room = malloc(bytes ? bytes : 1);
        if (!room)
            return NULL;
        free(comm->room);
        comm->room = room;
        comm->room_bytes = bytes;
    }
    comm->room_taken = true;
    return comm->room;
}

void moetoken_mpi_room_give(struct moetoken_mpi_comm *comm, char *room)
{
    if (!room || comm->broken)
        return;
    if (room == comm->room)
        comm->room_taken = false;
    else
        free(room);
}

moetoken_status moetoken_mpi_allocate(void *pointer_to, int64_t count, size_t size, size_t *total)
{
    void *memory = NULL;
    size_t bytes = 0;
    if (!__builtin_mul_overflow((uint64_t)count, size, &bytes))
        memory = malloc(bytes ? bytes : 1);
    memcpy(pointer_to, &memory, sizeof memory);
    if (!memory)
        return moetoken_mpi_fail(MOETOKEN_ERR_MEMORY,
                                 "no memory for %" PRId64 " numbers of %zu bytes", count, size);
    if (total)
        *total += bytes;
    return MOETOKEN_OK;
}

/* What the options hold, for a comm that is zero. */
static moetoken_status take_options(struct moetoken_mpi_comm *comm,
                                    const moetoken_mpi_options *options)
{
    moetoken_mpi_options none = {0};
    if (!options)
        options = &none;
    if (options->struct_size && options->struct_size != sizeof *options)
        return moetoken_mpi_fail(MOETOKEN_ERR_OPTION, "options.struct_size is %zu, expected %zu",
                                 options->struct_size, sizeof *options);
    if (options->timeout_ms < 0 || options->piece_rows < 0)
        return moetoken_mpi_fail(MOETOKEN_ERR_OPTION, "options.%s = %" PRId64 " is negative",
                                 options->timeout_ms < 0 ? "timeout_ms" : "piece_rows",
                                 options->timeout_ms < 0 ? options->timeout_ms
                                                         : options->piece_rows);
    if (options->threads < 0)
        return moetoken_mpi_fail(MOETOKEN_ERR_OPTION, "options.threads = %d is negative",
                                 (int)options->threads);
    if (!moetoken_isa_chosen(options->isa_mask))
        return moetoken_mpi_fail(MOETOKEN_ERR_OPTION,
                                 "options.isa_mask = 0x%x, or MOETOKEN_ISA, names no instruction "
                                 "set",
                                 (unsigned)options->isa_mask);
    int64_t timeout_ms = options->timeout_ms ? options->timeout_ms : DEFAULT_TIMEOUT_MS;
    comm->timeout = (double)timeout_ms / 1000;
    comm->piece_rows = options->piece_rows;
    comm->core.isa_mask = options->isa_mask;
    comm->core.threads = options->threads;
    int level = MPI_THREAD_SINGLE;
    MPI_Query_thread(&level);
    if (level == MPI_THREAD_SINGLE)
        comm->core.threads = 1;
    comm->any_thread = level >= MPI_THREAD_SERIALIZED;
    return MOETOKEN_OK;
}

/* That there is a communicator to talk on at all: without one nothing can be agreed. */
static moetoken_status check_open(MPI_Comm comm, moetoken_mpi_comm **opened)
{
    int initialized = 0, finalized = 0, inter = 0;
    if (!opened)
        return moetoken_mpi_fail(MOETOKEN_ERR_NULL, "opened is NULL");
    *opened = NULL;
    MPI_Initialized(&initialized);
    MPI_Finalized(&finalized);
    if (!initialized || finalized)
        return moetoken_mpi_fail(MOETOKEN_ERR_OPTION, "MPI %s",
                                 finalized ? "has been finalised" : "has not been initialised");
    if (comm == MPI_COMM_NULL)
        return moetoken_mpi_fail(MOETOKEN_ERR_NULL, "comm is MPI_COMM_NULL");
    MPI_Comm_test_inter(comm, &inter);
    if (inter)
        return moetoken_mpi_fail(MOETOKEN_ERR_OPTION, "comm is an intercommunicator");
    return MOETOKEN_OK;
}

moetoken_status moetoken_mpi_open(MPI_Comm comm, const moetoken_mpi_options *options,
                                  moetoken_mpi_comm **opened)
{
    moetoken_status status = check_open(comm, opened);
    if (status)
        return status;
    static _Thread_local struct moetoken_mpi_comm stand_in;
    stand_in.timeout = DEFAULT_TIMEOUT_MS / 1000.0;
    struct moetoken_mpi_comm *made = calloc(1, sizeof *made);
    status = made ? take_options(made, options)
                  : moetoken_mpi_fail(MOETOKEN_ERR_MEMORY, "no memory for a communicator");
    struct moetoken_mpi_comm *talking = made ? made : &stand_in;
    moetoken_status on_the_way =
        moetoken_mpi_check(talking, MPI_Comm_dup(comm, &talking->comm), "MPI_Comm_dup");
    if (on_the_way) {
        free(made);
        return on_the_way;
    }
    MPI_Comm_set_errhandler(talking->comm, MPI_ERRORS_RETURN);
    MPI_Comm_rank(talking->comm, &talking->rank);
    MPI_Comm_size(talking->comm, &talking->size);
    if (status) /* what the options say is not to be trusted */
        talking->timeout = stand_in.timeout;
    struct moetoken_mpi_shared shared = {
        .what = {MOETOKEN_MPI_FUNCTION, "options.piece_rows", "MOETOKEN_VERSION_NUMBER"},
        .value = {MOETOKEN_MPI_OPEN, talking->piece_rows, MOETOKEN_VERSION_NUMBER},
        .status = {MOETOKEN_ERR_OPTION, MOETOKEN_ERR_OPTION, MOETOKEN_ERR_OPTION}};
    status = moetoken_mpi_agree(talking, status, &shared);
    if (status) {
        if (!talking->broken) {
            MPI_Comm_free(&talking->comm);
            free(made);
        }
        return status;
    }
    *opened = made;
    return MOETOKEN_OK;
}

void moetoken_mpi_close(moetoken_mpi_comm *comm)
{
    if (!comm)
        return;
    int finalized = 0;
    MPI_Finalized(&finalized);
    if (comm->broken) /* there may be messages on their way, into this very memory */
        return;
    if (!finalized)
        MPI_Comm_free(&comm->comm);
    free(comm->room);
    free(comm);
}
