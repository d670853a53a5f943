/* bench.h - what moetoken-mpi-bench is asked for. */
#ifndef MOETOKEN_MPI_BENCH_H
#define MOETOKEN_MPI_BENCH_H

#include "models.h"

#include <moetoken/mpi.h>

struct bench_options {
    const struct model_shape *shape;
    int64_t tokens; /* of a rank */
    int repeats;
    moetoken_type type;
    bool json, cost;
};

/* A routing without a state: token t's K different experts out of E, uniform, or, with `skew`, by
 * Zipf's law with that exponent. The same on every rank and machine. */
void bench_route(int64_t token, int64_t topk, int64_t experts, double skew, int64_t *ids);

/* Rows and bytes of a rank for every number of ranks that divides the experts. */
void bench_print_cost(const struct bench_options *options);

/* Measures; collective. Returns the exit status. */
int bench_run(const struct bench_options *options);

#endif
