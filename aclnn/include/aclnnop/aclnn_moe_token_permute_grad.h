/* aclnn_moe_token_permute_grad.h -
 * the gradient of aclnnMoeTokenPermute: each token's sum over its slots, in slot order. Shapes:
 * permutedOutputGrad [R,H], sortedIndices [T*K] with K = numTopk, out [T,H]. A slot whose value is
 * -1, or R and above, adds nothing. */
#ifndef ACLNNOP_ACLNN_MOE_TOKEN_PERMUTE_GRAD_H
#define ACLNNOP_ACLNN_MOE_TOKEN_PERMUTE_GRAD_H

#include "../aclnn/aclnn_base.h"
#include "aclnn_util.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Phase one: checks everything but values on the device, says how much workspace phase two wants
 * and makes the executor for it. */
ACLNN_API aclnnStatus aclnnMoeTokenPermuteGradGetWorkspaceSize(
    const aclTensor *permutedOutputGrad, const aclTensor *sortedIndices, int64_t numTopk,
    bool paddedMode, aclTensor *out, uint64_t *workspaceSize, aclOpExecutor **executor);

/* Phase two: checks the values and computes, after everything that the stream was given before. */
ACLNN_API aclnnStatus aclnnMoeTokenPermuteGrad(void *workspace, uint64_t workspaceSize,
                                               aclOpExecutor *executor, aclrtStream stream);

#ifdef __cplusplus
}
#endif

#endif
