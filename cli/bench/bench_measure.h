/* bench_measure.h - times of one case: the operator and its ceiling, in turns, round by round, so
 * that both see the same state of the machine. */
#ifndef MOETOKEN_CLI_BENCH_MEASURE_H
#define MOETOKEN_CLI_BENCH_MEASURE_H

#include "bench_case.h"

#define ROUNDS_MOST 101

struct spread {
    double median, least, most;
};

/* Times of calls, in seconds. percent: 100 * ceiling / operator of the same round. */
struct measure {
    struct spread seconds, ceiling_seconds, percent;
    struct spread draws; /* the median percent of each draw of memory */
    struct spread row_copy_seconds, row_copy_percent;
    enum ceiling_stores ceiling_stores; /* of the fastest loop */
    int ceiling_threads;
};

/* From here on a percent is more than noise: the plain loop is not the ceiling that it should be.
 */
#define PERCENT_BEATEN 110

struct measures {
    struct measure warm;   /* call after call */
    struct measure cold;   /* after other memory has gone through the caches */
    int threads;           /* that the operator and its ceiling were allowed */
    int draws;             /* of memory, see arena_redraw */
    struct spread routing; /* permute by expert ids: seconds of the routing alone, warm */
};

/* Memory larger than the caches, to empty them with. */
struct sweep {
    char *memory;
    size_t size;
};

bool sweep_make(struct sweep *sweep);
void sweep_free(struct sweep *sweep);

/* The operator has taken the case, which lies in the arena, once (bench_first_call). Of the rounds
 * each has its turn in one of DRAWS draws of memory. false: no memory. */
#define DRAWS 3
bool measure_case(const struct bench_case *bench, struct arena *arena, const struct sweep *sweep,
                  int rounds, struct measures *measures);

#endif
