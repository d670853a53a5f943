/* rules.h - what CANN's documents and host code refuse of the operators by expert ids, beyond
 * pointers, types and shapes. */
#ifndef ACLNN_BY_IDS_RULES_H
#define ACLNN_BY_IDS_RULES_H

#include "operators/executor.h"

/* The prototypes have a padded mode, which no product implements. */
aclnnStatus rules_padded_mode(bool padded_mode);
/* The same for the two permutes, whose documents give another status. */
aclnnStatus rules_padded_mode_permute(bool padded_mode);

/* On Atlas A2 and A3 K <= 512; `name` is what K is in the message. */
aclnnStatus rules_topk(int64_t topk, const char *name);

/* The same, and `indices` is of rank 1 and has T * K values. */
aclnnStatus rules_slots(const aclOpExecutor *executor, int indices, int64_t tokens_num,
                        int64_t topk, const char *name);

/* 0 <= begin <= end. */
aclnnStatus rules_range(const int64_t range[2]);

/* K as a number: at least 1, and the second size of probs when they are used. */
aclnnStatus rules_topk_given(const aclOpExecutor *executor, int probs, int64_t topk,
                             const char *name);

/* On Atlas A2 and A3: what their sort, which counts in float32, takes. */
aclnnStatus rules_sorted_slots(int64_t slots_num);
aclnnStatus rules_sorted_id(int64_t largest);

/* On Atlas A2 and A3 the gradient of unpermute refuses sizes of 0. */
aclnnStatus rules_not_empty(const aclOpExecutor *executor, int place);

#endif
