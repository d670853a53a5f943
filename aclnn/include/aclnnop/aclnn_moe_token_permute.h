/* aclnn_moe_token_permute.h -
 * sends the tokens to their experts by lists of expert ids: rows in ascending order of the ids,
 * inside an expert in token order. Shapes: tokens [T,H] (further dimensions count as H), indices
 * [T,K] or [T] (K = 1), permuteTokensOut [R,H], sortedIndicesOut [T*K]: slot -> row in expert
 * order, also for rows from R on, which are not made. numOutTokens n: R = n; 0: all T*K; below 0:
 * T*K + n. */
#ifndef ACLNNOP_ACLNN_MOE_TOKEN_PERMUTE_H
#define ACLNNOP_ACLNN_MOE_TOKEN_PERMUTE_H

#include "../aclnn/aclnn_base.h"
#include "aclnn_util.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Phase one: checks everything but values on the device, says how much workspace phase two wants
 * and makes the executor for it. */
ACLNN_API aclnnStatus aclnnMoeTokenPermuteGetWorkspaceSize(
    const aclTensor *tokens, const aclTensor *indices, int64_t numOutTokens, bool paddedMode,
    const aclTensor *permuteTokensOut, const aclTensor *sortedIndicesOut, uint64_t *workspaceSize,
    aclOpExecutor **executor);

/* Phase two: checks the values and computes, after everything that the stream was given before. */
ACLNN_API aclnnStatus aclnnMoeTokenPermute(void *workspace, uint64_t workspaceSize,
                                           aclOpExecutor *executor, aclrtStream stream);

#ifdef __cplusplus
}
#endif

#endif
