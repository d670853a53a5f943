/* mpi_faults_test.c - a fault on one rank is the same error on every rank, nothing is written, and
 * the next call goes on. Needs two ranks at least; rank 1 is the one at fault.
 *
 *   mpi_faults_test           faults that ranks can agree upon, want of memory included
 *   mpi_faults_test absent    rank 1 does not make the call
 *   mpi_faults_test dies      rank 1 ends without a word */
#include "ranks_case.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    TOKENS = 3,
    SLOTS = 2,
    HIDDEN = 4
};

static int rank, size;
static bool at_fault;

/* ---- want of memory: the linker sends the library's malloc and calloc here ------------------- */

static long allocations_left = -1; /* -1: no limit */

void *__real_malloc(size_t bytes);
void *__real_calloc(size_t count, size_t bytes);
void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes);

static bool refused(void)
{
    if (allocations_left < 0)
        return false;
    return allocations_left-- == 0;
}

void *__wrap_malloc(size_t bytes)
{
    return refused() ? NULL : __real_malloc(bytes);
}

void *__wrap_calloc(size_t count, size_t bytes)
{
    return refused() ? NULL : __real_calloc(count, bytes);
}

/* ---- a small layer: token t of rank r goes to the experts r and r + 1 of as many as ranks -----
 */

static int64_t ids[TOKENS * SLOTS], shape_tk[2] = {TOKENS, SLOTS}, shape_th[2] = {TOKENS, HIDDEN};
static int64_t shape_rh[2];
static float x[TOKENS * HIDDEN], weights[TOKENS * SLOTS], y[TOKENS * HIDDEN], dw[TOKENS * SLOTS];
static float rows[16 * TOKENS * SLOTS * HIDDEN], more_rows[16 * TOKENS * SLOTS * HIDDEN];
static moetoken_mpi_comm *comm;
static moetoken_mpi_exchange *exchange;

static void require_ok(moetoken_status status, const char *what)
{
    ranks_require(status == MOETOKEN_OK, "%s: %s", what, moetoken_mpi_last_error());
}

static moetoken_status plan(int64_t experts, int64_t groups, moetoken_mpi_exchange **made)
{
    DLTensor tensor = moetoken_tensor(ids, MOETOKEN_I64, 2, shape_tk);
    moetoken_mpi_plan_args args = {
        .expert_ids = &tensor, .experts_num = experts, .groups_num = groups};
    return moetoken_mpi_plan(comm, &args, made);
}

static void fill(void)
{
    for (int i = 0; i < TOKENS * SLOTS; i++)
        ids[i] = (rank + i % SLOTS) % size;
    for (int i = 0; i < TOKENS * HIDDEN; i++)
        x[i] = (float)(rank * 100 + i);
    for (int i = 0; i < TOKENS * SLOTS; i++)
        weights[i] = 0.5f;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        rows[i] = more_rows[i] = -7;
    for (int i = 0; i < TOKENS * HIDDEN; i++)
        y[i] = -7;
    shape_tk[0] = shape_th[0] = TOKENS;
    shape_tk[1] = SLOTS;
    shape_th[1] = HIDDEN;
}

static void make_exchange(void)
{
    fill();
    require_ok(plan(size, 0, &exchange), "plan");
    moetoken_mpi_exchange_info info = {0};
    require_ok(moetoken_mpi_exchange_get(exchange, &info), "exchange_get");
    shape_rh[0] = info.rows_num;
    shape_rh[1] = HIDDEN;
}

/* All ranks have this status and the same words, which begin with "rank 1: ", and hold `words`. */
static void expect(const char *what, moetoken_status status, moetoken_status expected,
                   const char *words)
{
    const char *text = moetoken_mpi_last_error();
    ranks_require(status == expected, "%s: status %s (%s), expected %s", what,
                  moetoken_status_name(status), text, moetoken_status_name(expected));
    ranks_require(strncmp(text, "rank 1: ", 8) == 0 && strstr(text, words), "%s: '%s' without '%s'",
                  what, text, words);
    char first[512];
    snprintf(first, sizeof first, "%s", text);
    MPI_Bcast(first, sizeof first, MPI_CHAR, 0, MPI_COMM_WORLD);
    ranks_require(strcmp(first, text) == 0, "%s: '%s', on rank 0 '%s'", what, text, first);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        ranks_require(rows[i] == -7 && more_rows[i] == -7, "%s: rows were written", what);
    for (int i = 0; i < TOKENS * HIDDEN; i++)
        ranks_require(y[i] == -7, "%s: tokens were written", what);
}

