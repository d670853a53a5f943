/* finalize.h - what MoeFinalizeRouting and its V2 do: sums of the rows of a token's slots,
 * residuals and biases. */
#ifndef ACLNN_ROUTING_FINALIZE_H
#define ACLNN_ROUTING_FINALIZE_H

#include "operators/executor.h"

struct finalize_places {
    int expanded_x, row_idx, x1, x2, bias, scales, expert_idx, out;
};

/* attributes.drop_pad_mode: see aclnn_moe_finalize_routing_v2.h. Shapes, and all that `call`
 * checks.
 */
aclnnStatus finalize_check(aclOpExecutor *executor, const struct finalize_places *places);

/* For the operators' `call`. */
aclnnStatus finalize_call(const aclOpExecutor *executor, const struct finalize_places *places,
                          const moetoken_options *options, bool check_only);

/* Phase one ends. */
aclnnStatus finalize_finish(aclOpExecutor *executor, aclnnStatus status,
                            const struct finalize_places *places, uint64_t *workspace_size,
                            aclOpExecutor **out);

#endif
