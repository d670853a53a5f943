/* unpermute_grad.c - aclnnMoeTokenUnpermuteWithRoutingMapGrad over moetoken_unpermute_grad: the
 * rules CANN has for its tensors, and the products' limits. */
#include "../../../include/aclnnop/aclnn_moe_token_unpermute_with_routing_map_grad.h"
#include "operators/executor.h"
#include "products/limits.h"
#include "runtime/message.h"

#include <inttypes.h>
#include <stdlib.h>

enum {
    TOKENS_GRAD, /* unpermuted */
    OUT_INDEX,
    TOKEN_ID,
    ROUTING_MAP,
    PERMUTED,
    PROBS,
    PERMUTED_GRAD,
    PROBS_GRAD
};

static const struct parameter parameters[] = {
    [TOKENS_GRAD] = {"unpermutedTokensGrad", &token_types, false, true},
    [OUT_INDEX] = {"outIndex", &index_types, false, true},
    [TOKEN_ID] = {"permuteTokenId", &index_types, false, true},
    [ROUTING_MAP] = {"routingMapOptional", &map_types, false, false},
    [PERMUTED] = {"permutedTokensOptional", &token_types, false, false},
    [PROBS] = {"probsOptional", &token_types, false, false},
    [PERMUTED_GRAD] = {"permutedTokensGradOut", &token_types, true, true},
    [PROBS_GRAD] = {"probsGradOutOptional", &token_types, true, false},
};

static aclnnStatus call(const aclOpExecutor *executor, const moetoken_options *options,
                        bool check_only)
{
    moetoken_unpermute_grad_args args = {
        .unpermuted_tokens_grad = executor_tensor(executor, TOKENS_GRAD),
        .out_index = executor_tensor(executor, OUT_INDEX),
        .permute_token_id = executor_tensor(executor, TOKEN_ID),
        .routing_map = executor_tensor(executor, ROUTING_MAP),
        .permuted_tokens = executor_tensor(executor, PERMUTED),
        .probs = executor_tensor(executor, PROBS),
        .restore_shape =
            executor->attributes.restore_given ? executor->attributes.restore_shape : NULL,
        .drop_and_pad = executor->attributes.drop_and_pad,
        .permuted_tokens_grad = executor_tensor(executor, PERMUTED_GRAD),
        .probs_grad = executor_tensor(executor, PROBS_GRAD)};
    return executor_result(executor, check_only,
                           check_only ? moetoken_unpermute_grad_check(&args, options)
                                      : moetoken_unpermute_grad(&args, options));
}

static const struct operator_description description = {
    .name = "aclnnMoeTokenUnpermuteWithRoutingMapGrad",
    .parameters = parameters,
    .count = sizeof parameters / sizeof parameters[0],
    .shape_status = ACLNN_ERR_INNER_TILING_ERROR,
    .flags = MOETOKEN_TOLERATE_ROUTING_MISMATCH,
    .call = call};

static aclnnStatus check_types(const aclOpExecutor *executor)
{
    aclnnStatus status = executor_same_type(executor, PERMUTED, TOKENS_GRAD);
    if (status == ACLNN_SUCCESS)
        status = executor_same_type(executor, PERMUTED_GRAD, TOKENS_GRAD);
    if (status == ACLNN_SUCCESS)
        status = executor_probs_type(executor, PROBS, TOKENS_GRAD, ACLNN_ERR_INNER_TILING_ERROR);
    if (status == ACLNN_SUCCESS && executor->operands[PROBS].used)
        status = executor_same_type(executor, PROBS_GRAD, PROBS);
    return status;
}

static aclnnStatus check_probs(const aclOpExecutor *executor)
{
    const struct operand *operands = executor->operands;
    if (!operands[PROBS].used || (operands[ROUTING_MAP].used && operands[PERMUTED].used))
        return ACLNN_SUCCESS;
    int missing = operands[ROUTING_MAP].used ? PERMUTED : ROUTING_MAP;
    return fail(ACLNN_ERR_INNER_TILING_ERROR, "%s is NULL although probsOptional is given",
                parameters[missing].name);
}

/* Dropless, the token of slot i is i / K whatever permuteTokenId holds; its shape is checked all
 * the same. */