static void plan_faults(void)
{
    moetoken_mpi_exchange *none;
    fill();
    if (at_fault)
        ids[3] = size + 5;
    expect("id", plan(size, 0, &none), MOETOKEN_ERR_INDEX, "expert_ids[1, 1] = ");
    fill();
    if (at_fault)
        ids[0] = -2;
    expect("id below -1", plan(size, 0, &none), MOETOKEN_ERR_INDEX, "expert_ids[0, 0] = -2");
    fill();
    shape_tk[1] = at_fault ? 1 : SLOTS;
    expect("slots", plan(size, 0, &none), MOETOKEN_ERR_SHAPE, "1 where rank 0 has 2");
    fill();
    expect("experts", plan(at_fault ? 2 * size : size, 0, &none), MOETOKEN_ERR_SHAPE,
           "experts_num");
    expect("indivisible", plan(at_fault ? size + 1 : size, 0, &none), MOETOKEN_ERR_SHAPE,
           "not a positive multiple");
    expect("groups", plan(size, at_fault ? 1 + 1 : 1, &none), MOETOKEN_ERR_OPTION, "groups_num");
    shape_tk[0] = at_fault ? -1 : TOKENS;
    expect("negative", plan(size, 0, &none), MOETOKEN_ERR_SHAPE, "negative size -1");
    moetoken_mpi_plan_args args = {.experts_num = size};
    DLTensor tensor = moetoken_tensor(ids, MOETOKEN_I64, 2, shape_tk);
    fill();
    args.expert_ids = at_fault ? NULL : &tensor;
    expect("missing", moetoken_mpi_plan(comm, &args, &none), MOETOKEN_ERR_NULL, "expert_ids");
    /* The message on a fault of all ranks is the first one's. */
    moetoken_status status = plan(size + 1, 0, &none);
    ranks_require(status == MOETOKEN_ERR_SHAPE &&
                      strncmp(moetoken_mpi_last_error(), "rank 0: ", 8) == 0,
                  "all ranks at fault: %s", moetoken_mpi_last_error());
}

static moetoken_status dispatch(moetoken_type type, bool with_tokens)
{
    DLTensor tx = moetoken_tensor(x, type, 2, shape_th);
    DLTensor tr = moetoken_tensor(rows, type, 2, shape_rh);
    moetoken_mpi_dispatch_args args = {.tokens = with_tokens ? &tx : NULL, .rows = &tr};
    return moetoken_mpi_dispatch(exchange, &args);
}

static moetoken_status combine(void)
{
    DLTensor ty = moetoken_tensor(y, MOETOKEN_F32, 2, shape_th);
    DLTensor tr = moetoken_tensor(rows, MOETOKEN_F32, 2, shape_rh);
    DLTensor tw = moetoken_tensor(weights, MOETOKEN_F32, 2, shape_tk);
    moetoken_mpi_combine_args args = {.rows = &tr, .weights = &tw, .tokens = &ty};
    return moetoken_mpi_combine(exchange, &args);
}

static moetoken_status combine_grad(bool weighted, bool wants_grad, float *rows_grad)
{
    DLTensor tg = moetoken_tensor(x, MOETOKEN_F32, 2, shape_th);
    DLTensor tr = moetoken_tensor(rows, MOETOKEN_F32, 2, shape_rh);
    DLTensor td = moetoken_tensor(rows_grad, MOETOKEN_F32, 2, shape_rh);
    DLTensor tw = moetoken_tensor(weights, MOETOKEN_F32, 2, shape_tk);
    DLTensor tdw = moetoken_tensor(dw, MOETOKEN_F32, 2, shape_tk);
    moetoken_mpi_combine_grad_args args = {.tokens_grad = &tg,
                                           .weights = weighted ? &tw : NULL,
                                           .rows = &tr,
                                           .rows_grad = &td,
                                           .weights_grad = wants_grad ? &tdw : NULL};
    return moetoken_mpi_combine_grad(exchange, &args);
}

static moetoken_status dispatch_grad(void)
{
    DLTensor tr = moetoken_tensor(rows, MOETOKEN_F32, 2, shape_rh);
    DLTensor ty = moetoken_tensor(y, MOETOKEN_F32, 2, shape_th);
    moetoken_mpi_dispatch_grad_args args = {.rows_grad = &tr, .tokens_grad = &ty};
    return moetoken_mpi_dispatch_grad(exchange, &args);
}

