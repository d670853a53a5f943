/* context.h - which context a thread works in. */
#ifndef ACLNN_CONTEXT_H
#define ACLNN_CONTEXT_H

#include "../../include/acl/acl_rt.h"

#include <stdbool.h>

struct stream;

/* Whether the calling thread has a context; without one the message says so, beginning with the
 * function's name. */
bool context_required(const char *function);

/* The number of the calling thread's context, which no other context of the process has. Without a
 * context 107002 and a message. */
aclError context_current_id(const char *function, uint64_t *id);

/* Its default stream, held until stream_drop; or 107002. */
aclError context_hold_default_stream(const char *function, struct stream **stream);

/* What the last aclrtResetDevice does, for aclFinalize. */
void context_release_device(void);

#endif
