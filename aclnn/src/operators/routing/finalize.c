/* finalize.c - see finalize.h. */
#include "operators/routing/finalize.h"

#include "operators/by_ids/scratch.h"
#include "operators/routing/tensors.h"
#include "runtime/message.h"

#include <inttypes.h>

static bool pads(const aclOpExecutor *executor)
{
    return executor->attributes.drop_pad_mode % 2 == 1;
}

/* ---- check ---------------------------------------------------------------------------------- */

static aclnnStatus check_types(const aclOpExecutor *executor, const struct finalize_places *places)
{
    const int alike[] = {places->x1, places->x2, places->bias, places->out};
    aclnnStatus status = ACLNN_SUCCESS;
    for (size_t i = 0; i < sizeof alike / sizeof alike[0] && status == ACLNN_SUCCESS; i++)
        status = executor_same_type(executor, alike[i], places->expanded_x);
    return status == ACLNN_SUCCESS
               ? tensors_scales_type(executor, places->scales, places->expanded_x, true)
               : status;
}

/* [E,C,H]; or [R,H], where R is T*K or, after an init routing with activeNum, less. */
static aclnnStatus expect_rows(aclOpExecutor *executor, const struct finalize_places *places,
                               int64_t slots)
{
    const struct operand *operands = executor->operands;
    const int64_t *rows = operands[places->expanded_x].shape;
    const int64_t hidden = operands[places->out].shape[1];
    if (!pads(executor)) {
        aclnnStatus status =
            tensors_expect(executor, places->expanded_x, 2, (int64_t[]){-1, hidden}, "[T*K,H]");
        if (status == ACLNN_SUCCESS && rows[0] > slots)
            status = fail(executor->description->shape_status,
                          "%s has %" PRId64 " rows, expected at most T * K = %" PRId64,
                          executor_name(executor, (size_t)places->expanded_x), rows[0], slots);
        return status;
    }
    const int64_t experts = operands[places->bias].used ? operands[places->bias].shape[0] : -1;
    aclnnStatus status = tensors_expect(executor, places->expanded_x, 3,
                                        (int64_t[]){experts, -1, hidden}, "[E,C,H]");
    return status == ACLNN_SUCCESS ? tensors_merge_rows(executor, places->expanded_x) : status;
}

static aclnnStatus expect_shapes(aclOpExecutor *executor, const struct finalize_places *places)
{
    struct operand *operands = executor->operands;
    const int64_t *out = operands[places->out].shape;
    const int others[] = {places->x1, places->x2};
    int64_t topk = 1, slots;
    aclnnStatus status = tensors_expect(executor, places->out, 2, (int64_t[]){-1, -1}, "[T,H]");
    if (status == ACLNN_SUCCESS)
        status = tensors_expect(executor, places->scales, 2, (int64_t[]){out[0], -1}, "[T,K]");
    if (status != ACLNN_SUCCESS)
        return status;
    if (operands[places->scales].used)
        topk = operands[places->scales].shape[1];
    if (__builtin_mul_overflow(out[0], topk, &slots))
        return fail(executor->description->shape_status,
                    "T * K = %" PRId64 " * %" PRId64 " does not fit in 64 bits", out[0], topk);
    executor->attributes.topk = topk;
    status = tensors_expect(executor, places->row_idx, 1, &slots, "[T*K]");
    for (size_t i = 0; i < sizeof others / sizeof others[0] && status == ACLNN_SUCCESS; i++)
        status = tensors_expect(executor, others[i], 2, out, "[T,H]");
    if (status == ACLNN_SUCCESS)
        status = tensors_expect(executor, places->bias, 2, (int64_t[]){-1, out[1]}, "[E,H]");
    if (status == ACLNN_SUCCESS)
        status =
            tensors_expect(executor, places->expert_idx, 2, (int64_t[]){out[0], topk}, "[T,K]");
    return status == ACLNN_SUCCESS ? expect_rows(executor, places, slots) : status;
}

