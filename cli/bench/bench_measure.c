/* bench_measure.c - see bench_measure.h. */
#include "bench_measure.h"

#include <stdlib.h>
#include <string.h>

#include "bench_memory.h"
#include "bench_row_copy.h"
#include "bench_team.h"
#include "terminal/progress.h"

/* A single call may be shorter than the clock's resolution: calls are timed together up to this. */
#define SECONDS_PER_SAMPLE 200e-6
#define CALLS_MOST         2000

/* The operator, and the plain loops with each kind of store, on all threads and on one. */
#define CONTESTANTS_MOST (1 + 2 * 2 * CEILING_STORES_COUNT)

enum contestant_kind {
    THE_OPERATOR,
    THE_CEILING,
    THE_ROW_COPY
};

struct contestant {
    enum contestant_kind kind;
    enum ceiling_stores stores;
    int threads;
};

/* What is measured, and its times. */
struct race {
    const struct bench_case *bench;
    struct row_copy row_copy;
    struct contestant contestants[CONTESTANTS_MOST];
    int count;
    int rounds, draws;
};

typedef double times[CONTESTANTS_MOST][ROUNDS_MOST];

/* Below this, starting threads may cost a ceiling more than they gain it. */
#define ONE_THREAD_BYTES ((size_t)8 << 20)

bool sweep_make(struct sweep *sweep)
{
    int64_t last_level = memory_last_cache();
    sweep->size = last_level > 0 ? 3 * (size_t)last_level : (size_t)64 << 20;
    if (sweep->size < (size_t)32 << 20)
        sweep->size = (size_t)32 << 20;
    sweep->memory = calloc(sweep->size, 1);
    return sweep->memory != NULL;
}

void sweep_free(struct sweep *sweep)
{
    free(sweep->memory);
}

/* Every thread writes, for each core has caches of its own. */
static void sweep_part(const void *context, int member, int members)
{
    const struct sweep *sweep = context;
    size_t step = 64 * (size_t)members;
    for (size_t at = 64 * (size_t)member; at < sweep->size; at += step)
        sweep->memory[at]++;
}

static void add_loops(struct race *race, int threads)
{
    for (int stores = 0; stores < CEILING_STORES_COUNT; stores++) {
        race->contestants[race->count++] =
            (struct contestant){THE_CEILING, (enum ceiling_stores)stores, threads};
        race->contestants[race->count++] =
            (struct contestant){THE_ROW_COPY, (enum ceiling_stores)stores, threads};
    }
}

static bool race_make(struct race *race, const struct bench_case *bench, int threads, int rounds)
{
    *race = (struct race){.bench = bench, .rounds = rounds};
    race->contestants[race->count++] = (struct contestant){.kind = THE_OPERATOR};
    add_loops(race, threads);
    if (threads > 1 && traffic_bytes(&bench->traffic) < ONE_THREAD_BYTES)
        add_loops(race, 1);
    return row_copy_make(&race->row_copy, bench);
}

static void run_once(const struct race *race, const struct contestant *contestant)
{
    switch (contestant->kind) {
    case THE_OPERATOR:
        (void)bench_case_call(race->bench);
        break;
    case THE_CEILING:
        ceiling_run(&race->bench->traffic, contestant->threads, contestant->stores);
        break;
    case THE_ROW_COPY:
        row_copy_run(&race->row_copy, contestant->threads, contestant->stores);
        break;
    }
}

static double time_calls(const struct race *race, const struct contestant *contestant, int calls)
{
    double began = seconds_now();
    for (int i = 0; i < calls; i++)
        run_once(race, contestant);
    return (seconds_now() - began) / calls;
}

