/* tensors.c - see tensors.h. */
#include "operators/routing/tensors.h"

#include "operators/product_rules.h"
#include "runtime/message.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* ---- shapes --------------------------------------------------------------------------------- */

/* "[3, 4]"; cut where it does not fit. */
static void write_shape(char *text, size_t size, int rank, const int64_t *shape)
{
    size_t used = (size_t)snprintf(text, size, "[");
    for (int i = 0; i < rank && used < size; i++)
        used += shape[i] < 0 ? (size_t)snprintf(text + used, size - used, "%sany", i ? ", " : "")
                             : (size_t)snprintf(text + used, size - used, "%s%" PRId64,
                                                i ? ", " : "", shape[i]);
    if (used < size)
        snprintf(text + used, size - used, "]");
}

aclnnStatus tensors_expect(const aclOpExecutor *executor, int place, int rank, const int64_t *shape,
                           const char *why)
{
    const struct operand *operand = &executor->operands[place];
    char found[128], expected[128];
    bool same = operand->tensor.ndim == rank;
    for (int i = 0; i < rank && same; i++)
        same = shape[i] < 0 || operand->shape[i] == shape[i];
    if (!operand->used || same)
        return ACLNN_SUCCESS;
    write_shape(found, sizeof found, operand->tensor.ndim, operand->shape);
    write_shape(expected, sizeof expected, rank, shape);
    return fail(executor->description->shape_status, "%s has shape %s, expected %s = %s",
                executor_name(executor, (size_t)place), found, why, expected);
}

aclnnStatus tensors_expect_least(const aclOpExecutor *executor, const char *name, int64_t value,
                                 int64_t least)
{
    if (value >= least)
        return ACLNN_SUCCESS;
    return fail(executor->description->shape_status, "%s = %" PRId64 ", expected at least %" PRId64,
                name, value, least);
}

aclnnStatus tensors_merge_rows(aclOpExecutor *executor, int place)
{
    struct operand *operand = &executor->operands[place];
    aclnnStatus status = executor->description->shape_status;
    const char *name = executor_name(executor, (size_t)place);
    int64_t *shape = operand->shape, *strides = operand->strides, rows, reach;
    if (!operand->used || operand->tensor.ndim != 3)
        return ACLNN_SUCCESS;
    if (__builtin_mul_overflow(shape[0], shape[1], &rows))
        return fail(status, "%s: %" PRId64 " * %" PRId64 " rows do not fit in 64 bits", name,
                    shape[0], shape[1]);
    if (shape[0] > 1 && shape[1] > 1 && shape[2] > 0 &&
        (__builtin_mul_overflow(shape[1], strides[1], &reach) || strides[0] != reach))
        return fail(status,
                    "%s has strides %" PRId64 ", %" PRId64 ": no stride goes through its %" PRId64
                    " * %" PRId64 " rows",
                    name, strides[0], strides[1], shape[0], shape[1]);
    operand->tensor.ndim = 2;
    strides[0] = shape[1] > 1 ? strides[1] : strides[0];
    strides[1] = strides[2];
    shape[0] = rows;
    shape[1] = shape[2];
    return ACLNN_SUCCESS;
}

/* ---- elements ------------------------------------------------------------------------------- */

char *tensors_at(const struct operand *operand, int64_t row, int64_t column)
{
    int64_t element = row * operand->strides[0];
    if (operand->tensor.ndim > 1)
        element += column * operand->strides[1];
    return (char *)operand->tensor.data + operand->tensor.byte_offset +
           element * (operand->tensor.dtype.bits / 8);
}

int64_t tensors_load_index(const aclOpExecutor *executor, int place, int64_t row, int64_t column)
{
    const struct operand *operand = &executor->operands[place];
    const char *from = tensors_at(operand, row, column);
    int32_t narrow;
    int64_t wide;
    if (operand->tensor.dtype.bits == 64) {
        memcpy(&wide, from, sizeof wide);
        return wide;
    }
    memcpy(&narrow, from, sizeof narrow);
    return narrow;
}

void tensors_store_index(const aclOpExecutor *executor, int place, int64_t row, int64_t column,
                         int64_t value)
{
    const struct operand *operand = &executor->operands[place];
    const int32_t narrow = (int32_t)value;
    bool wide = operand->tensor.dtype.bits == 64;
    memcpy(tensors_at(operand, row, column), wide ? (const void *)&value : &narrow,
           wide ? sizeof value : sizeof narrow);
}

/* ---- slots ---------------------------------------------------------------------------------- */

aclnnStatus tensors_copy_slots(const aclOpExecutor *executor, int place,
                               const struct slot_order *order, int32_t *slots)
{
    const int64_t topk = order->topk, tokens_num = order->tokens_num;
    for (int64_t t = 0; t < tokens_num; t++)
        for (int64_t k = 0; k < topk; k++) {
            int64_t at = order->by_column ? k * tokens_num + t : t * topk + k;
            int64_t row = tensors_load_index(executor, place, at, 0);
            if (row < -1 || row >= order->rows_end)
                return fail(ACLNN_ERR_INNER_TILING_ERROR,
                            "%s[%" PRId64 "] = %" PRId64 " is outside [-1, %" PRId64 ")",
                            executor_name(executor, (size_t)place), at, row, order->rows_end);
            slots[t * topk + k] = row < order->rows_num ? (int32_t)row : -1;
        }
    return ACLNN_SUCCESS;
}

/* ---- scales --------------------------------------------------------------------------------- */

aclnnStatus tensors_scales_type(const aclOpExecutor *executor, int scales, int rows, bool wide)
{
    if (!product_is_a2_or_a3())
        return ACLNN_SUCCESS;
    return wide ? executor_probs_type(executor, scales, rows, ACLNN_ERR_PARAM_INVALID)
                : executor_same_type(executor, scales, rows);
}
