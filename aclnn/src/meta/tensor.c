/* tensor.c - descriptions of tensors: made, read, changed and destroyed. Phase one turns them into
 * what moetoken.h takes (operand.c). */
#include "tensor.h"

#include "caller_array.h"
#include "runtime/message.h"
#include "runtime/registry.h"

#include <string.h>

static bool sizes_given(const int64_t *sizes, uint64_t count)
{
    if ((sizes == NULL && count > 0) || count > TENSOR_RANK_MAX)
        return false;
    for (uint64_t i = 0; i < count; i++)
        if (sizes[i] < 0)
            return false;
    return true;
}

static void copy_sizes(int64_t *to, const int64_t *from, uint64_t count)
{
    if (count > 0)
        memcpy(to, from, count * sizeof *to);
}

/* Row-major strides; where the product does not fit, zero: the size check refuses such a tensor. */
static void contiguous_strides(int64_t *strides, const int64_t *shape, uint64_t rank)
{
    int64_t stride = 1;
    for (uint64_t i = rank; i-- > 0;) {
        strides[i] = stride;
        if (__builtin_mul_overflow(stride, shape[i], &stride))
            stride = 0;
    }
}

static bool sizes_allowed(const int64_t *viewDims, uint64_t viewDimsNum, const int64_t *storageDims,
                          uint64_t storageDimsNum, const char *function)
{
    if (sizes_given(viewDims, viewDimsNum) && sizes_given(storageDims, storageDimsNum))
        return true;
    fail(0, "%s: viewDims or storageDims is NULL, has more than %d sizes or a negative one",
         function, TENSOR_RANK_MAX);
    return false;
}

static void describe(aclTensor *tensor, const int64_t *viewDims, uint64_t viewDimsNum,
                     aclDataType dataType, const int64_t *stride, int64_t offset, aclFormat format,
                     const int64_t *storageDims, uint64_t storageDimsNum, void *tensorData)
{
    copy_sizes(tensor->shape, viewDims, viewDimsNum);
    copy_sizes(tensor->storage_shape, storageDims, storageDimsNum);
    if (stride)
        copy_sizes(tensor->strides, stride, viewDimsNum);
    else
        contiguous_strides(tensor->strides, tensor->shape, viewDimsNum);
    tensor->type = dataType;
    tensor->format = format;
    tensor->offset = offset;
    tensor->data = tensorData;
    tensor->rank = viewDimsNum;
    tensor->storage_rank = storageDimsNum;
}

aclTensor *aclCreateTensor(const int64_t *viewDims, uint64_t viewDimsNum, aclDataType dataType,
                           const int64_t *stride, int64_t offset, aclFormat format,
                           const int64_t *storageDims, uint64_t storageDimsNum, void *tensorData)
{
    if (!sizes_allowed(viewDims, viewDimsNum, storageDims, storageDimsNum, __func__))
        return NULL;
    aclTensor *tensor = registry_create(RESOURCE_TENSOR, sizeof *tensor, NULL);
    if (tensor == NULL) {
        fail(0, "aclCreateTensor: no memory");
        return NULL;
    }
    describe(tensor, viewDims, viewDimsNum, dataType, stride, offset, format, storageDims,
             storageDimsNum, tensorData);
    return tensor;
}

aclnnStatus aclInitTensor(aclTensor *tensor, const int64_t *viewDims, uint64_t viewDimsNum,
                          aclDataType dataType, const int64_t *stride, int64_t offset,
                          aclFormat format, const int64_t *storageDims, uint64_t storageDimsNum,
                          void *tensorDataAddr)
{
    if (tensor == NULL)
        return fail(ACLNN_ERR_PARAM_NULLPTR, "%s: tensor is NULL", __func__);
    if (!sizes_allowed(viewDims, viewDimsNum, storageDims, storageDimsNum, __func__) ||
        !registry_hold(RESOURCE_TENSOR, tensor, __func__))
        return ACLNN_ERR_PARAM_INVALID;
    describe(tensor, viewDims, viewDimsNum, dataType, stride, offset, format, storageDims,
             storageDimsNum, tensorDataAddr);
    registry_drop(tensor);
    return ACLNN_SUCCESS;
}

aclnnStatus aclDestroyTensor(const aclTensor *tensor)
{
    if (tensor == NULL)
        return ACLNN_SUCCESS;
    bool live = registry_release(RESOURCE_TENSOR, (aclTensor *)tensor, "aclDestroyTensor", NULL);
    return live ? ACLNN_SUCCESS : ACLNN_ERR_PARAM_INVALID;
}

