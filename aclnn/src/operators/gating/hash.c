/* hash.c - see hash.h. The scores come from moetoken_router, in binary64, some tokens at a time, so
 * that the workspace is small; a token's weights are made of its experts' scores here. */
#include "operators/gating/hash.h"

#include "operators/by_ids/scratch.h"
#include "operators/gating/numbers.h"
#include "operators/routing/tensors.h"
#include "runtime/message.h"

#include <inttypes.h>

/* Scores of as many tokens as come to about so many numbers. */
enum {
    SCORES_AT_ONCE = 1 << 16
};

static int64_t tokens_at_once(const aclOpExecutor *executor, const struct hash_places *places)
{
    const int64_t *x = executor->operands[places->x].shape;
    const int64_t fit = x[1] > 0 && x[1] < SCORES_AT_ONCE ? SCORES_AT_ONCE / x[1] : 1;
    return x[0] < fit ? x[0] : fit;
}

/* ---- check ---------------------------------------------------------------------------------- */

aclnnStatus hash_check(aclOpExecutor *executor, const struct hash_places *places)
{
    const int64_t *x = executor->operands[places->x].shape;
    const int64_t topk = executor->attributes.router.topk,
                  tokens = tokens_at_once(executor, places);
    aclnnStatus status = tensors_expect(executor, places->input_ids, 1, x, "[T]");
    if (status == ACLNN_SUCCESS)
        status = tensors_expect(executor, places->table, 2, (int64_t[]){-1, topk}, "[numKeys,k]");
    if (status == ACLNN_SUCCESS)
        status = executor_need_scratch(executor, tokens * x[1], sizeof(double));
    for (size_t i = 0; i < executor->description->count; i++)
        executor->operands[i].set_aside = executor->operands[i].used;
    return status == ACLNN_SUCCESS ? executor_check(executor) : status;
}

/* ---- values --------------------------------------------------------------------------------- */

static aclnnStatus check_token(const aclOpExecutor *executor, const struct hash_places *places,
                               int64_t token)
{
    const int64_t keys_num = executor->operands[places->table].shape[0];
    const int64_t experts_num = executor->operands[places->x].shape[1];
    const int64_t key = tensors_load_index(executor, places->input_ids, token, 0);
    if (key < 0 || key >= keys_num)
        return fail(ACLNN_ERR_INNER_TILING_ERROR,
                    "%s[%" PRId64 "] = %" PRId64 " is outside [0, %" PRId64 ")",
                    executor_name(executor, (size_t)places->input_ids), token, key, keys_num);
    for (int64_t k = 0; k < executor->attributes.router.topk; k++) {
        const int64_t expert = tensors_load_index(executor, places->table, key, k);
        if (expert < 0 || expert >= experts_num)
            return fail(ACLNN_ERR_INNER_TILING_ERROR,
                        "%s[%" PRId64 ", %" PRId64 "] = %" PRId64 " is outside [0, %" PRId64 ")",
                        executor_name(executor, (size_t)places->table), key, k, expert,
                        experts_num);
    }
    return ACLNN_SUCCESS;
}

static aclnnStatus check_values(const aclOpExecutor *executor, const struct hash_places *places)
{
    aclnnStatus status = ACLNN_SUCCESS;
    const int64_t tokens_num = executor->operands[places->x].shape[0];
    for (int64_t t = 0; t < tokens_num && status == ACLNN_SUCCESS; t++)
        status = check_token(executor, places, t);
    return status;
}

/* ---- call ----------------------------------------------------------------------------------- */

static void store_token(const aclOpExecutor *executor, const struct hash_places *places,
                        int64_t token, const double *scores)
{
    const moetoken_router_config *router = &executor->attributes.router;
    const struct operand *y = &executor->operands[places->y];
    const struct operand *out = &executor->operands[places->scores];
    const int64_t key = tensors_load_index(executor, places->input_ids, token, 0);
    double sum = 0;
    for (int64_t k = 0; k < router->topk; k++) {
        const int64_t expert = tensors_load_index(executor, places->table, key, k);
        sum += scores[expert];
        tensors_store_index(executor, places->expert_idx, token, k, expert);
    }
    const double divisor = router->normalize ? sum + router->eps : 1;
    for (int64_t k = 0; k < router->topk; k++) {
        const int64_t expert = tensors_load_index(executor, places->table, key, k);
        numbers_store(y, token, k, scores[expert] / divisor * router->scale);
    }
    for (int64_t e = 0; out->used && e < out->shape[1]; e++)
        numbers_store(out, token, e, scores[e]);
}

/* `count` tokens from `first` on. */
static aclnnStatus run_tokens(const aclOpExecutor *executor, const struct hash_places *places,
                              const moetoken_options *options, int64_t first, int64_t count)
{
    const struct operand *x = &executor->operands[places->x];
    double *numbers = executor->scratch;
    int64_t shape[] = {count, x->shape[1]};
    DLTensor logits = x->tensor;
    logits.shape = shape;
    logits.byte_offset += (uint64_t)(first * x->strides[0]) * aclDataTypeSize(x->type);
    const DLTensor scores = moetoken_tensor(numbers, MOETOKEN_F64, 2, shape);
    const moetoken_router_args args = {.struct_size = sizeof args,
                                       .logits = &logits,
                                       .config = executor->attributes.router,
                                       .scores = &scores};
    aclnnStatus status = executor_result(executor, false, moetoken_router(&args, options));
    for (int64_t t = 0; t < count && status == ACLNN_SUCCESS; t++)
        store_token(executor, places, first + t, numbers + t * shape[1]);
    return status;
}

aclnnStatus hash_call(const aclOpExecutor *executor, const struct hash_places *places,
                      const moetoken_options *options, bool check_only)
{
    const int64_t tokens_num = executor->operands[places->x].shape[0];
    const int64_t at_once = tokens_at_once(executor, places);
    if (check_only) {
        const moetoken_router_args args = {.struct_size = sizeof args,
                                           .logits = executor_tensor(executor, places->x),
                                           .config = executor->attributes.router,
                                           .weights = executor_tensor(executor, places->y),
                                           .expert_ids =
                                               executor_tensor(executor, places->expert_idx),
                                           .scores = executor_tensor(executor, places->scores)};
        return executor_result(executor, true, moetoken_router_check(&args, options));
    }
    if (executor_outputs_empty(executor))
        return ACLNN_SUCCESS;
    aclnnStatus status = check_values(executor, places);
    for (int64_t t = 0; t < tokens_num && status == ACLNN_SUCCESS; t += at_once)
        status = run_tokens(executor, places, options, t,
                            tokens_num - t < at_once ? tokens_num - t : at_once);
    return status;
}
