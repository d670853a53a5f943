/* run.c - dispatch, combine and their gradients beside the same bytes by MPI alone.
 *
 * All are measured in turn, again and again, so that what else the machine does hits them alike; a
 * time is that of the slowest rank, and the least of all rounds is reported. */
#include "bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum what {
    DISPATCH,
    DISPATCH_EVERY_SLOT,
    COMBINE,
    COMBINE_GRAD,
    DISPATCH_GRAD,
    ALLTOALLV_TOKENS, /* the bytes of dispatch, by MPI alone */
    ALLTOALLV_SLOTS,  /* the bytes of combine */
    PERMUTE,          /* as many rows as arrive, on this rank alone */
    UNPERMUTE,
    ALLGATHER, /* all tokens to all ranks */
    WHATS
};
static const char *const names[WHATS] = {
    "dispatch",         "dispatch_every_slot", "combine", "combine_grad", "dispatch_grad",
    "alltoallv_tokens", "alltoallv_slots",     "permute", "unpermute",    "allgather"};

struct bench {
    const struct bench_options *options;
    int rank, size;
    int64_t tokens, topk, experts, hidden, row_bytes, rows, every_rows;
    int64_t th[2], tk[2], rh[2], er[2], sh[2], n[1];
    int64_t *ids, *sorted;
    char *x, *y, *rows_x, *local, *room, *everything;
    float *weights, *weights_grad;
    moetoken_mpi_comm *comm;
    moetoken_mpi_exchange *exchange, *every;
    int *counts; /* [8][P]: tokens, then slots: sent, where, received, where */
    MPI_Datatype row;
};

static void require_ok(moetoken_status status)
{
    if (status == MOETOKEN_OK)
        return;
    fprintf(stderr, "moetoken-mpi-bench: %s / %s\n", moetoken_mpi_last_error(),
            moetoken_last_error());
    MPI_Abort(MPI_COMM_WORLD, 1);
}

