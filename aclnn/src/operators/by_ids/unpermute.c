/* unpermute.c - aclnnMoeTokenUnpermute over moetoken_unpermute. */
#include "../../../include/aclnnop/aclnn_moe_token_unpermute.h"
#include "operators/by_ids/combine.h"

static const struct operator_description description = {.name = "aclnnMoeTokenUnpermute",
                                                        .parameters = combine_parameters,
                                                        .count = COMBINE_OPERANDS,
                                                        .shape_status =
                                                            ACLNN_ERR_INNER_TILING_ERROR,
                                                        .flags = MOETOKEN_REPEATED_ROWS,
                                                        .call = combine_call};

aclnnStatus aclnnMoeTokenUnpermuteGetWorkspaceSize(const aclTensor *permutedTokens,
                                                   const aclTensor *sortedIndices,
                                                   const aclTensor *probsOptional, bool paddedMode,
                                                   const aclIntArray *restoreShapeOptional,
                                                   aclTensor *out, uint64_t *workspaceSize,
                                                   aclOpExecutor **executor)
{
    const aclTensor *const tensors[] = {
        [COMBINE_PERMUTED] = permutedTokens,
        [COMBINE_SORTED_INDICES] = sortedIndices,
        [COMBINE_PROBS] = probsOptional,
        [COMBINE_TOKENS] = out,
    };
    aclOpExecutor *opened;
    (void)restoreShapeOptional; /* read in padded mode alone */
    aclnnStatus status = executor_open(&description, tensors, workspaceSize, executor, &opened);
    if (status != ACLNN_SUCCESS)
        return status;
    opened->attributes.topk = 1;
    return combine_finish(opened, combine_check(opened, paddedMode), workspaceSize, executor);
}

aclnnStatus aclnnMoeTokenUnpermute(void *workspace, uint64_t workspaceSize, aclOpExecutor *executor,
                                   aclrtStream stream)
{
    return executor_run(&description, workspace, workspaceSize, executor, stream);
}
