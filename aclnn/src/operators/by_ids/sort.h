/* sort.h - what both permutes by expert ids do: slots sorted by their ids, and the rows of a part
 * of them. */
#ifndef ACLNN_BY_IDS_SORT_H
#define ACLNN_BY_IDS_SORT_H

#include "operators/by_ids/scratch.h"

/* The operands of a permute; -1 where the operator does not have one. */
struct sort_places {
    int tokens, indices, probs, permuted, sorted_indices, permuted_probs;
};

/* Shapes, and the rows of attributes.range that are made. Afterwards tokens are of rank 2 and
 * indices and probs [T,K]. */
aclnnStatus sort_prepare(aclOpExecutor *executor, const struct sort_places *places);

/* The rows that Python's slice [:num_out_tokens] has of `slots_num`; 0 stands for all. */
int64_t sort_rows_num(int64_t num_out_tokens, int64_t slots_num);

/* For the operators' `call`. */
aclnnStatus sort_call(const aclOpExecutor *executor, const struct sort_places *places,
                      const moetoken_options *options, bool check_only);

#endif
