/* gating_top_k_v2.c - aclnnMoeGatingTopKV2 over moetoken_router: aclnnMoeGatingTopK, and a mode in
 * which a table names the experts. */
#include "../../../include/aclnnop/aclnn_moe_gating_top_k_v2.h"
#include "operators/gating/gate.h"
#include "operators/gating/hash.h"
#include "operators/gating/rules.h"
#include "operators/product_rules.h"
#include "runtime/message.h"

#include <inttypes.h>

enum {
    X,
    BIAS,
    INPUT_IDS,
    TABLE,
    Y,
    EXPERT_IDX,
    OUT
};

enum {
    HASH_TOPK_MAX = 64 /* what a product takes */
};

static const struct parameter parameters[] = {
    [X] = {"x", &token_types, false, true},
    [BIAS] = {"biasOptional", &token_types, false, false},
    [INPUT_IDS] = {"inputIdsOptional", &id_types, false, false},
    [TABLE] = {"tid2eidOptional", &id_types, false, false},
    [Y] = {"yOut", &token_types, true, true},
    [EXPERT_IDX] = {"expertIdxOut", &index_types, true, true},
    [OUT] = {"outOut", &float_types, true, true},
};

static const struct gate_places places = {X, BIAS, -1, Y, EXPERT_IDX, -1, OUT};
static const struct hash_places hash_places = {X, INPUT_IDS, TABLE, Y, EXPERT_IDX, OUT};

static bool by_hash(const aclOpExecutor *executor)
{
    return executor->operands[INPUT_IDS].used && executor->operands[TABLE].used;
}

static aclnnStatus call(const aclOpExecutor *executor, const moetoken_options *options,
                        bool check_only)
{
    return by_hash(executor) ? hash_call(executor, &hash_places, options, check_only)
                             : gate_call(executor, &places, options, check_only);
}

static const struct operator_description description = {
    .name = "aclnnMoeGatingTopKV2",
    .parameters = parameters,
    .count = sizeof parameters / sizeof parameters[0],
    .shape_status = ACLNN_ERR_INNER_TILING_ERROR,
    .workspace_bytes = gate_workspace,
    .call = call};

/* The bias acts on a choice, of which there is none. */
static aclnnStatus check_hash(aclOpExecutor *executor, const struct gating_numbers *numbers)
{
    if (product_named() && numbers->topk > HASH_TOPK_MAX)
        return fail(ACLNN_ERR_INNER_TILING_ERROR,
                    "k = %" PRId64 " is above %d, the most a product takes with tid2eidOptional",
                    numbers->topk, HASH_TOPK_MAX);
    if (product_named() && numbers->groups_top != numbers->groups_num &&
        numbers->groups_num != executor->operands[X].shape[1])
        return fail(ACLNN_ERR_INNER_TILING_ERROR,
                    "kGroup = %" PRId64 ", a product takes with tid2eidOptional only groupCount = "
                    "%" PRId64,
                    numbers->groups_top, numbers->groups_num);
    aclnnStatus status = gate_expect(executor, &places, 2);
    executor->operands[BIAS].used = false;
    return status == ACLNN_SUCCESS ? hash_check(executor, &hash_places) : status;
}

static aclnnStatus check(aclOpExecutor *executor, const struct gating_numbers *numbers,
                         bool out_flag)
{
    aclnnStatus status = gating_set_router(executor, X, numbers);
    if (status == ACLNN_SUCCESS)
        status = gating_want_output(executor, OUT, out_flag);
    if (status != ACLNN_SUCCESS)
        return status;
    if (by_hash(executor))
        return check_hash(executor, numbers);
    executor->operands[INPUT_IDS].used = executor->operands[TABLE].used = false;
    return gate_check(executor, &places, 2);
}

aclnnStatus aclnnMoeGatingTopKV2GetWorkspaceSize(
    const aclTensor *x, const aclTensor *biasOptional, const aclTensor *inputIdsOptional,
    const aclTensor *tid2eidOptional, int64_t k, int64_t kGroup, int64_t groupCount,
    int64_t groupSelectMode, int64_t renorm, int64_t normType, bool outFlag,
    double routedScalingFactor, double eps, const aclTensor *yOut, const aclTensor *expertIdxOut,
    const aclTensor *outOut, uint64_t *workspaceSize, aclOpExecutor **executor)
{
    const aclTensor *const tensors[] = {
        [X] = x,
        [BIAS] = biasOptional,
        [INPUT_IDS] = inputIdsOptional,
        [TABLE] = tid2eidOptional,
        [Y] = yOut,
        [EXPERT_IDX] = expertIdxOut,
        [OUT] = outOut,
    };
    const struct gating_numbers numbers = {k,      kGroup,   groupCount,          groupSelectMode,
                                           renorm, normType, routedScalingFactor, eps};
    aclOpExecutor *opened;
    aclnnStatus status = executor_open(&description, tensors, workspaceSize, executor, &opened);
    if (status != ACLNN_SUCCESS)
        return status;
    status = check(opened, &numbers, outFlag);
    return executor_finish(opened, status, 0, 0, workspaceSize, executor);
}

aclnnStatus aclnnMoeGatingTopKV2(void *workspace, uint64_t workspaceSize, aclOpExecutor *executor,
                                 aclrtStream stream)
{
    return executor_run(&description, workspace, workspaceSize, executor, stream);
}
