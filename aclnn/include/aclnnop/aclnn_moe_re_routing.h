/* aclnn_moe_re_routing.h -
 * tokens that came from N ranks, of each by expert, go into expert order, of
 * each expert by rank. Shapes: tokens and permuteTokensOut [A,H], expertTokenNumPerRank [N,E],
 * perTokenScalesOptional and permutePerTokenScalesOut [A] or [A,S], permuteTokenIdxOut [A],
 * expertTokenNumOut [E].
 *
 *   expertTokenNumType 0: running sums of the experts' tokens, 1: their numbers.
 *   idxType 0: the old place of each row, 1: the new one. */
#ifndef ACLNNOP_ACLNN_MOE_RE_ROUTING_H
#define ACLNNOP_ACLNN_MOE_RE_ROUTING_H

#include "../aclnn/aclnn_base.h"
#include "aclnn_util.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Phase one: checks everything but values on the device, says how much workspace phase two wants
 * and makes the executor for it. */
ACLNN_API aclnnStatus aclnnMoeReRoutingGetWorkspaceSize(
    const aclTensor *tokens, const aclTensor *expertTokenNumPerRank,
    const aclTensor *perTokenScalesOptional, int64_t expertTokenNumType, int64_t idxType,
    const aclTensor *permuteTokensOut, const aclTensor *permutePerTokenScalesOut,
    const aclTensor *permuteTokenIdxOut, const aclTensor *expertTokenNumOut,
    uint64_t *workspaceSize, aclOpExecutor **executor);

/* Phase two: checks the values and computes, after everything that the stream was given before. */
ACLNN_API aclnnStatus aclnnMoeReRouting(void *workspace, uint64_t workspaceSize,
                                        aclOpExecutor *executor, aclrtStream stream);

#ifdef __cplusplus
}
#endif

#endif
