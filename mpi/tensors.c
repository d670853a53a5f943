/* tensors.c - checks of a call's tensors that need no other rank. */
#include "tensors.h"

#include "comm.h"

#include <inttypes.h>
#include <string.h>

static const char *const type_names[] = {"float32", "float16", "bfloat16", "float64", "int32",
                                         "int64",   "bool",    "int8",     "uint8"};
#define TYPES ((int)(sizeof type_names / sizeof type_names[0]))

static moetoken_status find_type(struct moetoken_mpi_tensor *made, DLDataType found, unsigned types)
{
    for (int type = 0; type < TYPES; type++) {
        DLDataType known = moetoken_dtype((moetoken_type)type);
        if (found.code == known.code && found.bits == known.bits && found.lanes == 1 &&
            types >> type & 1) {
            made->type = (moetoken_type)type;
            made->size = found.bits / 8;
            return MOETOKEN_OK;
        }
    }
    return moetoken_mpi_fail(
        MOETOKEN_ERR_TYPE, "%s has DLPack type (code %d, bits %d, lanes %d), expected %s",
        made->name, found.code, found.bits, found.lanes,
        types == MOETOKEN_MPI_INDICES ? "int32 or int64" : "float32, float16, bfloat16 or float64");
}

static moetoken_status take_shape(struct moetoken_mpi_tensor *made, const DLTensor *tensor)
{
    int64_t contiguous = 1;
    made->shape[1] = 1;
    made->stride[0] = made->stride[1] = 0;
    made->extent = made->size;
    for (int i = tensor->ndim - 1; i >= 0; i--) {
        int64_t size = tensor->shape[i], stride = tensor->strides ? tensor->strides[i] : contiguous;
        if (size < 0)
            return moetoken_mpi_fail(MOETOKEN_ERR_SHAPE,
                                     "%s has the negative size %" PRId64 " in dimension %d",
                                     made->name, size, i);
        if (size > 1 && stride < 0)
            return moetoken_mpi_fail(MOETOKEN_ERR_STRIDE,
                                     "%s has the negative stride %" PRId64 " in dimension %d",
                                     made->name, stride, i);
        int64_t reach = 0, bytes = 0;
        made->shape[i] = size;
        if (__builtin_mul_overflow(contiguous, size > 1 ? size : 1, &contiguous) ||
            __builtin_mul_overflow(contiguous, made->size, &bytes) ||
            __builtin_mul_overflow(stride, made->size, &made->stride[i]) ||
            __builtin_mul_overflow(made->stride[i], size > 1 ? size - 1 : 0, &reach) ||
            __builtin_add_overflow(made->extent, reach, &made->extent))
            return moetoken_mpi_fail(MOETOKEN_ERR_OVERFLOW, "the sizes of %s overflow", made->name);
    }
    if (made->shape[0] == 0 || made->shape[1] == 0)
        made->extent = 0;
    return MOETOKEN_OK;
}

moetoken_status moetoken_mpi_tensor_make(struct moetoken_mpi_tensor *made, const char *name,
                                         const DLTensor *tensor, unsigned types, int ndim)
{
    memset(made, 0, sizeof *made);
    made->name = name;
    if (!tensor)
        return moetoken_mpi_fail(MOETOKEN_ERR_NULL, "%s is NULL", name);
    int device = (int)tensor->device.device_type;
    if (device != kDLCPU && device != kDLCUDAHost && device != kDLROCMHost)
        return moetoken_mpi_fail(MOETOKEN_ERR_DEVICE, "%s is on device type %d, expected the CPU",
                                 name, device);
    if (tensor->ndim != ndim)
        return moetoken_mpi_fail(MOETOKEN_ERR_SHAPE, "%s has %d dimensions, expected %d", name,
                                 tensor->ndim, ndim);
    if (!tensor->shape)
        return moetoken_mpi_fail(MOETOKEN_ERR_NULL, "the shape of %s is NULL", name);
    moetoken_status status = find_type(made, tensor->dtype, types);
    if (!status)
        status = take_shape(made, tensor);
    if (status)
        return status;
    if (!tensor->data && made->extent)
        return moetoken_mpi_fail(MOETOKEN_ERR_NULL, "%s has no data", name);
    made->data = tensor->data ? (char *)tensor->data + tensor->byte_offset : NULL;
    return MOETOKEN_OK;
}

int64_t moetoken_mpi_tensor_index(const struct moetoken_mpi_tensor *indices, int64_t i, int64_t j)
{
    int64_t wide;
    int32_t narrow;
    const char *at = moetoken_mpi_tensor_at(indices, i, j);
    if (indices->type == MOETOKEN_I32) {
        memcpy(&narrow, at, sizeof narrow);
        return narrow;
    }
    memcpy(&wide, at, sizeof wide);
    return wide;
}

