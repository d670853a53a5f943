/* init_routing_v3.c - aclnnMoeInitRoutingV3 without quantisation, over moetoken_permute. */
#include "../../../include/aclnnop/aclnn_moe_init_routing_v3.h"
#include "operators/product_rules.h"
#include "operators/routing/expand.h"
#include "operators/routing/tensors.h"
#include "products/limits_by_ids.h"
#include "runtime/message.h"

#include <inttypes.h>

enum {
    X,
    EXPERT_IDX,
    SCALE,
    OFFSET,
    EXPANDED_X,
    ROW_IDX,
    COUNTS,
    EXPANDED_SCALE
};

enum {
    ALL_ROWS = -1 /* as activeNum; CANN's host code has it beside 0, PyTorch's plug-in passes it */
};

/* int8, so that a quantised mode is refused by its name; the type of x decides later. */
static const struct type_set row_types = {1u << ACL_FLOAT | 1u << ACL_FLOAT16 | 1u << ACL_BF16 |
                                              1u << ACL_INT8,
                                          "ACL_FLOAT, ACL_FLOAT16 or ACL_BF16"};

static const struct parameter parameters[] = {
    [X] = {"x", &token_types, false, true},
    [EXPERT_IDX] = {"expertIdx", &index_types, false, true},
    [SCALE] = {"scaleOptional", &float_types, false, false},
    [OFFSET] = {"offsetOptional", &float_types, false, false},
    [EXPANDED_X] = {"expandedXOut", &row_types, true, true},
    [ROW_IDX] = {"expandedRowIdxOut", &index_types, true, true},
    [COUNTS] = {"expertTokensCountOrCumsumOut", &long_types, true, false},
    [EXPANDED_SCALE] = {"expandedScaleOut", &float_types, true, false},
};

static const struct expand_places places = {X,      EXPERT_IDX, EXPANDED_X,    ROW_IDX,
                                            COUNTS, SCALE,      EXPANDED_SCALE};

static aclnnStatus call(const aclOpExecutor *executor, const moetoken_options *options,
                        bool check_only)
{
    return expand_call(executor, &places, options, check_only);
}

static const struct operator_description description = {
    .name = "aclnnMoeInitRoutingV3",
    .parameters = parameters,
    .count = sizeof parameters / sizeof parameters[0],
    .shape_status = ACLNN_ERR_INNER_TILING_ERROR,
    .call = call};

/* ---- check ---------------------------------------------------------------------------------- */

static aclnnStatus check_one_of(const char *name, int64_t value, int64_t last)
{
    if (value >= 0 && value <= last)
        return ACLNN_SUCCESS;
    return fail(ACLNN_ERR_INNER_TILING_ERROR,
                "%s = %" PRId64 ", expected a number from 0 to %" PRId64, name, value, last);
}

static aclnnStatus check_modes(const struct attributes *attributes, int64_t quant_mode)
{
    if (quant_mode != -1)
        return fail(ACLNN_ERR_PARAM_INVALID,
                    "quantMode = %" PRId64 ": quantised modes are not supported, expected -1",
                    quant_mode);
    aclnnStatus status = check_one_of("dropPadMode", attributes->drop_pad_mode, 1);
    if (status == ACLNN_SUCCESS)
        status = check_one_of("expertTokensNumType", attributes->count_type, EXPAND_PAIRS);
    return status == ACLNN_SUCCESS ? check_one_of("rowIdxType", attributes->row_idx_type, 1)
                                   : status;
}

static aclnnStatus check_range(struct attributes *attributes)
{
    int64_t *range = attributes->range;
    int64_t most =
        attributes->count_type == EXPAND_PAIRS ? LIMITS_EXPERTS_IN_PAIRS_MAX : LIMITS_EXPERTS_MAX;
    if (!attributes->range_given)
        range[1] = attributes->experts_num;
    attributes->range_given = true; /* ids outside it are unused slots */
    if (range[0] < 0 || range[0] >= range[1] || range[1] > attributes->experts_num)
        return fail(ACLNN_ERR_INNER_TILING_ERROR,
                    "activeExpertRangeOptional = {%" PRId64 ", %" PRId64
                    "}, expected 0 <= start < end <= expertNum = %" PRId64,
                    range[0], range[1], attributes->experts_num);
    if (range[1] > most && product_named())
        return fail(ACLNN_ERR_INNER_TILING_ERROR,
                    "activeExpertRangeOptional ends at %" PRId64
                    ", a product takes at most %" PRId64,
                    range[1], most);
    return ACLNN_SUCCESS;
}

