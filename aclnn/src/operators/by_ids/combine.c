/* combine.c - see combine.h. */
#include "operators/by_ids/combine.h"

#include "operators/by_ids/rules.h"
#include "operators/by_ids/scratch.h"

const struct parameter combine_parameters[COMBINE_OPERANDS] = {
    [COMBINE_PERMUTED] = {"permutedTokens", &token_types, false, true},
    [COMBINE_SORTED_INDICES] = {"sortedIndices", &index_types, false, true},
    [COMBINE_PROBS] = {"probsOptional", &token_types, false, false},
    [COMBINE_TOKENS] = {"out", &token_types, true, true},
};

/* ---- check ---------------------------------------------------------------------------------- */

static aclnnStatus need_scratch(aclOpExecutor *executor)
{
    struct operand *operands = executor->operands;
    int64_t slots = operands[COMBINE_SORTED_INDICES].shape[0];
    operands[COMBINE_SORTED_INDICES].set_aside = true;
    aclnnStatus status = executor_need_scratch(executor, slots, sizeof(int32_t));
    if (status != ACLNN_SUCCESS ||
        !scratch_probs_convert(executor, COMBINE_PROBS, COMBINE_PERMUTED))
        return status;
    operands[COMBINE_PROBS].set_aside = true;
    return executor_need_scratch(executor, slots, sizeof(float));
}

static aclnnStatus check_slots(aclOpExecutor *executor)
{
    const struct operand *probs = &executor->operands[COMBINE_PROBS];
    int64_t tokens_num = executor->operands[COMBINE_TOKENS].shape[0];
    if (!probs->used || probs->tensor.ndim != 2) /* another rank is refused later */
        return rules_slots(executor, COMBINE_SORTED_INDICES, tokens_num, executor->attributes.topk,
                           "topK_num");
    return rules_slots(executor, COMBINE_SORTED_INDICES, tokens_num, probs->shape[1],
                       "the second size of probsOptional");
}

aclnnStatus combine_check(aclOpExecutor *executor, bool padded_mode)
{
    aclnnStatus status = executor_same_type(executor, COMBINE_TOKENS, COMBINE_PERMUTED);
    executor_drop_vacant(executor, COMBINE_PROBS);
    if (status == ACLNN_SUCCESS)
        status = rules_padded_mode(padded_mode);
    if (status == ACLNN_SUCCESS)
        status = check_slots(executor);
    if (status == ACLNN_SUCCESS)
        status = need_scratch(executor);
    if (status == ACLNN_SUCCESS)
        status = executor_check(executor);
    return status;
}

/* ---- call ----------------------------------------------------------------------------------- */

aclnnStatus combine_call(const aclOpExecutor *executor, const moetoken_options *options,
                         bool check_only)
{
    const struct attributes *attributes = &executor->attributes;
    const struct row_window window = {attributes->range_given ? attributes->range[0] : 0,
                                      attributes->range_given ? attributes->range[1] : INT64_MAX,
                                      executor->operands[COMBINE_PERMUTED].shape[0]};
    void *next = executor->scratch;
    DLTensor rows, weights;
    if (!check_only && executor_outputs_empty(executor))
        return ACLNN_SUCCESS;
    aclnnStatus status =
        scratch_rows(executor, COMBINE_SORTED_INDICES, &window, check_only, &next, &rows);
    if (status != ACLNN_SUCCESS)
        return status;
    moetoken_unpermute_args args = {.struct_size = sizeof args,
                                    .permuted_tokens = executor_tensor(executor, COMBINE_PERMUTED),
                                    .sorted_indices = &rows,
                                    .unpermuted_tokens = executor_tensor(executor, COMBINE_TOKENS),
                                    .weights = executor_tensor(executor, COMBINE_PROBS)};
    if (scratch_probs_convert(executor, COMBINE_PROBS, COMBINE_PERMUTED)) {
        weights = scratch_probs(executor, COMBINE_PROBS, check_only, &next);
        args.weights = &weights;
    }
    return executor_result(executor, check_only,
                           check_only ? moetoken_unpermute_check(&args, options)
                                      : moetoken_unpermute(&args, options));
}

aclnnStatus combine_finish(aclOpExecutor *executor, aclnnStatus status, uint64_t *workspace_size,
                           aclOpExecutor **out)
{
    return executor_finish(executor, status, executor->operands[COMBINE_TOKENS].shape[0],
                           executor->operands[COMBINE_SORTED_INDICES].shape[0], workspace_size,
                           out);
}
