/* permute_grad.c - aclnnMoeTokenPermuteGrad over moetoken_permute_grad. */
#include "../../../include/aclnnop/aclnn_moe_token_permute_grad.h"
#include "operators/by_ids/gather.h"

enum {
    PERMUTED_GRAD,
    SORTED_INDICES,
    TOKENS_GRAD
};

static const struct parameter parameters[] = {
    [PERMUTED_GRAD] = {"permutedOutputGrad", &token_types, false, true},
    [SORTED_INDICES] = {"sortedIndices", &index_types, false, true},
    [TOKENS_GRAD] = {"out", &token_types, true, true},
};

static const struct gather_places places = {.permuted_grad = PERMUTED_GRAD,
                                            .permuted_probs_grad = -1,
                                            .sorted_indices = SORTED_INDICES,
                                            .tokens_grad = TOKENS_GRAD,
                                            .probs_grad = -1};

static aclnnStatus call(const aclOpExecutor *executor, const moetoken_options *options,
                        bool check_only)
{
    return gather_call(executor, &places, options, check_only);
}

static const struct operator_description description = {
    .name = "aclnnMoeTokenPermuteGrad",
    .parameters = parameters,
    .count = sizeof parameters / sizeof parameters[0],
    .shape_status = ACLNN_ERR_INNER_TILING_ERROR,
    .call = call};

aclnnStatus aclnnMoeTokenPermuteGradGetWorkspaceSize(const aclTensor *permutedOutputGrad,
                                                     const aclTensor *sortedIndices,
                                                     int64_t numTopk, bool paddedMode,
                                                     aclTensor *out, uint64_t *workspaceSize,
                                                     aclOpExecutor **executor)
{
    const aclTensor *const tensors[] = {
        [PERMUTED_GRAD] = permutedOutputGrad,
        [SORTED_INDICES] = sortedIndices,
        [TOKENS_GRAD] = out,
    };
    aclOpExecutor *opened;
    aclnnStatus status = executor_open(&description, tensors, workspaceSize, executor, &opened);
    if (status != ACLNN_SUCCESS)
        return status;
    opened->attributes.topk = numTopk;
    status = gather_check(opened, &places, "numTopk", paddedMode);
    return executor_finish(opened, status, opened->operands[TOKENS_GRAD].shape[0],
                           opened->operands[SORTED_INDICES].shape[0], workspaceSize, executor);
}

aclnnStatus aclnnMoeTokenPermuteGrad(void *workspace, uint64_t workspaceSize,
                                     aclOpExecutor *executor, aclrtStream stream)
{
    return executor_run(&description, workspace, workspaceSize, executor, stream);
}
