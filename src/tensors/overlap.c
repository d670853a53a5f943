/* overlap.c - a tensor as a progression of equal runs of bytes, and whether two of them meet.
 *
 * Most pairs are told apart by the range of addresses alone. Views into one buffer, say the columns
 * [0, H) and [H, 2H) of it, interleave without sharing a byte; they are compared run by run. */
#include "tensors/overlap.h"

#include "status.h"

#include <inttypes.h>

/* `count` runs of `length` bytes, `step` bytes from one's start to the next. */
struct runs {
    uintptr_t start;
    int64_t count, step, length;
};

static uintptr_t runs_end(const struct runs *runs)
{
    return runs->start + (uintptr_t)((runs->count - 1) * runs->step + runs->length);
}

/* The dimension with the smaller stride becomes the run, gaps between its elements included. */
static struct runs runs_of_view(const struct moetoken_view *view)
{
    int inner = view->stride[0] < view->stride[1] && view->shape[0] > 1 ? 0 : 1;
    if (view->shape[inner] <= 1)
        inner = 1 - inner;
    int outer = 1 - inner;
    struct runs runs = {
        .start = (uintptr_t)view->data,
        .count = view->shape[outer],
        .step = view->stride[outer],
        .length = (view->shape[inner] - 1) * view->stride[inner] + view->size,
    };
    if (runs.step == 0)
        runs.count = 1;
    return runs;
}

/* Whether [start, start + length) meets a run. */
static bool run_meets(uintptr_t start, int64_t length, const struct runs *runs)
{
    if (start >= runs_end(runs) || start + (uintptr_t)length <= runs->start)
        return false;
    if (runs->count == 1 || start < runs->start)
        return true; /* begins before and ends behind the first run's start; or the only run */
    int64_t offset = (int64_t)(start - runs->start);
    int64_t before = offset / runs->step; /* the last run that starts at or before `start` */
    if (before >= runs->count)
        before = runs->count - 1;
    if (offset < before * runs->step + runs->length)
        return true;
    return before + 1 < runs->count && offset + length > (before + 1) * runs->step;
}

/* Elements of equal size at equal strides: shared exactly when the distance is itself a distance
 * between two elements, give or take less than a size. Decided here by the inner stride alone: when
 * the distance leaves a remainder that keeps elements apart, no step of either stride can close it.
 */
static bool strides_keep_apart(const struct moetoken_view *a, const struct moetoken_view *b)
{
    int64_t inner = a->stride[0] < a->stride[1] ? a->stride[0] : a->stride[1];
    int64_t outer = a->stride[0] < a->stride[1] ? a->stride[1] : a->stride[0];
    if (inner == 0 || a->stride[0] != b->stride[0] || a->stride[1] != b->stride[1] ||
        outer % inner != 0)
        return false;
    int64_t rest = (int64_t)((uintptr_t)a->data - (uintptr_t)b->data) % inner;
    if (rest < 0)
        rest += inner;
    return rest >= b->size && inner - rest >= a->size;
}

static bool views_meet(const struct moetoken_view *a, const struct moetoken_view *b)
{
    uintptr_t start_a = (uintptr_t)a->data, start_b = (uintptr_t)b->data;
    if (start_a >= start_b + (uintptr_t)b->extent || start_b >= start_a + (uintptr_t)a->extent)
        return false;
    struct runs first = runs_of_view(a), second = runs_of_view(b);
    if (strides_keep_apart(a, b))
        return false;
    if (first.count > second.count) {
        struct runs swap = first;
        first = second;
        second = swap;
    }
    for (int64_t i = 0; i < first.count; i++)
        if (run_meets(first.start + (uintptr_t)(i * first.step), first.length, &second))
            return true;
    return false;
}

moetoken_status moetoken_overlap_check(const struct moetoken_view *one,
                                       const struct moetoken_view *other)
{
    if (!one->data || !other->data || moetoken_view_is_empty(one) ||
        moetoken_view_is_empty(other) || !views_meet(one, other))
        return MOETOKEN_OK;
    return moetoken_fail(MOETOKEN_ERR_OVERLAP,
                         "%s at address 0x%" PRIxPTR " shares memory with %s at 0x%" PRIxPTR,
                         one->name, (uintptr_t)one->data, other->name, (uintptr_t)other->data);
}

bool moetoken_views_are_same(const struct moetoken_view *a, const struct moetoken_view *b)
{
    return a->data == b->data && a->type == b->type && a->shape[0] == b->shape[0] &&
           a->shape[1] == b->shape[1] && a->stride[0] == b->stride[0] &&
           a->stride[1] == b->stride[1];
}
