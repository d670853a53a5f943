/* operand.c - types, formats and extents of an operator's tensors, before anything is computed. */
#include "operand.h"

#include "runtime/message.h"

#include <stdio.h>
#include <string.h>

const struct type_set token_types = {1u << ACL_FLOAT | 1u << ACL_FLOAT16 | 1u << ACL_BF16,
                                     "ACL_FLOAT, ACL_FLOAT16 or ACL_BF16"};
const struct type_set index_types = {1u << ACL_INT32, "ACL_INT32"};
const struct type_set id_types = {1u << ACL_INT32 | 1u << ACL_INT64, "ACL_INT32 or ACL_INT64"};
const struct type_set long_types = {1u << ACL_INT64, "ACL_INT64"};
const struct type_set map_types = {1u << ACL_BOOL | 1u << ACL_INT8, "ACL_BOOL or ACL_INT8"};

const struct type_set byte_map_types = {1u << ACL_BOOL | 1u << ACL_INT8 | 1u << ACL_UINT8,
                                        "ACL_BOOL, ACL_INT8 or ACL_UINT8"};

const struct type_set bool_types = {1u << ACL_BOOL, "ACL_BOOL"};
const struct type_set float_types = {1u << ACL_FLOAT, "ACL_FLOAT"};

static moetoken_type moetoken_type_of(aclDataType type)
{
    switch (type) {
    case ACL_FLOAT16:
        return MOETOKEN_F16;
    case ACL_BF16:
        return MOETOKEN_BF16;
    case ACL_INT32:
        return MOETOKEN_I32;
    case ACL_INT64:
        return MOETOKEN_I64;
    case ACL_BOOL:
        return MOETOKEN_BOOL;
    case ACL_INT8:
        return MOETOKEN_I8;
    case ACL_UINT8:
        return MOETOKEN_U8;
    default: /* no other passes operand_check */
        return MOETOKEN_F32;
    }
}

void operand_set(struct operand *operand, const aclTensor *tensor)
{
    operand->handle = tensor;
    operand->used = true;
    operand->type = tensor->type;
    memcpy(operand->shape, tensor->shape, (size_t)tensor->rank * sizeof tensor->shape[0]);
    memcpy(operand->strides, tensor->strides, (size_t)tensor->rank * sizeof tensor->strides[0]);
    operand->tensor = moetoken_tensor(tensor->data, moetoken_type_of(tensor->type),
                                      (int)tensor->rank, operand->shape);
    operand->tensor.strides = operand->strides;
    operand->tensor.byte_offset = (uint64_t)tensor->offset * aclDataTypeSize(tensor->type);
}

void operand_own_arrays(struct operand *operand)
{
    operand->tensor.shape = operand->shape;
    operand->tensor.strides = operand->strides;
}

void operand_as_column(struct operand *operand)
{
    if (operand->tensor.ndim != 1)
        return;
    operand->tensor.ndim = 2;
    operand->shape[1] = 1;
    operand->strides[1] = 1;
}

bool operand_flatten_rows(struct operand *operand)
{
    const bool empty = operand_is_empty(operand);
    int64_t length = 1, stride = 1, reach;
    for (int axis = operand->tensor.ndim - 1; axis > 0; axis--) { /* the innermost first */
        int64_t size = operand->shape[axis];
        if (length == 1)
            stride = operand->strides[axis];
        else if (size > 1 && !empty &&
                 (__builtin_mul_overflow(length, stride, &reach) ||
                  operand->strides[axis] != reach))
            return false;
        if (__builtin_mul_overflow(length, size, &length))
            return false;
    }
    if (operand->tensor.ndim > 2) {
        operand->tensor.ndim = 2;
        operand->shape[1] = length;
        operand->strides[1] = stride;
    }
    return true;
}

