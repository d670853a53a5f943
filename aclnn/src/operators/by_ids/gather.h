/* gather.h - what the gradients of both permutes by expert ids do: each token's sum of the rows of
 * its slots. */
#ifndef ACLNN_BY_IDS_GATHER_H
#define ACLNN_BY_IDS_GATHER_H

#include "operators/executor.h"

/* -1 where the operator does not have the operand. K is attributes.topk. */
struct gather_places {
    int permuted_grad, permuted_probs_grad, sorted_indices, tokens_grad, probs_grad;
};

/* Checks the slots and everything that `call` checks. */
aclnnStatus gather_check(aclOpExecutor *executor, const struct gather_places *places,
                         const char *topk_name, bool padded_mode);

/* For the operators' `call`. */
aclnnStatus gather_call(const aclOpExecutor *executor, const struct gather_places *places,
                        const moetoken_options *options, bool check_only);

#endif
