/* aclnn_moe_token_permute_with_routing_map.h -
 * sends the tokens to their experts: rows in expert order. Shapes: tokens [T,H], routingMap and
 * probs [T,E], permuteTokensOut [R,H], permuteProbsOut [R], sortedIndicesOut [N]. */
#ifndef ACLNNOP_ACLNN_MOE_TOKEN_PERMUTE_WITH_ROUTING_MAP_H
#define ACLNNOP_ACLNN_MOE_TOKEN_PERMUTE_WITH_ROUTING_MAP_H

#include "../aclnn/aclnn_base.h"
#include "aclnn_util.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Phase one: checks everything but values on the device, says how much workspace phase two wants
 * and makes the executor for it. */
ACLNN_API aclnnStatus aclnnMoeTokenPermuteWithRoutingMapGetWorkspaceSize(
    const aclTensor *tokens, const aclTensor *routingMap, const aclTensor *probsOptional,
    int64_t numOutTokens, bool dropAndPad, aclTensor *permuteTokensOut,
    aclTensor *permuteProbsOutOptional, aclTensor *sortedIndicesOut, uint64_t *workspaceSize,
    aclOpExecutor **executor);

/* Phase two: checks the values and computes, after everything that the stream was given before. */
ACLNN_API aclnnStatus aclnnMoeTokenPermuteWithRoutingMap(void *workspace, uint64_t workspaceSize,
                                                         aclOpExecutor *executor,
                                                         aclrtStream stream);

#ifdef __cplusplus
}
#endif

#endif
