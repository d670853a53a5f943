/* acl.h - the header that programs include: everything of acl_base.h and acl_rt.h. */
#ifndef ACL_ACL_H
#define ACL_ACL_H

#include "acl_base.h"
#include "acl_rt.h"

#endif
