/* workspace.c - the workspace query, and where a call's workspace comes from. */
#include "tensors/workspace.h"

#include "status.h"

#include <inttypes.h>
#include <stdlib.h>

moetoken_status moetoken_workspace_size(int64_t tokens_num, int64_t slots_num, size_t *bytes)
{
    if (bytes == NULL)
        return moetoken_fail(MOETOKEN_ERR_NULL, "bytes is NULL, expected where to put the size");
    if (tokens_num < 0 || slots_num < 0)
        return moetoken_fail(MOETOKEN_ERR_SHAPE,
                             "tokens_num = %" PRId64 " and slots_num = %" PRId64
                             ", expected at least 0",
                             tokens_num, slots_num);
    size_t total;
    if (__builtin_add_overflow(tokens_num, slots_num, &total) ||
        __builtin_mul_overflow(total, (size_t)16, &total))
        return moetoken_fail(MOETOKEN_ERR_OVERFLOW,
                             "the workspace for tokens_num = %" PRId64 " and slots_num = %" PRId64
                             " does not fit in size_t",
                             tokens_num, slots_num);
    *bytes = total;
    return MOETOKEN_OK;
}

/* A workspace that the caller hands in, if there is one. */
static moetoken_status check_given(const moetoken_options *options, size_t bytes)
{
    if (options->workspace == NULL)
        return MOETOKEN_OK;
    if (options->workspace_bytes < bytes)
        return moetoken_fail(MOETOKEN_ERR_WORKSPACE,
                             "options.workspace_bytes = %zu, expected at least %zu",
                             options->workspace_bytes, bytes);
    if ((uintptr_t)options->workspace % sizeof(int64_t) != 0)
        return moetoken_fail(MOETOKEN_ERR_WORKSPACE,
                             "options.workspace = %p is not aligned to 8 bytes",
                             options->workspace);
    if ((uintptr_t)options->workspace > UINTPTR_MAX - bytes)
        return moetoken_fail(MOETOKEN_ERR_WORKSPACE,
                             "options.workspace = %p: %zu bytes reach beyond the address space",
                             options->workspace, bytes);
    return MOETOKEN_OK;
}

moetoken_status moetoken_workspace_check(const moetoken_options *options, size_t bytes,
                                         struct moetoken_view *view)
{
    *view = (struct moetoken_view){.name = "options.workspace", .size = 1, .shape = {0, 1}};
    moetoken_status status = MOETOKEN_OK;
    if (bytes > INT64_MAX)
        status = moetoken_fail(MOETOKEN_ERR_OVERFLOW,
                               "a workspace of %zu bytes is more than 2^63 - 1", bytes);
    if (status == MOETOKEN_OK)
        status = check_given(options, bytes);
    if (status != MOETOKEN_OK || options->workspace == NULL)
        return status;
    view->data = options->workspace;
    view->shape[0] = view->extent = (int64_t)bytes;
    view->stride[0] = bytes > 1;
    view->given = true;
    return MOETOKEN_OK;
}

moetoken_status moetoken_workspace_take(const moetoken_options *options, size_t bytes,
                                        struct moetoken_workspace *workspace)
{
    *workspace = (struct moetoken_workspace){0};
    if (bytes == 0)
        return MOETOKEN_OK;
    workspace->memory = options->workspace;
    if (options->workspace == NULL)
        workspace->memory = workspace->owned = malloc(bytes);
    if (workspace->memory == NULL)
        return moetoken_fail(MOETOKEN_ERR_MEMORY, "no memory for a workspace of %zu bytes", bytes);
    return MOETOKEN_OK;
}

void moetoken_workspace_release(struct moetoken_workspace *workspace)
{
    free(workspace->owned);
}
