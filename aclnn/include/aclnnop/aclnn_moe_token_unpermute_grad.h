/* aclnn_moe_token_unpermute_grad.h -
 * the gradient of aclnnMoeTokenUnpermute. Shapes: permutedTokens and permutedTokensGradOut [R,H],
 * unpermutedTokensGrad [T,H], sortedIndices [T*K], probs and probsGradOut [T,K]. Without probs K =
 * 1, and probsGradOut is filled with zeros. permutedTokens and probsGradOut are required all the
 * same. */
#ifndef ACLNNOP_ACLNN_MOE_TOKEN_UNPERMUTE_GRAD_H
#define ACLNNOP_ACLNN_MOE_TOKEN_UNPERMUTE_GRAD_H

#include "../aclnn/aclnn_base.h"
#include "aclnn_util.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Phase one: checks everything but values on the device, says how much workspace phase two wants
 * and makes the executor for it. */
ACLNN_API aclnnStatus aclnnMoeTokenUnpermuteGradGetWorkspaceSize(
    const aclTensor *permutedTokensOptional, const aclTensor *unpermutedTokensGrad,
    const aclTensor *sortedIndices, const aclTensor *probsOptional, bool paddedMode,
    const aclIntArray *restoreShapeOptional, aclTensor *permutedTokensGradOut,
    aclTensor *probsGradOut, uint64_t *workspaceSize, aclOpExecutor **executor);

/* Phase two: checks the values and computes, after everything that the stream was given before. */
ACLNN_API aclnnStatus aclnnMoeTokenUnpermuteGrad(void *workspace, uint64_t workspaceSize,
                                                 aclOpExecutor *executor, aclrtStream stream);

#ifdef __cplusplus
}
#endif

#endif
