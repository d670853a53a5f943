/* scatter.c - see scatter.h. */
#include "operators/by_ids/scatter.h"

#include "operators/by_ids/rules.h"
#include "operators/by_ids/scratch.h"
#include "runtime/message.h"

/* ---- check ---------------------------------------------------------------------------------- */

static aclnnStatus check_types(const aclOpExecutor *executor, const struct scatter_places *places)
{
    aclnnStatus status = executor_same_type(executor, places->permuted, places->tokens_grad);
    if (status == ACLNN_SUCCESS)
        status = executor_same_type(executor, places->permuted_grad, places->tokens_grad);
    if (status == ACLNN_SUCCESS && executor->operands[places->probs].used)
        status = executor_same_type(executor, places->probs_grad, places->probs);
    return status;
}

/* Without probs the rows are not read, and probsGradOut has nothing to hold. */
static aclnnStatus check_probs(aclOpExecutor *executor, const struct scatter_places *places)
{
    struct operand *operands = executor->operands;
    if (!operands[places->probs].used) {
        operands[places->permuted].used = false;
        if (operands[places->probs_grad].used)
            executor_zero_fill(executor, places->probs_grad);
        return ACLNN_SUCCESS;
    }
    if (operands[places->permuted].used && operands[places->probs_grad].used)
        return ACLNN_SUCCESS;
    int missing = operands[places->permuted].used ? places->probs_grad : places->permuted;
    return fail(ACLNN_ERR_PARAM_NULLPTR, "%s is NULL although probsOptional is given",
                executor_name(executor, (size_t)missing));
}

static aclnnStatus check_slots(const aclOpExecutor *executor, const struct scatter_places *places)
{
    const struct operand *probs = &executor->operands[places->probs];
    int64_t tokens_num = executor->operands[places->tokens_grad].shape[0];
    if (!probs->used || probs->tensor.ndim != 2) /* another rank is refused later */
        return rules_slots(executor, places->sorted_indices, tokens_num, executor->attributes.topk,
                           "topK_num");
    return rules_slots(executor, places->sorted_indices, tokens_num, probs->shape[1],
                       "the second size of probsOptional");
}

static aclnnStatus need_scratch(aclOpExecutor *executor, const struct scatter_places *places)
{
    struct operand *operands = executor->operands;
    int64_t slots = operands[places->sorted_indices].shape[0];
    operands[places->sorted_indices].set_aside = true;
    aclnnStatus status = executor_need_scratch(executor, slots, sizeof(int32_t));
    if (!scratch_probs_convert(executor, places->probs, places->tokens_grad))
        return status;
    operands[places->probs].set_aside = true;
    operands[places->probs_grad].set_aside = true;
    for (int copies = 0; copies < 2 && status == ACLNN_SUCCESS; copies++)
        status = executor_need_scratch(executor, slots, sizeof(float));
    return status;
}

aclnnStatus scatter_check(aclOpExecutor *executor, const struct scatter_places *places,
                          bool padded_mode)
{
    executor_drop_vacant(executor, places->probs);
    aclnnStatus status = check_types(executor, places);
    if (status == ACLNN_SUCCESS)
        status = rules_padded_mode(padded_mode);
    if (status == ACLNN_SUCCESS)
        status = check_probs(executor, places);
    if (status == ACLNN_SUCCESS)
        status = check_slots(executor, places);
    if (status == ACLNN_SUCCESS)
        status = rules_not_empty(executor, places->tokens_grad);
    if (status == ACLNN_SUCCESS)
        status = rules_not_empty(executor, places->sorted_indices);
    if (status == ACLNN_SUCCESS)
        status = need_scratch(executor, places);
    return status == ACLNN_SUCCESS ? executor_check(executor) : status;
}

/* ---- call ----------------------------------------------------------------------------------- */

static moetoken_unpermute_grad_args arguments(const aclOpExecutor *executor,
                                              const struct scatter_places *places)
{
    return (moetoken_unpermute_grad_args){
        .struct_size = sizeof(moetoken_unpermute_grad_args),
        .unpermuted_tokens_grad = executor_tensor(executor, places->tokens_grad),
        .permuted_tokens = executor_tensor(executor, places->permuted),
        .permuted_tokens_grad = executor_tensor(executor, places->permuted_grad),
        .weights = executor_tensor(executor, places->probs),
        .weights_grad = executor_tensor(executor, places->probs_grad)};
}

static aclnnStatus compute(const aclOpExecutor *executor, const moetoken_unpermute_grad_args *args,
                           const moetoken_options *options, bool check_only)
{
    return executor_result(executor, check_only,
                           check_only ? moetoken_unpermute_grad_check(args, options)
                                      : moetoken_unpermute_grad(args, options));
}

aclnnStatus scatter_call(const aclOpExecutor *executor, const struct scatter_places *places,
                         const moetoken_options *options, bool check_only)
{
    const struct attributes *attributes = &executor->attributes;
    const struct row_window window = {attributes->range_given ? attributes->range[0] : 0,
                                      attributes->range_given ? attributes->range[1] : INT64_MAX,
                                      executor->operands[places->permuted_grad].shape[0]};
    moetoken_unpermute_grad_args args = arguments(executor, places);
    void *next = executor->scratch;
    DLTensor rows, weights, weights_grad;
    if (!check_only && executor_outputs_empty(executor))
        return ACLNN_SUCCESS;
    aclnnStatus status =
        scratch_rows(executor, places->sorted_indices, &window, check_only, &next, &rows);
    if (status != ACLNN_SUCCESS)
        return status;
    args.out_index = &rows;
    if (!scratch_probs_convert(executor, places->probs, places->tokens_grad))
        return compute(executor, &args, options, check_only);
    weights = scratch_probs(executor, places->probs, check_only, &next);
    weights_grad = scratch_probs(executor, places->probs_grad, check_only, &next);
    args.weights = &weights;
    args.weights_grad = &weights_grad;
    status = compute(executor, &args, options, check_only);
    if (status == ACLNN_SUCCESS && !check_only)
        scratch_store_probs(executor, places->probs_grad, &weights_grad);
    return status;
}
