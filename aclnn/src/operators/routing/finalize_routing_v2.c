/* finalize_routing_v2.c - aclnnMoeFinalizeRoutingV2 over moetoken_unpermute. */
#include "../../../include/aclnnop/aclnn_moe_finalize_routing_v2.h"
#include "operators/routing/finalize.h"
#include "runtime/message.h"

#include <inttypes.h>

enum {
    EXPANDED_X,
    ROW_IDX,
    X1,
    X2,
    BIAS,
    SCALES,
    EXPERT_IDX,
    OUT
};

static const struct parameter parameters[] = {
    [EXPANDED_X] = {"expandedX", &token_types, false, true},
    [ROW_IDX] = {"expandedRowIdx", &index_types, false, true},
    [X1] = {"x1Optional", &token_types, false, false},
    [X2] = {"x2Optional", &token_types, false, false},
    [BIAS] = {"biasOptional", &token_types, false, false},
    [SCALES] = {"scalesOptional", &token_types, false, false},
    [EXPERT_IDX] = {"expertIdxOptional", &index_types, false, false},
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

static const struct operator_description description = {.name = "aclnnMoeFinalizeRoutingV2",
                                                        .parameters = parameters,
                                                        .count = sizeof parameters /
                                                                 sizeof parameters[0],
                                                        .shape_status = ACLNN_ERR_INNER_NULLPTR,
                                                        .flags = MOETOKEN_REPEATED_ROWS,
                                                        .call = call};

aclnnStatus aclnnMoeFinalizeRoutingV2GetWorkspaceSize(
    const aclTensor *expandedX, const aclTensor *expandedRowIdx, const aclTensor *x1Optional,
    const aclTensor *x2Optional, const aclTensor *biasOptional, const aclTensor *scalesOptional,
    const aclTensor *expertIdxOptional, int64_t dropPadMode, const aclTensor *out,
    uint64_t *workspaceSize, aclOpExecutor **executor)
{
    const aclTensor *const tensors[] = {
        [EXPANDED_X] = expandedX,
        [ROW_IDX] = expandedRowIdx,
        [X1] = x1Optional,
        [X2] = x2Optional,
        [BIAS] = biasOptional,
        [SCALES] = scalesOptional,
        [EXPERT_IDX] = expertIdxOptional,
        [OUT] = out,
    };
    aclOpExecutor *opened;
    aclnnStatus status = executor_open(&description, tensors, workspaceSize, executor, &opened);
    if (status != ACLNN_SUCCESS)
        return status;
    opened->attributes.drop_pad_mode = dropPadMode;
    if (dropPadMode < 0 || dropPadMode > 3)
        status = fail(ACLNN_ERR_INNER_NULLPTR, "dropPadMode = %" PRId64 ", expected 0, 1, 2 or 3",
                      dropPadMode);
    else
        status = finalize_check(opened, &places);
    return finalize_finish(opened, status, &places, workspaceSize, executor);
}

aclnnStatus aclnnMoeFinalizeRoutingV2(void *workspace, uint64_t workspaceSize,
                                      aclOpExecutor *executor, aclrtStream stream)
{
    return executor_run(&description, workspace, workspaceSize, executor, stream);
}
