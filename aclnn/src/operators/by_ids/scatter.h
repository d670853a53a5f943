/* scatter.h - what the gradients of both unpermutes by expert ids do: each slot's row of the
 * incoming gradient goes to its row, times its weight; weights get dot products. */
#ifndef ACLNN_BY_IDS_SCATTER_H
#define ACLNN_BY_IDS_SCATTER_H

#include "operators/executor.h"

struct scatter_places {
    int permuted, tokens_grad, sorted_indices, probs, permuted_grad, probs_grad;
};

/* Checks types, K (attributes.topk without probs), slots, and everything that `call` checks. */
aclnnStatus scatter_check(aclOpExecutor *executor, const struct scatter_places *places,
                          bool padded_mode);

/* For the operators' `call`. */
aclnnStatus scatter_call(const aclOpExecutor *executor, const struct scatter_places *places,
                         const moetoken_options *options, bool check_only);

#endif
