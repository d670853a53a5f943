/* aclnn_moe_token_permute_with_ep_grad.h -
 * the gradient of aclnnMoeTokenPermuteWithEp. Shapes: permutedTokensOutputGrad [R,H], sortedIndices
 * [T*K] with K = numTopk, permutedProbsOutputGrad [R], tokenGradOut [T,H], probsGradOut [T,K]. The
 * slot of row r, begin <= r < end, has row r - begin here; other slots add nothing. Without range
 * it is aclnnMoeTokenPermuteGrad. */
#ifndef ACLNNOP_ACLNN_MOE_TOKEN_PERMUTE_WITH_EP_GRAD_H
#define ACLNNOP_ACLNN_MOE_TOKEN_PERMUTE_WITH_EP_GRAD_H

#include "../aclnn/aclnn_base.h"
#include "aclnn_util.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Phase one: checks everything but values on the device, says how much workspace phase two wants
 * and makes the executor for it. */
ACLNN_API aclnnStatus aclnnMoeTokenPermuteWithEpGradGetWorkspaceSize(
    const aclTensor *permutedTokensOutputGrad, const aclTensor *sortedIndices,
    const aclTensor *permutedProbsOutputGradOptional, int64_t numTopk,
    const aclIntArray *rangeOptional, bool paddedMode, const aclTensor *tokenGradOut,
    const aclTensor *probsGradOut, uint64_t *workspaceSize, aclOpExecutor **executor);

/* Phase two: checks the values and computes, after everything that the stream was given before. */
ACLNN_API aclnnStatus aclnnMoeTokenPermuteWithEpGrad(void *workspace, uint64_t workspaceSize,
                                                     aclOpExecutor *executor, aclrtStream stream);

#ifdef __cplusplus
}
#endif

#endif
