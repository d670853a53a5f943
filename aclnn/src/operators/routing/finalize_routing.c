/* finalize_routing.c - aclnnMoeFinalizeRouting over moetoken_unpermute. */
#include "../../../include/aclnnop/aclnn_moe_finalize_routing.h"
#include "operators/routing/finalize.h"

enum {
    EXPANDED_X,
    X1,
    X2,
    BIAS,
    SCALES,
    ROW_IDX,
    EXPERT_IDX,
    OUT
};

static const struct parameter parameters[] = {
    [EXPANDED_X] = {"expandedX", &token_types, false, true},
    [X1] = {"x1", &token_types, false, true},
    [X2] = {"x2Optional", &token_types, false, false},
    [BIAS] = {"bias", &token_types, false, true},
    [SCALES] = {"scales", &token_types, false, true},
    [ROW_IDX] = {"expandedRowIdx", &index_types, false, true},
    [EXPERT_IDX] = {"expandedExpertIdx", &index_types, false, true},
    [OUT] = {"out", &token_types, true, true},
};

static const struct finalize_places places = {.expanded_x = EXPANDED_X,
                                              .row_idx = ROW_IDX,
                                              .x1 = X1,
                                              .x2 = X2,
                                              .bias = BIAS,
                                              .scales = SCALES,
                                              .expert_idx = EXPERT_IDX,
                                              .out = OUT};

static aclnnStatus call(const aclOpExecutor *executor, const moetoken_options *options,
                        bool check_only)
{
    return finalize_call(executor, &places, options, check_only);
}

static const struct operator_description description = {.name = "aclnnMoeFinalizeRouting",
                                                        .parameters = parameters,
                                                        .count = sizeof parameters /
                                                                 sizeof parameters[0],
                                                        .shape_status = ACLNN_ERR_PARAM_INVALID,
                                                        .flags = MOETOKEN_REPEATED_ROWS,
                                                        .absent_from = "Ascend950",
                                                        .call = call};

aclnnStatus aclnnMoeFinalizeRoutingGetWorkspaceSize(const aclTensor *expandedX, const aclTensor *x1,
                                                    const aclTensor *x2Optional,
                                                    const aclTensor *bias, const aclTensor *scales,
                                                    const aclTensor *expandedRowIdx,
                                                    const aclTensor *expandedExpertIdx,
                                                    const aclTensor *out, uint64_t *workspaceSize,
                                                    aclOpExecutor **executor)
{
    const aclTensor *const tensors[] = {
        [EXPANDED_X] = expandedX,
        [X1] = x1,
        [X2] = x2Optional,
        [BIAS] = bias,
        [SCALES] = scales,
        [ROW_IDX] = expandedRowIdx,
        [EXPERT_IDX] = expandedExpertIdx,
        [OUT] = out,
    };
    aclOpExecutor *opened;
    aclnnStatus status = executor_open(&description, tensors, workspaceSize, executor, &opened);
    if (status != ACLNN_SUCCESS)
        return status;
    status = executor_same_type(opened, SCALES, EXPANDED_X);
    if (status == ACLNN_SUCCESS)
        status = finalize_check(opened, &places);
    return finalize_finish(opened, status, &places, workspaceSize, executor);
}

aclnnStatus aclnnMoeFinalizeRouting(void *workspace, uint64_t workspaceSize,
                                    aclOpExecutor *executor, aclrtStream stream)
{
    return executor_run(&description, workspace, workspaceSize, executor, stream);
}
