/* drop.c - moetoken_router_drop: each expert keeps its heaviest slots. */
#include "router/arguments.h"
#include "router/choice.h"
#include "status.h"
#include "tensors/workspace.h"

#include "rows/formats.h"

#include <inttypes.h>

struct slot {
    double weight;
    int64_t slot;
};

struct call {
    struct moetoken_view expert_ids, weights, kept_ids, kept_weights, rows_per_expert;
    moetoken_options options;
    int64_t tokens_num, topk, experts_num, capacity;
    size_t needed;
    struct slot *slots; /* by expert, the expert's in slot order */
    int64_t *end;       /* [E]: where the slots of an expert end */
};

/* ---- checks --------------------------------------------------------------------------------- */

static int64_t load_id(const struct call *call, int64_t slot)
{
    struct moetoken_view at = call->expert_ids;
    at.data = moetoken_view_at(&at, slot / call->topk, slot % call->topk);
    return moetoken_index_load(&at, 0);
}

static moetoken_status check_ids(const struct call *call)
{
    for (int64_t i = 0; i < call->tokens_num * call->topk; i++) {
        int64_t id = load_id(call, i);
        if (id < -1 || id >= call->experts_num)
            return moetoken_fail(MOETOKEN_ERR_INDEX,
                                 "expert_ids[%" PRId64 ",%" PRId64 "] = %" PRId64
                                 " is outside [-1, %" PRId64 ")",
                                 i / call->topk, i % call->topk, id, call->experts_num);
    }
    return MOETOKEN_OK;
}

static moetoken_status check_numbers(const moetoken_router_drop_args *args, struct call *call)
{
    if (args->experts_num < 0 || args->capacity < 0)
        return moetoken_fail(MOETOKEN_ERR_SHAPE,
                             "experts_num = %" PRId64 ", capacity = %" PRId64
                             ", expected at least 0",
                             args->experts_num, args->capacity);
    call->tokens_num = call->expert_ids.shape[0];
    call->topk = call->expert_ids.shape[1];
    call->experts_num = args->experts_num;
    call->capacity = args->capacity;
    size_t slots, ends;
    if (__builtin_mul_overflow((size_t)call->tokens_num * (size_t)call->topk, sizeof(struct slot),
                               &slots) ||
        __builtin_mul_overflow((size_t)call->experts_num, sizeof(int64_t), &ends) ||
        __builtin_add_overflow(slots, ends, &call->needed))
        return moetoken_fail(MOETOKEN_ERR_OVERFLOW,
                             "the workspace for experts_num = %" PRId64 " does not fit in size_t",
                             args->experts_num);
    return MOETOKEN_OK;
}

static moetoken_status check(const moetoken_router_drop_args *given,
                             const moetoken_options *options, bool need_data, struct call *call)
{
    moetoken_router_drop_args args;
    struct moetoken_router_sizes sizes = {0};
    moetoken_status status = moetoken_args_take(given, &args, sizeof args);
    if (status == MOETOKEN_OK)
        status = moetoken_options_check(options, 0, &call->options);
    if (status != MOETOKEN_OK)
        return status;
    sizes.of['E' - 'A'] = (struct moetoken_size){args.experts_num, "experts_num"};
    const unsigned ids = MOETOKEN_INDEX_LIKE, floating = MOETOKEN_TOKEN_LIKE;
    const struct moetoken_router_tensor tensors[] = {
        {args.expert_ids, &call->expert_ids, "expert_ids", "TK", ids, ROUTER_REQUIRED, NULL},
        {args.weights, &call->weights, "weights", "TK", floating, ROUTER_REQUIRED, NULL},
        {args.kept_ids, &call->kept_ids, "kept_ids", "TK", ids, ROUTER_OUTPUT, &call->expert_ids},
        {args.kept_weights, &call->kept_weights, "kept_weights", "TK", floating, ROUTER_OUTPUT,
         &call->weights},
        {args.rows_per_expert, &call->rows_per_expert, "rows_per_expert", "E", 1u << MOETOKEN_I64,
         ROUTER_OUTPUT, NULL},
    };
    if (args.expert_ids && args.weights && !args.kept_ids && !args.kept_weights &&
        !args.rows_per_expert)
        return moetoken_fail(MOETOKEN_ERR_NULL,
                             "kept_ids, kept_weights and rows_per_expert are NULL, expected at "
                             "least one output");
    status = moetoken_router_check_tensors(tensors, 5, need_data, &sizes);
    if (status == MOETOKEN_OK)
        status = moetoken_view_check_same_type(&call->kept_ids, &call->expert_ids);
    if (status == MOETOKEN_OK)
        status = moetoken_view_check_same_type(&call->kept_weights, &call->weights);
    if (status == MOETOKEN_OK)
        status = check_numbers(&args, call);
    if (status == MOETOKEN_OK)
        status = moetoken_router_check_memory(tensors, 5, &call->options, call->needed);
    if (status == MOETOKEN_OK && need_data)
        status = check_ids(call);
    return status;
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
        const char *from = moetoken_view_at(&call->weights, i / call->topk, i % call->topk);
        call->slots[call->end[id]++] =
            (struct slot){element_load((int)call->weights.type, from), i};
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
        if (call->rows_per_expert.given)
            moetoken_index_store(&call->rows_per_expert, e,
                                 count < call->capacity ? count : call->capacity);
    }
}

/* ---- outputs -------------------------------------------------------------------------------- */

static void copy_all(const struct call *call)
{
    for (int64_t t = 0; t < call->tokens_num; t++)
        for (int64_t k = 0; k < call->topk; k++) {
            if (call->kept_ids.given)
                moetoken_element_copy(moetoken_view_at(&call->kept_ids, t, k),
                                      moetoken_view_at(&call->expert_ids, t, k),
                                      call->kept_ids.size);
            if (call->kept_weights.given)
                moetoken_element_copy(moetoken_view_at(&call->kept_weights, t, k),
                                      moetoken_view_at(&call->weights, t, k),
                                      call->kept_weights.size);
        }
}

static void drop_slot(const struct call *call, int64_t slot)
{
    int64_t t = slot / call->topk, k = slot % call->topk;
    struct moetoken_view at = call->kept_ids;
    if (call->kept_ids.given) {
        at.data = moetoken_view_at(&call->kept_ids, t, k);
        moetoken_index_store(&at, 0, -1);
    }
    if (call->kept_weights.given)
        memset(moetoken_view_at(&call->kept_weights, t, k), 0, (size_t)call->kept_weights.size);
}

static void store_kept(const struct call *call)
{
    copy_all(call);
    for (int64_t e = 0; e < call->experts_num; e++) {
        int64_t begin = e == 0 ? 0 : call->end[e - 1];
        for (int64_t i = begin + call->capacity; i < call->end[e]; i++)
            drop_slot(call, call->slots[i].slot);
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
        status = moetoken_workspace_take(&call.options, call.needed > 0 ? call.needed : 1, &memory);
    if (status != MOETOKEN_OK)
        return status;
    call.slots = (struct slot *)(void *)memory.memory;
    call.end = (int64_t *)(void *)(call.slots + call.tokens_num * call.topk);
    moetoken_run_plan(&call.options, (int64_t)(call.needed / 2), 0, true, false, &run);
    sort_into_experts(&call);
    moetoken_run_ranges(&run, call.experts_num, select_range, &call);
    store_kept(&call);
    moetoken_workspace_release(&memory);
    return MOETOKEN_OK;
}
