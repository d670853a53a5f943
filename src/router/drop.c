/* drop.c - moetoken_router_drop: each expert keeps its heaviest slots. */
#include "router/choice.h"
#include "router/config.h"
#include "router/parts.h"
#include "status.h"
#include "tensors/workspace.h"

#include "rows/formats.h"

#include <inttypes.h>

struct slot {
    double weight;
    int64_t slot;
};

#define IN(field, letters, types)  INPUT(moetoken_router_drop_args, field, letters, types)
#define OUT(field, letters, types) OUTPUT(moetoken_router_drop_args, field, letters, types)

/* clang-format off: a line or two per argument */
enum {
    IDS,
    WEIGHTS,
    KEPT_IDS,
    KEPT_WEIGHTS,
    COUNTS,
    ARGUMENTS
};

static const struct moetoken_argument arguments[ARGUMENTS] = {
    [IDS] = {IN(expert_ids, "TK", MOETOKEN_INDEX_LIKE), .required = {FACT_ALWAYS},
             .read = {FACT_ALWAYS}},
    [WEIGHTS] = {IN(weights, "TK", MOETOKEN_TOKEN_LIKE), .required = {FACT_ALWAYS},
                 .read = {FACT_ALWAYS}},
    [KEPT_IDS] = {OUT(kept_ids, "TK", MOETOKEN_INDEX_LIKE), .same_type = FACT(IDS),
                  .may_replace = FACT(IDS)},
    [KEPT_WEIGHTS] = {OUT(kept_weights, "TK", MOETOKEN_TOKEN_LIKE), .same_type = FACT(WEIGHTS),
                      .may_replace = FACT(WEIGHTS)},
    [COUNTS] = {OUT(rows_per_expert, "E", 1u << MOETOKEN_I64)},
};
/* clang-format on */

static const struct moetoken_table table = {
    .arguments = arguments,
    .count = ARGUMENTS,
    .args_size = sizeof(moetoken_router_drop_args),
};

struct call {
    struct moetoken_call known; /* first: what the table says of the call */
    moetoken_router_drop_args args;
    int64_t tokens_num, topk, experts_num, capacity;
    size_t needed;
    struct slot *slots; /* by expert, the expert's in slot order */
    int64_t *end;       /* [E]: where the slots of an expert end */
};

/* ---- check ---------------------------------------------------------------------------------- */

static moetoken_status count_needed(struct call *call)
{
    size_t slots, ends;
    if (__builtin_mul_overflow((size_t)call->tokens_num * (size_t)call->topk, sizeof(struct slot),
                               &slots) ||
        __builtin_mul_overflow((size_t)call->experts_num, sizeof(int64_t), &ends) ||
        __builtin_add_overflow(slots, ends, &call->needed))
        return moetoken_fail(MOETOKEN_ERR_OVERFLOW,
                             "the workspace for experts_num = %" PRId64 " does not fit in size_t",
                             call->experts_num);
    return MOETOKEN_OK;
}

static moetoken_status check_sizes(struct call *call)
{
    struct moetoken_call *known = &call->known;
    moetoken_status status =
        moetoken_call_set_size(known, 'E', call->args.experts_num, "experts_num");
    if (status == MOETOKEN_OK)
        status = moetoken_call_set_size(known, 'C', call->args.capacity, "capacity");
    if (status == MOETOKEN_OK)
        status = moetoken_call_check_sizes(known);
    call->tokens_num = moetoken_call_size(known, 'T');
    call->topk = moetoken_call_size(known, 'K');
    call->experts_num = moetoken_call_size(known, 'E');
    call->capacity = moetoken_call_size(known, 'C');
    return status;
}

static moetoken_status check(const moetoken_router_drop_args *args, const moetoken_options *options,
                             bool need_data, struct call *call)
{
    struct moetoken_call *known = &call->known;
    moetoken_status status =
        moetoken_call_read(known, &table, args, &call->args, options, need_data);
    if (status == MOETOKEN_OK)
        status = check_sizes(call);
    if (status == MOETOKEN_OK)
        status = count_needed(call);
    if (status == MOETOKEN_OK)
        status = moetoken_router_check_memory(known, call->needed);
    if (status == MOETOKEN_OK && need_data)
        status = moetoken_router_check_ids(&known->view[IDS], call->experts_num);
    return status;
}

static int64_t load_id(const struct call *call, int64_t slot)
{
    return moetoken_index_load_at(&call->known.view[IDS], slot / call->topk, slot % call->topk);
}

/* ---- each expert's slots -------------------------------------------------------------------- */

static void sort_into_experts(const struct call *call)
{
    int64_t slots_num = call->tokens_num * call->topk, begin = 0;
    for (int64_t e = 0; e < call->experts_num; e++)
        call->end[e] = 0;
    for (int64_t i = 0; i < slots_num; i++) {
        int64_t id = load_id(call, i);
        if (id >= 0)
            call->end[id]++;
    }
    for (int64_t e = 0; e < call->experts_num; e++) {
        int64_t count = call->end[e];
        call->end[e] = begin;
        begin += count;
    }
    for (int64_t i = 0; i < slots_num; i++) {
        int64_t id = load_id(call, i);
        if (id < 0)
            continue;
        const char *from =
            moetoken_view_at(&call->known.view[WEIGHTS], i / call->topk, i % call->topk);
        call->slots[call->end[id]++] =
            (struct slot){element_load((int)call->known.view[WEIGHTS].type, from), i};
    }
}

