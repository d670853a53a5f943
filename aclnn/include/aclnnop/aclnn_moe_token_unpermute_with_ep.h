/* aclnn_moe_token_unpermute_with_ep.h -
 * aclnnMoeTokenUnpermute over the rows [begin, end) = range of those in expert order: the slot of
 * row r has row r - begin of permutedTokens, other slots add nothing. Shapes: permutedTokens [R,H],
 * sortedIndices [T*K], probs [T,K] or NULL, with K = numTopk in both cases, out [T,H]. Without
 * range it is aclnnMoeTokenUnpermute. */
#ifndef ACLNNOP_ACLNN_MOE_TOKEN_UNPERMUTE_WITH_EP_H
#define ACLNNOP_ACLNN_MOE_TOKEN_UNPERMUTE_WITH_EP_H

#include "../aclnn/aclnn_base.h"
#include "aclnn_util.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Phase one: checks everything but values on the device, says how much workspace phase two wants
 * and makes the executor for it. */
ACLNN_API aclnnStatus aclnnMoeTokenUnpermuteWithEpGetWorkspaceSize(
    const aclTensor *permutedTokens, const aclTensor *sortedIndices, const aclTensor *probsOptional,
    int64_t numTopk, const aclIntArray *rangeOptional, bool paddedMode,
    const aclIntArray *restoreShapeOptional, const aclTensor *out, uint64_t *workspaceSize,
    aclOpExecutor **executor);

/* Phase two: checks the values and computes, after everything that the stream was given before. */
ACLNN_API aclnnStatus aclnnMoeTokenUnpermuteWithEp(void *workspace, uint64_t workspaceSize,
                                                   aclOpExecutor *executor, aclrtStream stream);

#ifdef __cplusplus
}
#endif

#endif
