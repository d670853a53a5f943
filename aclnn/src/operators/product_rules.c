/* product_rules.c - see product_rules.h. The limits of unpermute_grad are in products/limits.c. */
#include "product_rules.h"

#include "products/limits.h"
#include "runtime/message.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* The sort of a device counts in float32. */
static const int64_t SORT_MAX = 16777214;

static const struct product *named_product(void)
{
    const struct product *product = limits_find_product(getenv("MOETOKEN_SOC"));
    return product && product->unified_buffer > 0 ? product : NULL;
}

bool product_named(void)
{
    return named_product() != NULL;
}

bool product_is(const char *name)
{
    const struct product *product = limits_find_product(getenv("MOETOKEN_SOC"));
    return product && strcmp(product->name, name) == 0;
}

bool product_is_a2_or_a3(void)
{
    return product_is("Ascend910B") || product_is("Ascend910_93");
}

aclnnStatus product_check_topk(const char *formula, int64_t rows_num, int64_t tokens_num)
{
    const struct product *product = named_product();
    if (product == NULL || tokens_num <= 0 || rows_num / tokens_num <= LIMITS_TOPK_MAX)
        return ACLNN_SUCCESS;
    return fail(ACLNN_ERR_INNER_NULLPTR,
                "topK_num = %s = %" PRId64 " / %" PRId64 " = %" PRId64
                " is above %d, the most that %s (%s) takes with drop_and_pad false",
                formula, rows_num, tokens_num, rows_num / tokens_num, LIMITS_TOPK_MAX,
                product->name, product->sold_as);
}

static aclnnStatus check_sort(const char *name, int64_t value, aclnnStatus status)
{
    const struct product *product = named_product();
    if (value <= SORT_MAX)
        return ACLNN_SUCCESS;
    return fail(status, "%s = %" PRId64 " is above %" PRId64 ", the most that %s (%s) sorts", name,
                value, SORT_MAX, product->name, product->sold_as);
}

aclnnStatus product_check_permute(const aclOpExecutor *executor, int64_t tokens_num,
                                  int64_t experts_num, int64_t rows_num)
{
    if (!product_named() || tokens_num == 0 || experts_num == 0)
        return ACLNN_SUCCESS;
    int64_t unit = executor->attributes.drop_and_pad ? experts_num : tokens_num;
    int64_t slots = executor->attributes.num_out_tokens / unit * unit;
    aclnnStatus status = check_sort("tokens_num", tokens_num, ACLNN_ERR_PARAM_INVALID);
    if (status == ACLNN_SUCCESS)
        status = check_sort("experts_num", experts_num, ACLNN_ERR_PARAM_INVALID);
    if (status == ACLNN_SUCCESS && rows_num != slots)
        status = fail(ACLNN_ERR_PARAM_INVALID,
                      "permuteTokensOut has %" PRId64 " rows, expected %" PRId64
                      ", numOutTokens = %" PRId64 " rounded down to a multiple of %" PRId64,
                      rows_num, slots, executor->attributes.num_out_tokens, unit);
    if (status != ACLNN_SUCCESS || executor->attributes.drop_and_pad)
        return status;
    status =
        product_check_topk("numOutTokens / T", executor->attributes.num_out_tokens, tokens_num);
    return status == ACLNN_SUCCESS
               ? check_sort("topK_num * tokens_num", slots, ACLNN_ERR_INNER_NULLPTR)
               : status;
}

aclnnStatus product_check_positive(const char *name, int64_t value)
{
    const struct product *product = named_product();
    if (product == NULL || value > 0)
        return ACLNN_SUCCESS;
    return fail(ACLNN_ERR_PARAM_INVALID, "%s = %" PRId64 ", expected at least 1 on %s (%s)", name,
                value, product->name, product->sold_as);
}
