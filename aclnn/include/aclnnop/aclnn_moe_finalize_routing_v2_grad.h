/* aclnn_moe_finalize_routing_v2_grad.h -
 * the gradient of MoeFinalizeRoutingV2 with slots in row
 * order, t * K + k. Shapes: gradY [T,H], expandedRowIdx [T*K], scales, expertIdx and gradScalesOut
 * [T,K], bias [E,H], expandedX and gradExpandedXOut [T*K,H], [activeNum,H] or, with dropPadMode 1,
 * [expertNum,expertCapacity,H]. Rows that no slot names are zero. */
#ifndef ACLNNOP_ACLNN_MOE_FINALIZE_ROUTING_V2_GRAD_H
#define ACLNNOP_ACLNN_MOE_FINALIZE_ROUTING_V2_GRAD_H

#include "../aclnn/aclnn_base.h"
#include "aclnn_util.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Phase one: checks everything but values on the device, says how much workspace phase two wants
 * and makes the executor for it. */
ACLNN_API aclnnStatus aclnnMoeFinalizeRoutingV2GradGetWorkspaceSize(
    const aclTensor *gradY, const aclTensor *expandedRowIdx, const aclTensor *expandedXOptional,
    const aclTensor *scalesOptional, const aclTensor *expertIdxOptional,
    const aclTensor *biasOptional, int64_t dropPadMode, int64_t activeNum, int64_t expertNum,
    int64_t expertCapacity, const aclTensor *gradExpandedXOut, const aclTensor *gradScalesOut,
    uint64_t *workspaceSize, aclOpExecutor **executor);

/* Phase two: checks the values and computes, after everything that the stream was given before. */
ACLNN_API aclnnStatus aclnnMoeFinalizeRoutingV2Grad(void *workspace, uint64_t workspaceSize,
                                                    aclOpExecutor *executor, aclrtStream stream);

#ifdef __cplusplus
}
#endif

#endif
