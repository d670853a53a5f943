/* rules.c - see rules.h. */
#include "operators/gating/rules.h"

#include "operators/product_rules.h"
#include "runtime/message.h"

#include <float.h>
#include <inttypes.h>

enum {
    TOPK_MAX = 1024,    /* what a product takes of the softmax operators */
    EXPERTS_MAX = 2048, /* and of aclnnMoeGatingTopK */
    GROUP_ALIGNMENT = 32
};

aclnnStatus gating_check_one_of(const char *name, int64_t value, int64_t last)
{
    if (value >= 0 && value <= last)
        return ACLNN_SUCCESS;
    return fail(ACLNN_ERR_INNER_TILING_ERROR,
                "%s = %" PRId64 ", expected a number from 0 to %" PRId64, name, value, last);
}

aclnnStatus gating_check_topk(int64_t topk)
{
    if (topk <= TOPK_MAX || !(product_named() || product_is("Ascend310P")))
        return ACLNN_SUCCESS;
    return fail(ACLNN_ERR_INNER_TILING_ERROR,
                "k = %" PRId64 " is above %d, the most a product takes", topk, TOPK_MAX);
}

aclnnStatus gating_check_number(const char *name, double value, double least)
{
    if (value >= least && value <= DBL_MAX)
        return ACLNN_SUCCESS;
    return fail(ACLNN_ERR_INNER_TILING_ERROR, "%s = %g, expected a finite number%s", name, value,
                least == 0 ? " of at least 0" : "");
}

static aclnnStatus check_range(const char *name, int64_t value, int64_t most, const char *what)
{
    if (value >= 1 && value <= most)
        return ACLNN_SUCCESS;
    return fail(ACLNN_ERR_INNER_TILING_ERROR, "%s = %" PRId64 ", expected 1 to %" PRId64 ", %s",
                name, value, most, what);
}

static aclnnStatus check_modes(const struct gating_numbers *numbers)
{
    aclnnStatus status = gating_check_one_of("groupSelectMode", numbers->group_select_mode, 1);
    if (status == ACLNN_SUCCESS)
        status = gating_check_one_of("renorm", numbers->renorm, 1);
    if (status == ACLNN_SUCCESS)
        status = gating_check_one_of("normType", numbers->norm_type, 2);
    if (status == ACLNN_SUCCESS && numbers->norm_type == 2 && product_is_a2_or_a3())
        status = fail(ACLNN_ERR_INNER_TILING_ERROR,
                      "normType = 2, expected 0 or 1: of the products only Ascend 950 has 2");
    if (status == ACLNN_SUCCESS)
        status = gating_check_number("routedScalingFactor", numbers->factor, -DBL_MAX);
    return status == ACLNN_SUCCESS ? gating_check_number("eps", numbers->eps, 0) : status;
}

static aclnnStatus check_groups(const struct gating_numbers *numbers, int64_t experts_num)
{
    const int64_t groups_num = numbers->groups_num;
    if (groups_num < 1 || experts_num % groups_num != 0)
        return fail(ACLNN_ERR_INNER_TILING_ERROR,
                    "groupCount = %" PRId64 ", expected a divisor of %" PRId64
                    ", the last size of x",
                    groups_num, experts_num);
    const int64_t group_size = experts_num / groups_num;
    if (experts_num > 0 && group_size <= numbers->group_select_mode)
        return fail(ACLNN_ERR_INNER_TILING_ERROR,
                    "groupSelectMode = %" PRId64 " wants groups of more than %" PRId64
                    " experts, groupCount = %" PRId64 " makes groups of %" PRId64,
                    numbers->group_select_mode, numbers->group_select_mode, groups_num, group_size);
    aclnnStatus status = check_range("kGroup", numbers->groups_top, groups_num, "groupCount");
    return status == ACLNN_SUCCESS
               ? check_range("k", numbers->topk, numbers->groups_top * group_size,
                             "the experts of kGroup groups")
               : status;
}

/* The host code's rule; the document's, without its exceptions, would refuse groups of one expert.
 */
static aclnnStatus check_product(const struct gating_numbers *numbers, int64_t experts_num)
{
    const int64_t groups_num = numbers->groups_num, group_size = experts_num / groups_num;
    const int64_t aligned = (group_size + GROUP_ALIGNMENT - 1) / GROUP_ALIGNMENT * GROUP_ALIGNMENT;
    if (!product_named())
        return ACLNN_SUCCESS;
    if (experts_num > EXPERTS_MAX)
        return fail(ACLNN_ERR_INNER_TILING_ERROR,
                    "x has %" PRId64 " experts, a product takes at most %d", experts_num,
                    EXPERTS_MAX);
    if (groups_num != 1 && groups_num != experts_num && groups_num != numbers->groups_top &&
        groups_num * aligned > EXPERTS_MAX)
        return fail(ACLNN_ERR_INNER_TILING_ERROR,
                    "groupCount = %" PRId64 " groups of %" PRId64 " experts, rounded up to %" PRId64
                    ", are %" PRId64 ", a product takes at most %d",
                    groups_num, group_size, aligned, groups_num * aligned, EXPERTS_MAX);
    return ACLNN_SUCCESS;
}

/* moetoken.h takes a scale of 0 as 1. The least number there is makes every finite weight 0 in the
 * types of y, with its sign. */
static double scale_of(double factor)
{
    if (factor != 0)
        return factor;
    return 1 / factor > 0 ? DBL_TRUE_MIN : -DBL_TRUE_MIN;
}

aclnnStatus gating_set_router(aclOpExecutor *executor, int x, const struct gating_numbers *numbers)
{
    const struct operand *logits = &executor->operands[x];
    aclnnStatus status = check_modes(numbers);
    if (status == ACLNN_SUCCESS && logits->tensor.ndim != 2)
        status = fail(ACLNN_ERR_INNER_TILING_ERROR, "%s has rank %d, expected 2",
                      executor_name(executor, (size_t)x), logits->tensor.ndim);
    if (status == ACLNN_SUCCESS)
        status = check_groups(numbers, logits->shape[1]);
    if (status == ACLNN_SUCCESS)
        status = check_product(numbers, logits->shape[1]);
    if (status != ACLNN_SUCCESS)
        return status;
    const int32_t scores[] = {MOETOKEN_SCORE_SOFTMAX, MOETOKEN_SCORE_SIGMOID,
                              MOETOKEN_SCORE_SQRTSOFTPLUS};
    executor->attributes.router =
        (moetoken_router_config){.topk = numbers->topk,
                                 .score = scores[numbers->norm_type],
                                 .normalize = numbers->norm_type != 0 || numbers->renorm == 1,
                                 .groups_num = numbers->groups_num,
                                 .groups_top = numbers->groups_top,
                                 .group_score_count = numbers->group_select_mode + 1,
                                 .eps = numbers->eps,
                                 .scale = scale_of(numbers->factor)};
    return ACLNN_SUCCESS;
}

aclnnStatus gating_want_output(aclOpExecutor *executor, int place, bool wanted)
{
    const bool given = executor->operands[place].used;
    if (wanted && !given)
        return fail(ACLNN_ERR_PARAM_NULLPTR, "%s is NULL although its flag asks for it",
                    executor_name(executor, (size_t)place));
    if (!wanted && given)
        executor_zero_fill(executor, place);
    return ACLNN_SUCCESS;
}
