/* permute_grad.c - aclnnMoeTokenPermuteWithRoutingMapGrad over moetoken_permute_grad. */
#include "../../../include/aclnnop/aclnn_moe_token_permute_with_routing_map_grad.h"
#include "operators/executor.h"
#include "operators/product_rules.h"
#include "runtime/message.h"

enum {
    PERMUTED_GRAD,
    PERMUTED_PROBS_GRAD,
    SORTED_INDICES,
    ROUTING_MAP,
    TOKENS_GRAD,
    PROBS_GRAD
};

static const struct parameter parameters[] = {
    [PERMUTED_GRAD] = {"permutedTokenOutputGrad", &token_types, false, true},
    [PERMUTED_PROBS_GRAD] = {"permutedProbsOutputGradOptional", &token_types, false, false},
    [SORTED_INDICES] = {"sortedIndices", &index_types, false, true},
    [ROUTING_MAP] = {"routingMapOptional", &map_types, false, false},
    [TOKENS_GRAD] = {"tokensGradOut", &token_types, true, true},
    [PROBS_GRAD] = {"probsGradOutOptional", &token_types, true, false},
};

static aclnnStatus call(const aclOpExecutor *executor, const moetoken_options *options,
                        bool check_only)
{
    moetoken_permute_grad_args args = {
        .permuted_tokens_grad = executor_tensor(executor, PERMUTED_GRAD),
        .permuted_probs_grad = executor_tensor(executor, PERMUTED_PROBS_GRAD),
        .sorted_indices = executor_tensor(executor, SORTED_INDICES),
        .routing_map = executor_tensor(executor, ROUTING_MAP),
        .tokens_num = executor->attributes.tokens_num,
        .experts_num = executor->attributes.experts_num,
        .drop_and_pad = executor->attributes.drop_and_pad,
        .tokens_grad = executor_tensor(executor, TOKENS_GRAD),
        .probs_grad = executor_tensor(executor, PROBS_GRAD)};
    return executor_result(executor, check_only,
                           check_only ? moetoken_permute_grad_check(&args, options)
                                      : moetoken_permute_grad(&args, options));
}

static const struct operator_description description = {
    .name = "aclnnMoeTokenPermuteWithRoutingMapGrad",
    .parameters = parameters,
    .count = sizeof parameters / sizeof parameters[0],
    .shape_status = ACLNN_ERR_PARAM_INVALID,
    .flags = MOETOKEN_TOLERATE_ROUTING_MISMATCH,
    .call = call};

static aclnnStatus check_probs(aclOpExecutor *executor)
{
    bool probs_grad_wanted = executor->operands[PROBS_GRAD].used;
    bool probs_grad_given = executor->operands[PERMUTED_PROBS_GRAD].used;
    if (probs_grad_given && !executor->operands[ROUTING_MAP].used)
        return fail(ACLNN_ERR_PARAM_NULLPTR,
                    "routingMapOptional is NULL although permutedProbsOutputGradOptional is given");
    aclnnStatus status = executor_same_type(executor, TOKENS_GRAD, PERMUTED_GRAD);
    if (status == ACLNN_SUCCESS)
        status = executor_probs_type(executor, PERMUTED_PROBS_GRAD, PERMUTED_GRAD,
                                     ACLNN_ERR_PARAM_INVALID);
    if (status == ACLNN_SUCCESS && probs_grad_given)
        status = executor_same_type(executor, PROBS_GRAD, PERMUTED_PROBS_GRAD);
    if (probs_grad_wanted && !probs_grad_given)
        executor_zero_fill(executor, PROBS_GRAD);
    return status;
}

static aclnnStatus check(aclOpExecutor *executor)
{
    aclnnStatus status = product_check_positive("numExperts", executor->attributes.experts_num);
    if (status == ACLNN_SUCCESS)
        status = product_check_positive("tokensNum", executor->attributes.tokens_num);
    if (status == ACLNN_SUCCESS)
        status = check_probs(executor);
    if (status == ACLNN_SUCCESS)
        status = executor_check(executor);
    if (status == ACLNN_SUCCESS && !executor->attributes.drop_and_pad)
        status = product_check_topk("R / T", executor->operands[PERMUTED_GRAD].shape[0],
                                    executor->attributes.tokens_num);
    return status;
}

aclnnStatus aclnnMoeTokenPermuteWithRoutingMapGradGetWorkspaceSize(
    const aclTensor *permutedTokenOutputGrad, const aclTensor *permutedProbsOutputGradOptional,
    const aclTensor *sortedIndices, const aclTensor *routingMapOptional, int64_t numExperts,
    int64_t tokensNum, bool dropAndPad, aclTensor *tokensGradOut, aclTensor *probsGradOutOptional,
    uint64_t *workspaceSize, aclOpExecutor **executor)
{
    const aclTensor *const tensors[] = {
        [PERMUTED_GRAD] = permutedTokenOutputGrad,
        [PERMUTED_PROBS_GRAD] = permutedProbsOutputGradOptional,
        [SORTED_INDICES] = sortedIndices,
        [ROUTING_MAP] = routingMapOptional,
        [TOKENS_GRAD] = tokensGradOut,
        [PROBS_GRAD] = probsGradOutOptional,
    };
    aclOpExecutor *opened;
    aclnnStatus status = executor_open(&description, tensors, workspaceSize, executor, &opened);
    if (status != ACLNN_SUCCESS)
        return status;
    opened->attributes.drop_and_pad = dropAndPad;
    opened->attributes.experts_num = numExperts;
    opened->attributes.tokens_num = tokensNum;
    status = check(opened);
    return executor_finish(opened, status, tokensNum, opened->operands[SORTED_INDICES].shape[0],
                           workspaceSize, executor);
}

aclnnStatus aclnnMoeTokenPermuteWithRoutingMapGrad(void *workspace, uint64_t workspaceSize,
                                                   aclOpExecutor *executor, aclrtStream stream)
{
    return executor_run(&description, workspace, workspaceSize, executor, stream);
}
