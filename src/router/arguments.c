/* arguments.c - the checks that the router's functions share. Every one ends before the first
 * write. */
#include "arguments.h"

#include "overlap.h"
#include "status.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

/* The most tensors that a function has, and the workspace. */
#define TENSORS_MOST 12

moetoken_status moetoken_router_take_args(const void *args, void *taken, size_t known)
{
    if (args == NULL)
        return moetoken_fail(MOETOKEN_ERR_NULL, "args is NULL");
    size_t size;
    memcpy(&size, args, sizeof size);
    if (size == 0)
        size = known;
    if (size < known)
        return moetoken_fail(MOETOKEN_ERR_OPTION,
                             "args.struct_size = %zu, expected sizeof args, at least %zu, or 0",
                             size, known);
    for (size_t i = known; i < size; i++)
        if (((const char *)args)[i] != 0)
            return moetoken_fail(MOETOKEN_ERR_OPTION,
                                 "args.struct_size = %zu, but this library knows only the first "
                                 "%zu bytes, and byte %zu is not zero: the program needs a newer "
                                 "libmoetoken",
                                 size, known, i);
    memcpy(taken, args, known);
    return MOETOKEN_OK;
}

/* ---- descriptions and sizes ----------------------------------------------------------------- */

static moetoken_status check_description(const struct moetoken_router_tensor *tensor,
                                         bool need_data)
{
    if (tensor->tensor == NULL && (tensor->use & ROUTER_REQUIRED))
        return moetoken_fail(MOETOKEN_ERR_NULL, "%s is NULL", tensor->name);
    const struct moetoken_argument argument = {tensor->tensor, tensor->view,
                                               tensor->name,   (int)strlen(tensor->sizes),
                                               tensor->types,  need_data};
    return moetoken_views_make(&argument, 1);
}

static moetoken_status check_size(const struct moetoken_view *view, int dim, char letter,
                                  struct moetoken_router_sizes *sizes)
{
    if (sizes->of[(int)letter].source == NULL) {
        sizes->of[(int)letter].value = view->shape[dim];
        sizes->of[(int)letter].source = view->name;
    }
    int64_t wanted = sizes->of[(int)letter].value;
    if (view->shape[dim] == wanted)
        return MOETOKEN_OK;
    if (letter == '1')
        return moetoken_fail(MOETOKEN_ERR_SHAPE,
                             "%s has size %" PRId64 " in dimension %d, expected 1", view->name,
                             view->shape[dim], dim);
    return moetoken_fail(
        MOETOKEN_ERR_SHAPE,
        "%s has size %" PRId64 " in dimension %d, expected %c = %" PRId64 " (from %s)", view->name,
        view->shape[dim], dim, letter, wanted, sizes->of[(int)letter].source);
}

moetoken_status moetoken_router_check_tensors(const struct moetoken_router_tensor *tensors,
                                              int count, bool need_data,
                                              struct moetoken_router_sizes *sizes)
{
    moetoken_status status = MOETOKEN_OK;
    sizes->of['1'].value = 1;
    sizes->of['1'].source = "";
    for (int i = 0; i < count && status == MOETOKEN_OK; i++)
        status = check_description(&tensors[i], need_data);
    for (int i = 0; i < count && status == MOETOKEN_OK; i++) {
        const char *letters = tensors[i].sizes;
        for (int dim = 0; letters[dim] && tensors[i].view->given && status == MOETOKEN_OK; dim++)
            status = check_size(tensors[i].view, dim, letters[dim], sizes);
    }
    return status;
}

moetoken_status moetoken_router_check_weights_type(const struct moetoken_view *view,
                                                   const struct moetoken_view *logits)
{
    if (!view->given || view->type == MOETOKEN_F32 || view->type == MOETOKEN_F64 ||
        view->type == logits->type)
        return MOETOKEN_OK;
    return moetoken_fail(MOETOKEN_ERR_TYPE, "%s is %s, expected float32, float64 or %s as %s is",
                         view->name, moetoken_type_name(view->type),
                         moetoken_type_name(logits->type), logits->name);
}

