/* acl.h - the header that programs include: everything of acl_base.h and acl_rt.h, and the life
 * cycle. */
#ifndef ACL_ACL_H
#define ACL_ACL_H

#include "acl_base.h"
#include "acl_rt.h"

#ifdef __cplusplus
extern "C" {
#endif

/* configPath may be NULL and is not read. Twice without aclFinalize: 100002. */
ACL_FUNC_VISIBILITY aclError aclInit(const char *configPath);
/* Waits for the work on all streams. Twice in a row: 100037; before any aclInit: 100001. */
ACL_FUNC_VISIBILITY aclError aclFinalize(void);

/* What was wrong in the calling thread's last failed call; "" before the first. The text belongs to
 * the layer and holds until the thread's next failed call. */
ACL_FUNC_VISIBILITY const char *aclGetRecentErrMsg(void);

#ifdef __cplusplus
}
#endif

#endif
