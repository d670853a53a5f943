/* aclnn_moe_token_permute_with_routing_map_grad.h -
 * the gradient of permute: rows are added up in token order. Shapes: permutedTokenOutputGrad [R,H],
 * permutedProbsOutputGrad [R], sortedIndices [N], routingMap and probsGradOut [T,E], tokensGradOut
 * [T,H]. */
#ifndef ACLNNOP_ACLNN_MOE_TOKEN_PERMUTE_WITH_ROUTING_MAP_GRAD_H
#define ACLNNOP_ACLNN_MOE_TOKEN_PERMUTE_WITH_ROUTING_MAP_GRAD_H

#include "../aclnn/aclnn_base.h"
#include "aclnn_util.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Phase one: checks everything but values on the device, says how much workspace phase two wants
 * and makes the executor for it. */
ACLNN_API aclnnStatus aclnnMoeTokenPermuteWithRoutingMapGradGetWorkspaceSize(
    const aclTensor *permutedTokenOutputGrad, const aclTensor *permutedProbsOutputGradOptional,
    const aclTensor *sortedIndices, const aclTensor *routingMapOptional, int64_t numExperts,
    int64_t tokensNum, bool dropAndPad, aclTensor *tokensGradOut, aclTensor *probsGradOutOptional,
    uint64_t *workspaceSize, aclOpExecutor **executor);

/* Phase two: checks the values and computes, after everything that the stream was given before. */
ACLNN_API aclnnStatus aclnnMoeTokenPermuteWithRoutingMapGrad(void *workspace,
                                                             uint64_t workspaceSize,
                                                             aclOpExecutor *executor,
                                                             aclrtStream stream);

#ifdef __cplusplus
}
#endif

#endif
