/* scratch.c - see scratch.h. */
#include "operators/by_ids/scratch.h"

#include "runtime/message.h"

#include <inttypes.h>
#include <string.h>

void *scratch_take(void **next, int64_t count, size_t size)
{
    void *taken = *next;
    if (taken) /* executor_need_scratch has seen that this does not overflow */
        *next = (char *)taken + (((size_t)count * size + 7) & ~(size_t)7);
    return taken;
}

/* ---- rows ----------------------------------------------------------------------------------- */

static const char *first_element(const DLTensor *tensor)
{
    return tensor->data ? (const char *)tensor->data + tensor->byte_offset : NULL;
}

static aclnnStatus copy_rows(const DLTensor *indices, const char *name,
                             const struct row_window *window, int32_t *rows)
{
    const char *value_at = first_element(indices);
    const int64_t step = indices->strides[0] * (int64_t)sizeof(int32_t);
    const int64_t room = window->end - window->begin;
    const int64_t rows_num = room < window->rows_num ? room : window->rows_num;
    for (int64_t i = 0; i < indices->shape[0]; i++, value_at += step) {
        int32_t value;
        memcpy(&value, value_at, sizeof value);
        if (value < -1)
            return fail(ACLNN_ERR_INNER_TILING_ERROR,
                        "%s[%" PRId64 "] = %" PRId32 ", expected a row or -1", name, i, value);
        int64_t row = value - window->begin;
        rows[i] = row >= 0 && row < rows_num ? (int32_t)row : -1;
    }
    return ACLNN_SUCCESS;
}

aclnnStatus scratch_rows(const aclOpExecutor *executor, int place, const struct row_window *window,
                         bool check_only, void **next, DLTensor *rows)
{
    const DLTensor *indices = executor_tensor(executor, place);
    *rows = *indices;
    if (check_only)
        return ACLNN_SUCCESS;
    *rows = moetoken_tensor(scratch_take(next, indices->shape[0], sizeof(int32_t)), MOETOKEN_I32, 1,
                            indices->shape);
    return copy_rows(indices, executor_name(executor, (size_t)place), window, rows->data);
}

/* ---- probs ---------------------------------------------------------------------------------- */

bool scratch_probs_convert(const aclOpExecutor *executor, int probs, int tokens)
{
    const struct operand *operand = &executor->operands[probs];
    return operand->used && operand->type != ACL_FLOAT &&
           operand->type != executor->operands[tokens].type;
}

/* The address of element [row, column] of an operand of rank 2. */
static char *element_at(const struct operand *operand, int64_t row, int64_t column)
{
    int64_t offset = row * operand->strides[0] + column * operand->strides[1];
    return (char *)operand->tensor.data + operand->tensor.byte_offset +
           offset * (int64_t)sizeof(uint16_t);
}

static float load_16_bits(aclDataType type, const char *from)
{
    uint16_t bits;
    memcpy(&bits, from, sizeof bits);
    if (type == ACL_FLOAT16)
        return aclFloat16ToFloat(bits);
    uint32_t wide = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &wide, sizeof value);
    return value;
}

/* A NaN stays quiet: moetoken.h makes no other. */
static uint16_t round_to_bfloat16(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if (value != value)
        return (uint16_t)(bits >> 16);
    return (uint16_t)((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

DLTensor scratch_probs(const aclOpExecutor *executor, int place, bool check_only, void **next)
{
    const struct operand *operand = &executor->operands[place];
    DLTensor tensor = operand->tensor;
    tensor.data = NULL;
    tensor.dtype = moetoken_dtype(MOETOKEN_F32);
    if (check_only)
        return tensor;
    int64_t rows = operand->shape[0], columns = operand->shape[1];
    float *values = scratch_take(next, rows * columns, sizeof *values);
    tensor = moetoken_tensor(values, MOETOKEN_F32, 2, tensor.shape);
    if (executor->description->parameters[place].output)
        return tensor;
    for (int64_t t = 0; t < rows; t++)
        for (int64_t k = 0; k < columns; k++)
            *values++ = load_16_bits(operand->type, element_at(operand, t, k));
    return tensor;
}

void scratch_store_probs(const aclOpExecutor *executor, int place, const DLTensor *values)
{
    const struct operand *operand = &executor->operands[place];
    const float *value = values->data;
    for (int64_t t = 0; t < operand->shape[0]; t++)
        for (int64_t k = 0; k < operand->shape[1]; k++, value++) {
            uint16_t bits = operand->type == ACL_FLOAT16 ? aclFloatToFloat16(*value)
                                                         : round_to_bfloat16(*value);
            memcpy(element_at(operand, t, k), &bits, sizeof bits);
        }
}