/* The tensor that a getter was given, held until registry_drop. */
static aclnnStatus hold_tensor(const aclTensor *tensor, bool places_given, const char *function)
{
    if (tensor == NULL || !places_given)
        return fail(ACLNN_ERR_PARAM_NULLPTR, "%s: %s is NULL", function,
                    tensor ? "a result's pointer" : "tensor");
    if (!registry_hold(RESOURCE_TENSOR, tensor, function))
        return ACLNN_ERR_PARAM_INVALID;
    return ACLNN_SUCCESS;
}

/* A copy of a tensor's array in memory of the caller's; NULL, and a message, without memory. */
static int64_t *copy_for(const void *caller, const int64_t *values, uint64_t count)
{
    int64_t *copy = caller_array((size_t)(count ? count : 1) * sizeof *copy, caller);
    if (copy)
        copy_sizes(copy, values, count);
    else
        fail(0, "no memory for a tensor's %llu sizes", (unsigned long long)count);
    return copy;
}

aclnnStatus aclGetViewShape(const aclTensor *tensor, int64_t **viewDims, uint64_t *viewDimsNum)
{
    aclnnStatus status = hold_tensor(tensor, viewDims && viewDimsNum, __func__);
    if (status != ACLNN_SUCCESS)
        return status;
    *viewDims = copy_for(__builtin_return_address(0), tensor->shape, tensor->rank);
    *viewDimsNum = tensor->rank;
    registry_drop(tensor);
    return *viewDims ? ACLNN_SUCCESS : ACLNN_ERR_INNER_NULLPTR;
}

aclnnStatus aclGetViewStrides(const aclTensor *tensor, int64_t **stridesValue, uint64_t *stridesNum)
{
    aclnnStatus status = hold_tensor(tensor, stridesValue && stridesNum, __func__);
    if (status != ACLNN_SUCCESS)
        return status;
    *stridesValue = copy_for(__builtin_return_address(0), tensor->strides, tensor->rank);
    *stridesNum = tensor->rank;
    registry_drop(tensor);
    return *stridesValue ? ACLNN_SUCCESS : ACLNN_ERR_INNER_NULLPTR;
}

aclnnStatus aclGetStorageShape(const aclTensor *tensor, int64_t **storageDims,
                               uint64_t *storageDimsNum)
{
    aclnnStatus status = hold_tensor(tensor, storageDims && storageDimsNum, __func__);
    if (status != ACLNN_SUCCESS)
        return status;
    *storageDims =
        copy_for(__builtin_return_address(0), tensor->storage_shape, tensor->storage_rank);
    *storageDimsNum = tensor->storage_rank;
    registry_drop(tensor);
    return *storageDims ? ACLNN_SUCCESS : ACLNN_ERR_INNER_NULLPTR;
}

aclnnStatus aclGetViewOffset(const aclTensor *tensor, int64_t *offset)
{
    aclnnStatus status = hold_tensor(tensor, offset != NULL, __func__);
    if (status != ACLNN_SUCCESS)
        return status;
    *offset = tensor->offset;
    registry_drop(tensor);
    return ACLNN_SUCCESS;
}

aclnnStatus aclGetFormat(const aclTensor *tensor, aclFormat *format)
{
    aclnnStatus status = hold_tensor(tensor, format != NULL, __func__);
    if (status != ACLNN_SUCCESS)
        return status;
    *format = tensor->format;
    registry_drop(tensor);
    return ACLNN_SUCCESS;
}

aclnnStatus aclGetDataType(const aclTensor *tensor, aclDataType *dataType)
{
    aclnnStatus status = hold_tensor(tensor, dataType != NULL, __func__);
    if (status != ACLNN_SUCCESS)
        return status;
    *dataType = tensor->type;
    registry_drop(tensor);
    return ACLNN_SUCCESS;
}

aclnnStatus aclGetRawTensorAddr(const aclTensor *tensor, void **addr)
{
    aclnnStatus status = hold_tensor(tensor, addr != NULL, __func__);
    if (status != ACLNN_SUCCESS)
        return status;
    *addr = tensor->data;
    registry_drop(tensor);
    return ACLNN_SUCCESS;
}

aclnnStatus aclSetRawTensorAddr(aclTensor *tensor, void *addr)
{
    aclnnStatus status = hold_tensor(tensor, true, __func__);
    if (status != ACLNN_SUCCESS)
        return status;
    tensor->data = addr;
    registry_drop(tensor);
    return ACLNN_SUCCESS;
}
