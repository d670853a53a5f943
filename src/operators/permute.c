/* permute.c - tokens to experts: check, assign rows, move.
 *
 * Rows are assigned from the routing map alone. Then each token's row is read once and copied to
 * all its rows. */
#include "overlap.h"
#include "rows/formats.h"
#include "run.h"
#include "slots.h"
#include "status.h"

#include <inttypes.h>

struct call {
    struct moetoken_view tokens, routing_map, probs, permuted_tokens, permuted_probs,
        sorted_indices;
    int64_t tokens_num, experts_num, slots_num;
    int64_t slots_per_token; /* K, dropless */
    int64_t capacity;        /* C, padded */
    bool padded;
    moetoken_options options;

    struct moetoken_slots slots;
    int64_t *token_of_row; /* [R], padded, in the slots' scratch memory */
    int64_t rows_used;     /* rows [rows_used, R) belong to no slot */
    struct moetoken_run run;
};

/* ---- check ---------------------------------------------------------------------------------- */

static moetoken_status check_presence(const moetoken_permute_args *args)
{
    const char *missing = NULL;
    if (args->tokens == NULL)
        missing = "tokens is NULL";
    else if (args->routing_map == NULL)
        missing = "routing_map is NULL";
    else if (args->permuted_probs && args->probs == NULL)
        missing = "probs is NULL, expected a tensor as permuted_probs is given";
    else if (!args->permuted_tokens && !args->permuted_probs && !args->sorted_indices)
        missing = "permuted_tokens, permuted_probs and sorted_indices are NULL, expected at least "
                  "one output";
    return missing ? moetoken_fail(MOETOKEN_ERR_NULL, "%s", missing) : MOETOKEN_OK;
}

static moetoken_status make_views(const moetoken_permute_args *args, bool need_data,
                                  struct call *call)
{
    const struct moetoken_argument arguments[] = {
        {args->tokens, &call->tokens, "tokens", 2, MOETOKEN_TOKEN_LIKE,
         need_data && args->permuted_tokens},
        {args->routing_map, &call->routing_map, "routing_map", 2, MOETOKEN_MAP_LIKE, need_data},
        {args->probs, &call->probs, "probs", 2, MOETOKEN_TOKEN_LIKE,
         need_data && args->permuted_probs},
        {args->permuted_tokens, &call->permuted_tokens, "permuted_tokens", 2, MOETOKEN_TOKEN_LIKE,
         need_data},
        {args->permuted_probs, &call->permuted_probs, "permuted_probs", 1, MOETOKEN_TOKEN_LIKE,
         need_data},
        {args->sorted_indices, &call->sorted_indices, "sorted_indices", 1, MOETOKEN_INDEX_LIKE,
         need_data},
    };
    return moetoken_views_make(arguments, (int)(sizeof arguments / sizeof arguments[0]));
}

static moetoken_status check_types(const struct call *call)
{
    moetoken_status status = moetoken_view_check_same_type(&call->permuted_tokens, &call->tokens);
    if (status == MOETOKEN_OK)
        status = moetoken_view_check_probs_type(&call->probs, &call->tokens);
    if (status == MOETOKEN_OK)
        status = moetoken_view_check_same_type(&call->permuted_probs, &call->probs);
    return status;
}

/* K or C, and with it N. */
static moetoken_status count_slots(int64_t num_out_tokens, struct call *call)
{
    if (num_out_tokens < 0)
        return moetoken_fail(MOETOKEN_ERR_SHAPE,
                             "num_out_tokens = %" PRId64 ", expected at least 0", num_out_tokens);
    int64_t groups = call->padded ? call->experts_num : call->tokens_num;
    int64_t per_group = groups ? num_out_tokens / groups : 0;
    call->slots_num = per_group * groups;
    if (!call->padded) {
        call->slots_per_token = per_group;
        return MOETOKEN_OK;
    }
    call->capacity = per_group;
    if (per_group > call->tokens_num)
        return moetoken_fail(MOETOKEN_ERR_SHAPE,
                             "the capacity C = num_out_tokens / E = %" PRId64 " / %" PRId64
                             " = %" PRId64 " is more than T = %" PRId64,
                             num_out_tokens, groups, per_group, call->tokens_num);
    return MOETOKEN_OK;
}

static moetoken_status check_rows_num(const struct moetoken_view *view, const struct call *call)
{
    int64_t rows = view->shape[0], slots = call->slots_num;
    if (!view->given || (call->padded ? rows == slots : rows <= slots))
        return MOETOKEN_OK;
    return moetoken_fail(MOETOKEN_ERR_SHAPE,
                         "%s has R = %" PRId64 " rows, expected %s N = %" PRId64 " slots",
                         view->name, rows, call->padded ? "exactly" : "at most", slots);
}

