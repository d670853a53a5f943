/* run.h - how the rows of a call are moved: which kernels, how many threads, which stores. */
#ifndef MOETOKEN_RUN_H
#define MOETOKEN_RUN_H

#include "options.h"
#include "rows/rows.h"
#include "threads/threads.h"

#include <moetoken/moetoken.h>

/* Outputs of at least this many bytes are written past the caches: about half of a small last-level
 * cache. See docs/performance.md. */
#define MOETOKEN_STREAMING_BYTES (4 * 1024 * 1024)

/* Routing maps smaller than this are read by one thread, in about half a millisecond at most:
 * starting threads once more, and waiting for them, can cost more on busy cores. */
#define MOETOKEN_SERIAL_MAP_BYTES (2 * 1024 * 1024)

struct moetoken_run {
    struct moetoken_row_kernels kernels;
    int threads;
    bool streaming;
};

/* Decides for a call that reads and writes `bytes`, `written` of them into rows. unit: elements
 * of all rows lie side by side. in_place: rows that are written were just read. */
void moetoken_run_plan(const moetoken_options *options, int64_t bytes, int64_t written, bool unit,
                       bool in_place, struct moetoken_run *run);

typedef void moetoken_range_fn(const void *context, int64_t first, int64_t end);

/* Calls body(context, first, end) for ranges that make up [0, count), on the run's threads, in the
 * defined floating-point mode. Returns when all is written and visible. */
void moetoken_run_ranges(const struct moetoken_run *run, int64_t count, moetoken_range_fn *body,
                         const void *context);

/* The same for work on `bytes` of routing map, without floating-point numbers and kernels: on one
 * thread below MOETOKEN_SERIAL_MAP_BYTES. */
void moetoken_run_map_ranges(const struct moetoken_run *run, int64_t bytes, int64_t count,
                             moetoken_range_fn *body, const void *context);

#endif