static void call_faults(void)
{
    make_exchange();
    shape_th[1] = shape_rh[1] = at_fault ? 2 : HIDDEN;
    expect("hidden", dispatch(MOETOKEN_F32, true), MOETOKEN_ERR_SHAPE, "hidden size 2");
    shape_th[1] = shape_rh[1] = HIDDEN;
    expect("type", dispatch(at_fault ? MOETOKEN_BF16 : MOETOKEN_F32, true), MOETOKEN_ERR_TYPE,
           "has tokens of type");
    expect("index type", dispatch(at_fault ? MOETOKEN_I32 : MOETOKEN_F32, true), MOETOKEN_ERR_TYPE,
           "tokens has DLPack type");
    expect("no tokens", dispatch(MOETOKEN_F32, !at_fault), MOETOKEN_ERR_NULL, "tokens is NULL");
    shape_th[0] = at_fault ? TOKENS - 1 : TOKENS;
    expect("tokens", dispatch(MOETOKEN_F32, true), MOETOKEN_ERR_SHAPE, "tokens has 2 rows");
    expect("combine", combine(), MOETOKEN_ERR_SHAPE, "2 rows, expected 3");
    shape_th[0] = TOKENS;
    shape_rh[0] += at_fault;
    expect("rows", dispatch_grad(), MOETOKEN_ERR_SHAPE, "rows_grad has");
    shape_rh[0] -= at_fault;
    expect("another function", at_fault ? combine() : dispatch(MOETOKEN_F32, true),
           MOETOKEN_ERR_OPTION, "function");
    expect("no weights", combine_grad(!at_fault, false, more_rows), MOETOKEN_ERR_TYPE,
           "has weights of type");
    expect("grad unwanted", combine_grad(true, !at_fault, more_rows), MOETOKEN_ERR_NULL,
           "choice of arguments");
    expect("overlap", combine_grad(true, true, at_fault ? rows + 1 : more_rows),
           MOETOKEN_ERR_OVERLAP, "rows_grad shares memory");
    require_ok(dispatch(MOETOKEN_F32, true), "dispatch after faults");
    require_ok(combine(), "combine after faults");
    moetoken_mpi_exchange_free(exchange);
}

/* Rank 1's n-th allocation fails, for every n: an error everywhere, or, when there are fewer, none.
 */
static void memory_faults(void)
{
    enum {
        PLAN,
        DISPATCH,
        COMBINE,
        COMBINE_GRAD,
        DISPATCH_GRAD,
        CALLS
    };
    for (int call = 0; call < CALLS; call++) {
        moetoken_status status = MOETOKEN_ERR_MEMORY;
        long n = 0;
        for (; status == MOETOKEN_ERR_MEMORY; n++) {
            moetoken_mpi_exchange *made = NULL;
            if (call != PLAN)
                make_exchange();
            fill();
            allocations_left = at_fault ? n : -1;
            status = call == PLAN           ? plan(size, 0, &made)
                     : call == DISPATCH     ? dispatch(MOETOKEN_F32, true)
                     : call == COMBINE      ? combine()
                     : call == COMBINE_GRAD ? combine_grad(true, true, more_rows)
                                            : dispatch_grad();
            allocations_left = -1;
            if (status == MOETOKEN_ERR_MEMORY)
                expect("memory", status, MOETOKEN_ERR_MEMORY, "no memory");
            else
                require_ok(status, "with memory");
            moetoken_mpi_exchange_free(call == PLAN ? made : exchange);
        }
        ranks_require(n > 2, "call %d takes no memory", call);
    }
}

/* Rank 1 does not call, or is dead: the others get an error within the limit, and at once later. */
static void left_alone(bool dies)
{
    make_exchange();
    MPI_Barrier(MPI_COMM_WORLD);
    if (at_fault && dies)
        _exit(3);
    if (!at_fault) {
        double began = MPI_Wtime();
        moetoken_status status = dispatch(MOETOKEN_F32, true);
        ranks_require(status == MOETOKEN_ERR_MPI, "left alone: status %s",
                      moetoken_status_name(status));
        ranks_require(MPI_Wtime() - began < 60, "left alone for too long");
        printf("rank %d was told: %s\n", rank, moetoken_mpi_last_error());
        status = combine();
        ranks_require(status == MOETOKEN_ERR_MPI, "used again: status %s",
                      moetoken_status_name(status));
        fflush(stdout);
    }
    if (dies)
        _exit(0); /* MPI_Finalize would wait for the dead */
    MPI_Barrier(MPI_COMM_WORLD);
    _exit(0); /* messages of calls that did not end are still on their way */
}

int main(int argc, char **argv)
{
    int level = 0;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &level);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    at_fault = rank == 1;
    bool alone = argc > 1;
    moetoken_mpi_options options = {.timeout_ms = alone ? 2000 : 60000};
    require_ok(moetoken_mpi_open(MPI_COMM_WORLD, &options, &comm), "open");
    if (alone)
        left_alone(strcmp(argv[1], "dies") == 0);
    plan_faults();
    call_faults();
    memory_faults();
    moetoken_mpi_close(comm);
    comm = NULL;
    fill();
    moetoken_mpi_options wrong = {.timeout_ms = at_fault ? -1 : 1000};
    expect("options", moetoken_mpi_open(MPI_COMM_WORLD, &wrong, &comm), MOETOKEN_ERR_OPTION,
           "timeout_ms = -1");
    MPI_Finalize();
    return 0;
}