static aclnnStatus check_padded(const aclOpExecutor *executor, bool counts_wanted)
{
    const struct attributes *attributes = &executor->attributes;
    int64_t tokens_num = executor->operands[X].shape[0];
    if (attributes->capacity < 1 || attributes->capacity > tokens_num)
        return fail(ACLNN_ERR_INNER_TILING_ERROR,
                    "expertCapacity = %" PRId64 ", expected 1 to %" PRId64 ", the rows of x",
                    attributes->capacity, tokens_num);
    if (attributes->row_idx_type == 1)
        return fail(ACLNN_ERR_INNER_TILING_ERROR,
                    "rowIdxType = 1, expected 0 when dropPadMode is 1");
    if (attributes->range[0] != 0 || attributes->range[1] != attributes->experts_num)
        return fail(ACLNN_ERR_INNER_TILING_ERROR,
                    "activeExpertRangeOptional = {%" PRId64 ", %" PRId64
                    "}, expected {0, expertNum = %" PRId64 "} when dropPadMode is 1",
                    attributes->range[0], attributes->range[1], attributes->experts_num);
    if (counts_wanted && attributes->count_type != EXPAND_NUMBERS)
        return fail(ACLNN_ERR_INNER_TILING_ERROR,
                    "expertTokensNumType = %" PRId64 ", expected 1 when dropPadMode is 1",
                    attributes->count_type);
    return ACLNN_SUCCESS;
}

/* Outputs that are asked for are there; the others are filled with zeros. */
static aclnnStatus check_outputs(aclOpExecutor *executor, bool counts_wanted)
{
    struct operand *operands = executor->operands;
    operands[OFFSET].used = false;
    if (counts_wanted && !operands[COUNTS].used)
        return fail(ACLNN_ERR_PARAM_NULLPTR, "expertTokensCountOrCumsumOut is NULL although "
                                             "expertTokensNumFlag asks for it");
    if (operands[SCALE].used && !operands[EXPANDED_SCALE].used)
        return fail(ACLNN_ERR_PARAM_NULLPTR,
                    "expandedScaleOut is NULL although scaleOptional is given");
    if (!counts_wanted && operands[COUNTS].used)
        executor_zero_fill(executor, COUNTS);
    if (!operands[SCALE].used && operands[EXPANDED_SCALE].used)
        executor_zero_fill(executor, EXPANDED_SCALE);
    return ACLNN_SUCCESS;
}

static aclnnStatus check(aclOpExecutor *executor, bool counts_wanted, int64_t quant_mode,
                         const aclIntArray *range)
{
    struct attributes *attributes = &executor->attributes;
    aclnnStatus status = check_modes(attributes, quant_mode);
    if (status == ACLNN_SUCCESS)
        status = tensors_expect(executor, X, 2, (int64_t[]){-1, -1}, "[T,H]");
    if (status == ACLNN_SUCCESS)
        status = executor_pair(range, "activeExpertRangeOptional", attributes->range,
                               &attributes->range_given, ACLNN_ERR_INNER_TILING_ERROR);
    if (status == ACLNN_SUCCESS)
        status = check_range(attributes);
    if (status == ACLNN_SUCCESS && attributes->drop_pad_mode == 1)
        status = check_padded(executor, counts_wanted);
    if (status == ACLNN_SUCCESS && attributes->drop_pad_mode == 0)
        status = tensors_expect_least(executor, "activeNum", attributes->active_num, ALL_ROWS);
    if (status == ACLNN_SUCCESS)
        status = check_outputs(executor, counts_wanted);
    return status == ACLNN_SUCCESS ? expand_check(executor, &places) : status;
}

aclnnStatus aclnnMoeInitRoutingV3GetWorkspaceSize(
    const aclTensor *x, const aclTensor *expertIdx, const aclTensor *scaleOptional,
    const aclTensor *offsetOptional, int64_t activeNum, int64_t expertCapacity, int64_t expertNum,
    int64_t dropPadMode, int64_t expertTokensNumType, bool expertTokensNumFlag, int64_t quantMode,
    const aclIntArray *activeExpertRangeOptional, int64_t rowIdxType, const aclTensor *expandedXOut,
    const aclTensor *expandedRowIdxOut, const aclTensor *expertTokensCountOrCumsumOut,
    const aclTensor *expandedScaleOut, uint64_t *workspaceSize, aclOpExecutor **executor)
{
    const aclTensor *const tensors[] = {
        [X] = x,
        [EXPERT_IDX] = expertIdx,
        [SCALE] = scaleOptional,
        [OFFSET] = offsetOptional,
        [EXPANDED_X] = expandedXOut,
        [ROW_IDX] = expandedRowIdxOut,
        [COUNTS] = expertTokensCountOrCumsumOut,
        [EXPANDED_SCALE] = expandedScaleOut,
    };
    aclOpExecutor *opened;
    aclnnStatus status = executor_open(&description, tensors, workspaceSize, executor, &opened);
    if (status != ACLNN_SUCCESS)
        return status;
    opened->attributes = (struct attributes){.active_num = activeNum,
                                             .capacity = expertCapacity,
                                             .experts_num = expertNum,
                                             .drop_pad_mode = dropPadMode,
                                             .count_type = expertTokensNumType,
                                             .row_idx_type = rowIdxType};
    status = check(opened, expertTokensNumFlag, quantMode, activeExpertRangeOptional);
    return expand_finish(opened, status, &places, workspaceSize, executor);
}

aclnnStatus aclnnMoeInitRoutingV3(void *workspace, uint64_t workspaceSize, aclOpExecutor *executor,
                                  aclrtStream stream)
{
    return executor_run(&description, workspace, workspaceSize, executor, stream);
}
