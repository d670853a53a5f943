/* run.c - the plan of a call and its ranges. */
#include "threads/run.h"

#include "threads/float_mode.h"
#include "threads/thread_count.h"
#include "threads/threads.h"

/* Ranges a thread gets on average: enough to even out tokens that cost different amounts. */
#define RANGES_PER_THREAD 16

void moetoken_run_plan(const moetoken_options *options, int64_t bytes, int64_t written, bool unit,
                       bool in_place, struct moetoken_run *run)
{
    moetoken_row_kernels_select(unit ? options->isa_mask : MOETOKEN_ISA_SCALAR, &run->kernels);
    run->threads = bytes >= MOETOKEN_SERIAL_BYTES ? moetoken_thread_count(options->threads) : 1;
    run->streaming = written >= MOETOKEN_STREAMING_BYTES && !in_place;
    if (options->flags & MOETOKEN_CACHED_STORES)
        run->streaming = false;
    if (options->flags & MOETOKEN_STREAMING_STORES)
        run->streaming = true;
}

/* Ranges of one length, the last of which may be shorter. */
struct ranges {
    moetoken_range_fn *body;
    const void *context;
    int64_t count, length;
};

static void run_range(const void *context, int64_t task)
{
    const struct ranges *ranges = context;
    int64_t first = task * ranges->length, left = ranges->count - first;
    ranges->body(ranges->context, first, first + (left < ranges->length ? left : ranges->length));
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
    const struct ranges all = {body, context, count, length};
    moetoken_threads_run(threads, count / length + (count % length != 0), run_range, &all);
}

/* Wraps each range of moetoken_run_ranges. */
struct moving {
    const struct moetoken_run *run;
    moetoken_range_fn *body;
    const void *context;
};

static void move_range(const void *context, int64_t first, int64_t end)
{
    const struct moving *moving = context;
    moetoken_float_mode mode;
    moetoken_float_mode_enter(&mode);
    moving->body(moving->context, first, end);
    moetoken_float_mode_leave(&mode);
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
