/* aclnn_moe_token_permute_with_ep.h -
 * aclnnMoeTokenPermute for a rank that holds the rows [begin, end) = range of those in expert
 * order, and their weights. Shapes: tokens [T,H], indices and probs [T,K] or [T], permuteTokensOut
 * [end - begin,H], sortedIndicesOut [T*K] (among all rows), permuteProbsOut [end - begin]. Without
 * range it is aclnnMoeTokenPermute. */
#ifndef ACLNNOP_ACLNN_MOE_TOKEN_PERMUTE_WITH_EP_H
#define ACLNNOP_ACLNN_MOE_TOKEN_PERMUTE_WITH_EP_H

#include "../aclnn/aclnn_base.h"
#include "aclnn_util.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Phase one: checks everything but values on the device, says how much workspace phase two wants
 * and makes the executor for it. */
ACLNN_API aclnnStatus aclnnMoeTokenPermuteWithEpGetWorkspaceSize(
    const aclTensor *tokens, const aclTensor *indices, const aclTensor *probsOptional,
    const aclIntArray *rangeOptional, int64_t numOutTokens, bool paddedMode,
    const aclTensor *permuteTokensOut, const aclTensor *sortedIndicesOut,
    const aclTensor *permuteProbsOut, uint64_t *workspaceSize, aclOpExecutor **executor);

/* Phase two: checks the values and computes, after everything that the stream was given before. */
ACLNN_API aclnnStatus aclnnMoeTokenPermuteWithEp(void *workspace, uint64_t workspaceSize,
                                                 aclOpExecutor *executor, aclrtStream stream);

#ifdef __cplusplus
}
#endif

#endif
