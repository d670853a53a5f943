/* suite.h - the cases of a conformance suite: number i of a seed is the same problem everywhere.
 *
 * Every case has a theme, one corner of the field, in turn; all else is drawn at random, so that
 * corners meet. */
#ifndef MOETOKEN_CLI_CONFORM_SUITE_H
#define MOETOKEN_CLI_CONFORM_SUITE_H

#include "problem.h"

#define SUITE_CHOICES_MOST 4

struct suite {
    enum operator_kind operator_kind;
    uint64_t seed;
    int64_t cases;
    /* What is drawn from; a type that comes twice is drawn twice as often. */
    enum routing_mode modes[SUITE_CHOICES_MOST];
    moetoken_type token_types[SUITE_CHOICES_MOST], index_types[SUITE_CHOICES_MOST],
        map_types[SUITE_CHOICES_MOST];
    int modes_count, token_types_count, index_types_count, map_types_count;
};

/* false: no memory. */
bool suite_problem(const struct suite *suite, int64_t number, struct problem *problem);

#endif
