/* init_routing_v2.c - aclnnMoeInitRoutingV2 over moetoken_permute. */
#include "../../../include/aclnnop/aclnn_moe_init_routing_v2.h"
#include "operators/routing/expand.h"
#include "operators/routing/tensors.h"
#include "runtime/message.h"

#include <inttypes.h>

enum {
    X,
    EXPERT_IDX,
    EXPANDED_X,
    ROW_IDX,
    COUNTS,
    BEFORE_CAPACITY
};

static const struct parameter parameters[] = {
    [X] = {"x", &token_types, false, true},
    [EXPERT_IDX] = {"expertIdx", &id_types, false, true},
    [EXPANDED_X] = {"expandedXOut", &token_types, true, true},
    [ROW_IDX] = {"expandedRowIdxOut", &index_types, true, true},
    [COUNTS] = {"expertTokensCountOrCumsumOut", &index_types, true, false},
    [BEFORE_CAPACITY] = {"expertTokensBeforeCapacityOut", &index_types, true, false},
};

static const struct expand_places dropless = {X, EXPERT_IDX, EXPANDED_X, ROW_IDX, COUNTS, -1, -1};
static const struct expand_places padded = {X,  EXPERT_IDX, EXPANDED_X, ROW_IDX, BEFORE_CAPACITY,
                                            -1, -1};

static const struct expand_places *places_of(const aclOpExecutor *executor)
{
    return executor->attributes.drop_pad_mode == 1 ? &padded : &dropless;
}

static aclnnStatus call(const aclOpExecutor *executor, const moetoken_options *options,
                        bool check_only)
{
    return expand_call(executor, places_of(executor), options, check_only);
}

static const struct operator_description description = {.name = "aclnnMoeInitRoutingV2",
                                                        .parameters = parameters,
                                                        .count = sizeof parameters /
                                                                 sizeof parameters[0],
                                                        .shape_status = ACLNN_ERR_INNER_NULLPTR,
                                                        .call = call};

/* An output that the flags do not ask for is filled with zeros; one that they do must be there. */
static aclnnStatus want_output(aclOpExecutor *executor, int place, bool wanted)
{
    bool given = executor->operands[place].used;
    if (wanted && !given)
        return fail(ACLNN_ERR_PARAM_NULLPTR, "%s is NULL although its flag asks for it",
                    executor_name(executor, (size_t)place));
    if (!wanted && given)
        executor_zero_fill(executor, place);
    return ACLNN_SUCCESS;
}

static aclnnStatus check_outputs(aclOpExecutor *executor, int64_t counts_flag, bool before_flag)
{
    struct attributes *attributes = &executor->attributes;
    bool pads = attributes->drop_pad_mode == 1;
    aclnnStatus status = want_output(executor, COUNTS, !pads && counts_flag > 0);
    if (status == ACLNN_SUCCESS)
        status = want_output(executor, BEFORE_CAPACITY, pads && before_flag);
    attributes->count_type = !pads && counts_flag == 1 ? EXPAND_RUNNING_SUMS : EXPAND_NUMBERS;
    if (!pads && counts_flag == 0)
        attributes->experts_num = 0; /* ids of any size */
    attributes->range[1] = attributes->experts_num;
    return status;
}

static aclnnStatus check_modes(const aclOpExecutor *executor, int64_t counts_flag)
{
    int64_t mode = executor->attributes.drop_pad_mode;
    if (mode != 0 && mode != 1)
        return fail(ACLNN_ERR_INNER_NULLPTR, "dropPadMode = %" PRId64 ", expected 0 or 1", mode);
    if (counts_flag < 0 || counts_flag > 2)
        return fail(ACLNN_ERR_INNER_NULLPTR,
                    "expertTokensCountOrCumsumFlag = %" PRId64 ", expected 0, 1 or 2", counts_flag);
    return ACLNN_SUCCESS;
}

static aclnnStatus check_numbers(const aclOpExecutor *executor, int64_t counts_flag)
{
    const struct attributes *attributes = &executor->attributes;
    bool pads = attributes->drop_pad_mode == 1;
    aclnnStatus status = tensors_expect_least(executor, "activeNum", attributes->active_num, 0);
    if (status == ACLNN_SUCCESS)
        status = tensors_expect_least(executor, "expertCapacity", attributes->capacity, pads);
    if (status == ACLNN_SUCCESS)
        status = tensors_expect_least(executor, "expertNum", attributes->experts_num,
                                      pads || counts_flag > 0);
    if (status == ACLNN_SUCCESS && pads && attributes->capacity > executor->operands[X].shape[0])
        status = fail(ACLNN_ERR_INNER_NULLPTR,
                      "expertCapacity = %" PRId64 " is above %" PRId64 ", the rows of x",
                      attributes->capacity, executor->operands[X].shape[0]);
    return status;
}

static aclnnStatus check(aclOpExecutor *executor, int64_t counts_flag, bool before_flag)
{
    aclnnStatus status = check_modes(executor, counts_flag);
    if (status == ACLNN_SUCCESS)
        status = tensors_expect(executor, X, 2, (int64_t[]){-1, -1}, "[T,H]");
    if (status == ACLNN_SUCCESS)
        status = check_numbers(executor, counts_flag);
    if (status == ACLNN_SUCCESS)
        status = check_outputs(executor, counts_flag, before_flag);
    operand_as_column(&executor->operands[EXPERT_IDX]);
    return status == ACLNN_SUCCESS ? expand_check(executor, places_of(executor)) : status;
}

aclnnStatus aclnnMoeInitRoutingV2GetWorkspaceSize(
    const aclTensor *x, const aclTensor *expertIdx, int64_t activeNum, int64_t expertCapacity,
    int64_t expertNum, int64_t dropPadMode, int64_t expertTokensCountOrCumsumFlag,
    bool expertTokensBeforeCapacityFlag, const aclTensor *expandedXOut,
    const aclTensor *expandedRowIdxOut, const aclTensor *expertTokensCountOrCumsumOut,
    const aclTensor *expertTokensBeforeCapacityOut, uint64_t *workspaceSize,
    aclOpExecutor **executor)
{
    const aclTensor *const tensors[] = {
        [X] = x,
        [EXPERT_IDX] = expertIdx,
        [EXPANDED_X] = expandedXOut,
        [ROW_IDX] = expandedRowIdxOut,
        [COUNTS] = expertTokensCountOrCumsumOut,
        [BEFORE_CAPACITY] = expertTokensBeforeCapacityOut,
    };
    aclOpExecutor *opened;
    aclnnStatus status = executor_open(&description, tensors, workspaceSize, executor, &opened);
    if (status != ACLNN_SUCCESS)
        return status;
    opened->attributes.active_num = activeNum;
    opened->attributes.capacity = expertCapacity;
    opened->attributes.experts_num = expertNum;
    opened->attributes.drop_pad_mode = dropPadMode;
    status = check(opened, expertTokensCountOrCumsumFlag, expertTokensBeforeCapacityFlag);
    return expand_finish(opened, status, places_of(opened), workspaceSize, executor);
}

aclnnStatus aclnnMoeInitRoutingV2(void *workspace, uint64_t workspaceSize, aclOpExecutor *executor,
                                  aclrtStream stream)
{
    return executor_run(&description, workspace, workspaceSize, executor, stream);
}
