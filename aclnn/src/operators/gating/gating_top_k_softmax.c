/* gating_top_k_softmax.c - aclnnMoeGatingTopKSoftmax over moetoken_router. */
#include "../../../include/aclnnop/aclnn_moe_gating_top_k_softmax.h"
#include "operators/gating/gate.h"
#include "operators/gating/rules.h"

enum {
    X,
    FINISHED,
    Y,
    EXPERT_IDX,
    ROW_IDX
};

static const struct parameter parameters[] = {
    [X] = {"x", &token_types, false, true},
    [FINISHED] = {"finishedOptional", &bool_types, false, false},
    [Y] = {"yOut", &token_types, true, true},
    [EXPERT_IDX] = {"expertIdxOut", &index_types, true, true},
    [ROW_IDX] = {"rowIdxOut", &index_types, true, true},
};

static const struct gate_places places = {X, -1, FINISHED, Y, EXPERT_IDX, ROW_IDX, -1};

static aclnnStatus call(const aclOpExecutor *executor, const moetoken_options *options,
                        bool check_only)
{
    return gate_call(executor, &places, options, check_only);
}

static const struct operator_description description = {
    .name = "aclnnMoeGatingTopKSoftmax",
    .parameters = parameters,
    .count = sizeof parameters / sizeof parameters[0],
    .shape_status = ACLNN_ERR_INNER_TILING_ERROR,
    .also_on = "Ascend310P",
    .workspace_bytes = gate_workspace,
    .call = call};

aclnnStatus
aclnnMoeGatingTopKSoftmaxGetWorkspaceSize(const aclTensor *x, const aclTensor *finishedOptional,
                                          int64_t k, const aclTensor *yOut,
                                          const aclTensor *expertIdxOut, const aclTensor *rowIdxOut,
                                          uint64_t *workspaceSize, aclOpExecutor **executor)
{
    const aclTensor *const tensors[] = {
        [X] = x,
        [FINISHED] = finishedOptional,
        [Y] = yOut,
        [EXPERT_IDX] = expertIdxOut,
        [ROW_IDX] = rowIdxOut,
    };
    aclOpExecutor *opened;
    aclnnStatus status = executor_open(&description, tensors, workspaceSize, executor, &opened);
    if (status != ACLNN_SUCCESS)
        return status;
    opened->attributes.router =
        (moetoken_router_config){.topk = k, .score = MOETOKEN_SCORE_SOFTMAX};
    status = gating_check_topk(k);
    if (status == ACLNN_SUCCESS)
        status = gate_check(opened, &places, 3);
    return executor_finish(opened, status, 0, 0, workspaceSize, executor);
}

aclnnStatus aclnnMoeGatingTopKSoftmax(void *workspace, uint64_t workspaceSize,
                                      aclOpExecutor *executor, aclrtStream stream)
{
    return executor_run(&description, workspace, workspaceSize, executor, stream);
}
