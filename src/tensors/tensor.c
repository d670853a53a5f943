/* tensor.c - checks a DLTensor's description and turns it into a view. */
#include "tensors/tensor.h"

#include "status.h"

#include <inttypes.h>
#include <stdio.h>

#define DLPACK_BOOL 6 /* kDLBool, which headers before 0.8 leave unnamed */

static const struct {
    DLDataType dtype;
    const char *name;
} types[] = {
    [MOETOKEN_F32] = {{kDLFloat, 32, 1}, "float32"},
    [MOETOKEN_F16] = {{kDLFloat, 16, 1}, "float16"},
    [MOETOKEN_BF16] = {{kDLBfloat, 16, 1}, "bfloat16"},
    [MOETOKEN_F64] = {{kDLFloat, 64, 1}, "float64"},
    [MOETOKEN_I32] = {{kDLInt, 32, 1}, "int32"},
    [MOETOKEN_I64] = {{kDLInt, 64, 1}, "int64"},
    [MOETOKEN_BOOL] = {{DLPACK_BOOL, 8, 1}, "bool"},
    [MOETOKEN_I8] = {{kDLInt, 8, 1}, "int8"},
    [MOETOKEN_U8] = {{kDLUInt, 8, 1}, "uint8"},
};
#define TYPE_COUNT ((int)(sizeof types / sizeof types[0]))

DLDataType moetoken_dtype(moetoken_type type)
{
    if ((unsigned)type >= (unsigned)TYPE_COUNT)
        return (DLDataType){0, 0, 0};
    return types[type].dtype;
}

const char *moetoken_type_name(moetoken_type type)
{
    return (unsigned)type < (unsigned)TYPE_COUNT ? types[type].name : "unknown";
}

/* "float32, float16 or bfloat16" for a set of types. */
static void describe_types(unsigned set, char *text, size_t size)
{
    size_t length = 0;
    text[0] = '\0';
    for (int type = 0; type < TYPE_COUNT && length < size; type++) {
        if (!(set >> type & 1))
            continue;
        const char *before = length == 0 ? "" : set >> type == 1 ? " or " : ", ";
        length += (size_t)snprintf(text + length, size - length, "%s%s", before, types[type].name);
    }
}

static moetoken_status check_type(const DLTensor *tensor, unsigned accepted,
                                  struct moetoken_view *view)
{
    DLDataType dtype = tensor->dtype;
    for (int type = 0; type < TYPE_COUNT; type++) {
        if (dtype.code == types[type].dtype.code && dtype.bits == types[type].dtype.bits &&
            dtype.lanes == 1) {
            view->type = (moetoken_type)type;
            view->size = dtype.bits / 8;
            if (accepted >> type & 1)
                return MOETOKEN_OK;
        }
    }
    char wanted[64], found[64];
    describe_types(accepted, wanted, sizeof wanted);
    if (view->size)
        snprintf(found, sizeof found, "%s", moetoken_type_name(view->type));
    else
        snprintf(found, sizeof found, "of DLPack type (code %d, bits %d, lanes %d)", dtype.code,
                 dtype.bits, dtype.lanes);
    return moetoken_fail(MOETOKEN_ERR_TYPE, "%s is %s, expected %s", view->name, found, wanted);
}

/* The device and rank, and that a shape is there. */
static moetoken_status check_frame(const DLTensor *tensor, int ndim, const char *name)
{
    int device = (int)tensor->device.device_type;
    if (device != kDLCPU && device != kDLCUDAHost && device != kDLROCMHost)
        return moetoken_fail(MOETOKEN_ERR_DEVICE,
                             "%s is not on the CPU: its DLPack device is type %d, number %d", name,
                             device, (int)tensor->device.device_id);
    if (tensor->ndim != ndim)
        return moetoken_fail(MOETOKEN_ERR_SHAPE, "%s has %d dimension%s, expected %d", name,
                             (int)tensor->ndim, tensor->ndim == 1 ? "" : "s", ndim);
    if (tensor->shape == NULL)
        return moetoken_fail(MOETOKEN_ERR_NULL, "%s has no shape (a NULL pointer)", name);
    return MOETOKEN_OK;
}

static moetoken_status check_sizes(const DLTensor *tensor, struct moetoken_view *view)
{
    view->shape[0] = view->shape[1] = 1;
    for (int dim = 0; dim < tensor->ndim; dim++) {
        view->shape[dim] = tensor->shape[dim];
        if (tensor->shape[dim] < 0)
            return moetoken_fail(MOETOKEN_ERR_SHAPE, "%s has size %" PRId64 " in dimension %d",
                                 view->name, tensor->shape[dim], dim);
    }
    int64_t bytes;
    if (__builtin_mul_overflow(view->shape[0], view->shape[1], &bytes) ||
        __builtin_mul_overflow(bytes, view->size, &bytes))
        return moetoken_fail(MOETOKEN_ERR_OVERFLOW,
                             "%s: its shape [%" PRId64 ", %" PRId64
                             "] holds more than 2^63 - 1 bytes",
                             view->name, view->shape[0], view->shape[1]);
    return MOETOKEN_OK;
}

