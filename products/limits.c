/* limits.c - the table of products and the formulas of their limits. Phase one of the operators
 * asks here, and so does `moetoken limits`. */
#include "limits.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* Prefixes of others come behind them: limits_find_product takes the first that fits. */
static const struct product products[] = {
    {"host", "no product", true, 0},
    {"Ascend910B", "Atlas A2", true, 196352},
    {"Ascend910_93", "Atlas A3", true, 196352},
    {"Ascend950", "Ascend 950PR/950DT", true, 253952},
    {"Ascend310B", "Atlas 200I/500 A2", false, 0},
    {"Ascend310P", "Atlas inference", false, 0},
    {"Ascend910A", "Atlas training", false, 0},
};
enum {
    PRODUCTS = sizeof products / sizeof products[0]
};

const struct product *limits_product(size_t index)
{
    return index < PRODUCTS ? &products[index] : NULL;
}

const struct product *limits_find_product(const char *name)
{
    if (name == NULL || name[0] == '\0')
        return &products[0];
    for (size_t i = 0; i < PRODUCTS; i++)
        if (strcmp(name, products[i].name) == 0)
            return &products[i];
    for (size_t i = 1; i < PRODUCTS; i++)
        if (strncmp(name, products[i].name, strlen(products[i].name)) == 0)
            return &products[i];
    return NULL;
}

static bool accept_slots(const struct limits_call *call, char *reason, size_t size)
{
    int64_t topk = call->tokens_num > 0 ? call->slots_num / call->tokens_num : 0;
    if (topk > LIMITS_TOPK_MAX) {
        snprintf(reason, size,
                 "topK_num = N / T = %" PRId64 " / %" PRId64 " = %" PRId64
                 " is above %d, with probs and drop_and_pad false",
                 call->slots_num, call->tokens_num, topk, LIMITS_TOPK_MAX);
        return false;
    }
    if (topk > call->experts_num) {
        snprintf(reason, size,
                 "topK_num = N / T = %" PRId64 " / %" PRId64 " = %" PRId64
                 " is above experts_num = %" PRId64 ", with probs and drop_and_pad false",
                 call->slots_num, call->tokens_num, topk, call->experts_num);
        return false;
    }
    return true;
}

int64_t limits_experts_max(const struct product *product, int token_bytes, int probs_bytes)
{
    if (product->unified_buffer == 0)
        return -1;
    int64_t room = product->unified_buffer - (token_bytes + 8) * 256 - (6 * token_bytes + 12);
    return room / (probs_bytes + 1) / 32 * 32;
}

int64_t limits_hidden_max(const struct product *product, int token_bytes)
{
    if (product->unified_buffer == 0)
        return -1;
    return 256 * (product->unified_buffer - 2080) / (8 + token_bytes);
}

static bool accept_experts(const struct product *product, const struct limits_call *call,
                           char *reason, size_t size)
{
    int64_t most = limits_experts_max(product, call->token_bytes, call->probs_bytes);
    if (most < 0 || call->experts_num <= most)
        return true;
    snprintf(reason, size,
             "experts_num = %" PRId64 " is above %" PRId64
             ", the most that %s (%s) takes with probs and drop_and_pad false: "
             "(UB - (Q + 1) * Ea - (S + 8) * 256) / (6 * S + 12) >= 1 does not hold with "
             "UB = %" PRId64 ", Q = %d, S = %d, Ea = %" PRId64,
             call->experts_num, most, product->name, product->sold_as, product->unified_buffer,
             call->probs_bytes, call->token_bytes, (call->experts_num + 31) / 32 * 32);
    return false;
}

static bool accept_hidden(const struct product *product, const struct limits_call *call,
                          char *reason, size_t size)
{
    int64_t most = limits_hidden_max(product, call->token_bytes);
    if (most < 0 || call->hidden_size <= most)
        return true;
    snprintf(reason, size,
             "hidden_size = %" PRId64 " is above %" PRId64
             ", the most that %s (%s) takes with probs and drop_and_pad true: "
             "H <= 256 * (UB - 2080) / (8 + S) does not hold with UB = %" PRId64 ", S = %d",
             call->hidden_size, most, product->name, product->sold_as, product->unified_buffer,
             call->token_bytes);
    return false;
}

static bool accept_types(const struct product *product, const struct limits_call *call,
                         char *reason, size_t size)
{
    if (product->unified_buffer == 0 || call->probs_bytes == call->token_bytes ||
        call->token_is_bfloat16)
        return true;
    snprintf(reason, size,
             "probs of another type than the tokens: %s (%s) takes that, as float32, with "
             "bfloat16 tokens only",
             product->name, product->sold_as);
    return false;
}

bool limits_accept(const struct product *product, const struct limits_call *call, char *reason,
                   size_t size)
{
    if (!product->has_operators) {
        snprintf(reason, size, "%s (%s) does not have this operator", product->name,
                 product->sold_as);
        return false;
    }
    if (!accept_types(product, call, reason, size))
        return false;
    if (call->drop_and_pad)
        return accept_hidden(product, call, reason, size);
    return accept_slots(call, reason, size) && accept_experts(product, call, reason, size);
}
