/* limits_by_ids.c - see limits_by_ids.h. docs/aclnn.md says where the numbers are from. */
#include "limits_by_ids.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

typedef bool accept_fn(const struct product *product, const struct limits_ids_call *call,
                       char *reason, size_t size);

static bool refuse(char *reason, size_t size, const char *text)
{
    snprintf(reason, size, "%s", text);
    return false;
}

static bool is_a2_or_a3(const struct product *product)
{
    return strcmp(product->name, "Ascend910B") == 0 || strcmp(product->name, "Ascend910_93") == 0;
}

/* ---- what several have in common ------------------------------------------------------------ */

static bool accept_topk(const struct product *product, const struct limits_ids_call *call,
                        char *reason, size_t size)
{
    if (!is_a2_or_a3(product) || call->topk <= LIMITS_TOPK_MAX)
        return true;
    snprintf(reason, size, "K = %" PRId64 " is above %d, the most that Atlas A2 and A3 take",
             call->topk, LIMITS_TOPK_MAX);
    return false;
}

static bool accept_sort(const struct product *product, const struct limits_ids_call *call,
                        char *reason, size_t size)
{
    int64_t slots;
    if (!is_a2_or_a3(product))
        return true;
    if (call->experts_num - 1 > LIMITS_SORT_MAX) {
        snprintf(reason, size, "E = %" PRId64 ": Atlas A2 and A3 sort ids up to %d",
                 call->experts_num, LIMITS_SORT_MAX);
        return false;
    }
    if (!__builtin_mul_overflow(call->tokens_num, call->topk, &slots) && slots <= LIMITS_SORT_MAX)
        return true;
    snprintf(reason, size,
             "T * K = %" PRId64 " * %" PRId64 " slots, Atlas A2 and A3 sort at most %d",
             call->tokens_num, call->topk, LIMITS_SORT_MAX);
    return false;
}

static bool accept_all_experts(const struct limits_ids_call *call, char *reason, size_t size)
{
    if (call->range)
        return refuse(reason, size, "it sends to all experts, not to a range of them");
    if (call->unused_slots)
        return refuse(reason, size, "it has no unused slots: ids are from 0 to E - 1");
    return true;
}

static bool accept_capacity(const struct limits_ids_call *call, char *reason, size_t size)
{
    if (call->capacity <= call->tokens_num)
        return true;
    snprintf(reason, size, "capacity = %" PRId64 " is above T = %" PRId64, call->capacity,
             call->tokens_num);
    return false;
}

/* Beside float32 weights for bfloat16 tokens where `wide` says so. */
static bool accept_weights(const struct product *product, const struct limits_ids_call *call,
                           bool wide, char *reason, size_t size)
{
    if (!is_a2_or_a3(product) || !call->weights || call->weights_of_token_type ||
        (wide && call->weights_float32 && call->tokens_bfloat16))
        return true;
    return refuse(reason, size,
                  wide
                      ? "Atlas A2 and A3 take weights of the tokens' type, or float32 with bfloat16"
                      : "Atlas A2 and A3 take weights of the tokens' type");
}

static bool accept_one_slot(const struct limits_ids_call *call, char *reason, size_t size)
{
    if (call->weights || call->topk == 1)
        return true;
    snprintf(reason, size, "K = %" PRId64 ": without weights it has one slot a token", call->topk);
    return false;
}

static bool accept_no_extras(const struct limits_ids_call *call, char *reason, size_t size)
{
    return call->residual || call->expert_bias
               ? refuse(reason, size, "it has neither residuals nor a bias of the experts")
               : true;
}

/* ---- permute -------------------------------------------------------------------------------- */

static bool accept_token_permute(const struct product *product, const struct limits_ids_call *call,
                                 char *reason, size_t size)
{
    if (call->capacity > 0)
        return refuse(reason, size, "it has no capacity");
    return accept_all_experts(call, reason, size) && accept_topk(product, call, reason, size) &&
           accept_sort(product, call, reason, size);
}

static bool accept_with_ep(const struct product *product, const struct limits_ids_call *call,
                           char *reason, size_t size)
{
    if (!is_a2_or_a3(product))
        return refuse(reason, size, "only Atlas A2 and A3 have it");
    return accept_token_permute(product, call, reason, size);
}

static bool accept_init_routing_v2(const struct product *product,
                                   const struct limits_ids_call *call, char *reason, size_t size)
{
    (void)product;
    return accept_all_experts(call, reason, size) && accept_capacity(call, reason, size);
}

