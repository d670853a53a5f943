/* init_routing.c - aclnnMoeInitRouting over moetoken_permute: the slots carry numbers, rowIdx,
 * which say their tokens. So the rows' order comes from one call, and the rows from a second one in
 * which each row is an expert. */
#include "../../../include/aclnnop/aclnn_moe_init_routing.h"
#include "operators/by_ids/scratch.h"
#include "operators/routing/tensors.h"
#include "runtime/message.h"

#include <inttypes.h>

enum {
    X,
    ROW_IDX,
    EXPERT_IDX,
    EXPANDED_X,
    EXPANDED_ROW_IDX,
    EXPANDED_EXPERT_IDX
};

static const struct parameter parameters[] = {
    [X] = {"x", &token_types, false, true},
    [ROW_IDX] = {"rowIdx", &index_types, false, true},
    [EXPERT_IDX] = {"expertIdx", &index_types, false, true},
    [EXPANDED_X] = {"expandedXOut", &token_types, true, true},
    [EXPANDED_ROW_IDX] = {"expandedRowIdxOut", &index_types, true, true},
    [EXPANDED_EXPERT_IDX] = {"expandedExpertIdxOut", &index_types, true, true},
};

/* ---- sort ----------------------------------------------------------------------------------- */

/* The copies in the scratch: by slot in the order of expertIdx, [T,K]. */
struct copies {
    int64_t *ids;     /* from 0 on */
    int32_t *rows;    /* of the slots in expert order */
    int32_t *experts; /* of the call that moves rows: by token and by its choices */
};

static struct copies take_copies(const aclOpExecutor *executor)
{
    const int64_t *shape = executor->operands[EXPERT_IDX].shape;
    const int64_t slots = shape[0] * shape[1];
    void *next = executor->scratch;
    struct copies copies;
    copies.ids = scratch_take(&next, slots, sizeof *copies.ids);
    copies.rows = scratch_take(&next, slots, sizeof *copies.rows);
    copies.experts = scratch_take(&next, slots, sizeof *copies.experts);
    return copies;
}

/* Any int32 is an expert; returns how many there may be. */
static int64_t copy_ids(const aclOpExecutor *executor, int64_t *ids)
{
    const int64_t *shape = executor->operands[EXPERT_IDX].shape;
    int64_t experts_num = 1;
    for (int64_t i = 0; i < shape[0] * shape[1]; i++) {
        int64_t id = tensors_load_index(executor, EXPERT_IDX, i / shape[1], i % shape[1]);
        ids[i] = id - INT32_MIN;
        experts_num = ids[i] >= experts_num ? ids[i] + 1 : experts_num;
    }
    return experts_num;
}

/* rowIdx is to hold each number below T*K once: it goes to `experts` as unused slots that are
 * found. */
static aclnnStatus check_row_idx(const aclOpExecutor *executor, int32_t *experts)
{
    const int64_t *shape = executor->operands[ROW_IDX].shape;
    const int64_t slots = shape[0] * shape[1];
    for (int64_t i = 0; i < slots; i++)
        experts[i] = 0;
    for (int64_t i = 0; i < slots; i++) {
        int64_t number = tensors_load_index(executor, ROW_IDX, i / shape[1], i % shape[1]);
        if (number < 0 || number >= slots)
            return fail(ACLNN_ERR_INNER_TILING_ERROR,
                        "rowIdx[%" PRId64 ", %" PRId64 "] = %" PRId64 " is outside [0, %" PRId64
                        ")",
                        i / shape[1], i % shape[1], number, slots);
        if (experts[number] == -1)
            return fail(ACLNN_ERR_INNER_TILING_ERROR,
                        "rowIdx[%" PRId64 ", %" PRId64 "] = %" PRId64 " comes up twice",
                        i / shape[1], i % shape[1], number);
        experts[number] = -1;
    }
    return ACLNN_SUCCESS;
}

/* What the slots' rows say; the slots of rows that are made become experts of their tokens. */
static void store_indices(const aclOpExecutor *executor, const struct copies *copies)
{
    const int64_t *shape = executor->operands[EXPERT_IDX].shape;
    const int64_t tokens_num = shape[0], topk = shape[1];
    const int64_t rows_num = executor->operands[EXPANDED_X].shape[0];
    for (int64_t i = 0; i < tokens_num * topk; i++) {
        int64_t number = tensors_load_index(executor, ROW_IDX, i / topk, i % topk);
        int32_t row = copies->rows[i];
        tensors_store_index(executor, EXPANDED_ROW_IDX, number, 0, row);
        tensors_store_index(executor, EXPANDED_EXPERT_IDX, row, 0, copies->ids[i] + INT32_MIN);
        copies->experts[number % tokens_num * topk + number / tokens_num] =
            row < rows_num ? row : -1;
    }
}

/* ---- call ----------------------------------------------------------------------------------- */

static aclnnStatus permute(const aclOpExecutor *executor, const moetoken_permute_args *args,
                           const moetoken_options *options, bool check_only)
{
    return executor_result(executor, check_only,
                           check_only ? moetoken_permute_check(args, options)
                                      : moetoken_permute(args, options));
}

static aclnnStatus sort_slots(const aclOpExecutor *executor, const struct copies *copies,
                              const moetoken_options *options)
{
    int64_t *shape = executor->operands[EXPERT_IDX].tensor.shape, slots = shape[0] * shape[1];
    DLTensor ids = moetoken_tensor(copies->ids, MOETOKEN_I64, 2, shape);
    DLTensor rows = moetoken_tensor(copies->rows, MOETOKEN_I32, 1, &slots);
    moetoken_permute_args args = {.struct_size = sizeof args,
                                  .expert_ids = &ids,
                                  .experts_num = copy_ids(executor, copies->ids),
                                  .sorted_indices = &rows};
    return permute(executor, &args, options, false);
}