static int compare_doubles(const void *left, const void *right)
{
    double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

static struct spread spread_of(const double *values, int count)
{
    double sorted[ROUNDS_MOST];
    memcpy(sorted, values, (size_t)count * sizeof *values);
    qsort(sorted, (size_t)count, sizeof *sorted, compare_doubles);
    return (struct spread){
        .median = sorted[count / 2], .least = sorted[0], .most = sorted[count - 1]};
}

/* The fastest contestant of a kind, by its median. */
static int fastest(const struct race *race, times seconds, enum contestant_kind kind,
                   struct spread *spread)
{
    int best = -1;
    for (int c = 0; c < race->count; c++) {
        struct spread own = spread_of(seconds[c], race->rounds);
        if (race->contestants[c].kind != kind || (best >= 0 && own.median >= spread->median))
            continue;
        best = c;
        *spread = own;
    }
    return best;
}

/* 100 * a contestant's time / the operator's, round by round. */
static struct spread percent_of(times seconds, int contestant, int first, int rounds)
{
    double percent[ROUNDS_MOST];
    for (int r = 0; r < rounds; r++)
        percent[r] = 100 * seconds[contestant][first + r] / seconds[0][first + r];
    return spread_of(percent, rounds);
}

/* The first round of a draw. */
static int first_round(const struct race *race, int draw)
{
    return race->rounds * draw / race->draws;
}

static struct measure measure_of(const struct race *race, times seconds)
{
    struct measure measure = {.seconds = spread_of(seconds[0], race->rounds)};
    double medians[DRAWS];
    int ceiling = fastest(race, seconds, THE_CEILING, &measure.ceiling_seconds);
    int copy = fastest(race, seconds, THE_ROW_COPY, &measure.row_copy_seconds);
    measure.ceiling_stores = race->contestants[ceiling].stores;
    measure.ceiling_threads = race->contestants[ceiling].threads;
    measure.percent = percent_of(seconds, ceiling, 0, race->rounds);
    measure.row_copy_percent = percent_of(seconds, copy, 0, race->rounds);
    for (int d = 0; d < race->draws; d++) {
        int first = first_round(race, d), end = first_round(race, d + 1);
        medians[d] = percent_of(seconds, ceiling, first, end - first).median;
    }
    measure.draws = spread_of(medians, race->draws);
    return measure;
}

static int calls_for(double seconds)
{
    if (seconds * CALLS_MOST < SECONDS_PER_SAMPLE)
        return CALLS_MOST;
    return 1 + (int)(SECONDS_PER_SAMPLE / seconds);
}

static void calibrate(const struct race *race, int calls[CONTESTANTS_MOST])
{
    for (int c = 0; c < race->count; c++) {
        time_calls(race, &race->contestants[c], 1);
        calls[c] = calls_for(time_calls(race, &race->contestants[c], 1));
    }
}

static void measure_warm(const struct race *race, int first, int end,
                         const int calls[CONTESTANTS_MOST], times seconds)
{
    for (int r = first; r < end; r++)
        for (int c = 0; c < race->count; c++) {
            const struct contestant *contestant = &race->contestants[c];
            run_once(race, contestant); /* its caches, not those of the one before */
            seconds[c][r] = time_calls(race, contestant, calls[c]);
        }
}

static void measure_cold(const struct race *race, int first, int end, const struct sweep *sweep,
                         times seconds)
{
    for (int r = first; r < end; r++)
        for (int c = 0; c < race->count; c++) {
            team_run(moetoken_threads_chosen(0), sweep_part, sweep);
            seconds[c][r] = time_calls(race, &race->contestants[c], 1);
        }
}

static double time_routing(const struct bench_case *bench, int calls)
{
    double began = seconds_now();
    for (int i = 0; i < calls; i++)
        (void)bench_case_route(bench);
    return (seconds_now() - began) / calls;
}

static void measure_routing(const struct bench_case *bench, int rounds, struct measures *measures)
{
    double seconds[ROUNDS_MOST];
    if (!bench_case_has_routing(bench))
        return;
    time_routing(bench, 1);
    int calls = calls_for(time_routing(bench, 1));
    for (int r = 0; r < rounds; r++)
        seconds[r] = time_routing(bench, calls);
    measures->routing = spread_of(seconds, rounds);
}

/* All rounds, draw by draw. Far beyond the caches, the end of a call leaves nothing there that the
 * next one starts with: cold is then as warm. */
static void run_race(struct race *race, struct arena *arena, const struct sweep *sweep,
                     struct measures *measures)
{
    static times warm, cold;
    static const struct sweep no_sweep;
    bool far = traffic_bytes(&race->bench->traffic) > 4 * sweep->size;
    const bool redraw = traffic_bytes(&race->bench->traffic) > sweep->size / 3; /* not in a cache */
    int calls[CONTESTANTS_MOST];
    race->draws = DRAWS;
    measures->draws = 1;
    if (!far)
        calibrate(race, calls);
    for (int d = 0; d < DRAWS; d++) {
        int first = first_round(race, d), end = first_round(race, d + 1);
        if (d > 0 && redraw && arena_redraw(arena))
            measures->draws++;
        if (!far)
            measure_warm(race, first, end, calls, warm);
        measure_cold(race, first, end, far ? &no_sweep : sweep, cold);
    }
    measures->cold = measure_of(race, cold);
    measures->warm = far ? measures->cold : measure_of(race, warm);
}

bool measure_case(const struct bench_case *bench, struct arena *arena, const struct sweep *sweep,
                  int rounds, struct measures *measures)
{
    struct race race;
    int threads = moetoken_threads_chosen(bench->options.threads);
    measures->threads = traffic_bytes(&bench->traffic) < MOETOKEN_SERIAL_BYTES ? 1 : threads;
    measure_routing(bench, rounds, measures);
    bool made = race_make(&race, bench, measures->threads, rounds);
    if (made)
        run_race(&race, arena, sweep, measures);
    row_copy_free(&race.row_copy);
    return made;
}
