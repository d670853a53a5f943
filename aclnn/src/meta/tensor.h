/* tensor.h - what aclTensor, aclIntArray and aclTensorList hold. */
#ifndef ACLNN_TENSOR_H
#define ACLNN_TENSOR_H

#include "../../include/aclnn/acl_meta.h"

enum {
    TENSOR_RANK_MAX = 25 /* of CANN's tensors */
};

struct aclTensor {
    aclDataType type;
    aclFormat format;
    int64_t offset; /* elements */
    void *data;
    uint64_t rank, storage_rank;
    int64_t shape[TENSOR_RANK_MAX], strides[TENSOR_RANK_MAX], storage_shape[TENSOR_RANK_MAX];
};

struct aclIntArray {
    uint64_t size;
    int64_t values[];
};

struct aclTensorList {
    uint64_t size;
    aclTensor *values[];
};

#endif