moetoken_status moetoken_router_check_finite(double value, const char *name)
{
    if (isfinite(value))
        return MOETOKEN_OK;
    return moetoken_fail(MOETOKEN_ERR_OPTION, "%s = %g, expected a finite number", name, value);
}

int64_t moetoken_router_bytes(const struct moetoken_router_tensor *tensors, int count)
{
    const struct moetoken_view *views[TENSORS_MOST];
    for (int i = 0; i < count; i++)
        views[i] = tensors[i].view;
    return moetoken_views_bytes(views, count);
}

/* ---- memory --------------------------------------------------------------------------------- */

static moetoken_status check_workspace(const moetoken_options *options, size_t needed,
                                       struct moetoken_view *view)
{
    *view = (struct moetoken_view){.name = "options.workspace"};
    if (options->workspace == NULL || needed == 0)
        return MOETOKEN_OK;
    if (options->workspace_bytes < needed)
        return moetoken_fail(MOETOKEN_ERR_WORKSPACE,
                             "options.workspace_bytes = %zu, expected at least %zu",
                             options->workspace_bytes, needed);
    if ((uintptr_t)options->workspace % sizeof(int64_t) != 0)
        return moetoken_fail(MOETOKEN_ERR_WORKSPACE,
                             "options.workspace = %p is not aligned to 8 bytes",
                             options->workspace);
    int64_t bytes =
        options->workspace_bytes < INT64_MAX ? (int64_t)options->workspace_bytes : INT64_MAX;
    *view = (struct moetoken_view){.name = "options.workspace",
                                   .data = options->workspace,
                                   .type = MOETOKEN_U8,
                                   .size = 1,
                                   .shape = {bytes, 1},
                                   .stride = {1, 0},
                                   .extent = bytes,
                                   .given = true};
    return MOETOKEN_OK;
}

moetoken_status moetoken_router_check_memory(const struct moetoken_router_tensor *tensors,
                                             int count, const moetoken_options *options,
                                             size_t workspace_needed)
{
    const struct moetoken_view *others[TENSORS_MOST];
    struct moetoken_view workspace;
    moetoken_status status = MOETOKEN_OK;
    for (int i = 0; i < count && status == MOETOKEN_OK; i++) {
        int found = 0;
        if (!(tensors[i].use & ROUTER_OUTPUT))
            continue;
        for (int j = 0; j < count; j++)
            if (j > i || !(tensors[j].use & ROUTER_OUTPUT))
                others[found++] = tensors[j].view;
        status = moetoken_overlap_check_all((const struct moetoken_view *const *)&tensors[i].view,
                                            1, others, found, tensors[i].replaces);
    }
    if (status == MOETOKEN_OK)
        status = check_workspace(options, workspace_needed, &workspace);
    if (status != MOETOKEN_OK || !workspace.given)
        return status;
    for (int i = 0; i < count; i++)
        others[i] = tensors[i].view;
    const struct moetoken_view *const written = &workspace;
    return moetoken_overlap_check_all(&written, 1, others, count, NULL);
}

moetoken_status moetoken_router_memory_take(const moetoken_options *options, size_t bytes,
                                            struct moetoken_router_memory *memory)
{
    *memory = (struct moetoken_router_memory){.memory = options->workspace,
                                              .bytes = options->workspace_bytes};
    if (options->workspace != NULL)
        return MOETOKEN_OK;
    memory->bytes = bytes;
    memory->memory = memory->owned = malloc(bytes ? bytes : 1);
    if (memory->owned == NULL)
        return moetoken_fail(MOETOKEN_ERR_MEMORY, "no memory for a workspace of %zu bytes", bytes);
    return MOETOKEN_OK;
}

void moetoken_router_memory_release(struct moetoken_router_memory *memory)
{
    free(memory->owned);
}
