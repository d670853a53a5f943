/* combine.h - what both unpermutes by expert ids do: sums of rows that sortedIndices name. */
#ifndef ACLNN_BY_IDS_COMBINE_H
#define ACLNN_BY_IDS_COMBINE_H

#include "operators/executor.h"

/* The operands of both operators, by position. */
enum combine_place {
    COMBINE_PERMUTED,
    COMBINE_SORTED_INDICES,
    COMBINE_PROBS,
    COMBINE_TOKENS, /* unpermuted */
    COMBINE_OPERANDS
};

extern const struct parameter combine_parameters[COMBINE_OPERANDS];

/* Checks types, K (attributes.topk without probs), and everything that `call` checks. */
aclnnStatus combine_check(aclOpExecutor *executor, bool padded_mode);

aclnnStatus combine_call(const aclOpExecutor *executor, const moetoken_options *options,
                         bool check_only);

/* Finishes phase one. */
aclnnStatus combine_finish(aclOpExecutor *executor, aclnnStatus status, uint64_t *workspace_size,
                           aclOpExecutor **out);

#endif
