/* gating_top_k.c - aclnnMoeGatingTopK over moetoken_router. */
#include "../../../include/aclnnop/aclnn_moe_gating_top_k.h"
#include "operators/gating/gate.h"
#include "operators/gating/rules.h"

enum {
    X,
    BIAS,
    Y,
    EXPERT_IDX,
    OUT
};

static const struct parameter parameters[] = {
    [X] = {"x", &token_types, false, true},
    [BIAS] = {"biasOptional", &token_types, false, false},
    [Y] = {"yOut", &token_types, true, true},
    [EXPERT_IDX] = {"expertIdxOut", &index_types, true, true},
    [OUT] = {"outOut", &float_types, true, true},
};

static const struct gate_places places = {X, BIAS, -1, Y, EXPERT_IDX, -1, OUT};

static aclnnStatus call(const aclOpExecutor *executor, const moetoken_options *options,
                        bool check_only)
{
    return gate_call(executor, &places, options, check_only);
}

static const struct operator_description description = {
    .name = "aclnnMoeGatingTopK",
    .parameters = parameters,
    .count = sizeof parameters / sizeof parameters[0],
    .shape_status = ACLNN_ERR_INNER_TILING_ERROR,
    .workspace_bytes = gate_workspace,
    .call = call};

aclnnStatus aclnnMoeGatingTopKGetWorkspaceSize(
    const aclTensor *x, const aclTensor *biasOptional, int64_t k, int64_t kGroup,
    int64_t groupCount, int64_t groupSelectMode, int64_t renorm, int64_t normType, bool outFlag,
    double routedScalingFactor, double eps, const aclTensor *yOut, const aclTensor *expertIdxOut,
    const aclTensor *outOut, uint64_t *workspaceSize, aclOpExecutor **executor)
{
    const aclTensor *const tensors[] = {
        [X] = x, [BIAS] = biasOptional, [Y] = yOut, [EXPERT_IDX] = expertIdxOut, [OUT] = outOut,
    };
    const struct gating_numbers numbers = {k,      kGroup,   groupCount,          groupSelectMode,
                                           renorm, normType, routedScalingFactor, eps};
    aclOpExecutor *opened;
    aclnnStatus status = executor_open(&description, tensors, workspaceSize, executor, &opened);
    if (status != ACLNN_SUCCESS)
        return status;
    status = gating_set_router(opened, X, &numbers);
    if (status == ACLNN_SUCCESS)
        status = gating_want_output(opened, OUT, outFlag);
    if (status == ACLNN_SUCCESS)
        status = gate_check(opened, &places, 2);
    return executor_finish(opened, status, 0, 0, workspaceSize, executor);
}

aclnnStatus aclnnMoeGatingTopK(void *workspace, uint64_t workspaceSize, aclOpExecutor *executor,
                               aclrtStream stream)
{
    return executor_run(&description, workspace, workspaceSize, executor, stream);
}
