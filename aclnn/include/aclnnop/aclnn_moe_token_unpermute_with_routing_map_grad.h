/* aclnn_moe_token_unpermute_with_routing_map_grad.h -
 * the gradient of the weighted combine: for every slot i with row r = outIndex[i], token t, expert
 * e, permutedTokensGradOut[r,:] = probs[t,e] * unpermutedTokensGrad[t,:] probsGradOut[t,e] = sum of
 * permutedTokens[r,:] * unpermutedTokensGrad[t,:] and zero where no slot reaches. Shapes:
 * unpermutedTokensGrad [T,H], outIndex and permuteTokenId [N], routingMap, probs and probsGradOut
 * [T,E], permutedTokens and permutedTokensGradOut [R,H]. */
#ifndef ACLNNOP_ACLNN_MOE_TOKEN_UNPERMUTE_WITH_ROUTING_MAP_GRAD_H
#define ACLNNOP_ACLNN_MOE_TOKEN_UNPERMUTE_WITH_ROUTING_MAP_GRAD_H

#include "../aclnn/aclnn_base.h"
#include "aclnn_util.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Phase one: checks everything but values on the device, says how much workspace phase two wants
 * and makes the executor for it. */
ACLNN_API aclnnStatus aclnnMoeTokenUnpermuteWithRoutingMapGradGetWorkspaceSize(
    const aclTensor *unpermutedTokensGrad, const aclTensor *outIndex,
    const aclTensor *permuteTokenId, const aclTensor *routingMapOptional,
    const aclTensor *permutedTokensOptional, const aclTensor *probsOptional, bool dropAndPad,
    const aclIntArray *restoreShapeOptional, const aclTensor *permutedTokensGradOut,
    const aclTensor *probsGradOutOptional, uint64_t *workspaceSize, aclOpExecutor **executor);

/* Phase two: checks the values and computes, after everything that the stream was given before. */
ACLNN_API aclnnStatus aclnnMoeTokenUnpermuteWithRoutingMapGrad(void *workspace,
                                                               uint64_t workspaceSize,
                                                               aclOpExecutor *executor,
                                                               aclrtStream stream);

#ifdef __cplusplus
}
#endif

#endif
