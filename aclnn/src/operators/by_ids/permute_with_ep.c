/* permute_with_ep.c - aclnnMoeTokenPermuteWithEp over moetoken_permute. */
#include "../../../include/aclnnop/aclnn_moe_token_permute_with_ep.h"
#include "operators/by_ids/rules.h"
#include "operators/by_ids/sort.h"
#include "runtime/message.h"

enum {
    TOKENS,
    INDICES,
    PROBS,
    PERMUTED,
    SORTED_INDICES,
    PERMUTED_PROBS
};

static const struct parameter parameters[] = {
    [TOKENS] = {"tokens", &token_types, false, true},
    [INDICES] = {"indices", &id_types, false, true},
    [PROBS] = {"probsOptional", &token_types, false, false},
    [PERMUTED] = {"permuteTokensOut", &token_types, true, true},
    [SORTED_INDICES] = {"sortedIndicesOut", &index_types, true, true},
    [PERMUTED_PROBS] = {"permuteProbsOut", &token_types, true, false},
};

static const struct sort_places places = {.tokens = TOKENS,
                                          .indices = INDICES,
                                          .probs = PROBS,
                                          .permuted = PERMUTED,
                                          .sorted_indices = SORTED_INDICES,
                                          .permuted_probs = PERMUTED_PROBS};

static aclnnStatus call(const aclOpExecutor *executor, const moetoken_options *options,
                        bool check_only)
{
    return sort_call(executor, &places, options, check_only);
}

static const struct operator_description description = {
    .name = "aclnnMoeTokenPermuteWithEp",
    .parameters = parameters,
    .count = sizeof parameters / sizeof parameters[0],
    .shape_status = ACLNN_ERR_INNER_TILING_ERROR,
    .absent_from = "Ascend950",
    .call = call};

/* The document: without a range probs are ignored, as in the gradient. */
static aclnnStatus check_probs(aclOpExecutor *executor)
{
    struct operand *probs = &executor->operands[PROBS];
    struct operand *permuted_probs = &executor->operands[PERMUTED_PROBS];
    executor_drop_vacant(executor, PROBS);
    aclnnStatus status = executor_same_type(executor, PROBS, TOKENS);
    if (status == ACLNN_SUCCESS)
        status = executor_same_type(executor, PERMUTED_PROBS, TOKENS);
    if (!executor->attributes.range_given)
        probs->used = false;
    if (probs->used && !permuted_probs->used && status == ACLNN_SUCCESS)
        status = fail(ACLNN_ERR_PARAM_NULLPTR,
                      "permuteProbsOut is NULL although probsOptional is given");
    if (!probs->used && permuted_probs->used)
        executor_zero_fill(executor, PERMUTED_PROBS);
    return status;
}

static aclnnStatus check(aclOpExecutor *executor, const aclIntArray *range, bool padded_mode)
{
    struct attributes *attributes = &executor->attributes;
    aclnnStatus status = executor_pair(range, "rangeOptional", attributes->range,
                                       &attributes->range_given, ACLNN_ERR_INNER_TILING_ERROR);
    if (status == ACLNN_SUCCESS)
        status = executor_same_type(executor, PERMUTED, TOKENS);
    if (status == ACLNN_SUCCESS)
        status = check_probs(executor);
    if (status == ACLNN_SUCCESS)
        status = rules_padded_mode_permute(padded_mode);
    if (status == ACLNN_SUCCESS)
        status = sort_prepare(executor, &places);
    if (status == ACLNN_SUCCESS)
        status = executor_check(executor);
    return status;
}

aclnnStatus aclnnMoeTokenPermuteWithEpGetWorkspaceSize(
    const aclTensor *tokens, const aclTensor *indices, const aclTensor *probsOptional,
    const aclIntArray *rangeOptional, int64_t numOutTokens, bool paddedMode,
    const aclTensor *permuteTokensOut, const aclTensor *sortedIndicesOut,
    const aclTensor *permuteProbsOut, uint64_t *workspaceSize, aclOpExecutor **executor)
{
    const aclTensor *const tensors[] = {
        [TOKENS] = tokens,
        [INDICES] = indices,
        [PROBS] = probsOptional,
        [PERMUTED] = permuteTokensOut,
        [SORTED_INDICES] = sortedIndicesOut,
        [PERMUTED_PROBS] = permuteProbsOut,
    };
    aclOpExecutor *opened;
    aclnnStatus status = executor_open(&description, tensors, workspaceSize, executor, &opened);
    if (status != ACLNN_SUCCESS)
        return status;
    opened->attributes.num_out_tokens = numOutTokens;
    status = check(opened, rangeOptional, paddedMode);
    return executor_finish(opened, status, opened->operands[TOKENS].shape[0],
                           opened->operands[SORTED_INDICES].shape[0], workspaceSize, executor);
}

aclnnStatus aclnnMoeTokenPermuteWithEp(void *workspace, uint64_t workspaceSize,
                                       aclOpExecutor *executor, aclrtStream stream)
{
    return executor_run(&description, workspace, workspaceSize, executor, stream);
}