static aclnnStatus need_scratch(aclOpExecutor *executor, const struct finalize_places *places)
{
    struct operand *operands = executor->operands;
    int64_t slots = operands[places->row_idx].shape[0];
    operands[places->row_idx].set_aside = true;
    aclnnStatus status = executor_need_scratch(executor, slots, sizeof(int32_t));
    if (status != ACLNN_SUCCESS ||
        !scratch_probs_convert(executor, places->scales, places->expanded_x))
        return status;
    operands[places->scales].set_aside = true;
    return executor_need_scratch(executor, slots, sizeof(float));
}

aclnnStatus finalize_check(aclOpExecutor *executor, const struct finalize_places *places)
{
    struct operand *operands = executor->operands;
    aclnnStatus status = check_types(executor, places);
    if (status == ACLNN_SUCCESS && operands[places->bias].used &&
        !operands[places->expert_idx].used)
        status = fail(executor->description->shape_status, "%s is NULL although %s is given",
                      executor_name(executor, (size_t)places->expert_idx),
                      executor_name(executor, (size_t)places->bias));
    if (status == ACLNN_SUCCESS && operands[places->x2].used && !operands[places->x1].used)
        status = fail(executor->description->shape_status, "%s is NULL although %s is given",
                      executor_name(executor, (size_t)places->x1),
                      executor_name(executor, (size_t)places->x2));
    if (status == ACLNN_SUCCESS)
        status = expect_shapes(executor, places);
    operands[places->expert_idx].used = operands[places->bias].used;
    if (status == ACLNN_SUCCESS)
        status = need_scratch(executor, places);
    return status == ACLNN_SUCCESS ? executor_check(executor) : status;
}

/* ---- call ----------------------------------------------------------------------------------- */

static moetoken_unpermute_args arguments(const aclOpExecutor *executor,
                                         const struct finalize_places *places)
{
    return (moetoken_unpermute_args){.struct_size = sizeof(moetoken_unpermute_args),
                                     .permuted_tokens =
                                         executor_tensor(executor, places->expanded_x),
                                     .unpermuted_tokens = executor_tensor(executor, places->out),
                                     .weights = executor_tensor(executor, places->scales),
                                     .residual = executor_tensor(executor, places->x1),
                                     .residual2 = executor_tensor(executor, places->x2),
                                     .expert_bias = executor_tensor(executor, places->bias),
                                     .expert_ids = executor_tensor(executor, places->expert_idx)};
}

aclnnStatus finalize_call(const aclOpExecutor *executor, const struct finalize_places *places,
                          const moetoken_options *options, bool check_only)
{
    const int64_t rows_num = executor->operands[places->expanded_x].shape[0];
    const int64_t slots = executor->operands[places->row_idx].shape[0];
    const struct slot_order order = {.tokens_num = executor->operands[places->out].shape[0],
                                     .topk = executor->attributes.topk,
                                     .by_column = executor->attributes.drop_pad_mode < 2,
                                     .rows_end = pads(executor) ? rows_num : slots,
                                     .rows_num = rows_num};
    moetoken_unpermute_args args = arguments(executor, places);
    DLTensor weights, rows = executor->operands[places->row_idx].tensor;
    void *next = executor->scratch;
    aclnnStatus status = ACLNN_SUCCESS;
    args.sorted_indices = &rows;
    if (!check_only && executor_outputs_empty(executor))
        return ACLNN_SUCCESS;
    if (!check_only) {
        rows = moetoken_tensor(scratch_take(&next, slots, sizeof(int32_t)), MOETOKEN_I32, 1,
                               rows.shape);
        status = tensors_copy_slots(executor, places->row_idx, &order, rows.data);
    }
    if (status != ACLNN_SUCCESS)
        return status;
    if (scratch_probs_convert(executor, places->scales, places->expanded_x)) {
        weights = scratch_probs(executor, places->scales, check_only, &next);
        args.weights = &weights;
    }
    return executor_result(executor, check_only,
                           check_only ? moetoken_unpermute_check(&args, options)
                                      : moetoken_unpermute(&args, options));
}

aclnnStatus finalize_finish(aclOpExecutor *executor, aclnnStatus status,
                            const struct finalize_places *places, uint64_t *workspace_size,
                            aclOpExecutor **out)
{
    return executor_finish(executor, status, executor->operands[places->out].shape[0],
                           executor->operands[places->row_idx].shape[0], workspace_size, out);
}