static aclnnStatus call(const aclOpExecutor *executor, const moetoken_options *options,
                        bool check_only)
{
    int64_t rows_num = executor->operands[EXPANDED_X].shape[0];
    DLTensor experts = executor->operands[EXPERT_IDX].tensor;
    moetoken_permute_args args = {.struct_size = sizeof args,
                                  .tokens = executor_tensor(executor, X),
                                  .expert_ids = &experts,
                                  .experts_num = rows_num > 0 ? rows_num : 1,
                                  .permuted_tokens = executor_tensor(executor, EXPANDED_X)};
    if (check_only)
        return permute(executor, &args, options, true);
    if (executor_outputs_empty(executor))
        return ACLNN_SUCCESS;
    struct copies copies = take_copies(executor);
    aclnnStatus status = check_row_idx(executor, copies.experts);
    if (status == ACLNN_SUCCESS)
        status = sort_slots(executor, &copies, options);
    if (status != ACLNN_SUCCESS)
        return status;
    store_indices(executor, &copies);
    experts = moetoken_tensor(copies.experts, MOETOKEN_I32, 2, experts.shape);
    return permute(executor, &args, options, false);
}

static const struct operator_description description = {
    .name = "aclnnMoeInitRouting",
    .parameters = parameters,
    .count = sizeof parameters / sizeof parameters[0],
    .shape_status = ACLNN_ERR_INNER_TILING_ERROR,
    .call = call};

/* ---- check ---------------------------------------------------------------------------------- */

static aclnnStatus expect_shapes(const aclOpExecutor *executor)
{
    const int64_t *x = executor->operands[X].shape, *ids = executor->operands[EXPERT_IDX].shape;
    int64_t active = executor->attributes.active_num, slots;
    aclnnStatus status = tensors_expect(executor, X, 2, (int64_t[]){-1, -1}, "[T,H]");
    if (status == ACLNN_SUCCESS)
        status = tensors_expect(executor, EXPERT_IDX, 2, (int64_t[]){x[0], -1}, "[T,K]");
    if (status == ACLNN_SUCCESS)
        status = tensors_expect(executor, ROW_IDX, 2, ids, "[T,K]");
    if (status != ACLNN_SUCCESS)
        return status;
    if (__builtin_mul_overflow(ids[0], ids[1], &slots) || slots > INT32_MAX)
        return fail(ACLNN_ERR_INNER_TILING_ERROR,
                    "expertIdx: T * K = %" PRId64 " * %" PRId64 " does not fit in 31 bits", ids[0],
                    ids[1]);
    const int64_t rows = (active < x[0] ? active : x[0]) * ids[1];
    status = tensors_expect(executor, EXPANDED_X, 2, (int64_t[]){rows, x[1]},
                            "[min(T, activeNum) * K,H]");
    if (status == ACLNN_SUCCESS)
        status = tensors_expect(executor, EXPANDED_ROW_IDX, 1, &slots, "[T*K]");
    return status == ACLNN_SUCCESS
               ? tensors_expect(executor, EXPANDED_EXPERT_IDX, 1, &slots, "[T*K]")
               : status;
}

static aclnnStatus check(aclOpExecutor *executor)
{
    const int64_t *ids = executor->operands[EXPERT_IDX].shape;
    aclnnStatus status = executor_same_type(executor, EXPANDED_X, X);
    if (status == ACLNN_SUCCESS)
        status = tensors_expect_least(executor, "activeNum", executor->attributes.active_num, 0);
    if (status == ACLNN_SUCCESS)
        status = expect_shapes(executor);
    if (status == ACLNN_SUCCESS)
        status = executor_need_scratch(executor, ids[0] * ids[1], sizeof(int64_t));
    for (int copies = 0; copies < 2 && status == ACLNN_SUCCESS; copies++)
        status = executor_need_scratch(executor, ids[0] * ids[1], sizeof(int32_t));
    for (size_t i = 0; i < executor->description->count; i++)
        executor->operands[i].set_aside = executor->operands[i].used;
    return status == ACLNN_SUCCESS ? executor_check(executor) : status;
}

aclnnStatus aclnnMoeInitRoutingGetWorkspaceSize(const aclTensor *x, const aclTensor *rowIdx,
                                                const aclTensor *expertIdx, int64_t activeNum,
                                                const aclTensor *expandedXOut,
                                                const aclTensor *expandedRowIdxOut,
                                                const aclTensor *expandedExpertIdxOut,
                                                uint64_t *workspaceSize, aclOpExecutor **executor)
{
    const aclTensor *const tensors[] = {
        [X] = x,
        [ROW_IDX] = rowIdx,
        [EXPERT_IDX] = expertIdx,
        [EXPANDED_X] = expandedXOut,
        [EXPANDED_ROW_IDX] = expandedRowIdxOut,
        [EXPANDED_EXPERT_IDX] = expandedExpertIdxOut,
    };
    aclOpExecutor *opened;
    aclnnStatus status = executor_open(&description, tensors, workspaceSize, executor, &opened);
    if (status != ACLNN_SUCCESS)
        return status;
    opened->attributes.active_num = activeNum;
    status = check(opened);
    const int64_t *shape = opened->operands[EXPERT_IDX].shape;
    return executor_finish(opened, status, shape[0],
                           status == ACLNN_SUCCESS ? shape[0] * shape[1] : 0, workspaceSize,
                           executor);
}

aclnnStatus aclnnMoeInitRouting(void *workspace, uint64_t workspaceSize, aclOpExecutor *executor,
                                aclrtStream stream)
{
    return executor_run(&description, workspace, workspaceSize, executor, stream);
}
