/* acl_meta.h - what the two phases of an operator take: tensors, int arrays, executors. */
#ifndef ACLNN_ACL_META_H
#define ACLNN_ACL_META_H

#include "../acl/acl_base.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef int32_t aclnnStatus;

#define ACLNN_SUCCESS                     0
#define ACLNN_ERR_PARAM_NULLPTR           161001
#define ACLNN_ERR_PARAM_INVALID           161002
#define ACLNN_ERR_RUNTIME_ERROR           361001
#define ACLNN_ERR_INNER                   561000
#define ACLNN_ERR_INNER_TILING_ERROR      561002
#define ACLNN_ERR_INNER_FIND_KERNEL_ERROR 561003
#define ACLNN_ERR_INNER_NULLPTR           561103

typedef struct aclTensor aclTensor;
typedef struct aclIntArray aclIntArray;
typedef struct aclOpExecutor aclOpExecutor;

/* ---- tensors -------------------------------------------------------------------------------- */

/* The arrays are copied, the data is borrowed and may be NULL. stride (in elements) may be NULL:
 * contiguous. offset, in elements, is where the view begins in tensorData. NULL when an array is
 * missing, a size is negative or there is no memory. */
ACL_FUNC_VISIBILITY aclTensor *aclCreateTensor(const int64_t *viewDims, uint64_t viewDimsNum,
                                               aclDataType dataType, const int64_t *stride,
                                               int64_t offset, aclFormat format,
                                               const int64_t *storageDims, uint64_t storageDimsNum,
                                               void *tensorData);
ACL_FUNC_VISIBILITY aclnnStatus aclDestroyTensor(const aclTensor *tensor);

/* The arrays become the caller's, who frees them with delete[] in C++ and free() in C. */
ACL_FUNC_VISIBILITY aclnnStatus aclGetViewShape(const aclTensor *tensor, int64_t **viewDims,
                                                uint64_t *viewDimsNum);
ACL_FUNC_VISIBILITY aclnnStatus aclGetStorageShape(const aclTensor *tensor, int64_t **storageDims,
                                                   uint64_t *storageDimsNum);
ACL_FUNC_VISIBILITY aclnnStatus aclGetViewStrides(const aclTensor *tensor, int64_t **stridesValue,
                                                  uint64_t *stridesNum);
ACL_FUNC_VISIBILITY aclnnStatus aclGetViewOffset(const aclTensor *tensor, int64_t *offset);
ACL_FUNC_VISIBILITY aclnnStatus aclGetFormat(const aclTensor *tensor, aclFormat *format);
ACL_FUNC_VISIBILITY aclnnStatus aclGetDataType(const aclTensor *tensor, aclDataType *dataType);

/* ---- int arrays ----------------------------------------------------------------------------- */

/* Copies the values. NULL or size 0: an array of size 0. */
ACL_FUNC_VISIBILITY aclIntArray *aclCreateIntArray(const int64_t *value, uint64_t size);
ACL_FUNC_VISIBILITY aclnnStatus aclDestroyIntArray(const aclIntArray *array);
ACL_FUNC_VISIBILITY aclnnStatus aclGetIntArraySize(const aclIntArray *array, uint64_t *size);

/* ---- executors ------------------------------------------------------------------------------ */

/* A repeatable executor outlives its runs, until aclDestroyAclOpExecutor. */
ACL_FUNC_VISIBILITY aclnnStatus aclSetAclOpExecutorRepeatable(aclOpExecutor *executor);
ACL_FUNC_VISIBILITY aclnnStatus aclDestroyAclOpExecutor(aclOpExecutor *executor);

/* Gives a tensor of the executor another address. Every place where the executor uses this very
 * tensor gets it. For a tensor that it does not use, `index` tells the place: it counts the inputs,
 * the outputs, or all of them in the order of the phase-one function, absent ones included. */
ACL_FUNC_VISIBILITY aclnnStatus aclSetInputTensorAddr(aclOpExecutor *executor, const size_t index,
                                                      aclTensor *tensor, void *addr);
ACL_FUNC_VISIBILITY aclnnStatus aclSetOutputTensorAddr(aclOpExecutor *executor, const size_t index,
                                                       aclTensor *tensor, void *addr);
ACL_FUNC_VISIBILITY aclnnStatus aclSetTensorAddr(aclOpExecutor *executor, const size_t index,
                                                 aclTensor *tensor, void *addr);

#ifdef __cplusplus
}
#endif

#endif
