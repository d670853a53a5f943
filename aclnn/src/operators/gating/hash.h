/* hash.h - experts that a table names for each token's id, instead of a choice: the hash mode of
 * aclnnMoeGatingTopKV2. */
#ifndef ACLNN_GATING_HASH_H
#define ACLNN_GATING_HASH_H

#include "operators/executor.h"

struct hash_places {
    int x, input_ids, table, y, expert_idx, scores;
};

/* What `call` needs and checks, once types, k and shapes of what a choice has too are right. */
aclnnStatus hash_check(aclOpExecutor *executor, const struct hash_places *places);

/* For the operator's `call`. */
aclnnStatus hash_call(const aclOpExecutor *executor, const struct hash_places *places,
                      const moetoken_options *options, bool check_only);

#endif
