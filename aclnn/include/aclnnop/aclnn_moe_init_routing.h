/* aclnn_moe_init_routing.h -
 * sends the tokens to their experts. Shapes: x [T,H],
 * rowIdx and expertIdx [T,K], expandedXOut [min(T, activeNum) * K, H], expandedRowIdxOut and
 * expandedExpertIdxOut [T*K]. The slots are sorted by expert, stable; row i is that of the token
 * rowIdx % T of the i-th, and expandedRowIdxOut[rowIdx] = i. */
#ifndef ACLNNOP_ACLNN_MOE_INIT_ROUTING_H
#define ACLNNOP_ACLNN_MOE_INIT_ROUTING_H

#include "../aclnn/aclnn_base.h"
#include "aclnn_util.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Phase one: checks everything but values on the device, says how much workspace phase two wants
 * and makes the executor for it. */
ACLNN_API aclnnStatus aclnnMoeInitRoutingGetWorkspaceSize(
    const aclTensor *x, const aclTensor *rowIdx, const aclTensor *expertIdx, int64_t activeNum,
    const aclTensor *expandedXOut, const aclTensor *expandedRowIdxOut,
    const aclTensor *expandedExpertIdxOut, uint64_t *workspaceSize, aclOpExecutor **executor);

/* Phase two: checks the values and computes, after everything that the stream was given before. */
ACLNN_API aclnnStatus aclnnMoeInitRouting(void *workspace, uint64_t workspaceSize,
                                          aclOpExecutor *executor, aclrtStream stream);

#ifdef __cplusplus
}
#endif

#endif
