/* product_verdict.c - whether an Ascend product takes a call of unpermute_grad, and why not. */
#include "product_verdict.h"

#include <stdio.h>

#include "cases/case_files.h"
#include "values/number_formats.h"

static bool has_type(const DLTensor *tensor, moetoken_type type)
{
    moetoken_type found;
    return tensor == NULL || (type_of_tensor(tensor, &found) && found == type);
}

/* The interface takes fewer types than the library, on every product. */
static const char *unknown_type(const moetoken_unpermute_grad_args *args)
{
    if (has_type(args->unpermuted_tokens_grad, MOETOKEN_F64))
        return "tokens of type float64: float32, float16 and bfloat16 are taken";
    if (!has_type(args->out_index, MOETOKEN_I32) || !has_type(args->permute_token_id, MOETOKEN_I32))
        return "indices of type int64: int32 is taken";
    if (args->probs != NULL && has_type(args->routing_map, MOETOKEN_U8))
        return "a routing_map of type uint8: bool and int8 are taken";
    return NULL;
}

static struct limits_call call_of(const moetoken_unpermute_grad_args *args)
{
    return (struct limits_call){.drop_and_pad = args->drop_and_pad,
                                .tokens_num = tensor_dimension(args->unpermuted_tokens_grad, 0),
                                .hidden_size = tensor_dimension(args->unpermuted_tokens_grad, 1),
                                .experts_num = tensor_dimension(args->probs, 1),
                                .slots_num = tensor_dimension(args->out_index, 0),
                                .token_bytes = args->unpermuted_tokens_grad->dtype.bits / 8,
                                .probs_bytes = args->probs ? args->probs->dtype.bits / 8 : 0,
                                .token_is_bfloat16 =
                                    has_type(args->unpermuted_tokens_grad, MOETOKEN_BF16)};
}

/* Whether the product takes the case; if not, or if there is nothing to say yes to, the reason. */
static bool accepts(const struct product *product, const moetoken_unpermute_grad_args *args,
                    char reason[PRODUCT_REASON_SIZE])
{
    struct limits_call call = call_of(args);
    const char *type = unknown_type(args);
    reason[0] = '\0';
    if (!product->has_operators || args->probs != NULL) {
        if (!limits_accept(product, &call, reason, PRODUCT_REASON_SIZE))
            return false;
    } else {
        snprintf(reason, PRODUCT_REASON_SIZE, "without probs nothing is limited");
    }
    if (type != NULL)
        snprintf(reason, PRODUCT_REASON_SIZE, "%s", type);
    return type == NULL;
}

void product_judge(const struct product *product, const moetoken_unpermute_grad_args *args,
                   struct product_verdict *verdict)
{
    struct limits_call call = call_of(args);
    verdict->note[0] = '\0';
    verdict->accepted = accepts(product, args, verdict->reason);
    if (args->probs != NULL)
        limits_differ(product, &call, verdict->note, sizeof verdict->note);
    verdict->word = verdict->accepted ? "accepted" : product->has_operators ? "refused" : "absent";
}
