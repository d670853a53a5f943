/* aclnn_util.h - ACLNN_API, which marks the operators' functions. */
#ifndef ACLNNOP_ACLNN_UTIL_H
#define ACLNNOP_ACLNN_UTIL_H

#include "../acl/acl_base.h"

#define ACLNN_API ACL_FUNC_VISIBILITY

#endif