/* No two elements of an output share memory: the longer stride steps over what the shorter reaches.
 */
static moetoken_status check_output(const struct moetoken_mpi_tensor *tensor)
{
    int inner = tensor->stride[0] < tensor->stride[1] && tensor->shape[0] > 1 ? 0 : 1;
    if (tensor->shape[inner] <= 1)
        inner = 1 - inner;
    int64_t reach = tensor->size;
    for (int i = 0; i < 2; i++) {
        int dimension = i == 0 ? inner : 1 - inner;
        if (!tensor->extent || tensor->shape[dimension] <= 1)
            continue;
        if (tensor->stride[dimension] < reach)
            return moetoken_mpi_fail(MOETOKEN_ERR_STRIDE, "elements of %s share memory",
                                     tensor->name);
        reach += tensor->stride[dimension] * (tensor->shape[dimension] - 1);
    }
    return MOETOKEN_OK;
}

static moetoken_status check_types(const struct moetoken_mpi_argument *argument,
                                   struct moetoken_mpi_common *common)
{
    const struct moetoken_mpi_tensor *view = &argument->view;
    int64_t *like = argument->weights_like ? &common->weights_type : &common->type;
    if (*like < 0)
        *like = (int64_t)view->type;
    bool narrow = common->type == MOETOKEN_F16 || common->type == MOETOKEN_BF16;
    bool goes = *like == (int64_t)view->type;
    if (goes && argument->weights_like && common->type >= 0)
        goes = *like == common->type || (*like == MOETOKEN_F32 && narrow);
    if (!goes)
        return moetoken_mpi_fail(MOETOKEN_ERR_TYPE, "%s is %s, which does not go with %s",
                                 view->name, type_names[view->type],
                                 type_names[*like == (int64_t)view->type ? common->type : *like]);
    return MOETOKEN_OK;
}

static moetoken_status check_argument(struct moetoken_mpi_argument *argument,
                                      struct moetoken_mpi_common *common)
{
    struct moetoken_mpi_tensor *view = &argument->view;
    moetoken_status status = moetoken_mpi_tensor_make(view, argument->name, argument->tensor,
                                                      MOETOKEN_MPI_FLOATS, argument->ndim);
    if (!status)
        status = check_types(argument, common);
    if (status)
        return status;
    int64_t columns = argument->columns;
    if (!argument->weights_like) {
        if (common->hidden < 0)
            common->hidden = view->shape[1];
        columns = common->hidden;
    }
    if (view->shape[0] != argument->rows)
        return moetoken_mpi_fail(MOETOKEN_ERR_SHAPE, "%s has %" PRId64 " rows, expected %" PRId64,
                                 view->name, view->shape[0], argument->rows);
    if (view->shape[1] != columns)
        return moetoken_mpi_fail(MOETOKEN_ERR_SHAPE,
                                 "%s has %" PRId64 " columns, expected %" PRId64, view->name,
                                 view->shape[1], columns);
    return argument->output ? check_output(view) : MOETOKEN_OK;
}

static bool overlap(const struct moetoken_mpi_tensor *a, const struct moetoken_mpi_tensor *b)
{
    uintptr_t first = (uintptr_t)a->data, second = (uintptr_t)b->data;
    return a->extent && b->extent && first < second + (uintptr_t)b->extent &&
           second < first + (uintptr_t)a->extent;
}

static bool same_place(const struct moetoken_mpi_tensor *a, const struct moetoken_mpi_tensor *b)
{
    return a->data == b->data && a->stride[0] == b->stride[0] && a->stride[1] == b->stride[1];
}

moetoken_status moetoken_mpi_check_arguments(struct moetoken_mpi_argument *arguments, int count,
                                             int replaced, int by,
                                             struct moetoken_mpi_common *common)
{
    *common = (struct moetoken_mpi_common){-1, -1, -1};
    for (int i = 0; i < count; i++) {
        if (!arguments[i].tensor)
            continue;
        moetoken_status status = check_argument(&arguments[i], common);
        if (status)
            return status;
    }
    for (int i = 0; i < count; i++) {
        for (int j = 0; j < count; j++) {
            const struct moetoken_mpi_argument *output = &arguments[i], *other = &arguments[j];
            if (i == j || !output->tensor || !output->output || !other->tensor)
                continue;
            if (i == by && j == replaced && same_place(&output->view, &other->view))
                continue;
            if (overlap(&output->view, &other->view))
                return moetoken_mpi_fail(MOETOKEN_ERR_OVERLAP, "%s shares memory with %s",
                                         output->name, other->name);
        }
    }
    return MOETOKEN_OK;
}
