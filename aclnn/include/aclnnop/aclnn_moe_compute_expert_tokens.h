/* aclnn_moe_compute_expert_tokens.h - out[e] is where the slots of expert e end in sortedExperts
 * [N], which ascends: the number of its values up to e. out has numExperts values.
 */
#ifndef ACLNNOP_ACLNN_MOE_COMPUTE_EXPERT_TOKENS_H
#define ACLNNOP_ACLNN_MOE_COMPUTE_EXPERT_TOKENS_H

#include "../aclnn/aclnn_base.h"
#include "aclnn_util.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Phase one: checks everything but values on the device, says how much workspace phase two wants
 * and makes the executor for it. */
ACLNN_API aclnnStatus aclnnMoeComputeExpertTokensGetWorkspaceSize(const aclTensor *sortedExperts,
                                                                  int64_t numExperts,
                                                                  const aclTensor *out,
                                                                  uint64_t *workspaceSize,
                                                                  aclOpExecutor **executor);

/* Phase two: checks the values and computes, after everything that the stream was given before. */
ACLNN_API aclnnStatus aclnnMoeComputeExpertTokens(void *workspace, uint64_t workspaceSize,
                                                  aclOpExecutor *executor, aclrtStream stream);

#ifdef __cplusplus
}
#endif

#endif