static moetoken_status check_shapes(const struct call *call)
{
    int64_t rows = call->permuted_tokens.shape[0];
    bool both = call->permuted_tokens.given && call->permuted_probs.given;
    const struct moetoken_view absent = {0};
    const struct moetoken_size_check checks[] = {
        {&call->routing_map, 0, call->tokens_num, "T", "tokens"},
        {&call->probs, 0, call->tokens_num, "T", "tokens"},
        {&call->probs, 1, call->experts_num, "E", "routing_map"},
        {&call->permuted_tokens, 1, call->tokens.shape[1], "H", "tokens"},
        {both ? &call->permuted_probs : &absent, 0, rows, "R", "permuted_tokens"},
        {&call->sorted_indices, 0, call->slots_num, "N", "num_out_tokens"},
    };
    moetoken_status status = moetoken_check_sizes(checks, (int)(sizeof checks / sizeof checks[0]));
    if (status == MOETOKEN_OK)
        status = check_rows_num(&call->permuted_tokens, call);
    if (status == MOETOKEN_OK)
        status = check_rows_num(&call->permuted_probs, call);
    if (status == MOETOKEN_OK)
        status = moetoken_index_check_holds(&call->sorted_indices,
                                            call->padded ? call->tokens_num : call->slots_num);
    return status;
}

static moetoken_status check_outputs(const struct call *call)
{
    const struct moetoken_view *outputs[] = {&call->permuted_tokens, &call->permuted_probs,
                                             &call->sorted_indices};
    const struct moetoken_view *inputs[] = {&call->tokens, &call->routing_map, &call->probs};
    return moetoken_overlap_check_all(outputs, 3, inputs, 3, NULL);
}

static moetoken_status check(const moetoken_permute_args *args, const moetoken_options *options,
                             bool need_data, struct call *call)
{
    if (args == NULL)
        return moetoken_fail(MOETOKEN_ERR_NULL, "args is NULL");
    moetoken_status status = moetoken_run_check_options(options, 0, &call->options);
    if (status == MOETOKEN_OK)
        status = check_presence(args);
    if (status == MOETOKEN_OK)
        status = make_views(args, need_data, call);
    if (status == MOETOKEN_OK)
        status = check_types(call);
    if (status != MOETOKEN_OK)
        return status;

    call->tokens_num = call->tokens.shape[0];
    call->experts_num = call->routing_map.shape[1];
    call->padded = args->drop_and_pad;
    status = count_slots(args->num_out_tokens, call);
    if (status == MOETOKEN_OK)
        status = check_shapes(call);
    size_t workspace_bytes; /* num_out_tokens may be anything: whether it can be done at all */
    if (status == MOETOKEN_OK)
        status = moetoken_workspace_size(call->tokens_num, call->slots_num, &workspace_bytes);
    if (status == MOETOKEN_OK)
        status = check_outputs(call);
    return status;
}

/* ---- assign rows ---------------------------------------------------------------------------- */

/* Dropless: a slot that waits for its row holds its expert below -1, which is an unused slot. */
static int64_t pending(int64_t expert)
{
    return -2 - expert;
}

static int64_t expert_of_pending(int64_t row)
{
    return -2 - row;
}

struct listing {
    const struct call *call;
    int64_t *too_many; /* the first token with more set experts than slots */
};

/* Dropless: each token's slots get its set experts, in ascending order. */
static void list_experts(const void *context, int64_t first, int64_t end)
{
    const struct listing *listing = context;
    const struct call *call = listing->call;
    int64_t slots = call->slots_per_token;
    for (int64_t t = first; t < end; t++) {
        int64_t *row = call->slots.row + t * slots, count = 0, expert;
        struct moetoken_map_walk walk = moetoken_map_walk_begin(&call->routing_map, t);
        while ((expert = moetoken_map_walk_next(&walk)) >= 0 && count < slots)
            row[count++] = pending(expert);
        if (expert >= 0) {
            moetoken_keep_lowest(listing->too_many, t);
            return;
        }
        while (count < slots)
            row[count++] = -1;
    }
}

static moetoken_status fail_too_many(const struct call *call, int64_t token)
{
    int64_t set = moetoken_map_count_set(&call->routing_map, token);
    return moetoken_fail(MOETOKEN_ERR_ROUTING,
                         "routing_map[%" PRId64 "] has %" PRId64
                         " set experts, but a token has only K = num_out_tokens / T = %" PRId64
                         " slots",
                         token, set, call->slots_per_token);
}

/* Dropless: the rows of experts [first, end) follow those of the experts before. next has room for
 * a number each. */
