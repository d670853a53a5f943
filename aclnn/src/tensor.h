/* tensor.h - what aclTensor and aclIntArray hold. */
#ifndef ACLNN_TENSOR_H
#define ACLNN_TENSOR_H

#include "../include/aclnn/acl_meta.h"

/* One block of memory: the three arrays lie behind the struct. */
struct aclTensor {
    aclDataType type;
    aclFormat format;
    int64_t offset; /* elements */
    void *data;
    uint64_t rank, storage_rank;
    const int64_t *shape, *strides, *storage_shape;
    int64_t arrays[];
};

struct aclIntArray {
    uint64_t size;
    int64_t values[];
};

#endif
