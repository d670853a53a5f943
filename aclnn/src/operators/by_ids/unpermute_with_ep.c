/* unpermute_with_ep.c - aclnnMoeTokenUnpermuteWithEp over moetoken_unpermute. */
#include "../../../include/aclnnop/aclnn_moe_token_unpermute_with_ep.h"
#include "operators/by_ids/combine.h"
#include "operators/by_ids/rules.h"

static const struct operator_description description = {.name = "aclnnMoeTokenUnpermuteWithEp",
                                                        .parameters = combine_parameters,
                                                        .count = COMBINE_OPERANDS,
                                                        .shape_status =
                                                            ACLNN_ERR_INNER_TILING_ERROR,
                                                        .flags = MOETOKEN_REPEATED_ROWS,
                                                        .absent_from = "Ascend950",
                                                        .call = combine_call};

/* The document: without a range numTopk is ignored. */
static aclnnStatus check_range(aclOpExecutor *executor, const aclIntArray *range, int64_t topk)
{
    struct attributes *attributes = &executor->attributes;
    aclnnStatus status = executor_pair(range, "rangeOptional", attributes->range,
                                       &attributes->range_given, ACLNN_ERR_INNER_TILING_ERROR);
    attributes->topk = attributes->range_given ? topk : 1;
    if (status != ACLNN_SUCCESS || !attributes->range_given)
        return status;
    executor_drop_vacant(executor, COMBINE_PROBS);
    status = rules_range(attributes->range);
    return status == ACLNN_SUCCESS ? rules_topk_given(executor, COMBINE_PROBS, topk, "numTopk")
                                   : status;
}

aclnnStatus aclnnMoeTokenUnpermuteWithEpGetWorkspaceSize(
    const aclTensor *permutedTokens, const aclTensor *sortedIndices, const aclTensor *probsOptional,
    int64_t numTopk, const aclIntArray *rangeOptional, bool paddedMode,
    const aclIntArray *restoreShapeOptional, const aclTensor *out, uint64_t *workspaceSize,
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
    status = check_range(opened, rangeOptional, numTopk);
    if (status == ACLNN_SUCCESS)
        status = combine_check(opened, paddedMode);
    return combine_finish(opened, status, workspaceSize, executor);
}

aclnnStatus aclnnMoeTokenUnpermuteWithEp(void *workspace, uint64_t workspaceSize,
                                         aclOpExecutor *executor, aclrtStream stream)
{
    return executor_run(&description, workspace, workspaceSize, executor, stream);
}
