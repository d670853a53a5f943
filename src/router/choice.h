/* choice.h - the best of a list, best first, ties to the lower index, NaN last. */
#ifndef MOETOKEN_ROUTER_CHOICE_H
#define MOETOKEN_ROUTER_CHOICE_H

#include "router/scores/scores.h"

#include <stdbool.h>
#include <stdint.h>

/* The best so far: `count` of at most `wanted` indices and their values, best first. */
struct moetoken_best {
    int64_t *index;
    double *value;
    int64_t wanted, count;
};

/* A number ranks above another, and every number above NaN. */
static inline bool moetoken_ranks_above(double a, double b)
{
    return a > b || (b != b && a == a);
}

/* Considers values[first, end), whose indices are above those of all before them. */
void moetoken_best_of(const double *values, int64_t first, int64_t end, struct moetoken_best *best);

struct moetoken_groups {
    int64_t num, top, score_count; /* groups, groups that stay, values in a group's own */
};

/* What a choice needs besides its input: values [wanted of the largest choice], groups [num] twice,
 * with groups values [experts]; and the kernels with quick ways, or none.
 */
struct moetoken_choice_scratch {
    double *best_value, *group_value;
    int64_t *group_index;
    double *eligible;
    const struct moetoken_score_kernels *kernels;
};

/* chosen[0, topk) = the best experts of values[0, experts_num), in the best groups if there are
 * several. chosen holds at least max(topk, score_count) entries. */
void moetoken_choose(const double *values, int64_t experts_num,
                     const struct moetoken_groups *groups, int64_t topk,
                     const struct moetoken_choice_scratch *scratch, int64_t *chosen);

#endif