/* The stride of a dimension in bytes, 0 where it moves nothing; and what it adds to the extent. */
static moetoken_status check_stride(const DLTensor *tensor, int dim, struct moetoken_view *view)
{
    view->stride[dim] = 0;
    if (dim >= tensor->ndim || moetoken_view_is_empty(view) || view->shape[dim] <= 1)
        return MOETOKEN_OK;
    int64_t contiguous = dim + 1 < tensor->ndim ? tensor->shape[1] : 1;
    int64_t stride = tensor->strides ? tensor->strides[dim] : contiguous;
    if (stride < 0)
        return moetoken_fail(MOETOKEN_ERR_STRIDE,
                             "%s has stride %" PRId64 " in dimension %d, expected at least 0",
                             view->name, stride, dim);
    int64_t reach;
    if (__builtin_mul_overflow(stride, view->size, &view->stride[dim]) ||
        __builtin_mul_overflow(view->stride[dim], view->shape[dim] - 1, &reach) ||
        __builtin_add_overflow(view->extent, reach, &view->extent))
        return moetoken_fail(MOETOKEN_ERR_OVERFLOW,
                             "%s: its stride %" PRId64 " in dimension %d of size %" PRId64
                             " reaches beyond 2^63 - 1 bytes",
                             view->name, stride, dim, view->shape[dim]);
    return MOETOKEN_OK;
}

static moetoken_status check_data(const DLTensor *tensor, bool need_data,
                                  struct moetoken_view *view)
{
    static char nothing; /* rows of length 0 have an address too */
    if (moetoken_view_is_empty(view)) {
        view->data = &nothing;
        return MOETOKEN_OK;
    }
    if (tensor->data == NULL) {
        if (need_data)
            return moetoken_fail(MOETOKEN_ERR_NULL, "%s has no data (a NULL pointer)", view->name);
        return MOETOKEN_OK;
    }
    uint64_t last;
    if (__builtin_add_overflow((uint64_t)(uintptr_t)tensor->data, tensor->byte_offset, &last) ||
        __builtin_add_overflow(last, (uint64_t)view->extent, &last) || last > UINTPTR_MAX)
        return moetoken_fail(MOETOKEN_ERR_OVERFLOW,
                             "%s: its byte_offset %" PRIu64 " and %" PRId64
                             " bytes reach beyond the address space",
                             view->name, tensor->byte_offset, view->extent);
    view->data = (char *)tensor->data + tensor->byte_offset;
    return MOETOKEN_OK;
}

moetoken_status moetoken_view_make(const DLTensor *tensor, int ndim, unsigned accepted,
                                   bool need_data, struct moetoken_view *view)
{
    *view = (struct moetoken_view){.name = view->name, .given = tensor != NULL};
    if (tensor == NULL)
        return MOETOKEN_OK;
    moetoken_status status = check_frame(tensor, ndim, view->name);
    if (status == MOETOKEN_OK)
        status = check_type(tensor, accepted, view);
    if (status == MOETOKEN_OK)
        status = check_sizes(tensor, view);
    view->extent = view->size;
    for (int dim = 0; dim < 2 && status == MOETOKEN_OK; dim++)
        status = check_stride(tensor, dim, view);
    if (status == MOETOKEN_OK)
        status = check_data(tensor, need_data, view);
    return status;
}

