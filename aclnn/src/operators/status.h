/* status.h - statuses of moetoken.h in aclnn's numbers. */
#ifndef ACLNN_STATUS_H
#define ACLNN_STATUS_H

#include "../../include/aclnn/acl_meta.h"

#include <moetoken/moetoken.h>

/* Phase one; shape_status is the operator's own for shapes, strides, sizes and overlaps. */
aclnnStatus status_of_check(moetoken_status status, aclnnStatus shape_status);

/* Phase two, where values are found wrong as well. */
aclnnStatus status_of_run(moetoken_status status, aclnnStatus shape_status);

#endif
