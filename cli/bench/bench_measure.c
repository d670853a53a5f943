/* bench_measure.c - see bench_measure.h. */
#include "bench_measure.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench_team.h"
#include "terminal/progress.h"

/* A single call may be shorter than the clock's resolution: calls are timed together up to this. */
#define SECONDS_PER_SAMPLE 200e-6
#define CALLS_MOST         2000

/* 0: the operator; then the ceiling with each kind of store; then the same on one thread. */
#define CONTESTANTS (1 + 2 * CEILING_STORES_COUNT)

/* Below this, starting threads may cost a ceiling more than they gain it. */
#define ONE_THREAD_BYTES ((size_t)8 << 20)

bool sweep_make(struct sweep *sweep)
{
    long last_level = sysconf(_SC_LEVEL3_CACHE_SIZE);
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

static enum ceiling_stores stores_of(int contestant)
{
    return (enum ceiling_stores)((contestant - 1) % CEILING_STORES_COUNT);
}

static int threads_of(int contestant, int threads)
{
    return contestant > CEILING_STORES_COUNT ? 1 : threads;
}

/* How many take part. */
static int contestants(const struct bench_case *bench, int threads)
{
    bool one_thread = threads > 1 && traffic_bytes(&bench->traffic) < ONE_THREAD_BYTES;
    return one_thread ? CONTESTANTS : 1 + CEILING_STORES_COUNT;
}

static void run_once(const struct bench_case *bench, int threads, int contestant)
{
    if (contestant == 0)
        (void)bench_case_call(bench);
    else
        ceiling_run(&bench->traffic, threads_of(contestant, threads), stores_of(contestant));
}

static double time_calls(const struct bench_case *bench, int threads, int contestant, int calls)
{
    double began = seconds_now();
    for (int i = 0; i < calls; i++)
        run_once(bench, threads, contestant);
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

static struct measure measure_of(double seconds[CONTESTANTS][ROUNDS_MOST], int count, int threads,
                                 int rounds)
{
    struct measure measure = {.seconds = spread_of(seconds[0], rounds)};
    double percent[ROUNDS_MOST];
    int best = 1;
    for (int c = 1; c < count; c++) {
        struct spread ceiling = spread_of(seconds[c], rounds);
        if (c == 1 || ceiling.median < measure.ceiling_seconds.median) {
            measure.ceiling_seconds = ceiling;
            best = c;
        }
    }
    for (int r = 0; r < rounds; r++)
        percent[r] = 100 * seconds[best][r] / seconds[0][r];
    measure.ceiling_stores = stores_of(best);
    measure.ceiling_threads = threads_of(best, threads);
    measure.percent = spread_of(percent, rounds);
    return measure;
}

static int calls_for(double seconds)
{
    if (seconds * CALLS_MOST < SECONDS_PER_SAMPLE)
        return CALLS_MOST;
    return 1 + (int)(SECONDS_PER_SAMPLE / seconds);
}

static void measure_warm(const struct bench_case *bench, int rounds, struct measures *measures)
{
    double seconds[CONTESTANTS][ROUNDS_MOST];
    int calls[CONTESTANTS], count = contestants(bench, measures->threads);
    for (int c = 0; c < count; c++) {
        time_calls(bench, measures->threads, c, 1);
        calls[c] = calls_for(time_calls(bench, measures->threads, c, 1));
    }
    for (int r = 0; r < rounds; r++)
        for (int c = 0; c < count; c++) {
            run_once(bench, measures->threads, c); /* its caches, not those of the one before */
            seconds[c][r] = time_calls(bench, measures->threads, c, calls[c]);
        }
    measures->warm = measure_of(seconds, count, measures->threads, rounds);
}

static void measure_cold(const struct bench_case *bench, const struct sweep *sweep, int rounds,
                         struct measures *measures)
{
    double seconds[CONTESTANTS][ROUNDS_MOST];
    int count = contestants(bench, measures->threads);
    for (int r = 0; r < rounds; r++)
        for (int c = 0; c < count; c++) {
            team_run(moetoken_threads_chosen(0), sweep_part, sweep);
            seconds[c][r] = time_calls(bench, measures->threads, c, 1);
        }
    measures->cold = measure_of(seconds, count, measures->threads, rounds);
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

void measure_case(const struct bench_case *bench, const struct sweep *sweep, int rounds,
                  struct measures *measures)
{
    size_t bytes = traffic_bytes(&bench->traffic);
    int threads = moetoken_threads_chosen(bench->options.threads);
    measures->threads = bytes < MOETOKEN_SERIAL_BYTES ? 1 : threads;
    measure_routing(bench, rounds, measures);
    /* Far beyond the caches, the end of a call leaves nothing there that the next one starts with.
     */
    if (bytes > 4 * sweep->size) {
        measure_cold(bench, &(struct sweep){0}, rounds, measures);
        measures->warm = measures->cold;
        return;
    }
    measure_warm(bench, rounds, measures);
    measure_cold(bench, sweep, rounds, measures);
}
