/* aclnn_moe_init_routing_v2.h -
 * sends the tokens to their experts. Shapes: x [T,H],
 * expertIdx [T,K] or [T], expandedRowIdxOut [T*K] (the row of each slot, in row order t * K + k).
 *
 *   dropPadMode 0: expandedXOut [R,H], R = T*K, or min(activeNum, T*K) when activeNum is positive;
 *     expertTokensCountOrCumsumOut [E] with expertTokensCountOrCumsumFlag 1 (running sums) or 2.
 *   dropPadMode 1: expandedXOut [E,C,H], C = expertCapacity; an expert's slots behind its C-th get
 *     -1; expertTokensBeforeCapacityOut [E] when its flag is set. */
#ifndef ACLNNOP_ACLNN_MOE_INIT_ROUTING_V2_H
#define ACLNNOP_ACLNN_MOE_INIT_ROUTING_V2_H

#include "../aclnn/aclnn_base.h"
#include "aclnn_util.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Phase one: checks everything but values on the device, says how much workspace phase two wants
 * and makes the executor for it. */
ACLNN_API aclnnStatus aclnnMoeInitRoutingV2GetWorkspaceSize(
    const aclTensor *x, const aclTensor *expertIdx, int64_t activeNum, int64_t expertCapacity,
    int64_t expertNum, int64_t dropPadMode, int64_t expertTokensCountOrCumsumFlag,
    bool expertTokensBeforeCapacityFlag, const aclTensor *expandedXOut,
    const aclTensor *expandedRowIdxOut, const aclTensor *expertTokensCountOrCumsumOut,
    const aclTensor *expertTokensBeforeCapacityOut, uint64_t *workspaceSize,
    aclOpExecutor **executor);

/* Phase two: checks the values and computes, after everything that the stream was given before. */
ACLNN_API aclnnStatus aclnnMoeInitRoutingV2(void *workspace, uint64_t workspaceSize,
                                            aclOpExecutor *executor, aclrtStream stream);

#ifdef __cplusplus
}
#endif

#endif
