/* unpermute_grad.c - aclnnMoeTokenUnpermuteGrad over moetoken_unpermute_grad. */
#include "../../../include/aclnnop/aclnn_moe_token_unpermute_grad.h"
#include "operators/by_ids/scatter.h"

enum {
    PERMUTED,
    TOKENS_GRAD, /* unpermuted */
    SORTED_INDICES,
    PROBS,
    PERMUTED_GRAD,
    PROBS_GRAD
};

/* CANN's host code wants permutedTokens and probsGradOut with and without probs. */
static const struct parameter parameters[] = {
    [PERMUTED] = {"permutedTokensOptional", &token_types, false, true},
    [TOKENS_GRAD] = {"unpermutedTokensGrad", &token_types, false, true},
    [SORTED_INDICES] = {"sortedIndices", &index_types, false, true},
    [PROBS] = {"probsOptional", &token_types, false, false},
    [PERMUTED_GRAD] = {"permutedTokensGradOut", &token_types, true, true},
    [PROBS_GRAD] = {"probsGradOut", &token_types, true, true},
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
    .name = "aclnnMoeTokenUnpermuteGrad",
    .parameters = parameters,
    .count = sizeof parameters / sizeof parameters[0],
    .shape_status = ACLNN_ERR_INNER_TILING_ERROR,
    .call = call};

aclnnStatus aclnnMoeTokenUnpermuteGradGetWorkspaceSize(
    const aclTensor *permutedTokensOptional, const aclTensor *unpermutedTokensGrad,
    const aclTensor *sortedIndices, const aclTensor *probsOptional, bool paddedMode,
    const aclIntArray *restoreShapeOptional, aclTensor *permutedTokensGradOut,
    aclTensor *probsGradOut, uint64_t *workspaceSize, aclOpExecutor **executor)
{
    const aclTensor *const tensors[] = {
        [PERMUTED] = permutedTokensOptional,     [TOKENS_GRAD] = unpermutedTokensGrad,
        [SORTED_INDICES] = sortedIndices,        [PROBS] = probsOptional,
        [PERMUTED_GRAD] = permutedTokensGradOut, [PROBS_GRAD] = probsGradOut,
    };
    aclOpExecutor *opened;
    (void)restoreShapeOptional; /* read in padded mode alone */
    aclnnStatus status = executor_open(&description, tensors, workspaceSize, executor, &opened);
    if (status != ACLNN_SUCCESS)
        return status;
    opened->attributes.topk = 1;
    status = scatter_check(opened, &places, paddedMode);
    return executor_finish(opened, status, opened->operands[TOKENS_GRAD].shape[0],
                           opened->operands[SORTED_INDICES].shape[0], workspaceSize, executor);
}

aclnnStatus aclnnMoeTokenUnpermuteGrad(void *workspace, uint64_t workspaceSize,
                                       aclOpExecutor *executor, aclrtStream stream)
{
    return executor_run(&description, workspace, workspaceSize, executor, stream);
}
