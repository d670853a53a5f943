/* gather.c - see gather.h. */
#include "operators/by_ids/gather.h"

#include "operators/by_ids/rules.h"
#include "operators/by_ids/scratch.h"
#include "runtime/message.h"

#include <inttypes.h>

aclnnStatus gather_check(aclOpExecutor *executor, const struct gather_places *places,
                         const char *topk_name, bool padded_mode)
{
    struct operand *operands = executor->operands;
    struct operand *sorted_indices = &operands[places->sorted_indices];
    int64_t topk = executor->attributes.topk;
    aclnnStatus status = executor_same_type(executor, places->tokens_grad, places->permuted_grad);
    if (status == ACLNN_SUCCESS)
        status = rules_padded_mode(padded_mode);
    if (status == ACLNN_SUCCESS && topk < 1)
        status = fail(ACLNN_ERR_INNER_TILING_ERROR, "%s = %" PRId64 ", expected at least 1",
                      topk_name, topk);
    if (status == ACLNN_SUCCESS)
        status = rules_slots(executor, places->sorted_indices,
                             operands[places->tokens_grad].shape[0], topk, topk_name);
    if (status == ACLNN_SUCCESS)
        status = executor_need_scratch(executor, sorted_indices->shape[0], sizeof(int32_t));
    sorted_indices->set_aside = true;
    return status == ACLNN_SUCCESS ? executor_check(executor) : status;
}

static const DLTensor *optional(const aclOpExecutor *executor, int place)
{
    return place < 0 ? NULL : executor_tensor(executor, place);
}

aclnnStatus gather_call(const aclOpExecutor *executor, const struct gather_places *places,
                        const moetoken_options *options, bool check_only)
{
    const struct attributes *attributes = &executor->attributes;
    const struct row_window window = {attributes->range_given ? attributes->range[0] : 0,
                                      attributes->range_given ? attributes->range[1] : INT64_MAX,
                                      executor->operands[places->permuted_grad].shape[0]};
    void *next = executor->scratch;
    DLTensor rows;
    if (!check_only && executor_outputs_empty(executor))
        return ACLNN_SUCCESS;
    aclnnStatus status =
        scratch_rows(executor, places->sorted_indices, &window, check_only, &next, &rows);
    if (status != ACLNN_SUCCESS)
        return status;
    moetoken_permute_grad_args args = {
        .struct_size = sizeof args,
        .permuted_tokens_grad = executor_tensor(executor, places->permuted_grad),
        .permuted_probs_grad = optional(executor, places->permuted_probs_grad),
        .sorted_indices = &rows,
        .tokens_num = executor->operands[places->tokens_grad].shape[0],
        .tokens_grad = executor_tensor(executor, places->tokens_grad),
        .weights_grad = optional(executor, places->probs_grad)};
    return executor_result(executor, check_only,
                           check_only ? moetoken_permute_grad_check(&args, options)
                                      : moetoken_permute_grad(&args, options));
}
