/* tensor.c - descriptions of tensors and int arrays: made, read and destroyed. Phase one turns them
 * into what moetoken.h takes (operand.c). */
#include "tensor.h"

#include "caller_array.h"
#include "message.h"
#include "registry.h"

#include <string.h>

enum {
    RANK_MAX = 25 /* of CANN's tensors */
};

static bool sizes_given(const int64_t *sizes, uint64_t count)
{
    if ((sizes == NULL && count > 0) || count > RANK_MAX)
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

aclTensor *aclCreateTensor(const int64_t *viewDims, uint64_t viewDimsNum, aclDataType dataType,
                           const int64_t *stride, int64_t offset, aclFormat format,
                           const int64_t *storageDims, uint64_t storageDimsNum, void *tensorData)
{
    if (!sizes_given(viewDims, viewDimsNum) || !sizes_given(storageDims, storageDimsNum)) {
        fail(0,
             "aclCreateTensor: viewDims or storageDims is NULL, has more than %d sizes or a "
             "negative one",
             RANK_MAX);
        return NULL;
    }
    size_t numbers = (size_t)(2 * viewDimsNum + storageDimsNum);
    aclTensor *tensor =
        registry_create(RESOURCE_TENSOR, sizeof *tensor + numbers * sizeof tensor->arrays[0]);
    if (tensor == NULL) {
        fail(0, "aclCreateTensor: no memory");
        return NULL;
    }
    int64_t *strides = tensor->arrays + viewDimsNum, *storage = strides + viewDimsNum;
    copy_sizes(tensor->arrays, viewDims, viewDimsNum);
    copy_sizes(storage, storageDims, storageDimsNum);
    if (stride)
        copy_sizes(strides, stride, viewDimsNum);
    else
        contiguous_strides(strides, tensor->arrays, viewDimsNum);
    tensor->type = dataType;
    tensor->format = format;
    tensor->offset = offset;
    tensor->data = tensorData;
    tensor->rank = viewDimsNum;
    tensor->storage_rank = storageDimsNum;
    tensor->shape = tensor->arrays;
    tensor->strides = strides;
    tensor->storage_shape = storage;
    return tensor;
}

aclnnStatus aclDestroyTensor(const aclTensor *tensor)
{
    if (tensor == NULL)
        return ACLNN_SUCCESS;
    bool live = registry_release(RESOURCE_TENSOR, (aclTensor *)tensor, "aclDestroyTensor", NULL);
    return live ? ACLNN_SUCCESS : ACLNN_ERR_PARAM_INVALID;
}

static aclnnStatus check_getter(const aclTensor *tensor, bool places_given, const char *function)
{
    if (tensor == NULL || !places_given) {
        fail(0, "%s: %s is NULL", function, tensor ? "a result's pointer" : "tensor");
        return ACLNN_ERR_PARAM_NULLPTR;
    }
    if (!registry_live(RESOURCE_TENSOR, tensor, function))
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
    aclnnStatus status = check_getter(tensor, viewDims && viewDimsNum, __func__);
    if (status != ACLNN_SUCCESS)
        return status;
    *viewDims = copy_for(__builtin_return_address(0), tensor->shape, tensor->rank);
    *viewDimsNum = tensor->rank;
    return *viewDims ? ACLNN_SUCCESS : ACLNN_ERR_INNER_NULLPTR;
}

aclnnStatus aclGetViewStrides(const aclTensor *tensor, int64_t **stridesValue, uint64_t *stridesNum)
{
    aclnnStatus status = check_getter(tensor, stridesValue && stridesNum, __func__);
    if (status != ACLNN_SUCCESS)
        return status;
    *stridesValue = copy_for(__builtin_return_address(0), tensor->strides, tensor->rank);
    *stridesNum = tensor->rank;
    return *stridesValue ? ACLNN_SUCCESS : ACLNN_ERR_INNER_NULLPTR;
}

aclnnStatus aclGetStorageShape(const aclTensor *tensor, int64_t **storageDims,
                               uint64_t *storageDimsNum)
{
    aclnnStatus status = check_getter(tensor, storageDims && storageDimsNum, __func__);
    if (status != ACLNN_SUCCESS)
        return status;
    *storageDims =
        copy_for(__builtin_return_address(0), tensor->storage_shape, tensor->storage_rank);
    *storageDimsNum = tensor->storage_rank;
    return *storageDims ? ACLNN_SUCCESS : ACLNN_ERR_INNER_NULLPTR;
}

aclnnStatus aclGetViewOffset(const aclTensor *tensor, int64_t *offset)
{
    aclnnStatus status = check_getter(tensor, offset != NULL, __func__);
    if (status == ACLNN_SUCCESS)
        *offset = tensor->offset;
    return status;
}

aclnnStatus aclGetFormat(const aclTensor *tensor, aclFormat *format)
{
    aclnnStatus status = check_getter(tensor, format != NULL, __func__);
    if (status == ACLNN_SUCCESS)
        *format = tensor->format;
    return status;
}

aclnnStatus aclGetDataType(const aclTensor *tensor, aclDataType *dataType)
{
    aclnnStatus status = check_getter(tensor, dataType != NULL, __func__);
    if (status == ACLNN_SUCCESS)
        *dataType = tensor->type;
    return status;
}

aclIntArray *aclCreateIntArray(const int64_t *value, uint64_t size)
{
    uint64_t count = value ? size : 0;
    if (count > (SIZE_MAX - sizeof(aclIntArray)) / sizeof(int64_t)) {
        fail(0, "aclCreateIntArray: size = %llu is too large", (unsigned long long)size);
        return NULL;
    }
    size_t bytes = sizeof(aclIntArray) + (size_t)count * sizeof(int64_t);
    aclIntArray *array = registry_create(RESOURCE_INT_ARRAY, bytes);
    if (array == NULL) {
        fail(0, "aclCreateIntArray: no memory for %llu numbers", (unsigned long long)size);
        return NULL;
    }
    array->size = count;
    copy_sizes(array->values, value, count);
    return array;
}

aclnnStatus aclDestroyIntArray(const aclIntArray *array)
{
    if (array == NULL)
        return ACLNN_SUCCESS;
    bool live =
        registry_release(RESOURCE_INT_ARRAY, (aclIntArray *)array, "aclDestroyIntArray", NULL);
    return live ? ACLNN_SUCCESS : ACLNN_ERR_PARAM_INVALID;
}

aclnnStatus aclGetIntArraySize(const aclIntArray *array, uint64_t *size)
{
    if (array == NULL || size == NULL)
        return fail(ACLNN_ERR_PARAM_NULLPTR, "aclGetIntArraySize: array or size is NULL");
    if (!registry_live(RESOURCE_INT_ARRAY, array, "aclGetIntArraySize"))
        return ACLNN_ERR_PARAM_INVALID;
    *size = array->size;
    return ACLNN_SUCCESS;
}
