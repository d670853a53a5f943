/* aclnn_moe_token_unpermute_with_routing_map.h -
 * the weighted combine: rows are weighted and added up in token order. Shapes: permutedTokens
 * [R,H], sortedIndices, outIndex, permuteTokenId and permuteProbs [N], routingMap and probs [T,E],
 * unpermutedTokens [T,H]. restoreShape is {T, H}; needed without probs. */
#ifndef ACLNNOP_ACLNN_MOE_TOKEN_UNPERMUTE_WITH_ROUTING_MAP_H
#define ACLNNOP_ACLNN_MOE_TOKEN_UNPERMUTE_WITH_ROUTING_MAP_H

#include "../aclnn/aclnn_base.h"
#include "aclnn_util.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Phase one: checks everything but values on the device, says how much workspace phase two wants
 * and makes the executor for it. */
ACLNN_API aclnnStatus aclnnMoeTokenUnpermuteWithRoutingMapGetWorkspaceSize(
    const aclTensor *permutedTokens, const aclTensor *sortedIndices,
    const aclTensor *routingMapOptional, const aclTensor *probsOptional, bool paddedMode,
    const aclIntArray *restoreShapeOptional, aclTensor *unpermutedTokens, aclTensor *outIndex,
    aclTensor *permuteTokenId, aclTensor *permuteProbs, uint64_t *workspaceSize,
    aclOpExecutor **executor);

/* Phase two: checks the values and computes, after everything that the stream was given before. */
ACLNN_API aclnnStatus aclnnMoeTokenUnpermuteWithRoutingMap(void *workspace, uint64_t workspaceSize,
                                                           aclOpExecutor *executor,
                                                           aclrtStream stream);

#ifdef __cplusplus
}
#endif

#endif
