/* gating_top_k_softmax_v2.c - aclnnMoeGatingTopKSoftmaxV2 over moetoken_router. */
#include "../../../include/aclnnop/aclnn_moe_gating_top_k_softmax_v2.h"
#include "operators/gating/gate.h"
#include "operators/gating/rules.h"

enum {
    X,
    FINISHED,
    Y,
    EXPERT_IDX,
    SOFTMAX
};

static const struct parameter parameters[] = {
    [X] = {"x", &token_types, false, true},
    [FINISHED] = {"finishedOptional", &bool_types, false, false},
    [Y] = {"yOut", &token_types, true, true},
    [EXPERT_IDX] = {"expertIdxOut", &index_types, true, true},
    [SOFTMAX] = {"softmaxResultOutOptional", &float_types, true, false},
};

static const struct gate_places places = {X, -1, FINISHED, Y, EXPERT_IDX, -1, SOFTMAX};

static aclnnStatus call(const aclOpExecutor *executor, const moetoken_options *options,
                        bool check_only)
{
    return gate_call(executor, &places, options, check_only);
}

static const struct operator_description description = {
    .name = "aclnnMoeGatingTopKSoftmaxV2",
    .parameters = parameters,
    .count = sizeof parameters / sizeof parameters[0],
    .shape_status = ACLNN_ERR_INNER_TILING_ERROR,
    .workspace_bytes = gate_workspace,
    .call = call};

static aclnnStatus check(aclOpExecutor *executor, int64_t renorm, bool softmax_wanted)
{
    moetoken_router_config *router = &executor->attributes.router;
    aclnnStatus status = gating_check_one_of("renorm", renorm, 1);
    if (status == ACLNN_SUCCESS)
        status = gating_check_topk(router->topk);
    router->score = renorm == 1 ? MOETOKEN_SCORE_SOFTMAX_AFTER : MOETOKEN_SCORE_SOFTMAX;
    if (status == ACLNN_SUCCESS)
        status = gating_want_output(executor, SOFTMAX, renorm == 0 && softmax_wanted);
    return status == ACLNN_SUCCESS ? gate_check(executor, &places, 3) : status;
}

aclnnStatus aclnnMoeGatingTopKSoftmaxV2GetWorkspaceSize(
    const aclTensor *x, const aclTensor *finishedOptional, int64_t k, int64_t renorm,
    bool outputSoftmaxResultFlag, const aclTensor *yOut, const aclTensor *expertIdxOut,
    const aclTensor *softmaxResultOutOptional, uint64_t *workspaceSize, aclOpExecutor **executor)
{
    const aclTensor *const tensors[] = {
        [X] = x,
        [FINISHED] = finishedOptional,
        [Y] = yOut,
        [EXPERT_IDX] = expertIdxOut,
        [SOFTMAX] = softmaxResultOutOptional,
    };
    aclOpExecutor *opened;
    aclnnStatus status = executor_open(&description, tensors, workspaceSize, executor, &opened);
    if (status != ACLNN_SUCCESS)
        return status;
    opened->attributes.router.topk = k;
    status = check(opened, renorm, outputSoftmaxResultFlag);
    return executor_finish(opened, status, 0, 0, workspaceSize, executor);
}

aclnnStatus aclnnMoeGatingTopKSoftmaxV2(void *workspace, uint64_t workspaceSize,
                                        aclOpExecutor *executor, aclrtStream stream)
{
    return executor_run(&description, workspace, workspaceSize, executor, stream);
}
