/* aclnn_moe_init_routing_v2_grad.h -
 * the gradient of MoeInitRoutingV2: out[t] is the sum of the
 * rows of token t. Shapes: gradExpandedX [T*K,H], [activeNum,H] or, with dropPadMode 1, [E,C,H];
 * expandedRowIdx [T*K], out [T,H]. */
#ifndef ACLNNOP_ACLNN_MOE_INIT_ROUTING_V2_GRAD_H
#define ACLNNOP_ACLNN_MOE_INIT_ROUTING_V2_GRAD_H

#include "../aclnn/aclnn_base.h"
#include "aclnn_util.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Phase one: checks everything but values on the device, says how much workspace phase two wants
 * and makes the executor for it. */
ACLNN_API aclnnStatus aclnnMoeInitRoutingV2GradGetWorkspaceSize(
    const aclTensor *gradExpandedX, const aclTensor *expandedRowIdx, int64_t topK,
    int64_t dropPadMode, int64_t activeNum, const aclTensor *out, uint64_t *workspaceSize,
    aclOpExecutor **executor);

/* Phase two: checks the values and computes, after everything that the stream was given before. */
ACLNN_API aclnnStatus aclnnMoeInitRoutingV2Grad(void *workspace, uint64_t workspaceSize,
                                                aclOpExecutor *executor, aclrtStream stream);

#ifdef __cplusplus
}
#endif

#endif
