/* generate_routing.h - the routing of a generated case: settings -> map, rows and tokens of slots.
 */
#ifndef MOETOKEN_CLI_GENERATE_ROUTING_H
#define MOETOKEN_CLI_GENERATE_ROUTING_H

#include "generate_case.h"

/* What is drawn from the seed, each from a stream of its own. The numbers are part of what a seed
 * means. */
enum random_stream {
    STREAM_RANKS = 0,
    STREAM_RACES = 1,
    STREAM_HOLES = 2,
    STREAM_DROPS = 3,
    STREAM_ROWS = 4,
    STREAM_SLOTS = 5,
    STREAM_FILL_SLOTS = 6,
    STREAM_MAP_BYTES = 7,
    STREAM_BIAS = 8,
    STREAM_TENSORS = 16 /* + the tensor's place in specs */
};

/* Fills slowness, map, row, token, by_row (all allocated) and sets rows. false: no memory. */
bool route_case(struct generated_case *plan);
/* probs[t,e] = share_before_division / share_sum of the token. */
double share_sum(const struct generated_case *plan, int64_t token);
double share_before_division(const struct generated_case *plan, int64_t token, int64_t expert);

#endif
