/* permute_with_ep_grad.c - aclnnMoeTokenPermuteWithEpGrad over moetoken_permute_grad. */
#include "../../../include/aclnnop/aclnn_moe_token_permute_with_ep_grad.h"
#include "operators/by_ids/gather.h"
#include "operators/by_ids/rules.h"
#include "runtime/message.h"

enum {
    PERMUTED_GRAD,
    SORTED_INDICES,
    PERMUTED_PROBS_GRAD,
    TOKENS_GRAD,
    PROBS_GRAD
};

static const struct parameter parameters[] = {
    [PERMUTED_GRAD] = {"permutedTokensOutputGrad", &token_types, false, true},
    [SORTED_INDICES] = {"sortedIndices", &index_types, false, true},
    [PERMUTED_PROBS_GRAD] = {"permutedProbsOutputGradOptional", &token_types, false, false},
    [TOKENS_GRAD] = {"tokenGradOut", &token_types, true, true},
    [PROBS_GRAD] = {"probsGradOut", &token_types, true, false},
};

static const struct gather_places places = {.permuted_grad = PERMUTED_GRAD,
                                            .permuted_probs_grad = PERMUTED_PROBS_GRAD,
                                            .sorted_indices = SORTED_INDICES,
                                            .tokens_grad = TOKENS_GRAD,
                                            .probs_grad = PROBS_GRAD};

static aclnnStatus call(const aclOpExecutor *executor, const moetoken_options *options,
                        bool check_only)
{
    return gather_call(executor, &places, options, check_only);
}

static const struct operator_description description = {
    .name = "aclnnMoeTokenPermuteWithEpGrad",
    .parameters = parameters,
    .count = sizeof parameters / sizeof parameters[0],
    .shape_status = ACLNN_ERR_INNER_TILING_ERROR,
    .absent_from = "Ascend950",
    .call = call};

/* The document: without a range the gradients of probs are ignored. */
static aclnnStatus check_probs(aclOpExecutor *executor)
{
    struct operand *given = &executor->operands[PERMUTED_PROBS_GRAD];
    struct operand *wanted = &executor->operands[PROBS_GRAD];
    executor_drop_vacant(executor, PERMUTED_PROBS_GRAD);
    aclnnStatus status = executor_same_type(executor, PERMUTED_PROBS_GRAD, PERMUTED_GRAD);
    if (status == ACLNN_SUCCESS)
        status = executor_same_type(executor, PROBS_GRAD, PERMUTED_GRAD);
    if (!executor->attributes.range_given)
        given->used = false;
    if (given->used && !wanted->used && status == ACLNN_SUCCESS)
        status = fail(ACLNN_ERR_PARAM_NULLPTR,
                      "probsGradOut is NULL although permutedProbsOutputGradOptional is given");
    if (!given->used && wanted->used)
        executor_zero_fill(executor, PROBS_GRAD);
    return status;
}

static aclnnStatus check(aclOpExecutor *executor, const aclIntArray *range, bool padded_mode)
{
    struct attributes *attributes = &executor->attributes;
    aclnnStatus status = executor_pair(range, "rangeOptional", attributes->range,
                                       &attributes->range_given, ACLNN_ERR_INNER_TILING_ERROR);
    if (status == ACLNN_SUCCESS && attributes->range_given)
        status = rules_range(attributes->range);
    if (status == ACLNN_SUCCESS)
        status = check_probs(executor);
    if (status == ACLNN_SUCCESS)
        status = gather_check(executor, &places, "numTopk", padded_mode);
    return status;
}

aclnnStatus aclnnMoeTokenPermuteWithEpGradGetWorkspaceSize(
    const aclTensor *permutedTokensOutputGrad, const aclTensor *sortedIndices,
    const aclTensor *permutedProbsOutputGradOptional, int64_t numTopk,
    const aclIntArray *rangeOptional, bool paddedMode, const aclTensor *tokenGradOut,
    const aclTensor *probsGradOut, uint64_t *workspaceSize, aclOpExecutor **executor)
{
    const aclTensor *const tensors[] = {
        [PERMUTED_GRAD] = permutedTokensOutputGrad,
        [SORTED_INDICES] = sortedIndices,
        [PERMUTED_PROBS_GRAD] = permutedProbsOutputGradOptional,
        [TOKENS_GRAD] = tokenGradOut,
        [PROBS_GRAD] = probsGradOut,
    };
    aclOpExecutor *opened;
    aclnnStatus status = executor_open(&description, tensors, workspaceSize, executor, &opened);
    if (status != ACLNN_SUCCESS)
        return status;
    opened->attributes.topk = numTopk;
    status = check(opened, rangeOptional, paddedMode);
    return executor_finish(opened, status, opened->operands[TOKENS_GRAD].shape[0],
                           opened->operands[SORTED_INDICES].shape[0], workspaceSize, executor);
}

aclnnStatus aclnnMoeTokenPermuteWithEpGrad(void *workspace, uint64_t workspaceSize,
                                           aclOpExecutor *executor, aclrtStream stream)
{
    return executor_run(&description, workspace, workspaceSize, executor, stream);
}
