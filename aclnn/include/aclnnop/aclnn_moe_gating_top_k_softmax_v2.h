/* aclnn_moe_gating_top_k_softmax_v2.h - each token's k likeliest experts. Shapes: x [T,E] or
 * [A,B,E]; finishedOptional as x without the last size; yOut and expertIdxOut as x with k as the
 * last size; softmaxResultOutOptional as x.
 *
 *   renorm 0: yOut is the softmax over all experts; 1: the softmax over the k chosen ones.
 *   expertIdxOut: the experts, best first; E, which is none, in the rows that finishedOptional
 * marks. softmaxResultOutOptional: with renorm 0 and outputSoftmaxResultFlag the softmax, else
 * zeros.
 */
#ifndef ACLNNOP_ACLNN_MOE_GATING_TOP_K_SOFTMAX_V2_H
#define ACLNNOP_ACLNN_MOE_GATING_TOP_K_SOFTMAX_V2_H

#include "../aclnn/aclnn_base.h"
#include "aclnn_util.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Phase one: checks everything but values on the device, says how much workspace phase two wants
 * and makes the executor for it. */
ACLNN_API aclnnStatus aclnnMoeGatingTopKSoftmaxV2GetWorkspaceSize(
    const aclTensor *x, const aclTensor *finishedOptional, int64_t k, int64_t renorm,
    bool outputSoftmaxResultFlag, const aclTensor *yOut, const aclTensor *expertIdxOut,
    const aclTensor *softmaxResultOutOptional, uint64_t *workspaceSize, aclOpExecutor **executor);

/* Phase two: checks the values and computes, after everything that the stream was given before. */
ACLNN_API aclnnStatus aclnnMoeGatingTopKSoftmaxV2(void *workspace, uint64_t workspaceSize,
                                                  aclOpExecutor *executor, aclrtStream stream);

#ifdef __cplusplus
}
#endif

#endif
