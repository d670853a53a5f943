/* arguments.c - the checks that the router's functions share. Every one ends before the first
 * write. */
#include "router/arguments.h"

#include "status.h"
#include "tensors/overlap.h"
#include "tensors/workspace.h"

#include <inttypes.h>
#include <math.h>

/* ---- descriptions and sizes ----------------------------------------------------------------- */

static moetoken_status check_description(const struct moetoken_router_tensor *tensor,
                                         bool need_data)
{
    if (tensor->tensor == NULL && (tensor->use & ROUTER_REQUIRED))
        return moetoken_fail(MOETOKEN_ERR_NULL, "%s is NULL", tensor->name);
    tensor->view->name = tensor->name;
    return moetoken_view_make(tensor->tensor, (int)strlen(tensor->sizes), tensor->types, need_data,
                              tensor->view);
}

static moetoken_status check_size(const struct moetoken_view *view, int dim, char letter,
                                  struct moetoken_router_sizes *sizes)
{
    if (letter != '1')
        return moetoken_size_check(view, dim, letter, &sizes->of[letter - 'A']);
    if (view->shape[dim] == 1)
        return MOETOKEN_OK;
    return moetoken_fail(MOETOKEN_ERR_SHAPE, "%s has size %" PRId64 " in dimension %d, expected 1",
                         view->name, view->shape[dim], dim);
}

moetoken_status moetoken_router_check_tensors(const struct moetoken_router_tensor *tensors,
                                              int count, bool need_data,
                                              struct moetoken_router_sizes *sizes)
{
    moetoken_status status = MOETOKEN_OK;
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
    int64_t total = 0;
    for (int i = 0; i < count; i++) {
        const struct moetoken_view *view = tensors[i].view;
        if (view->given &&
            __builtin_add_overflow(total, view->shape[0] * view->shape[1] * view->size, &total))
            return INT64_MAX;
    }
    return total;
}

/* ---- memory --------------------------------------------------------------------------------- */

/* Output i against itself, the tensors behind it and the inputs before it. */
static moetoken_status check_output(const struct moetoken_router_tensor *tensors, int count, int i)
{
    const struct moetoken_view *view = tensors[i].view;
    moetoken_status status = moetoken_view_check_output(view);
    for (int j = 0; j < count && status == MOETOKEN_OK; j++) {
        const struct moetoken_view *other = tensors[j].view;
        bool told = j < i && (tensors[j].use & ROUTER_OUTPUT); /* when j was gone through */
        bool replaced = other == tensors[i].replaces && moetoken_views_are_same(view, other);
        if (j != i && !told && !replaced)
            status = moetoken_overlap_check(view, other);
    }
    return status;
}

moetoken_status moetoken_router_check_memory(const struct moetoken_router_tensor *tensors,
                                             int count, const moetoken_options *options,
                                             size_t workspace_needed)
{
    struct moetoken_view workspace;
    moetoken_status status = MOETOKEN_OK;
    for (int i = 0; i < count && status == MOETOKEN_OK; i++)
        if (tensors[i].use & ROUTER_OUTPUT)
            status = check_output(tensors, count, i);
    if (options->workspace_bytes > workspace_needed)
        workspace_needed = options->workspace_bytes; /* all that is given is used */
    if (status == MOETOKEN_OK)
        status = moetoken_workspace_check(options, workspace_needed, &workspace);
    for (int i = 0; i < count && status == MOETOKEN_OK; i++)
        status = moetoken_overlap_check(&workspace, tensors[i].view);
    return status;
}
