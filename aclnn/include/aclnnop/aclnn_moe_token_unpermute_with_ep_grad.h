/* aclnn_moe_token_unpermute_with_ep_grad.h -
 * the gradient of aclnnMoeTokenUnpermuteWithEp. Shapes: unpermutedTokensGrad [T,H], sortedIndices
 * [T*K], permutedTokens and permutedTokensGradOut [R,H], probs and probsGradOut [T,K]; without
 * probs K = topkNum. range as in the forward operator, a negative end counts from T*K as in a
 * slice. */
#ifndef ACLNNOP_ACLNN_MOE_TOKEN_UNPERMUTE_WITH_EP_GRAD_H
#define ACLNNOP_ACLNN_MOE_TOKEN_UNPERMUTE_WITH_EP_GRAD_H

#include "../aclnn/aclnn_base.h"
#include "aclnn_util.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Phase one: checks everything but values on the device, says how much workspace phase two wants
 * and makes the executor for it. */
ACLNN_API aclnnStatus aclnnMoeTokenUnpermuteWithEpGradGetWorkspaceSize(
    const aclTensor *unpermutedTokensGrad, const aclTensor *sortedIndices,
    const aclTensor *permutedTokensOptional, const aclTensor *probsOptional, bool paddedMode,
    const aclIntArray *restoreShapeOptional, const aclIntArray *rangeOptional, int64_t topkNum,
    const aclTensor *permutedTokensGradOut, const aclTensor *probsGradOut, uint64_t *workspaceSize,
    aclOpExecutor **executor);

/* Phase two: checks the values and computes, after everything that the stream was given before. */
ACLNN_API aclnnStatus aclnnMoeTokenUnpermuteWithEpGrad(void *workspace, uint64_t workspaceSize,
                                                       aclOpExecutor *executor, aclrtStream stream);

#ifdef __cplusplus
}
#endif

#endif