aclnnStatus operand_check(const aclTensor *tensor, const struct parameter *parameter)
{
    int type = (int)tensor->type;
    if (type < 0 || type > 31 || !(parameter->types->set >> type & 1))
        return fail(ACLNN_ERR_PARAM_INVALID, "%s has data type %d, expected %s", parameter->name,
                    type, parameter->types->text);
    if (tensor->format != ACL_FORMAT_ND)
        return fail(ACLNN_ERR_PARAM_INVALID, "%s has format %d, expected ACL_FORMAT_ND",
                    parameter->name, (int)tensor->format);
    if (tensor->offset < 0 || tensor->offset > INT64_MAX / 8)
        return fail(ACLNN_ERR_PARAM_INVALID, "%s has offset %lld, expected at least 0 elements",
                    parameter->name, (long long)tensor->offset);
    return ACLNN_SUCCESS;
}

bool operand_is_empty(const struct operand *operand)
{
    for (int i = 0; i < operand->tensor.ndim; i++)
        if (operand->shape[i] == 0)
            return true;
    return false;
}

bool operand_bytes(const struct operand *operand, char **first, size_t *bytes)
{
    if (operand_is_empty(operand) || operand->tensor.data == NULL)
        return false;
    int64_t low = 0, high = 0, reach;
    int64_t size = operand->tensor.dtype.bits / 8;
    for (int i = 0; i < operand->tensor.ndim; i++) {
        if (__builtin_mul_overflow(operand->shape[i] - 1, operand->strides[i], &reach) ||
            __builtin_mul_overflow(reach, size, &reach) ||
            __builtin_add_overflow(reach < 0 ? low : high, reach, reach < 0 ? &low : &high))
            return false;
    }
    *first = (char *)operand->tensor.data + operand->tensor.byte_offset + low;
    return !__builtin_sub_overflow(high, low, &reach) &&
           !__builtin_add_overflow(reach, size, bytes);
}

static int64_t greatest_common_divisor(int64_t a, int64_t b)
{
    while (b > 0) {
        int64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

/* Steps of a along one dimension and of b along the other meet where both make the same way; the
 * shortest such steps are the strides over their greatest common divisor. */
static bool two_strides_meet(const int64_t *sizes, const int64_t *strides)
{
    int64_t divisor = greatest_common_divisor(strides[0], strides[1]);
    return strides[1] / divisor < sizes[0] && strides[0] / divisor < sizes[1];
}

/* Whether a dimension's stride is not beyond all that the dimensions with smaller ones reach. */
static bool strides_interleave(const int64_t *sizes, const int64_t *strides, int count)
{
    for (int axis = 0; axis < count; axis++) {
        int64_t reach = 0;
        for (int other = 0; other < count; other++)
            if (other != axis && strides[other] <= strides[axis])
                reach += (sizes[other] - 1) * strides[other];
        if (strides[axis] <= reach)
            return true;
    }
    return false;
}

bool operand_strides_fit(const struct operand *operand, bool output)
{
    int64_t sizes[OPERAND_RANK], strides[OPERAND_RANK];
    int count = 0;
    for (int i = 0; i < operand->tensor.ndim; i++) {
        if (operand->shape[i] < 2)
            continue;
        if (operand->strides[i] < 0 || (output && operand->strides[i] == 0))
            return false;
        sizes[count] = operand->shape[i];
        strides[count++] = operand->strides[i];
    }
    if (!output || count < 2)
        return true;
    return count == 2 ? !two_strides_meet(sizes, strides)
                      : !strides_interleave(sizes, strides, count);
}

void operand_fill_zero(const struct operand *operand)
{
    if (operand_is_empty(operand))
        return;
    int64_t index[OPERAND_RANK] = {0};
    size_t size = operand->tensor.dtype.bits / 8;
    char *element = (char *)operand->tensor.data + operand->tensor.byte_offset;
    int axis;
    do {
        memset(element, 0, size);
        for (axis = operand->tensor.ndim - 1; axis >= 0; axis--) {
            int64_t step = operand->strides[axis] * (int64_t)size;
            if (++index[axis] < operand->shape[axis]) {
                element += step;
                break;
            }
            element -= step * (operand->shape[axis] - 1);
            index[axis] = 0;
        }
    } while (axis >= 0);
}
