/* workspace.h - the one block of memory of a call: the caller's, or allocated and freed. */
#ifndef MOETOKEN_WORKSPACE_H
#define MOETOKEN_WORKSPACE_H

#include "tensors/tensor.h"

struct moetoken_workspace {
    int64_t *memory; /* NULL when no bytes are needed */
    void *owned;     /* what release frees */
};

/* Whether the caller's workspace, if any, will do for `bytes`; *view is then of the bytes that a
 * call will use of it, or not given. */
moetoken_status moetoken_workspace_check(const moetoken_options *options, size_t bytes,
                                         struct moetoken_view *view);

/* At least that many bytes, contents undefined: the caller's, which have been checked, or
 * allocated.
 */
moetoken_status moetoken_workspace_take(const moetoken_options *options, size_t bytes,
                                        struct moetoken_workspace *workspace);
void moetoken_workspace_release(struct moetoken_workspace *workspace);

#endif
