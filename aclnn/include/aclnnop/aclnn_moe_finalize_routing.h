/* aclnn_moe_finalize_routing.h -
 * adds the experts' answers up: out[t] = x1[t] + x2[t] + the sum
 * over k of scales[t,k] * (expandedX[expandedRowIdx[k*T + t]] + bias[expandedExpertIdx[t,k]]).
 * Shapes: expandedX [T*K,H], x1, x2Optional and out [T,H], bias [E,H], scales and
 * expandedExpertIdx [T,K], expandedRowIdx [T*K]. */
#ifndef ACLNNOP_ACLNN_MOE_FINALIZE_ROUTING_H
#define ACLNNOP_ACLNN_MOE_FINALIZE_ROUTING_H

#include "../aclnn/aclnn_base.h"
#include "aclnn_util.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Phase one: checks everything but values on the device, says how much workspace phase two wants
 * and makes the executor for it. */
ACLNN_API aclnnStatus aclnnMoeFinalizeRoutingGetWorkspaceSize(
    const aclTensor *expandedX, const aclTensor *x1, const aclTensor *x2Optional,
    const aclTensor *bias, const aclTensor *scales, const aclTensor *expandedRowIdx,
    const aclTensor *expandedExpertIdx, const aclTensor *out, uint64_t *workspaceSize,
    aclOpExecutor **executor);

/* Phase two: checks the values and computes, after everything that the stream was given before. */
ACLNN_API aclnnStatus aclnnMoeFinalizeRouting(void *workspace, uint64_t workspaceSize,
                                              aclOpExecutor *executor, aclrtStream stream);

#ifdef __cplusplus
}
#endif

#endif
