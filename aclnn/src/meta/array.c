/* array.c - arrays of numbers, scalars, and lists of tensors and scalars: copies of what the
 * program hands in, each of which knows its size. */
#include "runtime/message.h"
#include "runtime/registry.h"
#include "tensor.h"

#include <string.h>

/* All arrays and lists begin like this: the size, then the elements. */
struct sized {
    uint64_t size;
    unsigned char elements[];
};

/* A copy of `size` elements; NULL, and a message, when there is no memory. NULL values: size 0. */
static void *create(enum resource_kind kind, const void *values, uint64_t size, size_t element_size,
                    const char *function)
{
    uint64_t count = values ? size : 0;
    struct sized *made = NULL;
    if (count <= (SIZE_MAX / 2) / element_size)
        made = registry_create(kind, sizeof *made + (size_t)count * element_size, NULL);
    if (made == NULL) {
        fail(0, "%s: no memory for size = %llu", function, (unsigned long long)size);
        return NULL;
    }
    made->size = count;
    if (count > 0)
        memcpy(made->elements, values, (size_t)count * element_size);
    return made;
}

static aclnnStatus destroy(enum resource_kind kind, const void *array, const char *function)
{
    if (array == NULL)
        return ACLNN_SUCCESS;
    bool live = registry_release(kind, (void *)array, function, NULL);
    return live ? ACLNN_SUCCESS : ACLNN_ERR_PARAM_INVALID;
}

static aclnnStatus size_of(enum resource_kind kind, const void *array, uint64_t *size,
                           const char *function)
{
    if (array == NULL || size == NULL)
        return fail(ACLNN_ERR_PARAM_NULLPTR, "%s: %s is NULL", function,
                    array ? "size" : "the array or list");
    if (!registry_hold(kind, array, function))
        return ACLNN_ERR_PARAM_INVALID;
    *size = ((const struct sized *)array)->size;
    registry_drop(array);
    return ACLNN_SUCCESS;
}

/* ---- numbers -------------------------------------------------------------------------------- */

aclIntArray *aclCreateIntArray(const int64_t *value, uint64_t size)
{
    return create(RESOURCE_INT_ARRAY, value, size, sizeof *value, __func__);
}

aclFloatArray *aclCreateFloatArray(const float *value, uint64_t size)
{
    return create(RESOURCE_FLOAT_ARRAY, value, size, sizeof *value, __func__);
}

aclBoolArray *aclCreateBoolArray(const bool *value, uint64_t size)
{
    return create(RESOURCE_BOOL_ARRAY, value, size, sizeof *value, __func__);
}

aclnnStatus aclDestroyIntArray(const aclIntArray *array)
{
    return destroy(RESOURCE_INT_ARRAY, array, __func__);
}

aclnnStatus aclDestroyFloatArray(const aclFloatArray *array)
{
    return destroy(RESOURCE_FLOAT_ARRAY, array, __func__);
}

aclnnStatus aclDestroyBoolArray(const aclBoolArray *array)
{
    return destroy(RESOURCE_BOOL_ARRAY, array, __func__);
}

aclnnStatus aclGetIntArraySize(const aclIntArray *array, uint64_t *size)
{
    return size_of(RESOURCE_INT_ARRAY, array, size, __func__);
}

aclnnStatus aclGetFloatArraySize(const aclFloatArray *array, uint64_t *size)
{
    return size_of(RESOURCE_FLOAT_ARRAY, array, size, __func__);
}

aclnnStatus aclGetBoolArraySize(const aclBoolArray *array, uint64_t *size)
{
    return size_of(RESOURCE_BOOL_ARRAY, array, size, __func__);
}

/* ---- scalars -------------------------------------------------------------------------------- */

aclScalar *aclCreateScalar(void *value, aclDataType dataType)
{
    size_t bytes = aclDataTypeSize(dataType);
    if (value == NULL || bytes == 0) {
        fail(0, "%s: value is NULL or dataType = %d has no size", __func__, (int)dataType);
        return NULL;
    }
    return create(RESOURCE_SCALAR, value, bytes, 1, __func__);
}

aclnnStatus aclDestroyScalar(const aclScalar *scalar)
{
    return destroy(RESOURCE_SCALAR, scalar, __func__);
}

/* ---- lists ---------------------------------------------------------------------------------- */

aclTensorList *aclCreateTensorList(const aclTensor *const *value, uint64_t size)
{
    return create(RESOURCE_TENSOR_LIST, value, size, sizeof(void *), __func__);
}

aclScalarList *aclCreateScalarList(const aclScalar *const *value, uint64_t size)
{
    return create(RESOURCE_SCALAR_LIST, value, size, sizeof(void *), __func__);
}

/* The list and, as in CANN, its elements. The first status that is not success. */
static aclnnStatus destroy_list(enum resource_kind kind, const void *list,
                                enum resource_kind element_kind, const char *function)
{
    const struct sized *taken = list;
    aclnnStatus status = ACLNN_SUCCESS;
    if (list == NULL)
        return ACLNN_SUCCESS;
    if (!registry_take(kind, list, function))
        return ACLNN_ERR_PARAM_INVALID;
    for (uint64_t i = 0; i < taken->size; i++) {
        void *element;
        memcpy(&element, taken->elements + i * sizeof element, sizeof element);
        aclnnStatus one = destroy(element_kind, element, function);
        status = status == ACLNN_SUCCESS ? one : status;
    }
    registry_drop(list);
    return status;
}

aclnnStatus aclDestroyTensorList(const aclTensorList *array)
{
    return destroy_list(RESOURCE_TENSOR_LIST, array, RESOURCE_TENSOR, __func__);
}

aclnnStatus aclDestroyScalarList(const aclScalarList *array)
{
    return destroy_list(RESOURCE_SCALAR_LIST, array, RESOURCE_SCALAR, __func__);
}

aclnnStatus aclGetTensorListSize(const aclTensorList *tensorList, uint64_t *size)
{
    return size_of(RESOURCE_TENSOR_LIST, tensorList, size, __func__);
}

aclnnStatus aclGetScalarListSize(const aclScalarList *scalarList, uint64_t *size)
{
    return size_of(RESOURCE_SCALAR_LIST, scalarList, size, __func__);
}
