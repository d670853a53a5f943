/* unpermute.c - aclnnMoeTokenUnpermuteWithRoutingMap over moetoken_unpermute. */
#include "../../../include/aclnnop/aclnn_moe_token_unpermute_with_routing_map.h"
#include "operators/executor.h"
#include "operators/product_rules.h"
#include "runtime/message.h"

enum {
    PERMUTED,
    SORTED_INDICES,
    ROUTING_MAP,
    PROBS,
    TOKENS, /* unpermuted */
    OUT_INDEX,
    TOKEN_ID,
    PERMUTED_PROBS
};

static const struct parameter parameters[] = {
    [PERMUTED] = {"permutedTokens", &token_types, false, true},
    [SORTED_INDICES] = {"sortedIndices", &index_types, false, true},
    [ROUTING_MAP] = {"routingMapOptional", &byte_map_types, false, false},
    [PROBS] = {"probsOptional", &token_types, false, false},
    [TOKENS] = {"unpermutedTokens", &token_types, true, true},
    [OUT_INDEX] = {"outIndex", &index_types, true, true},
    [TOKEN_ID] = {"permuteTokenId", &index_types, true, true},
    [PERMUTED_PROBS] = {"permuteProbs", &token_types, true, false},
};

static aclnnStatus call(const aclOpExecutor *executor, const moetoken_options *options,
                        bool check_only)
{
    moetoken_unpermute_args args = {.permuted_tokens = executor_tensor(executor, PERMUTED),
                                    .sorted_indices = executor_tensor(executor, SORTED_INDICES),
                                    .routing_map = executor_tensor(executor, ROUTING_MAP),
                                    .probs = executor_tensor(executor, PROBS),
                                    .restore_shape = executor->attributes.restore_given
                                                         ? executor->attributes.restore_shape
                                                         : NULL,
                                    .drop_and_pad = executor->attributes.drop_and_pad,
                                    .unpermuted_tokens = executor_tensor(executor, TOKENS),
                                    .out_index = executor_tensor(executor, OUT_INDEX),
                                    .permute_token_id = executor_tensor(executor, TOKEN_ID),
                                    .permuted_probs = executor_tensor(executor, PERMUTED_PROBS)};
    return executor_result(executor, check_only,
                           check_only ? moetoken_unpermute_check(&args, options)
                                      : moetoken_unpermute(&args, options));
}

static const struct operator_description description = {
    .name = "aclnnMoeTokenUnpermuteWithRoutingMap",
    .parameters = parameters,
    .count = sizeof parameters / sizeof parameters[0],
    .shape_status = ACLNN_ERR_PARAM_INVALID,
    .flags = MOETOKEN_TOLERATE_ROUTING_MISMATCH,
    .call = call};

static aclnnStatus check_types(aclOpExecutor *executor)
{
    struct operand *permuted_probs = &executor->operands[PERMUTED_PROBS];
    bool probs_given = executor->operands[PROBS].used;
    if (!probs_given && permuted_probs->used && operand_is_empty(permuted_probs))
        permuted_probs->used = false; /* programs without probs pass a tensor of shape [0] */
    aclnnStatus status = executor_same_type(executor, TOKENS, PERMUTED);
    if (status == ACLNN_SUCCESS)
        status = executor_probs_type(executor, PROBS, PERMUTED, ACLNN_ERR_PARAM_INVALID);
    if (status == ACLNN_SUCCESS && probs_given)
        status = executor_same_type(executor, PERMUTED_PROBS, PROBS);
    if (status == ACLNN_SUCCESS && !probs_given)
        status = executor_probs_type(executor, PERMUTED_PROBS, PERMUTED, ACLNN_ERR_PARAM_INVALID);
    return status;
}

/* T and H are those of probs, or else of restoreShape. */
static aclnnStatus check_restore_shape(aclOpExecutor *executor, const aclIntArray *restore_shape)
{
    bool probs_given = executor->operands[PROBS].used;
    if (!probs_given && restore_shape == NULL)
        return fail(ACLNN_ERR_PARAM_NULLPTR,
                    "probsOptional and restoreShapeOptional are both NULL, expected restoreShape "
                    "{T, H} without probs");
    aclnnStatus status = executor_restore_shape(
        executor, restore_shape, probs_given ? ACLNN_ERR_PARAM_INVALID : ACLNN_ERR_INNER_NULLPTR);
    if (status == ACLNN_SUCCESS && !probs_given && !executor->attributes.restore_given)
        status = fail(ACLNN_ERR_INNER_NULLPTR,
                      "restoreShape is empty, expected {T, H} when probsOptional is NULL");
    return status;
}

static aclnnStatus check(aclOpExecutor *executor, const aclIntArray *restore_shape)
{
    aclnnStatus status = check_types(executor);
    if (status == ACLNN_SUCCESS)
        status = check_restore_shape(executor, restore_shape);
    if (status == ACLNN_SUCCESS)
        status = executor_check(executor);
    if (status == ACLNN_SUCCESS && !executor->attributes.drop_and_pad)
        status = product_check_topk("R / T", executor->operands[PERMUTED].shape[0],
                                    executor->operands[TOKENS].shape[0]);
    return status;
}

aclnnStatus aclnnMoeTokenUnpermuteWithRoutingMapGetWorkspaceSize(
    const aclTensor *permutedTokens, const aclTensor *sortedIndices,
    const aclTensor *routingMapOptional, const aclTensor *probsOptional, bool paddedMode,
    const aclIntArray *restoreShapeOptional, aclTensor *unpermutedTokens, aclTensor *outIndex,
    aclTensor *permuteTokenId, aclTensor *permuteProbs, uint64_t *workspaceSize,
    aclOpExecutor **executor)
{
    const aclTensor *const tensors[] = {
        [PERMUTED] = permutedTokens,
        [SORTED_INDICES] = sortedIndices,
        [ROUTING_MAP] = probsOptional ? routingMapOptional : NULL,
        [PROBS] = probsOptional,
        [TOKENS] = unpermutedTokens,
        [OUT_INDEX] = outIndex,
        [TOKEN_ID] = permuteTokenId,
        [PERMUTED_PROBS] = permuteProbs,
    };
    aclOpExecutor *opened;
    aclnnStatus status = executor_open(&description, tensors, workspaceSize, executor, &opened);
    if (status != ACLNN_SUCCESS)
        return status;
    opened->attributes.drop_and_pad = paddedMode;
    status = check(opened, restoreShapeOptional);
    return executor_finish(opened, status, opened->operands[TOKENS].shape[0],
                           opened->operands[SORTED_INDICES].shape[0], workspaceSize, executor);
}

aclnnStatus aclnnMoeTokenUnpermuteWithRoutingMap(void *workspace, uint64_t workspaceSize,
                                                 aclOpExecutor *executor, aclrtStream stream)
{
    return executor_run(&description, workspace, workspaceSize, executor, stream);
}
