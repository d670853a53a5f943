/* init_routing_v2_grad.c - aclnnMoeInitRoutingV2Grad over moetoken_permute_grad. */
#include "../../../include/aclnnop/aclnn_moe_init_routing_v2_grad.h"
#include "operators/by_ids/scratch.h"
#include "operators/routing/tensors.h"
#include "runtime/message.h"

#include <inttypes.h>

enum {
    EXPANDED_GRAD,
    ROW_IDX,
    X_GRAD
};

static const struct parameter parameters[] = {
    [EXPANDED_GRAD] = {"gradExpandedX", &token_types, false, true},
    [ROW_IDX] = {"expandedRowIdx", &index_types, false, true},
    [X_GRAD] = {"out", &token_types, true, true},
};

static aclnnStatus call(const aclOpExecutor *executor, const moetoken_options *options,
                        bool check_only)
{
    const struct operand *operands = executor->operands;
    const struct attributes *attributes = &executor->attributes;
    const int64_t rows_num = operands[EXPANDED_GRAD].shape[0], slots = operands[ROW_IDX].shape[0];
    const struct slot_order order = {.tokens_num = operands[X_GRAD].shape[0],
                                     .topk = attributes->topk,
                                     .rows_end = attributes->drop_pad_mode ? rows_num : slots,
                                     .rows_num = rows_num};
    DLTensor rows = operands[ROW_IDX].tensor;
    moetoken_permute_grad_args args = {.struct_size = sizeof args,
                                       .permuted_tokens_grad =
                                           executor_tensor(executor, EXPANDED_GRAD),
                                       .sorted_indices = &rows,
                                       .tokens_num = order.tokens_num,
                                       .tokens_grad = executor_tensor(executor, X_GRAD)};
    if (check_only)
        return executor_result(executor, true, moetoken_permute_grad_check(&args, options));
    if (executor_outputs_empty(executor))
        return ACLNN_SUCCESS;
    aclnnStatus status = tensors_copy_slots(executor, ROW_IDX, &order, executor->scratch);
    rows = moetoken_tensor(executor->scratch, MOETOKEN_I32, 1, rows.shape);
    return status == ACLNN_SUCCESS
               ? executor_result(executor, false, moetoken_permute_grad(&args, options))
               : status;
}

static const struct operator_description description = {.name = "aclnnMoeInitRoutingV2Grad",
                                                        .parameters = parameters,
                                                        .count = sizeof parameters /
                                                                 sizeof parameters[0],
                                                        .shape_status = ACLNN_ERR_INNER_NULLPTR,
                                                        .call = call};

static aclnnStatus expect_rows(const aclOpExecutor *executor)
{
    const struct attributes *attributes = &executor->attributes;
    const int64_t rows =
        attributes->active_num > 0 ? attributes->active_num : executor->operands[ROW_IDX].shape[0];
    if (attributes->drop_pad_mode == 1)
        return tensors_expect(executor, EXPANDED_GRAD, 3, (int64_t[]){-1, -1, -1}, "[E,C,H]");
    return tensors_expect(executor, EXPANDED_GRAD, 2, (int64_t[]){rows, -1},
                          attributes->active_num > 0 ? "[activeNum,H]" : "[T*K,H]");
}

static aclnnStatus expect_shapes(aclOpExecutor *executor)
{
    const struct operand *operands = executor->operands;
    const int64_t topk = executor->attributes.topk;
    aclnnStatus status = tensors_expect(executor, ROW_IDX, 1, (int64_t[]){-1}, "[T*K]");
    if (status == ACLNN_SUCCESS && operands[ROW_IDX].shape[0] % topk != 0)
        status =
            fail(ACLNN_ERR_INNER_NULLPTR,
                 "expandedRowIdx has %" PRId64 " values, expected a multiple of topK = %" PRId64,
                 operands[ROW_IDX].shape[0], topk);
    if (status == ACLNN_SUCCESS)
        status = expect_rows(executor);
    if (status == ACLNN_SUCCESS)
        status = tensors_merge_rows(executor, EXPANDED_GRAD);
    return status == ACLNN_SUCCESS ? tensors_expect(executor, X_GRAD, 2,
                                                    (int64_t[]){operands[ROW_IDX].shape[0] / topk,
                                                                operands[EXPANDED_GRAD].shape[1]},
                                                    "[T,H]")
                                   : status;
}

static aclnnStatus check(aclOpExecutor *executor)
{
    const struct attributes *attributes = &executor->attributes;
    aclnnStatus status = executor_same_type(executor, X_GRAD, EXPANDED_GRAD);
    if (status == ACLNN_SUCCESS && attributes->drop_pad_mode != 0 && attributes->drop_pad_mode != 1)
        status = fail(ACLNN_ERR_INNER_NULLPTR, "dropPadMode = %" PRId64 ", expected 0 or 1",
                      attributes->drop_pad_mode);
    if (status == ACLNN_SUCCESS)
        status = tensors_expect_least(executor, "topK", attributes->topk, 1);
    if (status == ACLNN_SUCCESS)
        status = tensors_expect_least(executor, "activeNum", attributes->active_num, 0);
    if (status == ACLNN_SUCCESS)
        status = expect_shapes(executor);
    if (status == ACLNN_SUCCESS)
        status =
            executor_need_scratch(executor, executor->operands[ROW_IDX].shape[0], sizeof(int32_t));
    executor->operands[ROW_IDX].set_aside = true;
    return status == ACLNN_SUCCESS ? executor_check(executor) : status;
}

aclnnStatus aclnnMoeInitRoutingV2GradGetWorkspaceSize(const aclTensor *gradExpandedX,
                                                      const aclTensor *expandedRowIdx, int64_t topK,
                                                      int64_t dropPadMode, int64_t activeNum,
                                                      const aclTensor *out, uint64_t *workspaceSize,
                                                      aclOpExecutor **executor)
{
    const aclTensor *const tensors[] = {
        [EXPANDED_GRAD] = gradExpandedX,
        [ROW_IDX] = expandedRowIdx,
        [X_GRAD] = out,
    };
    aclOpExecutor *opened;
    aclnnStatus status = executor_open(&description, tensors, workspaceSize, executor, &opened);
    if (status != ACLNN_SUCCESS)
        return status;
    opened->attributes.topk = topK;
    opened->attributes.drop_pad_mode = dropPadMode;
    opened->attributes.active_num = activeNum;
    status = check(opened);
    return executor_finish(opened, status, opened->operands[X_GRAD].shape[0],
                           opened->operands[ROW_IDX].shape[0], workspaceSize, executor);
}

aclnnStatus aclnnMoeInitRoutingV2Grad(void *workspace, uint64_t workspaceSize,
                                      aclOpExecutor *executor, aclrtStream stream)
{
    return executor_run(&description, workspace, workspaceSize, executor, stream);
}
