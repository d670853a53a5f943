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

/* What experts may take: UB less the buffers of a block of 256 elements and of one slot. */
static int64_t room_for_experts(const struct product *product, int token_bytes)
{
    return product->unified_buffer - (token_bytes + 8) * 256 - (6 * token_bytes + 12);
}

int64_t limits_experts_max(const struct product *product, int token_bytes, int probs_bytes)
{
    if (product->unified_buffer == 0)
        return -1;
    return room_for_experts(product, token_bytes) / (probs_bytes + 1) / 32 * 32;
}

int64_t limits_experts_max_tiling(const struct product *product, int token_bytes, int probs_bytes)
{
    if (product->unified_buffer == 0)
        return -1;
    return room_for_experts(product, token_bytes) / (probs_bytes + 1);
}

int64_t limits_hidden_max(const struct product *product, int token_bytes)
{
    if (product->unified_buffer == 0)
        return -1;
    return 256 * (product->unified_buffer - 2080) / (8 + token_bytes);
}

int64_t limits_hidden_max_tiling(const struct product *product, int token_bytes)
{
    if (product->unified_buffer == 0)
        return -1;
    return 512 * ((product->unified_buffer - 2080) / (2 * (8 + token_bytes)));
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

static bool accept_capacity(const struct limits_call *call, char *reason, size_t size)
{
    int64_t capacity = call->experts_num > 0 ? call->slots_num / call->experts_num : 0;
    if (capacity <= call->tokens_num)
        return true;
    snprintf(reason, size,
             "capacity = N / E = %" PRId64 " / %" PRId64 " = %" PRId64 " is above T = %" PRId64
             ", with probs and drop_and_pad true",
             call->slots_num, call->experts_num, capacity, call->tokens_num);
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
        return accept_capacity(call, reason, size) && accept_hidden(product, call, reason, size);
    return accept_slots(call, reason, size) && accept_experts(product, call, reason, size);
}

/* For float32 on Atlas A2 the kernel does nothing from here on, without an error. */
#define SILENT_ABOVE 38592

static bool is_silent(const struct product *product, const struct limits_call *call)
{
    return strcmp(product->name, "Ascend910B") == 0 && call->token_bytes == 4 &&
           call->probs_bytes == 4 && call->experts_num > SILENT_ABOVE;
}

static bool experts_differ(const struct product *product, const struct limits_call *call,
                           char *note, size_t size)
{
    int64_t documented = limits_experts_max(product, call->token_bytes, call->probs_bytes);
    int64_t most = limits_experts_max_tiling(product, call->token_bytes, call->probs_bytes);
    bool accepts = call->experts_num <= most, silent = accepts && is_silent(product, call);
    if (!silent && accepts == (call->experts_num <= documented))
        return false;
    int length = snprintf(note, size,
                          "the vendor's tiling compares experts_num without rounding it up to 32 "
                          "and takes up to %" PRId64 ", the document %" PRId64,
                          most, documented);
    if (silent && length > 0 && (size_t)length < size)
        snprintf(note + length, size - (size_t)length,
                 "; above %d, with float32, the device computes nothing", SILENT_ABOVE);
    return true;
}

static bool hidden_differs(const struct product *product, const struct limits_call *call,
                           char *note, size_t size)
{
    int64_t documented = limits_hidden_max(product, call->token_bytes);
    int64_t most = limits_hidden_max_tiling(product, call->token_bytes);
    if ((call->hidden_size <= most) == (call->hidden_size <= documented))
        return false;
    snprintf(note, size,
             "the vendor's tiling takes hidden_size up to 512 * floor((UB - 2080) / (2 * (8 + S))) "
             "= %" PRId64 ", the document up to %" PRId64,
             most, documented);
    return true;
}

bool limits_differ(const struct product *product, const struct limits_call *call, char *note,
                   size_t size)
{
    if (product->unified_buffer == 0)
        return false;
    return call->drop_and_pad ? hidden_differs(product, call, note, size)
                              : experts_differ(product, call, note, size);
}
