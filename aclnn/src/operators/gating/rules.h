/* rules.h - numbers that the gating operators are given, on any machine and on a named product. */
#ifndef ACLNN_GATING_RULES_H
#define ACLNN_GATING_RULES_H

#include "operators/executor.h"

/* value in [0, last]; else ACLNN_ERR_INNER_TILING_ERROR, as for all that follow. */
aclnnStatus gating_check_one_of(const char *name, int64_t value, int64_t last);

/* k of the two operators with softmax alone: at most 1024 on a product. */
aclnnStatus gating_check_topk(int64_t topk);

/* value is finite, and at least `least`. */
aclnnStatus gating_check_number(const char *name, double value, double least);

/* What aclnnMoeGatingTopK and its V2 are given. */
struct gating_numbers {
    int64_t topk, groups_top, groups_num, group_select_mode, renorm, norm_type;
    double factor, eps;
};

/* Checks them, with x of rank 2, and sets attributes.router. */
aclnnStatus gating_set_router(aclOpExecutor *executor, int x, const struct gating_numbers *numbers);

/* An output that is wanted is there, else ACLNN_ERR_PARAM_NULLPTR; one that is not is filled with
 * zeros. */
aclnnStatus gating_want_output(aclOpExecutor *executor, int place, bool wanted);

#endif
