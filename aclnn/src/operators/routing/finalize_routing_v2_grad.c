/* finalize_routing_v2_grad.c - aclnnMoeFinalizeRoutingV2Grad over moetoken_unpermute_grad. */
#include "../../../include/aclnnop/aclnn_moe_finalize_routing_v2_grad.h"
#include "operators/by_ids/scratch.h"
#include "operators/routing/tensors.h"
#include "runtime/message.h"

#include <inttypes.h>

enum {
    Y_GRAD,
    ROW_IDX,
    EXPANDED_X,
    SCALES,
    EXPERT_IDX,
    BIAS,
    EXPANDED_GRAD,
    SCALES_GRAD
};

static const struct parameter parameters[] = {
    [Y_GRAD] = {"gradY", &token_types, false, true},
    [ROW_IDX] = {"expandedRowIdx", &index_types, false, true},
    [EXPANDED_X] = {"expandedXOptional", &token_types, false, false},
    [SCALES] = {"scalesOptional", &token_types, false, false},
    [EXPERT_IDX] = {"expertIdxOptional", &index_types, false, false},
    [BIAS] = {"biasOptional", &token_types, false, false},
    [EXPANDED_GRAD] = {"gradExpandedXOut", &token_types, true, true},
    [SCALES_GRAD] = {"gradScalesOut", &token_types, true, true},
};

/* ---- call ----------------------------------------------------------------------------------- */

static moetoken_unpermute_grad_args arguments(const aclOpExecutor *executor)
{
    return (moetoken_unpermute_grad_args){
        .struct_size = sizeof(moetoken_unpermute_grad_args),
        .unpermuted_tokens_grad = executor_tensor(executor, Y_GRAD),
        .permuted_tokens = executor_tensor(executor, EXPANDED_X),
        .permuted_tokens_grad = executor_tensor(executor, EXPANDED_GRAD),
        .weights = executor_tensor(executor, SCALES),
        .weights_grad = executor_tensor(executor, SCALES_GRAD),
        .expert_bias = executor_tensor(executor, BIAS),
        .expert_ids = executor_tensor(executor, EXPERT_IDX)};
}

static aclnnStatus compute(const aclOpExecutor *executor, const moetoken_unpermute_grad_args *args,
                           const moetoken_options *options, bool check_only)
{
    return executor_result(executor, check_only,
                           check_only ? moetoken_unpermute_grad_check(args, options)
                                      : moetoken_unpermute_grad(args, options));
}

/* expandedRowIdx as slots, in the scratch. */
static aclnnStatus copy_slots(const aclOpExecutor *executor, void **next, DLTensor *rows)
{
    const int64_t rows_num = executor->operands[EXPANDED_GRAD].shape[0], slots = rows->shape[0];
    const struct slot_order order = {.tokens_num = executor->operands[Y_GRAD].shape[0],
                                     .topk = executor->attributes.topk,
                                     .rows_end =
                                         executor->attributes.drop_pad_mode == 1 ? rows_num : slots,
                                     .rows_num = rows_num};
    *rows =
        moetoken_tensor(scratch_take(next, slots, sizeof(int32_t)), MOETOKEN_I32, 1, rows->shape);
    return tensors_copy_slots(executor, ROW_IDX, &order, rows->data);
}

static aclnnStatus call(const aclOpExecutor *executor, const moetoken_options *options,
                        bool check_only)
{
    moetoken_unpermute_grad_args args = arguments(executor);
    DLTensor weights, weights_grad, rows = executor->operands[ROW_IDX].tensor;
    void *next = executor->scratch;
    aclnnStatus status = ACLNN_SUCCESS;
    args.out_index = &rows;
    if (!check_only && executor_outputs_empty(executor))
        return ACLNN_SUCCESS;
    if (!check_only)
        status = copy_slots(executor, &next, &rows);
    if (status != ACLNN_SUCCESS)
        return status;
    if (!scratch_probs_convert(executor, SCALES, Y_GRAD))
        return compute(executor, &args, options, check_only);
    weights = scratch_probs(executor, SCALES, check_only, &next);
    weights_grad = scratch_probs(executor, SCALES_GRAD, check_only, &next);
    args.weights = &weights;
    args.weights_grad = &weights_grad;
    status = compute(executor, &args, options, check_only);
    if (status == ACLNN_SUCCESS && !check_only)
        scratch_store_probs(executor, SCALES_GRAD, &weights_grad);
    return status;
}