static void *need(int64_t bytes)
{
    void *memory = calloc((size_t)bytes + 1, 1); /* touched below, in each buffer's first use */
    if (!memory) {
        fprintf(stderr, "moetoken-mpi-bench: no memory for %lld bytes\n", (long long)bytes);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    return memory;
}

static DLTensor rows_tensor(struct bench *bench, void *data, int64_t *shape)
{
    return moetoken_tensor(data, bench->options->type, 2, shape);
}

static void local_work(struct bench *bench, bool back)
{
    DLTensor x = rows_tensor(bench, bench->x, bench->th);
    DLTensor y = rows_tensor(bench, bench->y, bench->th);
    DLTensor rows = rows_tensor(bench, bench->local, bench->sh);
    DLTensor ids = moetoken_tensor(bench->ids, MOETOKEN_I64, 2, bench->tk);
    DLTensor sorted = moetoken_tensor(bench->sorted, MOETOKEN_I64, 1, bench->n);
    DLTensor weights = moetoken_tensor(bench->weights, MOETOKEN_F32, 2, bench->tk);
    moetoken_permute_args permute = {.tokens = &x,
                                     .expert_ids = &ids,
                                     .experts_num = bench->experts,
                                     .permuted_tokens = &rows,
                                     .sorted_indices = &sorted};
    moetoken_unpermute_args unpermute = {.permuted_tokens = &rows,
                                         .sorted_indices = &sorted,
                                         .weights = &weights,
                                         .unpermuted_tokens = &y};
    require_ok(back ? moetoken_unpermute(&unpermute, NULL) : moetoken_permute(&permute, NULL));
}

static void exchange_work(struct bench *bench, enum what what)
{
    DLTensor x = rows_tensor(bench, bench->x, bench->th);
    DLTensor y = rows_tensor(bench, bench->y, bench->th);
    DLTensor rows = rows_tensor(bench, bench->rows_x, bench->rh);
    DLTensor every = rows_tensor(bench, bench->rows_x, bench->er);
    DLTensor weights = moetoken_tensor(bench->weights, MOETOKEN_F32, 2, bench->tk);
    DLTensor weights_grad = moetoken_tensor(bench->weights_grad, MOETOKEN_F32, 2, bench->tk);
    moetoken_mpi_dispatch_args dispatch = {.tokens = &x, .rows = what == DISPATCH ? &rows : &every};
    moetoken_mpi_combine_args combine = {.rows = &rows, .weights = &weights, .tokens = &y};
    moetoken_mpi_combine_grad_args combine_grad = {.tokens_grad = &x,
                                                   .weights = &weights,
                                                   .rows = &rows,
                                                   .rows_grad = &rows,
                                                   .weights_grad = &weights_grad};
    moetoken_mpi_dispatch_grad_args dispatch_grad = {.rows_grad = &rows, .tokens_grad = &y};
    if (what == DISPATCH)
        require_ok(moetoken_mpi_dispatch(bench->exchange, &dispatch));
    else if (what == DISPATCH_EVERY_SLOT)
        require_ok(moetoken_mpi_dispatch(bench->every, &dispatch));
    else if (what == COMBINE)
        require_ok(moetoken_mpi_combine(bench->exchange, &combine));
    else if (what == COMBINE_GRAD)
        require_ok(moetoken_mpi_combine_grad(bench->exchange, &combine_grad));
    else
        require_ok(moetoken_mpi_dispatch_grad(bench->exchange, &dispatch_grad));
}

static void work(struct bench *bench, enum what what)
{
    const int *tokens = bench->counts, *slots = bench->counts + (ptrdiff_t)4 * bench->size;
    ptrdiff_t size = bench->size;
    switch (what) {
    case ALLTOALLV_TOKENS:
        MPI_Alltoallv(bench->local, tokens, tokens + size, bench->row, bench->room,
                      tokens + 2 * size, tokens + 3 * size, bench->row, MPI_COMM_WORLD);
        break;
    case ALLTOALLV_SLOTS: /* the other way round */
        MPI_Alltoallv(bench->rows_x, slots + 2 * size, slots + 3 * size, bench->row, bench->local,
                      slots, slots + size, bench->row, MPI_COMM_WORLD);
        break;
    case PERMUTE:
    case UNPERMUTE:
        local_work(bench, what == UNPERMUTE);
        break;
    case ALLGATHER:
        MPI_Allgather(bench->x, (int)bench->tokens, bench->row, bench->everything,
                      (int)bench->tokens, bench->row, MPI_COMM_WORLD);
        break;
    default:
        exchange_work(bench, what);
    }
}

/* Counts for MPI_Alltoallv: tokens once a rank, and slots, those that stay included. */
static void count(struct bench *bench)
{
    int size = bench->size;
    int64_t own = bench->experts / size;
    int *tokens = bench->counts, *slots = bench->counts + (ptrdiff_t)4 * size;
    for (int64_t t = 0; t < bench->tokens; t++)
        for (int64_t k = 0; k < bench->topk; k++) {
            const int64_t *ids = bench->ids + t * bench->topk;
            bool first = true;
            for (int64_t before = 0; before < k; before++)
                first &= ids[before] / own != ids[k] / own;
            tokens[ids[k] / own] += first;
            slots[ids[k] / own]++;
        }
    for (int i = 0; i < 2; i++) {
        int *lists = bench->counts + (ptrdiff_t)4 * i * size;
        MPI_Alltoall(lists, 1, MPI_INT, lists + 2 * (ptrdiff_t)size, 1, MPI_INT, MPI_COMM_WORLD);
        for (int side = 0; side < 4; side += 2)
            for (int rank = 1; rank < size; rank++)
                lists[(side + 1) * size + rank] =
                    lists[(side + 1) * size + rank - 1] + lists[side * size + rank - 1];
    }
}

static void prepare(struct bench *bench, const struct bench_options *options)
{
    int64_t tokens = options->tokens, topk = options->shape->topk_num;
    bench->options = options;
    bench->tokens = tokens;
    bench->topk = topk;
    bench->experts = options->shape->experts_num;
    bench->hidden = options->shape->hidden_size;
    bench->row_bytes = bench->hidden * (moetoken_dtype(options->type).bits / 8);
    MPI_Comm_rank(MPI_COMM_WORLD, &bench->rank);
    MPI_Comm_size(MPI_COMM_WORLD, &bench->size);
    MPI_Type_contiguous((int)bench->row_bytes, MPI_BYTE, &bench->row);
    MPI_Type_commit(&bench->row);
    bench->th[0] = bench->tk[0] = tokens;
    bench->th[1] = bench->rh[1] = bench->er[1] = bench->sh[1] = bench->hidden;
    bench->tk[1] = topk;
    bench->sh[0] = bench->n[0] = tokens * topk;
    bench->ids = need(tokens * topk * 8);
    bench->sorted = need(tokens * topk * 8);
    bench->weights = need(tokens * topk * 4);
    bench->weights_grad = need(tokens * topk * 4);
    bench->counts = need(8 * (int64_t)bench->size * (int64_t)sizeof(int));
    for (int64_t t = 0; t < tokens; t++)
        bench_route(bench->rank * tokens + t, topk, bench->experts, 0, bench->ids + t * topk);
    for (int64_t i = 0; i < tokens * topk; i++)
        bench->weights[i] = 0.125f;
    require_ok(moetoken_mpi_open(MPI_COMM_WORLD, NULL, &bench->comm));
    DLTensor ids = moetoken_tensor(bench->ids, MOETOKEN_I64, 2, bench->tk);
    moetoken_mpi_plan_args plan = {.expert_ids = &ids, .experts_num = bench->experts};
    require_ok(moetoken_mpi_plan(bench->comm, &plan, &bench->exchange));
    plan.flags = MOETOKEN_MPI_EVERY_SLOT;
    require_ok(moetoken_mpi_plan(bench->comm, &plan, &bench->every));
    moetoken_mpi_exchange_info info = {0};
    require_ok(moetoken_mpi_exchange_get(bench->exchange, &info));
    bench->rows = bench->rh[0] = bench->er[0] = info.rows_num;
    int64_t largest = (info.rows_num > tokens * topk ? info.rows_num : tokens * topk);
    bench->x = need(tokens * bench->row_bytes);
    bench->y = need(tokens * bench->row_bytes);
    bench->rows_x = need(info.rows_num * bench->row_bytes);
    bench->local = need(tokens * topk * bench->row_bytes);
    bench->room = need(largest * bench->row_bytes);
    bench->everything = need(tokens * bench->size * bench->row_bytes);
    count(bench);
}

static double megabytes(const struct bench *bench, enum what what, double seconds)
{
    moetoken_mpi_exchange_info info = {0}, every = {0};
    require_ok(moetoken_mpi_exchange_get(bench->exchange, &info));
    require_ok(moetoken_mpi_exchange_get(bench->every, &every));
    double rows = what == DISPATCH || what == COMBINE_GRAD || what == ALLTOALLV_TOKENS
                      ? (double)info.tokens_sent
                  : what == DISPATCH_EVERY_SLOT ? (double)every.tokens_sent
                  : what == ALLGATHER           ? (double)(bench->tokens * (bench->size - 1))
                  : what == PERMUTE || what == UNPERMUTE ? 0
                                                         : (double)info.slots_sent;
    double sum = 0;
    MPI_Allreduce(&rows, &sum, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    return seconds * sum / bench->size * (double)bench->row_bytes * 1e-6;
}

static void report(const struct bench *bench, const double *least)
{
    double sent[WHATS];
    for (int what = 0; what < WHATS; what++)
        sent[what] = megabytes(bench, (enum what)what, 1);
    double forward = least[DISPATCH] + least[COMBINE];
    double ceiling =
        least[ALLTOALLV_TOKENS] + least[ALLTOALLV_SLOTS] + least[PERMUTE] + least[UNPERMUTE];
    if (bench->rank)
        return;
    const char *model = bench->options->shape->name;
    if (bench->options->json) {
        printf("{\"model\":\"%s\",\"ranks\":%d,\"tokens\":%lld,\"row_bytes\":%lld", model,
               bench->size, (long long)bench->tokens, (long long)bench->row_bytes);
        for (int what = 0; what < WHATS; what++)
            printf(",\"%s\":{\"seconds\":%.9g,\"megabytes_sent\":%.9g}", names[what], least[what],
                   sent[what]);
        printf(",\"forward_of_ceiling\":%.4f}\n", ceiling / forward);
        return;
    }
    printf("%s, %d ranks of %lld tokens, rows of %lld bytes\n\n", model, bench->size,
           (long long)bench->tokens, (long long)bench->row_bytes);
    printf("%-22s %10s %12s %8s\n", "", "ms", "MB sent", "GB/s");
    for (int what = 0; what < WHATS; what++)
        printf("%-22s %10.2f %12.1f %8.2f\n", names[what], least[what] * 1e3, sent[what],
               sent[what] * 1e-3 / least[what]);
    printf("\ndispatch + combine: %.0f %% of the speed of alltoallv of the same rows, permute and\n"
           "unpermute. MB sent: by a rank to the others; GB/s: that over the time.\n",
           100 * ceiling / forward);
}

int bench_run(const struct bench_options *options)
{
    struct bench bench = {0};
    double least[WHATS];
    prepare(&bench, options);
    if (bench.experts % bench.size)
        return 1;
    for (int round = 0; round <= options->repeats; round++)
        for (int what = 0; what < WHATS; what++) {
            MPI_Barrier(MPI_COMM_WORLD);
            double began = MPI_Wtime(), slowest = 0;
            work(&bench, (enum what)what);
            /* Until all are done: where ranks share processors one may be done before another has
             * begun. */
            MPI_Barrier(MPI_COMM_WORLD);
            double mine = MPI_Wtime() - began;
            MPI_Allreduce(&mine, &slowest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
            if (round <= 1 || slowest < least[what]) /* round 0 touches the memory */
                least[what] = slowest;
        }
    report(&bench, least);
    moetoken_mpi_exchange_free(bench.exchange);
    moetoken_mpi_exchange_free(bench.every);
    moetoken_mpi_close(bench.comm);
    void *all[] = {bench.ids,    bench.sorted, bench.weights,   bench.weights_grad,
                   bench.counts, bench.x,      bench.y,         bench.rows_x,
                   bench.local,  bench.room,   bench.everything};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        free(all[i]);
    return 0;
}