static void assign_experts(struct call *call, int64_t first, int64_t end, int64_t *next)
{
    int64_t *slot = call->slots.row, slots = call->slots_num, row = call->rows_used;
    memset(next, 0, (size_t)(end - first) * sizeof *next);
    for (int64_t s = 0; s < slots; s++) {
        int64_t expert = expert_of_pending(slot[s]);
        if (expert >= first && expert < end)
            next[expert - first]++;
    }
    for (int64_t e = 0; e < end - first; e++) {
        int64_t count = next[e];
        next[e] = row;
        row += count;
    }
    for (int64_t s = 0; s < slots; s++) {
        int64_t expert = expert_of_pending(slot[s]);
        if (expert >= first && expert < end)
            slot[s] = next[expert - first]++;
    }
    call->rows_used = row;
}

/* Dropless: no token may have more set experts than slots, nor all of them more than rows. The
 * scratch memory counts for as many experts at a time as there are slots: mostly all. */
static moetoken_status assign_dropless(struct call *call)
{
    int64_t tokens = call->tokens_num, experts = call->experts_num, too_many = tokens;
    const struct listing listing = {call, &too_many};
    moetoken_run_map_ranges(&call->run, tokens * experts, tokens, list_experts, &listing);
    if (too_many < tokens)
        return fail_too_many(call, too_many);
    for (int64_t t = 0; t <= tokens; t++)
        call->slots.start[t] = t * call->slots_per_token;
    for (int64_t e = 0; call->slots_num > 0 && e < experts; e += call->slots_num) {
        int64_t left = experts - e;
        assign_experts(call, e, left < call->slots_num ? experts : e + call->slots_num,
                       call->slots.scratch);
    }
    const struct moetoken_view *outputs[] = {&call->permuted_tokens, &call->permuted_probs};
    for (int i = 0; i < 2; i++)
        if (outputs[i]->given && call->rows_used > outputs[i]->shape[0])
            return moetoken_fail(MOETOKEN_ERR_ROUTING,
                                 "routing_map has %" PRId64
                                 " set pairs, but %s has only R = %" PRId64 " rows",
                                 call->rows_used, outputs[i]->name, outputs[i]->shape[0]);
    return MOETOKEN_OK;
}

/* Padded: takes tokens for experts [first, end), at most as many as a mask holds: those that are
 * set or those that are not, in ascending order, until each expert has C. taken counts them. */
static void take_tokens(const struct call *call, int64_t first, int64_t end, bool set,
                        int64_t *taken)
{
    int64_t capacity = call->capacity;
    uint64_t wanting = 0; /* bit j: expert first + j has not got C yet */
    for (int64_t e = first; e < end; e++)
        wanting |= (uint64_t)(taken[e - first] < capacity) << (e - first);
    for (int64_t t = 0; t < call->tokens_num && wanting != 0; t++) {
        uint64_t mask = moetoken_map_mask(&call->routing_map, t, first, end);
        mask = (set ? mask : ~mask) & wanting;
        for (; mask != 0; mask &= mask - 1) {
            int64_t j = __builtin_ctzll(mask);
            call->token_of_row[(first + j) * capacity + taken[j]++] = t;
            if (taken[j] == capacity)
                wanting ^= mask & -mask;
        }
    }
}

static void fill_experts(const void *context, int64_t first_mask, int64_t end_mask)
{
    const struct call *call = context;
    for (int64_t m = first_mask; m < end_mask; m++) {
        int64_t taken[MOETOKEN_EXPERTS_PER_MASK] = {0};
        int64_t first = m * MOETOKEN_EXPERTS_PER_MASK, end = first + MOETOKEN_EXPERTS_PER_MASK;
        if (end > call->experts_num)
            end = call->experts_num;
        take_tokens(call, first, end, true, taken);
        take_tokens(call, first, end, false, taken);
    }
}

/* Padded: by way of the list of every row's token. */
static moetoken_status assign_padded(struct call *call)
{
    int64_t experts = call->experts_num;
    int64_t masks = experts / MOETOKEN_EXPERTS_PER_MASK + (experts % MOETOKEN_EXPERTS_PER_MASK > 0);
    call->token_of_row = call->slots.scratch;
    moetoken_run_map_ranges(&call->run, call->tokens_num * experts, masks, fill_experts, call);
    call->rows_used = call->slots_num;
    const struct moetoken_view token_of_row = {
        .name = "token_of_row",
        .data = call->slots.scratch,
        .type = MOETOKEN_I64,
        .size = sizeof(int64_t),
        .shape = {call->slots_num, 1},
        .stride = {sizeof(int64_t), 0},
        .given = true,
    };
    const struct moetoken_routing routing = {
        .token = &token_of_row,
        .tokens_num = call->tokens_num,
        .slots_num = call->slots_num,
        .rows_num = call->slots_num,
        .padded = true,
    };
    return moetoken_slots_build(&routing, &call->run, &call->slots);
}