static const struct operator_description description = {.name = "aclnnMoeFinalizeRoutingV2Grad",
                                                        .parameters = parameters,
                                                        .count = sizeof parameters /
                                                                 sizeof parameters[0],
                                                        .shape_status = ACLNN_ERR_INNER_NULLPTR,
                                                        .call = call};

/* ---- check ---------------------------------------------------------------------------------- */

static aclnnStatus check_types(const aclOpExecutor *executor)
{
    const int alike[] = {EXPANDED_X, BIAS, EXPANDED_GRAD};
    aclnnStatus status = ACLNN_SUCCESS;
    for (size_t i = 0; i < sizeof alike / sizeof alike[0] && status == ACLNN_SUCCESS; i++)
        status = executor_same_type(executor, alike[i], Y_GRAD);
    if (status == ACLNN_SUCCESS)
        status = tensors_scales_type(executor, SCALES, Y_GRAD, false);
    if (status == ACLNN_SUCCESS && executor->operands[SCALES].used)
        status = executor_same_type(executor, SCALES_GRAD, SCALES);
    return status;
}

static aclnnStatus missing(int place, int by)
{
    return fail(ACLNN_ERR_INNER_NULLPTR, "%s is NULL although %s is given", parameters[place].name,
                parameters[by].name);
}

/* Without scales neither rows nor biases matter; without a bias its expert does not. */
static aclnnStatus check_presence(aclOpExecutor *executor)
{
    struct operand *operands = executor->operands;
    bool scales = operands[SCALES].used;
    if (scales && !operands[EXPANDED_X].used)
        return missing(EXPANDED_X, SCALES);
    if (operands[BIAS].used && !operands[EXPERT_IDX].used)
        return missing(EXPERT_IDX, BIAS);
    operands[EXPANDED_X].used = scales;
    operands[BIAS].used = operands[BIAS].used && scales;
    operands[EXPERT_IDX].used = operands[BIAS].used;
    if (!scales)
        executor_zero_fill(executor, SCALES_GRAD);
    return ACLNN_SUCCESS;
}

static aclnnStatus expect_slots(aclOpExecutor *executor)
{
    const struct operand *operands = executor->operands;
    const int64_t *y = operands[Y_GRAD].shape;
    int64_t slots, topk = 1;
    aclnnStatus status = tensors_expect(executor, Y_GRAD, 2, (int64_t[]){-1, -1}, "[T,H]");
    if (status == ACLNN_SUCCESS)
        status = tensors_expect(executor, SCALES, 2, (int64_t[]){y[0], -1}, "[T,K]");
    if (status != ACLNN_SUCCESS)
        return status;
    if (operands[SCALES].used)
        topk = operands[SCALES].shape[1];
    if (__builtin_mul_overflow(y[0], topk, &slots))
        return fail(ACLNN_ERR_INNER_NULLPTR,
                    "T * K = %" PRId64 " * %" PRId64 " does not fit in 64 bits", y[0], topk);
    executor->attributes.topk = topk;
    status = tensors_expect(executor, ROW_IDX, 1, &slots, "[T*K]");
    if (status == ACLNN_SUCCESS)
        status = tensors_expect(executor, SCALES_GRAD, 2, (int64_t[]){y[0], topk}, "[T,K]");
    if (status == ACLNN_SUCCESS)
        status = tensors_expect(executor, EXPERT_IDX, 2, (int64_t[]){y[0], topk}, "[T,K]");
    return status == ACLNN_SUCCESS
               ? tensors_expect(executor, BIAS, 2, (int64_t[]){-1, y[1]}, "[E,H]")
               : status;
}

static aclnnStatus expect_padded(aclOpExecutor *executor)
{
    const struct attributes *attributes = &executor->attributes;
    const struct operand *bias = &executor->operands[BIAS];
    const int64_t shape[] = {attributes->experts_num, attributes->capacity,
                             executor->operands[Y_GRAD].shape[1]};
    const char *why = "[expertNum,expertCapacity,H]";
    aclnnStatus status = tensors_expect_least(executor, "expertNum", attributes->experts_num, 1);
    if (status == ACLNN_SUCCESS)
        status = tensors_expect_least(executor, "expertCapacity", attributes->capacity, 1);
    if (status == ACLNN_SUCCESS && bias->used && bias->shape[0] != attributes->experts_num)
        status = fail(ACLNN_ERR_INNER_NULLPTR,
                      "biasOptional has %" PRId64 " rows, expected expertNum = %" PRId64,
                      bias->shape[0], attributes->experts_num);
    if (status == ACLNN_SUCCESS)
        status = tensors_expect(executor, EXPANDED_X, 3, shape, why);
    if (status == ACLNN_SUCCESS)
        status = tensors_expect(executor, EXPANDED_GRAD, 3, shape, why);
    if (status == ACLNN_SUCCESS)
        status = tensors_merge_rows(executor, EXPANDED_X);
    return status == ACLNN_SUCCESS ? tensors_merge_rows(executor, EXPANDED_GRAD) : status;
}

