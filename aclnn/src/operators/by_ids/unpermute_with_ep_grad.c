/* unpermute_with_ep_grad.c - aclnnMoeTokenUnpermuteWithEpGrad over moetoken_unpermute_grad. */
#include "../../../include/aclnnop/aclnn_moe_token_unpermute_with_ep_grad.h"
#include "operators/by_ids/rules.h"
#include "operators/by_ids/scatter.h"
#include "runtime/message.h"

#include <inttypes.h>

enum {
    TOKENS_GRAD, /* unpermuted */
    SORTED_INDICES,
    PERMUTED,
    PROBS,
    PERMUTED_GRAD,
    PROBS_GRAD
};

static const struct parameter parameters[] = {
    [TOKENS_GRAD] = {"unpermutedTokensGrad", &token_types, false, true},
    [SORTED_INDICES] = {"sortedIndices", &index_types, false, true},
    [PERMUTED] = {"permutedTokensOptional", &token_types, false, false},
    [PROBS] = {"probsOptional", &token_types, false, false},
    [PERMUTED_GRAD] = {"permutedTokensGradOut", &token_types, true, true},
    [PROBS_GRAD] = {"probsGradOut", &token_types, true, false},
};

static const struct scatter_places places = {.permuted = PERMUTED,
                                             .tokens_grad = TOKENS_GRAD,
                                             .sorted_indices = SORTED_INDICES,
                                             .probs = PROBS,
                                             .permuted_grad = PERMUTED_GRAD,
                                             .probs_grad = PROBS_GRAD};

static aclnnStatus call(const aclOpExecutor *executor, const moetoken_options *options,
                        bool check_only)
{
    return scatter_call(executor, &places, options, check_only);
}

static const struct operator_description description = {
    .name = "aclnnMoeTokenUnpermuteWithEpGrad",
    .parameters = parameters,
    .count = sizeof parameters / sizeof parameters[0],
    .shape_status = ACLNN_ERR_INNER_TILING_ERROR,
    .absent_from = "Ascend950",
    .call = call};

/* A bound below 0 counts from N on, as in a slice of Python; then it is brought into [0, N]. */
static int64_t slice_bound(int64_t bound, int64_t slots_num)
{
    bound += bound < 0 ? slots_num : 0;
    return bound < 0 ? 0 : bound > slots_num ? slots_num : bound;
}

static aclnnStatus check_range(aclOpExecutor *executor, const aclIntArray *array)
{
    struct attributes *attributes = &executor->attributes;
    int64_t *range = attributes->range;
    int64_t slots_num = executor->operands[SORTED_INDICES].shape[0];
    aclnnStatus status = executor_pair(array, "rangeOptional", range, &attributes->range_given,
                                       ACLNN_ERR_INNER_TILING_ERROR);
    if (status != ACLNN_SUCCESS || !attributes->range_given)
        return status;
    range[0] = slice_bound(range[0], slots_num);
    range[1] = slice_bound(range[1], slots_num);
    return rules_range(range);
}

static aclnnStatus check(aclOpExecutor *executor, const aclIntArray *range, bool padded_mode)
{
    aclnnStatus status = check_range(executor, range);
    if (status == ACLNN_SUCCESS)
        status = scatter_check(executor, &places, padded_mode);
    return status;
}

aclnnStatus aclnnMoeTokenUnpermuteWithEpGradGetWorkspaceSize(
    const aclTensor *unpermutedTokensGrad, const aclTensor *sortedIndices,
    const aclTensor *permutedTokensOptional, const aclTensor *probsOptional, bool paddedMode,
    const aclIntArray *restoreShapeOptional, const aclIntArray *rangeOptional, int64_t topkNum,
    const aclTensor *permutedTokensGradOut, const aclTensor *probsGradOut, uint64_t *workspaceSize,
    aclOpExecutor **executor)
{
    const aclTensor *const tensors[] = {
        [TOKENS_GRAD] = unpermutedTokensGrad,    [SORTED_INDICES] = sortedIndices,
        [PERMUTED] = permutedTokensOptional,     [PROBS] = probsOptional,
        [PERMUTED_GRAD] = permutedTokensGradOut, [PROBS_GRAD] = probsGradOut,
    };
    aclOpExecutor *opened;
    (void)restoreShapeOptional; /* read in padded mode alone */
    aclnnStatus status = executor_open(&description, tensors, workspaceSize, executor, &opened);
    if (status != ACLNN_SUCCESS)
        return status;
    opened->attributes.topk = topkNum;
    status = check(opened, rangeOptional, paddedMode);
    return executor_finish(opened, status, opened->operands[TOKENS_GRAD].shape[0],
                           opened->operands[SORTED_INDICES].shape[0], workspaceSize, executor);
}

aclnnStatus aclnnMoeTokenUnpermuteWithEpGrad(void *workspace, uint64_t workspaceSize,
                                             aclOpExecutor *executor, aclrtStream stream)
{
    return executor_run(&description, workspace, workspaceSize, executor, stream);
}
