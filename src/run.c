/* run.c - options, choice of kernels, and the only place where threads are started. */
#include "run.h"

#include "float_mode.h"
#include "status.h"

#include <inttypes.h>
#include <omp.h>

/* Ranges a thread gets on average: enough to even out tokens that cost different amounts. */
#define RANGES_PER_THREAD 16

/* Threads that any machine can start. */
#define MOST_THREADS_ANYWHERE 64

moetoken_status moetoken_run_check_options(const moetoken_options *options, uint32_t flags_taken,
                                           moetoken_options *checked)
{
    *checked = options ? *options : (moetoken_options){0};
    uint32_t stores = MOETOKEN_CACHED_STORES | MOETOKEN_STREAMING_STORES;
    if (checked->flags & ~(flags_taken | stores))
        return moetoken_fail(MOETOKEN_ERR_OPTION,
                             "options.flags = 0x%" PRIx32 ", of which this operator takes only "
                             "0x%" PRIx32,
                             checked->flags, flags_taken | stores);
    if ((checked->flags & stores) == stores)
        return moetoken_fail(MOETOKEN_ERR_OPTION,
                             "options.flags = 0x%" PRIx32
                             " asks for cached and for streaming stores, expected at most one",
                             checked->flags);
    if (checked->threads < 0)
        return moetoken_fail(MOETOKEN_ERR_OPTION,
                             "options.threads = %" PRId32 ", expected at least 0",
                             checked->threads);
    if (checked->reserved != 0)
        return moetoken_fail(MOETOKEN_ERR_OPTION, "options.reserved = %" PRId32 ", expected 0",
                             checked->reserved);
    if (checked->workspace == NULL && checked->workspace_bytes != 0)
        return moetoken_fail(MOETOKEN_ERR_OPTION,
                             "options.workspace is NULL but options.workspace_bytes = %zu",
                             checked->workspace_bytes);
    return MOETOKEN_OK;
}

/* OpenMP ends the process when it cannot start a thread, so an absurd number is not passed on. */
static int threads_wanted(int32_t threads)
{
    if (threads == 0)
        return omp_get_max_threads();
    int most = 4 * omp_get_num_procs();
    most = most > MOST_THREADS_ANYWHERE ? most : MOST_THREADS_ANYWHERE;
    return threads < most ? threads : most;
}

void moetoken_run_plan(const moetoken_options *options, int64_t bytes, int64_t written, bool unit,
                       bool in_place, struct moetoken_run *run)
{
    moetoken_row_kernels_select(unit ? options->isa_mask : MOETOKEN_ISA_SCALAR, &run->kernels);
    run->threads = bytes >= MOETOKEN_SERIAL_BYTES ? threads_wanted(options->threads) : 1;
    run->streaming = written >= MOETOKEN_STREAMING_BYTES && !in_place;
    if (options->flags & MOETOKEN_CACHED_STORES)
        run->streaming = false;
    if (options->flags & MOETOKEN_STREAMING_STORES)
        run->streaming = true;
}

static void run_on_threads(int threads, int64_t count, moetoken_range_fn *body, const void *context)
{
    if (threads > count)
        threads = (int)count;
    if (threads <= 1) {
        body(context, 0, count);
        return;
    }
    int64_t ranges = (int64_t)threads * RANGES_PER_THREAD;
    int64_t length = count / ranges > 0 ? count / ranges : 1;
    ranges = count / length + (count % length != 0);
#pragma omp parallel for schedule(dynamic) num_threads(threads)
    for (int64_t i = 0; i < ranges; i++) {
        int64_t first = i * length;
        body(context, first, count - first < length ? count : first + length);
    }
}

/* What goes around each range of a moetoken_run_ranges. */
struct moving {
    const struct moetoken_run *run;
    moetoken_range_fn *body;
    const void *context;
};

static void move_range(const void *context, int64_t first, int64_t end)
{
    const struct moving *moving = context;
    uint64_t mode = moetoken_float_mode_enter();
    moving->body(moving->context, first, end);
    moetoken_float_mode_leave(mode);
    moving->run->kernels.fence();
}

void moetoken_run_ranges(const struct moetoken_run *run, int64_t count, moetoken_range_fn *body,
                         const void *context)
{
    const struct moving moving = {run, body, context};
    run_on_threads(run->threads, count, move_range, &moving);
}

void moetoken_run_map_ranges(const struct moetoken_run *run, int64_t bytes, int64_t count,
                             moetoken_range_fn *body, const void *context)
{
    run_on_threads(bytes >= MOETOKEN_SERIAL_MAP_BYTES ? run->threads : 1, count, body, context);
}

void moetoken_run_lower(int64_t *lowest, int64_t value)
{
    int64_t known = __atomic_load_n(lowest, __ATOMIC_RELAXED);
    while (value < known && !__atomic_compare_exchange_n(lowest, &known, value, true,
                                                         __ATOMIC_RELAXED, __ATOMIC_RELAXED))
        ;
}
