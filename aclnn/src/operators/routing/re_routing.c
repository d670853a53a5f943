/* re_routing.c - aclnnMoeReRouting: runs of rows, [rank][expert], as [expert][rank]. The routing is
 * in the counts, so that nothing is left to sort. */
#include "../../../include/aclnnop/aclnn_moe_re_routing.h"
#include "operators/product_rules.h"
#include "operators/routing/tensors.h"
#include "runtime/message.h"

#include <inttypes.h>
#include <string.h>

enum {
    TOKENS,
    RANK_COUNTS,
    SCALES,
    PERMUTED,
    PERMUTED_SCALES,
    TOKEN_IDX,
    EXPERT_COUNTS
};

static const struct type_set byte_types = {1u << ACL_FLOAT16 | 1u << ACL_BF16 | 1u << ACL_INT8,
                                           "ACL_FLOAT16, ACL_BF16 or ACL_INT8"};

static const struct parameter parameters[] = {
    [TOKENS] = {"tokens", &byte_types, false, true},
    [RANK_COUNTS] = {"expertTokenNumPerRank", &id_types, false, true},
    [SCALES] = {"perTokenScalesOptional", &float_types, false, false},
    [PERMUTED] = {"permuteTokensOut", &byte_types, true, true},
    [PERMUTED_SCALES] = {"permutePerTokenScalesOut", &float_types, true, false},
    [TOKEN_IDX] = {"permuteTokenIdxOut", &index_types, true, true},
    [EXPERT_COUNTS] = {"expertTokenNumOut", &id_types, true, true},
};

/* ---- call ----------------------------------------------------------------------------------- */

/* No count is negative, and together they are the rows of tokens. */
static aclnnStatus check_counts(const aclOpExecutor *executor)
{
    const int64_t *shape = executor->operands[RANK_COUNTS].shape;
    const int64_t rows_num = executor->operands[TOKENS].shape[0];
    int64_t sum = 0;
    for (int64_t rank = 0; rank < shape[0]; rank++)
        for (int64_t e = 0; e < shape[1]; e++) {
            int64_t count = tensors_load_index(executor, RANK_COUNTS, rank, e);
            if (count < 0 || count > rows_num - sum)
                return fail(ACLNN_ERR_INNER_TILING_ERROR,
                            "expertTokenNumPerRank[%" PRId64 ", %" PRId64 "] = %" PRId64
                            ", expected 0 to %" PRId64 ": tokens has %" PRId64 " rows",
                            rank, e, count, rows_num - sum, rows_num);
            sum += count;
        }
    if (sum != rows_num)
        return fail(ACLNN_ERR_INNER_TILING_ERROR,
                    "expertTokenNumPerRank adds up to %" PRId64 ", expected %" PRId64
                    ", the rows of tokens",
                    sum, rows_num);
    return ACLNN_SUCCESS;
}

static void copy_row(const struct operand *from, int64_t from_row, const struct operand *to,
                     int64_t to_row)
{
    const size_t size = from->tensor.dtype.bits / 8;
    const int64_t length = from->tensor.ndim > 1 ? from->shape[1] : 1;
    if (length == 0)
        return;
    const char *source = tensors_at(from, from_row, 0);
    char *target = tensors_at(to, to_row, 0);
    if (from->strides[1] == 1 && to->strides[1] == 1) {
        memcpy(target, source, (size_t)length * size);
        return;
    }
    for (int64_t column = 0; column < length; column++)
        memcpy(tensors_at(to, to_row, column), tensors_at(from, from_row, column), size);
}

/* `count` rows from `from` on go to rows from `to` on. */
static void move_run(const aclOpExecutor *executor, int64_t from, int64_t to, int64_t count)
{
    const struct operand *operands = executor->operands;
    bool by_old_place = executor->attributes.row_idx_type == 1;
    for (int64_t i = 0; i < count; i++) {
        copy_row(&operands[TOKENS], from + i, &operands[PERMUTED], to + i);
        if (operands[SCALES].used)
            copy_row(&operands[SCALES], from + i, &operands[PERMUTED_SCALES], to + i);
        tensors_store_index(executor, TOKEN_IDX, by_old_place ? from + i : to + i, 0,
                            by_old_place ? to + i : from + i);
    }
}