static bool keeps_before(const struct slot *a, const struct slot *b)
{
    if (moetoken_ranks_above(a->weight, b->weight))
        return true;
    return !moetoken_ranks_above(b->weight, a->weight) && a->slot < b->slot;
}

/* Restores the heap below `at`, whose root is the slot that goes first. */
static void sift_down(struct slot *heap, int64_t count, int64_t at)
{
    for (;;) {
        int64_t child = 2 * at + 1;
        if (child >= count)
            return;
        if (child + 1 < count && keeps_before(&heap[child], &heap[child + 1]))
            child++;
        if (keeps_before(&heap[child], &heap[at]))
            return;
        struct slot moved = heap[at];
        heap[at] = heap[child];
        heap[child] = moved;
        at = child;
    }
}

/* A heap of the `capacity` best so far: its root leaves for every better one. The kept ones end up
 * in front. */
static void select_heaviest(struct slot *slots, int64_t count, int64_t capacity)
{
    for (int64_t i = capacity / 2 - 1; i >= 0; i--)
        sift_down(slots, capacity, i);
    for (int64_t i = capacity; i < count && capacity > 0; i++) {
        if (!keeps_before(&slots[i], &slots[0]))
            continue;
        struct slot out = slots[0];
        slots[0] = slots[i];
        slots[i] = out;
        sift_down(slots, capacity, 0);
    }
}

static void select_range(const void *context, int64_t first, int64_t end)
{
    const struct call *call = context;
    for (int64_t e = first; e < end; e++) {
        int64_t begin = e == 0 ? 0 : call->end[e - 1], count = call->end[e] - begin;
        if (count > call->capacity)
            select_heaviest(call->slots + begin, count, call->capacity);
        if (call->known.view[COUNTS].given)
            moetoken_index_store(&call->known.view[COUNTS], e,
                                 count < call->capacity ? count : call->capacity);
    }
}

/* ---- outputs -------------------------------------------------------------------------------- */

static void copy_all(const struct call *call)
{
    for (int64_t t = 0; t < call->tokens_num; t++)
        for (int64_t k = 0; k < call->topk; k++) {
            if (call->known.view[KEPT_IDS].given)
                moetoken_element_copy(moetoken_view_at(&call->known.view[KEPT_IDS], t, k),
                                      moetoken_view_at(&call->known.view[IDS], t, k),
                                      call->known.view[KEPT_IDS].size);
            if (call->known.view[KEPT_WEIGHTS].given)
                moetoken_element_copy(moetoken_view_at(&call->known.view[KEPT_WEIGHTS], t, k),
                                      moetoken_view_at(&call->known.view[WEIGHTS], t, k),
                                      call->known.view[KEPT_WEIGHTS].size);
        }
}

static void drop_slot(const struct call *call, int64_t slot)
{
    int64_t t = slot / call->topk, k = slot % call->topk;
    struct moetoken_view at = call->known.view[KEPT_IDS];
    if (call->known.view[KEPT_IDS].given) {
        at.data = moetoken_view_at(&call->known.view[KEPT_IDS], t, k);
        moetoken_index_store(&at, 0, -1);
    }
    if (call->known.view[KEPT_WEIGHTS].given)
        memset(moetoken_view_at(&call->known.view[KEPT_WEIGHTS], t, k), 0,
               (size_t)call->known.view[KEPT_WEIGHTS].size);
}

static void store_kept(const struct call *call)
{
    copy_all(call);
    for (int64_t e = 0; e < call->experts_num; e++) {
        int64_t begin = e == 0 ? 0 : call->end[e - 1], count = call->end[e] - begin;
        for (int64_t i = call->capacity; i < count; i++)
            drop_slot(call, call->slots[begin + i].slot);
    }
}

/* ---- the operator --------------------------------------------------------------------------- */

moetoken_status moetoken_router_drop_check(const moetoken_router_drop_args *args,
                                           const moetoken_options *options)
{
    struct call call = {0};
    return check(args, options, false, &call);
}

moetoken_status moetoken_router_drop(const moetoken_router_drop_args *args,
                                     const moetoken_options *options)
{
    struct call call = {0};
    struct moetoken_run run;
    struct moetoken_workspace memory;
    moetoken_status status = check(args, options, true, &call);
    if (status == MOETOKEN_OK)
        status = moetoken_workspace_take(&call.known.options, call.needed > 0 ? call.needed : 1,
                                         &memory);
    if (status != MOETOKEN_OK)
        return status;
    call.slots = (struct slot *)(void *)memory.memory;
    call.end = (int64_t *)(void *)(call.slots + call.tokens_num * call.topk);
    moetoken_run_plan(&call.known.options, (int64_t)(call.needed / 2), 0, true, false, &run);
    sort_into_experts(&call);
    moetoken_run_ranges(&run, call.experts_num, select_range, &call);
    store_kept(&call);
    moetoken_workspace_release(&memory);
    return MOETOKEN_OK;
}
