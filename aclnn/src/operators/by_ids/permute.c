/* permute.c - aclnnMoeTokenPermute over moetoken_permute. */
#include "../../../include/aclnnop/aclnn_moe_token_permute.h"
#include "operators/by_ids/rules.h"
#include "operators/by_ids/sort.h"

enum {
    TOKENS,
    INDICES,
    PERMUTED,
    SORTED_INDICES
};

static const struct parameter parameters[] = {
    [TOKENS] = {"tokens", &token_types, false, true},
    [INDICES] = {"indices", &id_types, false, true},
    [PERMUTED] = {"permuteTokensOut", &token_types, true, true},
    [SORTED_INDICES] = {"sortedIndicesOut", &index_types, true, true},
};

static const struct sort_places places = {.tokens = TOKENS,
                                          .indices = INDICES,
                                          .probs = -1,
                                          .permuted = PERMUTED,
                                          .sorted_indices = SORTED_INDICES,
                                          .permuted_probs = -1};

static aclnnStatus call(const aclOpExecutor *executor, const moetoken_options *options,
                        bool check_only)
{
    return sort_call(executor, &places, options, check_only);
}

static const struct operator_description description = {
    .name = "aclnnMoeTokenPermute",
    .parameters = parameters,
    .count = sizeof parameters / sizeof parameters[0],
    .shape_status = ACLNN_ERR_INNER_TILING_ERROR,
    .call = call};

static aclnnStatus check(aclOpExecutor *executor, bool padded_mode)
{
    aclnnStatus status = executor_same_type(executor, PERMUTED, TOKENS);
    if (status == ACLNN_SUCCESS)
        status = rules_padded_mode_permute(padded_mode);
    if (status == ACLNN_SUCCESS)
        status = sort_prepare(executor, &places);
    if (status == ACLNN_SUCCESS)
        status = executor_check(executor);
    return status;
}

aclnnStatus aclnnMoeTokenPermuteGetWorkspaceSize(const aclTensor *tokens, const aclTensor *indices,
                                                 int64_t numOutTokens, bool paddedMode,
                                                 const aclTensor *permuteTokensOut,
                                                 const aclTensor *sortedIndicesOut,
                                                 uint64_t *workspaceSize, aclOpExecutor **executor)
{
    const aclTensor *const tensors[] = {
        [TOKENS] = tokens,
        [INDICES] = indices,
        [PERMUTED] = permuteTokensOut,
        [SORTED_INDICES] = sortedIndicesOut,
    };
    aclOpExecutor *opened;
    aclnnStatus status = executor_open(&description, tensors, workspaceSize, executor, &opened);
    if (status != ACLNN_SUCCESS)
        return status;
    opened->attributes.num_out_tokens = numOutTokens;
    status = check(opened, paddedMode);
    return executor_finish(opened, status, opened->operands[TOKENS].shape[0],
                           opened->operands[SORTED_INDICES].shape[0], workspaceSize, executor);
}

aclnnStatus aclnnMoeTokenPermute(void *workspace, uint64_t workspaceSize, aclOpExecutor *executor,
                                 aclrtStream stream)
{
    return executor_run(&description, workspace, workspaceSize, executor, stream);
}