/* Where each rank's rows begin. */
static void find_ranks(const aclOpExecutor *executor, int64_t *next)
{
    const int64_t *shape = executor->operands[RANK_COUNTS].shape;
    int64_t row = 0;
    for (int64_t rank = 0; rank < shape[0]; rank++) {
        next[rank] = row;
        for (int64_t e = 0; e < shape[1]; e++)
            row += tensors_load_index(executor, RANK_COUNTS, rank, e);
    }
}

/* Expert by expert; next[rank] is the rank's first row that has not moved. */
static void move_rows(const aclOpExecutor *executor, int64_t *next)
{
    const int64_t *shape = executor->operands[RANK_COUNTS].shape;
    int64_t to = 0, begin = 0;
    for (int64_t e = 0; e < shape[1]; e++) {
        for (int64_t rank = 0; rank < shape[0]; rank++) {
            int64_t count = tensors_load_index(executor, RANK_COUNTS, rank, e);
            move_run(executor, next[rank], to, count);
            next[rank] += count;
            to += count;
        }
        tensors_store_index(executor, EXPERT_COUNTS, e, 0,
                            executor->attributes.count_type == 1 ? to - begin : to);
        begin = to;
    }
}

static aclnnStatus call(const aclOpExecutor *executor, const moetoken_options *options,
                        bool check_only)
{
    (void)options;
    if (check_only || executor_outputs_empty(executor))
        return ACLNN_SUCCESS;
    aclnnStatus status = check_counts(executor);
    if (status != ACLNN_SUCCESS)
        return status;
    find_ranks(executor, executor->scratch);
    move_rows(executor, executor->scratch);
    return ACLNN_SUCCESS;
}

static const struct operator_description description = {
    .name = "aclnnMoeReRouting",
    .parameters = parameters,
    .count = sizeof parameters / sizeof parameters[0],
    .shape_status = ACLNN_ERR_INNER_TILING_ERROR,
    .call = call};

/* ---- check ---------------------------------------------------------------------------------- */

static aclnnStatus check_types(const aclOpExecutor *executor)
{
    aclnnStatus status = executor_same_type(executor, PERMUTED, TOKENS);
    return status == ACLNN_SUCCESS ? executor_same_type(executor, EXPERT_COUNTS, RANK_COUNTS)
                                   : status;
}

static aclnnStatus check_modes(const struct attributes *attributes)
{
    if (attributes->row_idx_type != 0 && attributes->row_idx_type != 1)
        return fail(ACLNN_ERR_INNER_TILING_ERROR, "idxType = %" PRId64 ", expected 0 or 1",
                    attributes->row_idx_type);
    if (attributes->count_type != 0 && attributes->count_type != 1)
        return fail(ACLNN_ERR_INNER_TILING_ERROR,
                    "expertTokenNumType = %" PRId64 ", expected 0 or 1", attributes->count_type);
    if (attributes->count_type == 0 && product_named())
        return fail(ACLNN_ERR_INNER_TILING_ERROR,
                    "expertTokenNumType = 0, expected 1: no product has running sums so far");
    return ACLNN_SUCCESS;
}