static aclnnStatus expect_rows(aclOpExecutor *executor)
{
    const struct attributes *attributes = &executor->attributes;
    const int64_t slots = executor->operands[ROW_IDX].shape[0], active = attributes->active_num;
    const int64_t shape[] = {active > 0 && active < slots ? active : slots,
                             executor->operands[Y_GRAD].shape[1]};
    if (attributes->drop_pad_mode == 1)
        return expect_padded(executor);
    if (attributes->drop_pad_mode != 0)
        return fail(ACLNN_ERR_INNER_NULLPTR, "dropPadMode = %" PRId64 ", expected 0 or 1",
                    attributes->drop_pad_mode);
    aclnnStatus status = tensors_expect(executor, EXPANDED_X, 2, shape, "[rows,H]");
    return status == ACLNN_SUCCESS ? tensors_expect(executor, EXPANDED_GRAD, 2, shape, "[rows,H]")
                                   : status;
}

static aclnnStatus need_scratch(aclOpExecutor *executor)
{
    struct operand *operands = executor->operands;
    int64_t slots = operands[ROW_IDX].shape[0];
    operands[ROW_IDX].set_aside = true;
    aclnnStatus status = executor_need_scratch(executor, slots, sizeof(int32_t));
    if (!scratch_probs_convert(executor, SCALES, Y_GRAD))
        return status;
    operands[SCALES].set_aside = true;
    operands[SCALES_GRAD].set_aside = true;
    for (int copies = 0; copies < 2 && status == ACLNN_SUCCESS; copies++)
        status = executor_need_scratch(executor, slots, sizeof(float));
    return status;
}

static aclnnStatus check(aclOpExecutor *executor)
{
    aclnnStatus status = check_types(executor);
    if (status == ACLNN_SUCCESS)
        status = check_presence(executor);
    if (status == ACLNN_SUCCESS)
        status = expect_slots(executor);
    if (status == ACLNN_SUCCESS)
        status = expect_rows(executor);
    if (status == ACLNN_SUCCESS)
        status = need_scratch(executor);
    return status == ACLNN_SUCCESS ? executor_check(executor) : status;
}

aclnnStatus aclnnMoeFinalizeRoutingV2GradGetWorkspaceSize(
    const aclTensor *gradY, const aclTensor *expandedRowIdx, const aclTensor *expandedXOptional,
    const aclTensor *scalesOptional, const aclTensor *expertIdxOptional,
    const aclTensor *biasOptional, int64_t dropPadMode, int64_t activeNum, int64_t expertNum,
    int64_t expertCapacity, const aclTensor *gradExpandedXOut, const aclTensor *gradScalesOut,
    uint64_t *workspaceSize, aclOpExecutor **executor)
{
    const aclTensor *const tensors[] = {
        [Y_GRAD] = gradY,
        [ROW_IDX] = expandedRowIdx,
        [EXPANDED_X] = expandedXOptional,
        [SCALES] = scalesOptional,
        [EXPERT_IDX] = expertIdxOptional,
        [BIAS] = biasOptional,
        [EXPANDED_GRAD] = gradExpandedXOut,
        [SCALES_GRAD] = gradScalesOut,
    };
    aclOpExecutor *opened;
    aclnnStatus status = executor_open(&description, tensors, workspaceSize, executor, &opened);
    if (status != ACLNN_SUCCESS)
        return status;
    opened->attributes.drop_pad_mode = dropPadMode;
    opened->attributes.active_num = activeNum;
    opened->attributes.experts_num = expertNum;
    opened->attributes.capacity = expertCapacity;
    status = check(opened);
    return executor_finish(opened, status, opened->operands[Y_GRAD].shape[0],
                           opened->operands[ROW_IDX].shape[0], workspaceSize, executor);
}

aclnnStatus aclnnMoeFinalizeRoutingV2Grad(void *workspace, uint64_t workspaceSize,
                                          aclOpExecutor *executor, aclrtStream stream)
{
    return executor_run(&description, workspace, workspaceSize, executor, stream);
}
