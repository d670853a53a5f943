/* aclnn_moe_gating_top_k_backward.h - the gradient of x through aclnnMoeGatingTopK with sigmoid
 * (normType 1; renorm is not looked at). Shapes: xNorm [T,E], which is its outOut; gradY and
 * expertIdx [T,K]; out [T,E]. The choice is constant: out is zero but for the experts chosen.
 */
#ifndef ACLNNOP_ACLNN_MOE_GATING_TOP_K_BACKWARD_H
#define ACLNNOP_ACLNN_MOE_GATING_TOP_K_BACKWARD_H

#include "../aclnn/aclnn_base.h"
#include "aclnn_util.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Phase one: checks everything but values on the device, says how much workspace phase two wants
 * and makes the executor for it. */
ACLNN_API aclnnStatus aclnnMoeGatingTopKBackwardGetWorkspaceSize(
    const aclTensor *xNorm, const aclTensor *gradY, const aclTensor *expertIdx, int64_t renorm,
    int64_t normType, double routedScalingFactor, double eps, const aclTensor *out,
    uint64_t *workspaceSize, aclOpExecutor **executor);

/* Phase two: checks the values and computes, after everything that the stream was given before. */
ACLNN_API aclnnStatus aclnnMoeGatingTopKBackward(void *workspace, uint64_t workspaceSize,
                                                 aclOpExecutor *executor, aclrtStream stream);

#ifdef __cplusplus
}
#endif

#endif
