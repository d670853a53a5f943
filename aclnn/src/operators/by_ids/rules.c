/* rules.c - see rules.h. */
#include "operators/by_ids/rules.h"

#include "operators/product_rules.h"
#include "products/limits_by_ids.h"
#include "runtime/message.h"

#include <inttypes.h>

static aclnnStatus refuse_padded_mode(bool padded_mode, aclnnStatus status)
{
    return padded_mode ? fail(status, "paddedMode is true, expected false") : ACLNN_SUCCESS;
}

aclnnStatus rules_padded_mode(bool padded_mode)
{
    return refuse_padded_mode(padded_mode, ACLNN_ERR_PARAM_INVALID);
}

aclnnStatus rules_padded_mode_permute(bool padded_mode)
{
    return refuse_padded_mode(padded_mode, product_is("Ascend950") ? ACLNN_ERR_PARAM_INVALID
                                                                   : ACLNN_ERR_INNER_TILING_ERROR);
}

aclnnStatus rules_topk(int64_t topk, const char *name)
{
    if (topk <= LIMITS_TOPK_MAX || !product_is_a2_or_a3())
        return ACLNN_SUCCESS;
    return fail(ACLNN_ERR_INNER_TILING_ERROR,
                "%s = %" PRId64 " is above %d, the most that Atlas A2 and A3 take", name, topk,
                LIMITS_TOPK_MAX);
}

aclnnStatus rules_slots(const aclOpExecutor *executor, int indices, int64_t tokens_num,
                        int64_t topk, const char *name)
{
    int64_t slots = executor->operands[indices].shape[0], expected;
    if (executor->operands[indices].tensor.ndim != 1)
        return fail(ACLNN_ERR_INNER_TILING_ERROR, "%s has rank %d, expected 1",
                    executor_name(executor, (size_t)indices),
                    executor->operands[indices].tensor.ndim);
    if (__builtin_mul_overflow(tokens_num, topk, &expected) || slots != expected)
        return fail(ACLNN_ERR_INNER_TILING_ERROR,
                    "%s has %" PRId64 " values, expected T * K = %" PRId64 " * %" PRId64
                    ", with K = %s",
                    executor_name(executor, (size_t)indices), slots, tokens_num, topk, name);
    return rules_topk(topk, name);
}

aclnnStatus rules_range(const int64_t range[2])
{
    if (range[0] >= 0 && range[0] <= range[1])
        return ACLNN_SUCCESS;
    return fail(ACLNN_ERR_INNER_TILING_ERROR,
                "rangeOptional = {%" PRId64 ", %" PRId64 "}, expected 0 <= begin <= end", range[0],
                range[1]);
}

aclnnStatus rules_topk_given(const aclOpExecutor *executor, int probs, int64_t topk,
                             const char *name)
{
    const struct operand *operand = &executor->operands[probs];
    if (topk < 1)
        return fail(ACLNN_ERR_INNER_TILING_ERROR, "%s = %" PRId64 ", expected at least 1", name,
                    topk);
    if (!operand->used || operand->tensor.ndim != 2 || operand->shape[1] == topk)
        return ACLNN_SUCCESS;
    return fail(ACLNN_ERR_INNER_TILING_ERROR,
                "%s = %" PRId64 ", expected %" PRId64 ", the second size of %s", name, topk,
                operand->shape[1], executor_name(executor, (size_t)probs));
}

aclnnStatus rules_sorted_slots(int64_t slots_num)
{
    if (slots_num <= LIMITS_SORT_MAX || !product_is_a2_or_a3())
        return ACLNN_SUCCESS;
    return fail(ACLNN_ERR_INNER_TILING_ERROR,
                "indices has %" PRId64 " values, Atlas A2 and A3 sort at most %d", slots_num,
                LIMITS_SORT_MAX);
}

aclnnStatus rules_sorted_id(int64_t largest)
{
    if (largest <= LIMITS_SORT_MAX || !product_is_a2_or_a3())
        return ACLNN_SUCCESS;
    return fail(ACLNN_ERR_INNER_TILING_ERROR,
                "indices holds %" PRId64 ", Atlas A2 and A3 sort values up to %d", largest,
                LIMITS_SORT_MAX);
}

aclnnStatus rules_not_empty(const aclOpExecutor *executor, int place)
{
    if (!operand_is_empty(&executor->operands[place]) || !product_is_a2_or_a3())
        return ACLNN_SUCCESS;
    return fail(ACLNN_ERR_INNER_TILING_ERROR, "%s is empty, which Atlas A2 and A3 refuse",
                executor_name(executor, (size_t)place));
}
