/* aclnn_moe_finalize_routing_v2.h -
 * adds the experts' answers up: out[t] = x1[t] + x2[t] + the
 * sum over k of scales[t,k] * (row of the slot + bias[expertIdx[t,k]]). Shapes: x1, x2 and out
 * [T,H], bias [E,H], scales and expertIdx [T,K], expandedRowIdx [T*K]. K = 1 without scales.
 *
 *   dropPadMode   expandedX             slot of token t, choice k
 *   0             [T*K,H] or less       k * T + t
 *   1             [E,C,H]               k * T + t
 *   2             [T*K,H] or less       t * K + k
 *   3             [E,C,H]               t * K + k
 *
 * A slot of -1, or of a row that is not there, adds nothing, no bias either. */
#ifndef ACLNNOP_ACLNN_MOE_FINALIZE_ROUTING_V2_H
#define ACLNNOP_ACLNN_MOE_FINALIZE_ROUTING_V2_H

#include "../aclnn/aclnn_base.h"
#include "aclnn_util.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Phase one: checks everything but values on the device, says how much workspace phase two wants
 * and makes the executor for it. */
ACLNN_API aclnnStatus aclnnMoeFinalizeRoutingV2GetWorkspaceSize(
    const aclTensor *expandedX, const aclTensor *expandedRowIdx, const aclTensor *x1Optional,
    const aclTensor *x2Optional, const aclTensor *biasOptional, const aclTensor *scalesOptional,
    const aclTensor *expertIdxOptional, int64_t dropPadMode, const aclTensor *out,
    uint64_t *workspaceSize, aclOpExecutor **executor);

/* Phase two: checks the values and computes, after everything that the stream was given before. */
ACLNN_API aclnnStatus aclnnMoeFinalizeRoutingV2(void *workspace, uint64_t workspaceSize,
                                                aclOpExecutor *executor, aclrtStream stream);

#ifdef __cplusplus
}
#endif

#endif
