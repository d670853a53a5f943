/* aclnn_moe_gating_top_k_softmax.h - each token's k likeliest experts. Shapes: x [T,E] or [A,B,E],
 * T = A*B; finishedOptional as x without the last size; outputs as x with k as the last size.
 *
 *   yOut: softmax over all experts, best first; of equal ones the lower expert goes first.
 *   expertIdxOut: the experts; E, which is none, in the rows that finishedOptional marks.
 *   rowIdxOut: number k * T + t of slot k of token t, as aclnnMoeInitRouting takes it.
 */
#ifndef ACLNNOP_ACLNN_MOE_GATING_TOP_K_SOFTMAX_H
#define ACLNNOP_ACLNN_MOE_GATING_TOP_K_SOFTMAX_H

#include "../aclnn/aclnn_base.h"
#include "aclnn_util.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Phase one: checks everything but values on the device, says how much workspace phase two wants
 * and makes the executor for it. */
ACLNN_API aclnnStatus aclnnMoeGatingTopKSoftmaxGetWorkspaceSize(
    const aclTensor *x, const aclTensor *finishedOptional, int64_t k, const aclTensor *yOut,
    const aclTensor *expertIdxOut, const aclTensor *rowIdxOut, uint64_t *workspaceSize,
    aclOpExecutor **executor);

/* Phase two: checks the values and computes, after everything that the stream was given before. */
ACLNN_API aclnnStatus aclnnMoeGatingTopKSoftmax(void *workspace, uint64_t workspaceSize,
                                                aclOpExecutor *executor, aclrtStream stream);

#ifdef __cplusplus
}
#endif

#endif
