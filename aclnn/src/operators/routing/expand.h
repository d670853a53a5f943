/* expand.h - what MoeInitRoutingV2 and V3 do: slots sorted by expert, the rows of the tokens, and
 * the numbers of the experts' slots. */
#ifndef ACLNN_ROUTING_EXPAND_H
#define ACLNN_ROUTING_EXPAND_H

#include "operators/executor.h"

/* A place that the operator does not have is -1. */
struct expand_places {
    int x, expert_idx, expanded_x, row_idx, counts, scale, expanded_scale;
};

enum expand_counts {
    EXPAND_RUNNING_SUMS,
    EXPAND_NUMBERS,
    EXPAND_PAIRS
};

/* Reads of executor->attributes: drop_pad_mode, capacity, active_num, row_idx_type, count_type,
 * experts_num, and range: the experts whose rows are made. With range_given an id outside the range
 * is an unused slot; without it is an error (an id of any size from 0 on when experts_num is 0). */

/* Shapes, and all that `call` checks. Afterwards expandedX is of rank 2, expertIdx [T,K]. */
aclnnStatus expand_check(aclOpExecutor *executor, const struct expand_places *places);

/* For the operators' `call`. */
aclnnStatus expand_call(const aclOpExecutor *executor, const struct expand_places *places,
                        const moetoken_options *options, bool check_only);

/* Phase one ends. */
aclnnStatus expand_finish(aclOpExecutor *executor, aclnnStatus status,
                          const struct expand_places *places, uint64_t *workspace_size,
                          aclOpExecutor **out);

#endif
