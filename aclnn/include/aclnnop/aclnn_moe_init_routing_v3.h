/* aclnn_moe_init_routing_v3.h -
 * sends the tokens to a range of experts. Shapes: x [T,H],
 * expertIdx [T,K], scaleOptional [T], expandedRowIdxOut [T*K].
 *
 *   dropPadMode 0: expandedXOut [R,H], R = min(activeNum, T*K), or T*K when activeNum is 0 or -1.
 *   dropPadMode 1: expandedXOut [E,C,H], C = expertCapacity.
 *   rowIdxType 0: the row of each slot, -1 for a slot without one; 1: the slot of each row.
 *   expertTokensNumType 0: running sums, 1: numbers [end - start], 2: pairs of expert and number
 *     [expertNum,2], for the experts of activeExpertRangeOptional {start, end}.
 *   expandedScaleOut: scale of the token of each row. quantMode is -1: nothing is quantised here.
 */
#ifndef ACLNNOP_ACLNN_MOE_INIT_ROUTING_V3_H
#define ACLNNOP_ACLNN_MOE_INIT_ROUTING_V3_H

#include "../aclnn/aclnn_base.h"
#include "aclnn_util.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Phase one: checks everything but values on the device, says how much workspace phase two wants
 * and makes the executor for it. */
ACLNN_API aclnnStatus aclnnMoeInitRoutingV3GetWorkspaceSize(
    const aclTensor *x, const aclTensor *expertIdx, const aclTensor *scaleOptional,
    const aclTensor *offsetOptional, int64_t activeNum, int64_t expertCapacity, int64_t expertNum,
    int64_t dropPadMode, int64_t expertTokensNumType, bool expertTokensNumFlag, int64_t quantMode,
    const aclIntArray *activeExpertRangeOptional, int64_t rowIdxType, const aclTensor *expandedXOut,
    const aclTensor *expandedRowIdxOut, const aclTensor *expertTokensCountOrCumsumOut,
    const aclTensor *expandedScaleOut, uint64_t *workspaceSize, aclOpExecutor **executor);

/* Phase two: checks the values and computes, after everything that the stream was given before. */
ACLNN_API aclnnStatus aclnnMoeInitRoutingV3(void *workspace, uint64_t workspaceSize,
                                            aclOpExecutor *executor, aclrtStream stream);

#ifdef __cplusplus
}
#endif

#endif