static aclnnStatus check_scales(aclOpExecutor *executor)
{
    struct operand *operands = executor->operands;
    struct operand *scales = &operands[SCALES], *out = &operands[PERMUTED_SCALES];
    const int64_t rows = operands[TOKENS].shape[0];
    if (!scales->used) {
        if (out->used)
            executor_zero_fill(executor, PERMUTED_SCALES);
        return ACLNN_SUCCESS;
    }
    if (!out->used)
        return fail(ACLNN_ERR_PARAM_NULLPTR,
                    "permutePerTokenScalesOut is NULL although perTokenScalesOptional is given");
    if (scales->tensor.ndim == 1 && out->tensor.ndim == 1) {
        operand_as_column(scales);
        operand_as_column(out);
    }
    aclnnStatus status = tensors_expect(executor, SCALES, 2, (int64_t[]){rows, -1}, "[A,S]");
    return status == ACLNN_SUCCESS
               ? tensors_expect(executor, PERMUTED_SCALES, 2, scales->shape, "[A,S]")
               : status;
}

static aclnnStatus check_shapes(aclOpExecutor *executor)
{
    const struct operand *operands = executor->operands;
    const int64_t *tokens = operands[TOKENS].shape, *counts = operands[RANK_COUNTS].shape;
    aclnnStatus status = tensors_expect(executor, TOKENS, 2, (int64_t[]){-1, -1}, "[A,H]");
    if (status == ACLNN_SUCCESS)
        status = tensors_expect(executor, RANK_COUNTS, 2, (int64_t[]){-1, -1}, "[N,E]");
    if (status == ACLNN_SUCCESS)
        status = tensors_expect(executor, PERMUTED, 2, tokens, "[A,H]");
    if (status == ACLNN_SUCCESS)
        status = tensors_expect(executor, TOKEN_IDX, 1, tokens, "[A]");
    if (status == ACLNN_SUCCESS)
        status = tensors_expect(executor, EXPERT_COUNTS, 1, &counts[1], "[E]");
    return status == ACLNN_SUCCESS ? check_scales(executor) : status;
}

static aclnnStatus check(aclOpExecutor *executor)
{
    aclnnStatus status = check_types(executor);
    if (status == ACLNN_SUCCESS)
        status = check_modes(&executor->attributes);
    if (status == ACLNN_SUCCESS)
        status = check_shapes(executor);
    if (status == ACLNN_SUCCESS)
        status = executor_need_scratch(executor, executor->operands[RANK_COUNTS].shape[0],
                                       sizeof(int64_t));
    for (size_t i = 0; i < executor->description->count; i++)
        executor->operands[i].set_aside = executor->operands[i].used;
    return status == ACLNN_SUCCESS ? executor_check(executor) : status;
}

aclnnStatus aclnnMoeReRoutingGetWorkspaceSize(
    const aclTensor *tokens, const aclTensor *expertTokenNumPerRank,
    const aclTensor *perTokenScalesOptional, int64_t expertTokenNumType, int64_t idxType,
    const aclTensor *permuteTokensOut, const aclTensor *permutePerTokenScalesOut,
    const aclTensor *permuteTokenIdxOut, const aclTensor *expertTokenNumOut,
    uint64_t *workspaceSize, aclOpExecutor **executor)
{
    const aclTensor *const tensors[] = {
        [TOKENS] = tokens,
        [RANK_COUNTS] = expertTokenNumPerRank,
        [SCALES] = perTokenScalesOptional,
        [PERMUTED] = permuteTokensOut,
        [PERMUTED_SCALES] = permutePerTokenScalesOut,
        [TOKEN_IDX] = permuteTokenIdxOut,
        [EXPERT_COUNTS] = expertTokenNumOut,
    };
    aclOpExecutor *opened;
    aclnnStatus status = executor_open(&description, tensors, workspaceSize, executor, &opened);
    if (status != ACLNN_SUCCESS)
        return status;
    opened->attributes.count_type = expertTokenNumType;
    opened->attributes.row_idx_type = idxType;
    return executor_finish(opened, check(opened), 0, 0, workspaceSize, executor);
}

aclnnStatus aclnnMoeReRouting(void *workspace, uint64_t workspaceSize, aclOpExecutor *executor,
                              aclrtStream stream)
{
    return executor_run(&description, workspace, workspaceSize, executor, stream);
}
