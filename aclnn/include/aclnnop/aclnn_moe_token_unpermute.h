/* aclnn_moe_token_unpermute.h -
 * adds the experts' rows up again, weighted, by the slots' rows. Shapes: permutedTokens [R,H],
 * sortedIndices [T*K], probs [T,K] or NULL (then K = 1 and all weights are 1), out [T,H]. A slot
 * whose value is -1, or R and above, adds nothing. */
#ifndef ACLNNOP_ACLNN_MOE_TOKEN_UNPERMUTE_H
#define ACLNNOP_ACLNN_MOE_TOKEN_UNPERMUTE_H

#include "../aclnn/aclnn_base.h"
#include "aclnn_util.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Phase one: checks everything but values on the device, says how much workspace phase two wants
 * and makes the executor for it. */
ACLNN_API aclnnStatus aclnnMoeTokenUnpermuteGetWorkspaceSize(
    const aclTensor *permutedTokens, const aclTensor *sortedIndices, const aclTensor *probsOptional,
    bool paddedMode, const aclIntArray *restoreShapeOptional, aclTensor *out,
    uint64_t *workspaceSize, aclOpExecutor **executor);

/* Phase two: checks the values and computes, after everything that the stream was given before. */
ACLNN_API aclnnStatus aclnnMoeTokenUnpermute(void *workspace, uint64_t workspaceSize,
                                             aclOpExecutor *executor, aclrtStream stream);

#ifdef __cplusplus
}
#endif

#endif
