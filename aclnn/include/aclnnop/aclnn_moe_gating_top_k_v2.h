/* aclnn_moe_gating_top_k_v2.h - aclnnMoeGatingTopK, and a mode without a choice. The score of an
 * expert is what normType makes of its logit (0 softmax, 1 sigmoid, 2 sqrt(softplus)). With
 * biasOptional [E] score + bias chooses, without it the score: first the kGroup best of groupCount
 * groups, by their best value (groupSelectMode 0) or the sum of their two best (1), then the k best
 * experts in them; of equal ones the lower goes first.
 *
 *   yOut [T,k]: the scores of the chosen, divided by (their sum + eps) unless normType and renorm
 *     are 0, times routedScalingFactor.
 *   expertIdxOut [T,k]: the experts, best first.
 *   outOut [T,E]: with outFlag the scores, else zeros.
 *
 * With both inputIdsOptional [T] and tid2eidOptional [numKeys,k] the experts of token t are
 * tid2eidOptional[inputIdsOptional[t],:], and the bias is not used.
 */
#ifndef ACLNNOP_ACLNN_MOE_GATING_TOP_K_V2_H
#define ACLNNOP_ACLNN_MOE_GATING_TOP_K_V2_H

#include "../aclnn/aclnn_base.h"
#include "aclnn_util.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Phase one: checks everything but values on the device, says how much workspace phase two wants
 * and makes the executor for it. */
ACLNN_API aclnnStatus aclnnMoeGatingTopKV2GetWorkspaceSize(
    const aclTensor *x, const aclTensor *biasOptional, const aclTensor *inputIdsOptional,
    const aclTensor *tid2eidOptional, int64_t k, int64_t kGroup, int64_t groupCount,
    int64_t groupSelectMode, int64_t renorm, int64_t normType, bool outFlag,
    double routedScalingFactor, double eps, const aclTensor *yOut, const aclTensor *expertIdxOut,
    const aclTensor *outOut, uint64_t *workspaceSize, aclOpExecutor **executor);

/* Phase two: checks the values and computes, after everything that the stream was given before. */
ACLNN_API aclnnStatus aclnnMoeGatingTopKV2(void *workspace, uint64_t workspaceSize,
                                           aclOpExecutor *executor, aclrtStream stream);

#ifdef __cplusplus
}
#endif

#endif
