/* gate.h - what the gating operators share: a call of moetoken_router, and what CANN adds to it. */
#ifndef ACLNN_GATING_GATE_H
#define ACLNN_GATING_GATE_H

#include "operators/executor.h"

/* A place that the operator does not have is -1. */
struct gate_places {
    int x, bias, finished, y, expert_idx, row_idx, scores;
};

/* attributes.router is set. Types, k, shapes, and all that `call` checks. Afterwards x is of rank
 * 2, [T,E]; `rank_max` is its rank at most in the call. */
aclnnStatus gate_check(aclOpExecutor *executor, const struct gate_places *places, int rank_max);

/* Its first part: types, k and shapes. */
aclnnStatus gate_expect(aclOpExecutor *executor, const struct gate_places *places, int rank_max);

/* For the operators' `call`. */
aclnnStatus gate_call(const aclOpExecutor *executor, const struct gate_places *places,
                      const moetoken_options *options, bool check_only);

/* For their `workspace_bytes`: x is the first operand. */
moetoken_status gate_workspace(const aclOpExecutor *executor, size_t *bytes);

#endif
