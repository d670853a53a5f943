/* context.h - which context the calling thread works in. */
#ifndef ACLNN_CONTEXT_H
#define ACLNN_CONTEXT_H

#include <stdbool.h>

struct stream;

/* False, and a message, when the thread has no context: nobody has set a device or context. */
bool context_required(const char *function);

/* The default stream of the thread's context; NULL without a context. */
struct stream *context_default_stream(void);

/* Forgets that the device was set: aclFinalize. */
void context_release_device(void);

#endif
