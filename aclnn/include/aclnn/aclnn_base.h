/* aclnn_base.h - everything of acl_meta.h, and the life cycle of the operator library. */
#ifndef ACLNN_ACLNN_BASE_H
#define ACLNN_ACLNN_BASE_H

#include "acl_meta.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Neither is needed before or after the operators; both always succeed. */
ACL_FUNC_VISIBILITY aclnnStatus aclnnInit(const char *configPath);
ACL_FUNC_VISIBILITY aclnnStatus aclnnFinalize(void);

#ifdef __cplusplus
}
#endif

#endif
