/* workspace.h - the one block of memory of a call: the caller's, or allocated and freed. */
#ifndef MOETOKEN_WORKSPACE_H
#define MOETOKEN_WORKSPACE_H

#include <moetoken/moetoken.h>

struct moetoken_workspace {
    int64_t *memory; /* NULL when no bytes are needed */
    void *owned;     /* what release frees */
};

/* At least moetoken_workspace_size(T, N) bytes, contents undefined. */
moetoken_status moetoken_workspace_take(const moetoken_options *options, int64_t tokens_num,
                                        int64_t slots_num, struct moetoken_workspace *workspace);
void moetoken_workspace_release(struct moetoken_workspace *workspace);

#endif