static int64_t greatest_common_divisor(int64_t a, int64_t b)
{
    while (b != 0) {
        int64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

/* Elements (i, j) and (k, l) share memory exactly when (i-k) * stride[0] = (l-j) * stride[1]; the
 * smallest such steps are the strides over their greatest common divisor. Strides are multiples of
 * the element size, so elements never overlap in part. */
moetoken_status moetoken_view_check_output(const struct moetoken_view *view)
{
    if (!view->given || moetoken_view_is_empty(view))
        return MOETOKEN_OK;
    bool shared = false;
    for (int dim = 0; dim < 2; dim++)
        shared |= view->shape[dim] > 1 && view->stride[dim] == 0;
    if (!shared && view->shape[0] > 1 && view->shape[1] > 1) {
        int64_t divisor = greatest_common_divisor(view->stride[0], view->stride[1]);
        shared = view->stride[1] / divisor < view->shape[0] &&
                 view->stride[0] / divisor < view->shape[1];
    }
    if (!shared)
        return MOETOKEN_OK;
    return moetoken_fail(MOETOKEN_ERR_STRIDE,
                         "%s is an output whose elements share memory: shape [%" PRId64 ", %" PRId64
                         "], strides [%" PRId64 ", %" PRId64 "]",
                         view->name, view->shape[0], view->shape[1], view->stride[0] / view->size,
                         view->stride[1] / view->size);
}

moetoken_status moetoken_check_restore_shape(const int64_t *restore_shape, int64_t tokens,
                                             int64_t hidden, const char *source)
{
    if (restore_shape == NULL || (restore_shape[0] == tokens && restore_shape[1] == hidden))
        return MOETOKEN_OK;
    return moetoken_fail(MOETOKEN_ERR_SHAPE,
                         "restore_shape = [%" PRId64 ", %" PRId64 "], expected [T, H] = [%" PRId64
                         ", %" PRId64 "] (from %s)",
                         restore_shape[0], restore_shape[1], tokens, hidden, source);
}

moetoken_status moetoken_view_check_same_type(const struct moetoken_view *view,
                                              const struct moetoken_view *like)
{
    if (!view->given || view->type == like->type)
        return MOETOKEN_OK;
    return moetoken_fail(MOETOKEN_ERR_TYPE, "%s is %s, expected %s as %s is", view->name,
                         moetoken_type_name(view->type), moetoken_type_name(like->type),
                         like->name);
}

moetoken_status moetoken_index_check_holds(const struct moetoken_view *view, int64_t end)
{
    if (!view->given || view->type == MOETOKEN_I64 || end - 1 <= INT32_MAX)
        return MOETOKEN_OK;
    return moetoken_fail(MOETOKEN_ERR_SHAPE,
                         "%s is int32, expected int64 as it is to hold indices up to %" PRId64,
                         view->name, end - 1);
}

void moetoken_index_load_many(const struct moetoken_view *view, int64_t first, int64_t count,
                              int64_t *to)
{
    const char *from = view->data + first * view->stride[0];
    if (view->stride[0] != view->size) {
        for (int64_t i = 0; i < count; i++)
            to[i] = moetoken_index_load(view, first + i);
    } else if (view->type == MOETOKEN_I64) {
        memcpy(to, from, (size_t)count * sizeof *to);
    } else {
        for (int64_t i = 0; i < count; i++) {
            int32_t narrow;
            memcpy(&narrow, from + i * (int64_t)sizeof narrow, sizeof narrow);
            to[i] = narrow;
        }
    }
}

/* Numbers narrowed together: a length that compilers make vectors of. */
#define NARROW_BLOCK 8

void moetoken_index_store_many(const struct moetoken_view *view, int64_t first, int64_t count,
                               const int64_t *from)
{
    char *to = view->data + first * view->stride[0];
    if (view->stride[0] != view->size) {
        for (int64_t i = 0; i < count; i++)
            moetoken_index_store(view, first + i, from[i]);
    } else if (view->type == MOETOKEN_I64) {
        memcpy(to, from, (size_t)count * sizeof *from);
    } else {
        int32_t narrow[NARROW_BLOCK];
        for (; count >= NARROW_BLOCK; count -= NARROW_BLOCK, from += NARROW_BLOCK) {
            for (int i = 0; i < NARROW_BLOCK; i++)
                narrow[i] = (int32_t)from[i];
            memcpy(to, narrow, sizeof narrow);
            to += sizeof narrow;
        }
        for (int64_t i = 0; i < count; i++) {
            narrow[0] = (int32_t)from[i];
            memcpy(to + i * (int64_t)sizeof narrow[0], narrow, sizeof narrow[0]);
        }
    }
}

void moetoken_index_store_places(const struct moetoken_view *view, int64_t first, int64_t count,
                                 const int64_t *place)
{
    const bool wide = view->type == MOETOKEN_I64;
    char *to = view->data;
    const int64_t step = view->stride[0];
    for (int64_t i = 0; i < count; i++) {
        int64_t value = first + i;
        int32_t narrow = (int32_t)value;
        if (place[i] < 0)
            continue;
        if (wide)
            memcpy(to + place[i] * step, &value, sizeof value);
        else
            memcpy(to + place[i] * step, &narrow, sizeof narrow);
    }
}

moetoken_status moetoken_view_check_probs_type(const struct moetoken_view *view,
                                               const struct moetoken_view *tokens)
{
    if (!view->given || view->type == tokens->type)
        return MOETOKEN_OK;
    bool is_16_bits = tokens->type == MOETOKEN_F16 || tokens->type == MOETOKEN_BF16;
    if (is_16_bits && view->type == MOETOKEN_F32)
        return MOETOKEN_OK;
    return moetoken_fail(MOETOKEN_ERR_TYPE, "%s is %s, expected %s%s as %s is %s", view->name,
                         moetoken_type_name(view->type), moetoken_type_name(tokens->type),
                         is_16_bits ? " or float32" : "", tokens->name,
                         moetoken_type_name(tokens->type));
}

void moetoken_view_zero_row(const struct moetoken_view *view, int64_t i)
{
    if (view->shape[1] == 0)
        return;
    if (moetoken_view_is_unit(view)) {
        memset(moetoken_view_at(view, i, 0), 0, (size_t)(view->shape[1] * view->size));
        return;
    }
    for (int64_t j = 0; j < view->shape[1]; j++)
        memset(moetoken_view_at(view, i, j), 0, (size_t)view->size);
}
