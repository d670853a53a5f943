/* shrink.h - a case that fails -> the smallest that still fails in the same way.
 *
 * Takes away tokens, experts, slots and columns, halves first, then one by one; pairs of the map;
 * then makes order, values, weights and types plain; again from the start until nothing works. */
#ifndef MOETOKEN_CLI_CONFORM_SHRINK_H
#define MOETOKEN_CLI_CONFORM_SHRINK_H

#include "problem.h"

/* Whether a problem still fails. SHRINK_STOP: no more tries. */
enum shrink_answer {
    SHRINK_PASSES,
    SHRINK_FAILS,
    SHRINK_STOP
};
typedef enum shrink_answer shrink_try(void *context, const struct problem *problem);

/* Replaces the problem by the smallest found. */
void shrink(struct problem *problem, shrink_try *attempt, void *context);

#endif