/* ---- move ----------------------------------------------------------------------------------- */

static void copy_prob(const struct call *call, int64_t token, int64_t expert, int64_t row)
{
    moetoken_element_copy(moetoken_view_at(&call->permuted_probs, row, 0),
                          moetoken_view_at(&call->probs, token, expert), call->probs.size);
}

static void write_probs_and_indices(const struct call *call, int64_t token)
{
    struct moetoken_map_walk walk = moetoken_map_walk_begin(&call->routing_map, token);
    for (int64_t s = call->slots.start[token]; s < call->slots.start[token + 1]; s++) {
        int64_t row = call->slots.row[s];
        if (call->sorted_indices.given && call->padded)
            moetoken_index_store(&call->sorted_indices, row, token);
        else if (call->sorted_indices.given)
            moetoken_index_store(&call->sorted_indices, s, row);
        if (!call->permuted_probs.given || row < 0)
            continue;
        copy_prob(call, token, call->padded ? row / call->capacity : moetoken_map_walk_next(&walk),
                  row);
    }
}

/* Used slots come first among a dropless token's, so a token's rows are a run without -1. */
static int64_t count_used(const struct call *call, int64_t begin, int64_t end)
{
    while (end > begin && call->slots.row[end - 1] < 0)
        end--;
    return end - begin;
}

static void copy_token(const struct call *call, int64_t token)
{
    const struct moetoken_view *in = &call->tokens, *out = &call->permuted_tokens;
    int64_t begin = call->slots.start[token];
    int64_t left = count_used(call, begin, call->slots.start[token + 1]);
    struct moetoken_rows rows = {
        .length = in->shape[1],
        .row = call->slots.row + begin,
        .token_in = moetoken_view_at(in, token, 0),
        .token_stride = in->stride[1],
        .out = out->data,
        .out_row_stride = out->stride[0],
        .out_stride = out->stride[1],
        .streaming = call->run.streaming,
    };
    while (left > 0) {
        rows.count = left < MOETOKEN_SLOTS_PER_CALL ? left : MOETOKEN_SLOTS_PER_CALL;
        moetoken_row_kernels_copy(&call->run.kernels, in->size)(&rows);
        rows.row += rows.count;
        left -= rows.count;
    }
}

static void move_tokens(const void *context, int64_t first, int64_t end)
{
    const struct call *call = context;
    for (int64_t t = first; t < end; t++) {
        write_probs_and_indices(call, t);
        if (call->permuted_tokens.given)
            copy_token(call, t);
    }
}

static void zero_unused_rows(const void *context, int64_t first, int64_t end)
{
    const struct call *call = context;
    for (int64_t r = call->rows_used + first; r < call->rows_used + end; r++) {
        if (call->permuted_tokens.given)
            moetoken_view_zero_row(&call->permuted_tokens, r);
        if (call->permuted_probs.given)
            moetoken_view_zero_row(&call->permuted_probs, r);
    }
}

static void plan(struct call *call)
{
    const struct moetoken_view *in = &call->tokens, *out = &call->permuted_tokens;
    const struct moetoken_view *moved[] = {in, out};
    moetoken_run_plan(&call->options, moetoken_views_bytes(moved, 2),
                      moetoken_views_bytes(&moved[1], 1),
                      !out->given || (moetoken_view_is_unit(in) && moetoken_view_is_unit(out)),
                      false, &call->run);
}

static void move(struct call *call)
{
    const struct moetoken_view *per_row =
        call->permuted_tokens.given ? &call->permuted_tokens : &call->permuted_probs;
    if (per_row->given && call->rows_used < per_row->shape[0])
        moetoken_run_ranges(&call->run, per_row->shape[0] - call->rows_used, zero_unused_rows,
                            call);
    moetoken_run_ranges(&call->run, call->tokens_num, move_tokens, call);
}

/* ---- the operator --------------------------------------------------------------------------- */

moetoken_status moetoken_permute_check(const moetoken_permute_args *args,
                                       const moetoken_options *options)
{
    struct call call = {0};
    return check(args, options, false, &call);
}

moetoken_status moetoken_permute(const moetoken_permute_args *args, const moetoken_options *options)
{
    struct call call = {0};
    moetoken_status status = check(args, options, true, &call);
    if (status != MOETOKEN_OK || call.tokens_num == 0)
        return status;
    plan(&call);
    status = moetoken_slots_take(call.tokens_num, call.slots_num, &call.options, &call.slots);
    if (status == MOETOKEN_OK)
        status = call.padded ? assign_padded(&call) : assign_dropless(&call);
    if (status == MOETOKEN_OK)
        move(&call);
    moetoken_slots_close(&call.slots);
    return status;
}
