/* permute.c - aclnnMoeTokenPermuteWithRoutingMap over moetoken_permute. */
#include "../../../include/aclnnop/aclnn_moe_token_permute_with_routing_map.h"
#include "operators/executor.h"
#include "operators/product_rules.h"
#include "runtime/message.h"

#include <inttypes.h>

enum {
    TOKENS,
    ROUTING_MAP,
    PROBS,
    PERMUTED,
    PERMUTED_PROBS,
    SORTED_INDICES
};

static const struct parameter parameters[] = {
    [TOKENS] = {"tokens", &token_types, false, true},
    [ROUTING_MAP] = {"routingMap", &map_types, false, true},
    [PROBS] = {"probsOptional", &token_types, false, false},
    [PERMUTED] = {"permuteTokensOut", &token_types, true, true},
    [PERMUTED_PROBS] = {"permuteProbsOutOptional", &token_types, true, false},
    [SORTED_INDICES] = {"sortedIndicesOut", &index_types, true, true},
};

static aclnnStatus call(const aclOpExecutor *executor, const moetoken_options *options,
                        bool check_only)
{
    moetoken_permute_args args = {.tokens = executor_tensor(executor, TOKENS),
                                  .routing_map = executor_tensor(executor, ROUTING_MAP),
                                  .probs = executor_tensor(executor, PROBS),
                                  .num_out_tokens = executor->attributes.num_out_tokens,
                                  .drop_and_pad = executor->attributes.drop_and_pad,
                                  .permuted_tokens = executor_tensor(executor, PERMUTED),
                                  .permuted_probs = executor_tensor(executor, PERMUTED_PROBS),
                                  .sorted_indices = executor_tensor(executor, SORTED_INDICES)};
    return executor_result(executor, check_only,
                           check_only ? moetoken_permute_check(&args, options)
                                      : moetoken_permute(&args, options));
}

static const struct operator_description description = {
    .name = "aclnnMoeTokenPermuteWithRoutingMap",
    .parameters = parameters,
    .count = sizeof parameters / sizeof parameters[0],
    .shape_status = ACLNN_ERR_PARAM_INVALID,
    .call = call};

static aclnnStatus check_probs(aclOpExecutor *executor)
{
    struct operand *operands = executor->operands;
    if (operands[PROBS].used && !operands[PERMUTED_PROBS].used)
        return fail(ACLNN_ERR_PARAM_NULLPTR,
                    "permuteProbsOutOptional is NULL although probsOptional is given");
    aclnnStatus status = executor_same_type(executor, PERMUTED, TOKENS);
    if (status == ACLNN_SUCCESS)
        status = executor_probs_type(executor, PROBS, TOKENS, ACLNN_ERR_PARAM_INVALID);
    if (operands[PROBS].used && status == ACLNN_SUCCESS)
        status = executor_same_type(executor, PERMUTED_PROBS, PROBS);
    if (!operands[PROBS].used && operands[PERMUTED_PROBS].used)
        executor_zero_fill(executor, PERMUTED_PROBS);
    return status;
}

/* Every slot is a pair of a token and an expert. */
static aclnnStatus check_num_out_tokens(const aclOpExecutor *executor)
{
    const struct operand *map = &executor->operands[ROUTING_MAP];
    int64_t pairs = 0;
    if (map->tensor.ndim != 2 || __builtin_mul_overflow(map->shape[0], map->shape[1], &pairs) ||
        executor->attributes.num_out_tokens <= pairs)
        return ACLNN_SUCCESS;
    return fail(ACLNN_ERR_PARAM_INVALID,
                "num_out_tokens = %" PRId64 " is above T * E = %" PRId64 " * %" PRId64,
                executor->attributes.num_out_tokens, map->shape[0], map->shape[1]);
}

static aclnnStatus check(aclOpExecutor *executor)
{
    const struct operand *operands = executor->operands;
    aclnnStatus status = check_probs(executor);
    if (status == ACLNN_SUCCESS)
        status = check_num_out_tokens(executor);
    if (status == ACLNN_SUCCESS)
        status = executor_check(executor);
    if (status == ACLNN_SUCCESS)
        status = product_check_permute(executor, operands[TOKENS].shape[0],
                                       operands[ROUTING_MAP].shape[1], operands[PERMUTED].shape[0]);
    return status;
}

aclnnStatus aclnnMoeTokenPermuteWithRoutingMapGetWorkspaceSize(
    const aclTensor *tokens, const aclTensor *routingMap, const aclTensor *probsOptional,
    int64_t numOutTokens, bool dropAndPad, aclTensor *permuteTokensOut,
    aclTensor *permuteProbsOutOptional, aclTensor *sortedIndicesOut, uint64_t *workspaceSize,
    aclOpExecutor **executor)
{
    const aclTensor *const tensors[] = {
        [TOKENS] = tokens,
        [ROUTING_MAP] = routingMap,
        [PROBS] = probsOptional,
        [PERMUTED] = permuteTokensOut,
        [PERMUTED_PROBS] = permuteProbsOutOptional,
        [SORTED_INDICES] = sortedIndicesOut,
    };
    aclOpExecutor *opened;
    aclnnStatus status = executor_open(&description, tensors, workspaceSize, executor, &opened);
    if (status != ACLNN_SUCCESS)
        return status;
    opened->attributes.drop_and_pad = dropAndPad;
    opened->attributes.num_out_tokens = numOutTokens;
    status = check(opened);
    return executor_finish(opened, status, opened->operands[TOKENS].shape[0], numOutTokens,
                           workspaceSize, executor);
}

aclnnStatus aclnnMoeTokenPermuteWithRoutingMap(void *workspace, uint64_t workspaceSize,
                                               aclOpExecutor *executor, aclrtStream stream)
{
    return executor_run(&description, workspace, workspaceSize, executor, stream);
}