static bool accept_init_routing_v3(const struct product *product,
                                   const struct limits_ids_call *call, char *reason, size_t size)
{
    (void)product;
    if (call->wide_ids)
        return refuse(reason, size, "ids of type int64: int32 is taken");
    if (call->capacity > 0 && call->range)
        return refuse(reason, size, "with a capacity it sends to all experts");
    if (call->experts_num > LIMITS_EXPERTS_MAX) {
        snprintf(reason, size, "E = %" PRId64 " is above %d, the most it takes", call->experts_num,
                 LIMITS_EXPERTS_MAX);
        return false;
    }
    return accept_capacity(call, reason, size);
}

/* ---- the others ----------------------------------------------------------------------------- */

static bool accept_permute_grad(const struct product *product, const struct limits_ids_call *call,
                                char *reason, size_t size)
{
    if (call->weights)
        return refuse(reason, size, "it has no gradient of weights");
    return accept_topk(product, call, reason, size);
}

static bool accept_with_ep_grad(const struct product *product, const struct limits_ids_call *call,
                                char *reason, size_t size)
{
    if (!is_a2_or_a3(product))
        return refuse(reason, size, "only Atlas A2 and A3 have it");
    return accept_topk(product, call, reason, size);
}

static bool accept_init_grad(const struct product *product, const struct limits_ids_call *call,
                             char *reason, size_t size)
{
    (void)product;
    return call->weights ? refuse(reason, size, "it has no gradient of weights") : true;
}

static bool accept_token_unpermute(const struct product *product,
                                   const struct limits_ids_call *call, char *reason, size_t size)
{
    return accept_no_extras(call, reason, size) && accept_one_slot(call, reason, size) &&
           accept_topk(product, call, reason, size);
}

static bool accept_finalize(const struct product *product, const struct limits_ids_call *call,
                            char *reason, size_t size)
{
    return accept_one_slot(call, reason, size) && accept_weights(product, call, true, reason, size);
}

static bool accept_token_unpermute_grad(const struct product *product,
                                        const struct limits_ids_call *call, char *reason,
                                        size_t size)
{
    if (is_a2_or_a3(product) && (call->tokens_num == 0 || call->topk == 0))
        return refuse(reason, size, "Atlas A2 and A3 refuse empty tensors");
    return accept_token_unpermute(product, call, reason, size);
}

static bool accept_finalize_grad(const struct product *product, const struct limits_ids_call *call,
                                 char *reason, size_t size)
{
    return accept_one_slot(call, reason, size) &&
           accept_weights(product, call, false, reason, size);
}

/* ---- table ---------------------------------------------------------------------------------- */

static const struct {
    enum limits_step step;
    const char *name;
    accept_fn *accept;
} operators[] = {
    {LIMITS_PERMUTE, "aclnnMoeTokenPermute", accept_token_permute},
    {LIMITS_PERMUTE, "aclnnMoeTokenPermuteWithEp", accept_with_ep},
    {LIMITS_PERMUTE, "aclnnMoeInitRoutingV2", accept_init_routing_v2},
    {LIMITS_PERMUTE, "aclnnMoeInitRoutingV3", accept_init_routing_v3},
    {LIMITS_PERMUTE_GRAD, "aclnnMoeTokenPermuteGrad", accept_permute_grad},
    {LIMITS_PERMUTE_GRAD, "aclnnMoeTokenPermuteWithEpGrad", accept_with_ep_grad},
    {LIMITS_PERMUTE_GRAD, "aclnnMoeInitRoutingV2Grad", accept_init_grad},
    {LIMITS_UNPERMUTE, "aclnnMoeTokenUnpermute", accept_token_unpermute},
    {LIMITS_UNPERMUTE, "aclnnMoeFinalizeRoutingV2", accept_finalize},
    {LIMITS_UNPERMUTE_GRAD, "aclnnMoeTokenUnpermuteGrad", accept_token_unpermute_grad},
    {LIMITS_UNPERMUTE_GRAD, "aclnnMoeFinalizeRoutingV2Grad", accept_finalize_grad},
};

/* The place in the table; its size when there is none. */
static size_t find(enum limits_step step, size_t index)
{
    const size_t count = sizeof operators / sizeof operators[0];
    for (size_t i = 0; i < count; i++)
        if (operators[i].step == step && index-- == 0)
            return i;
    return count;
}

const char *limits_ids_operator(enum limits_step step, size_t index)
{
    const size_t place = find(step, index);
    return place < sizeof operators / sizeof operators[0] ? operators[place].name : NULL;
}

bool limits_ids_accept(const struct product *product, size_t index,
                       const struct limits_ids_call *call, char *reason, size_t size)
{
    if (!product->has_operators) {
        snprintf(reason, size, "%s (%s) does not have this operator", product->name,
                 product->sold_as);
        return false;
    }
    return product->unified_buffer == 0 ||
           operators[find(call->step, index)].accept(product, call, reason, size);
}
