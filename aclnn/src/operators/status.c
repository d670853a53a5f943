/* status.c - the one place where statuses of moetoken.h become aclnn's. */
#include "status.h"

aclnnStatus status_of_check(moetoken_status status, aclnnStatus shape_status)
{
    switch (status) {
    case MOETOKEN_OK:
        return ACLNN_SUCCESS;
    case MOETOKEN_ERR_NULL:
        return ACLNN_ERR_PARAM_NULLPTR;
    case MOETOKEN_ERR_DEVICE:
    case MOETOKEN_ERR_TYPE:
    case MOETOKEN_ERR_OPTION:
    case MOETOKEN_ERR_WORKSPACE:
        return ACLNN_ERR_PARAM_INVALID;
    case MOETOKEN_ERR_SHAPE:
    case MOETOKEN_ERR_STRIDE:
    case MOETOKEN_ERR_OVERFLOW:
    case MOETOKEN_ERR_OVERLAP:
        return shape_status;
    case MOETOKEN_ERR_INDEX:
    case MOETOKEN_ERR_DUPLICATE:
    case MOETOKEN_ERR_ROUTING:
        return ACLNN_ERR_INNER_TILING_ERROR;
    case MOETOKEN_ERR_MEMORY:
    case MOETOKEN_ERR_MPI: /* of no operator */
        return ACLNN_ERR_INNER;
    }
    return ACLNN_ERR_INNER;
}

aclnnStatus status_of_run(moetoken_status status, aclnnStatus shape_status)
{
    return status == MOETOKEN_ERR_MEMORY ? ACLNN_ERR_RUNTIME_ERROR
                                         : status_of_check(status, shape_status);
}