static aclnnStatus set_aside_token_id(aclOpExecutor *executor)
{
    struct operand *token_id = &executor->operands[TOKEN_ID];
    const struct operand *out_index = &executor->operands[OUT_INDEX];
    if (executor->attributes.drop_and_pad)
        return ACLNN_SUCCESS;
    if (token_id->tensor.ndim != 1 || out_index->tensor.ndim != 1 ||
        token_id->shape[0] != out_index->shape[0])
        return fail(ACLNN_ERR_INNER_TILING_ERROR,
                    "permuteTokenId (rank %d) and outIndex (rank %d) differ in shape or are not of "
                    "rank 1",
                    token_id->tensor.ndim, out_index->tensor.ndim);
    token_id->used = false;
    return ACLNN_SUCCESS;
}

static aclnnStatus check_limits(const aclOpExecutor *executor)
{
    const struct operand *operands = executor->operands;
    char reason[512];
    if (!operands[PROBS].used)
        return ACLNN_SUCCESS;
    struct limits_call limited = {.drop_and_pad = executor->attributes.drop_and_pad,
                                  .tokens_num = operands[TOKENS_GRAD].shape[0],
                                  .hidden_size = operands[TOKENS_GRAD].shape[1],
                                  .experts_num = operands[PROBS].shape[1],
                                  .slots_num = operands[OUT_INDEX].shape[0],
                                  .token_bytes = (int)aclDataTypeSize(operands[TOKENS_GRAD].type),
                                  .probs_bytes = (int)aclDataTypeSize(operands[PROBS].type),
                                  .token_is_bfloat16 = operands[TOKENS_GRAD].type == ACL_BF16};
    const struct product *product = limits_find_product(getenv("MOETOKEN_SOC"));
    if (product == NULL || limits_accept(product, &limited, reason, sizeof reason))
        return ACLNN_SUCCESS;
    return fail(ACLNN_ERR_INNER_TILING_ERROR, "%s", reason);
}

static aclnnStatus check(aclOpExecutor *executor, const aclIntArray *restore_shape)
{
    if (!executor->operands[PROBS].used && executor->operands[PROBS_GRAD].used)
        executor_zero_fill(executor, PROBS_GRAD);
    aclnnStatus status = check_types(executor);
    if (status == ACLNN_SUCCESS)
        status = check_probs(executor);
    if (status == ACLNN_SUCCESS)
        status = executor_restore_shape(executor, restore_shape, ACLNN_ERR_INNER_TILING_ERROR);
    if (status == ACLNN_SUCCESS)
        status = set_aside_token_id(executor);
    if (status == ACLNN_SUCCESS)
        status = executor_check(executor);
    if (status == ACLNN_SUCCESS)
        status = check_limits(executor);
    return status;
}

aclnnStatus aclnnMoeTokenUnpermuteWithRoutingMapGradGetWorkspaceSize(
    const aclTensor *unpermutedTokensGrad, const aclTensor *outIndex,
    const aclTensor *permuteTokenId, const aclTensor *routingMapOptional,
    const aclTensor *permutedTokensOptional, const aclTensor *probsOptional, bool dropAndPad,
    const aclIntArray *restoreShapeOptional, const aclTensor *permutedTokensGradOut,
    const aclTensor *probsGradOutOptional, uint64_t *workspaceSize, aclOpExecutor **executor)
{
    const aclTensor *const tensors[] = {
        [TOKENS_GRAD] = unpermutedTokensGrad,
        [OUT_INDEX] = outIndex,
        [TOKEN_ID] = permuteTokenId,
        [ROUTING_MAP] = probsOptional ? routingMapOptional : NULL,
        [PERMUTED] = probsOptional ? permutedTokensOptional : NULL,
        [PROBS] = probsOptional,
        [PERMUTED_GRAD] = permutedTokensGradOut,
        [PROBS_GRAD] = probsGradOutOptional,
    };
    aclOpExecutor *opened;
    aclnnStatus status = executor_open(&description, tensors, workspaceSize, executor, &opened);
    if (status != ACLNN_SUCCESS)
        return status;
    opened->attributes.drop_and_pad = dropAndPad;
    status = check(opened, restoreShapeOptional);
    return executor_finish(opened, status, opened->operands[TOKENS_GRAD].shape[0],
                           opened->operands[OUT_INDEX].shape[0], workspaceSize, executor);
}

aclnnStatus aclnnMoeTokenUnpermuteWithRoutingMapGrad(void *workspace, uint64_t workspaceSize,
                                                     aclOpExecutor *executor, aclrtStream stream)
{
    return executor_run(&description, workspace, workspaceSize, executor, stream);
}
