/* permute.c - tokens to experts: check, assign rows, move.
 *
 * Rows are assigned from the routing map alone, a block of experts at a time, so that counters fit
 * on the stack whatever E is. Then each token's row is read once and copied to all its rows. */
#include "formats.h"
#include "overlap.h"
#include "run.h"
#include "slots.h"
#include "status.h"

#include <inttypes.h>

#define EXPERTS_PER_BLOCK 64

struct call {
    struct moetoken_view tokens, routing_map, probs, permuted_tokens, permuted_probs,
        sorted_indices;
    int64_t tokens_num, experts_num, slots_num;
    int64_t slots_per_token; /* K, dropless */
    int64_t capacity;        /* C, padded */
    bool padded;
    moetoken_options options;

    struct moetoken_slots slots;
    int64_t rows_used; /* rows [rows_used, R) belong to no slot */
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

/* The first set expert of a token in [expert, end), or `end`. */
static int64_t next_set(const struct call *call, int64_t token, int64_t expert, int64_t end)
{
    const struct moetoken_view *map = &call->routing_map;
    return moetoken_map_next_set(map, moetoken_view_at(map, token, 0), expert, end);
}

static int64_t block_end(const struct call *call, int64_t first)
{
    int64_t left = call->experts_num - first;
    return first + (left < EXPERTS_PER_BLOCK ? left : EXPERTS_PER_BLOCK);
}

/* Dropless: no token may have more set experts than slots, nor all of them more than rows. */
static moetoken_status check_routing_map(struct call *call)
{
    int64_t pairs = 0, experts = call->experts_num;
    for (int64_t t = 0; experts > 0 && t < call->tokens_num; t++) {
        int64_t set = 0;
        for (int64_t e = 0; (e = next_set(call, t, e, experts)) < experts; e++)
            set++;
        pairs += set;
        if (set > call->slots_per_token)
            return moetoken_fail(MOETOKEN_ERR_ROUTING,
                                 "routing_map[%" PRId64 "] has %" PRId64
                                 " set experts, but a token has only K = num_out_tokens / T = "
                                 "%" PRId64 " slots",
                                 t, set, call->slots_per_token);
    }
    call->rows_used = pairs;
    const struct moetoken_view *outputs[] = {&call->permuted_tokens, &call->permuted_probs};
    for (int i = 0; i < 2; i++)
        if (outputs[i]->given && pairs > outputs[i]->shape[0])
            return moetoken_fail(MOETOKEN_ERR_ROUTING,
                                 "routing_map has %" PRId64
                                 " set pairs, but %s has only R = %" PRId64 " rows",
                                 pairs, outputs[i]->name, outputs[i]->shape[0]);
    return MOETOKEN_OK;
}

/* Counts the set tokens of each expert of a block. */
static void count_block(const struct call *call, int64_t first, int64_t *count)
{
    int64_t end = block_end(call, first);
    memset(count, 0, EXPERTS_PER_BLOCK * sizeof *count);
    for (int64_t t = 0; t < call->tokens_num; t++)
        for (int64_t e = first; (e = next_set(call, t, e, end)) < end; e++)
            count[e - first]++;
}

/* Dropless: the rows of a block's pairs follow those of the blocks before, expert by expert. used
 * counts the slots of each token that have a row. */
static int64_t assign_block(const struct call *call, int64_t first, int64_t row, int64_t *used)
{
    int64_t next[EXPERTS_PER_BLOCK], end = block_end(call, first);
    count_block(call, first, next);
    for (int64_t e = 0; e < end - first; e++) {
        int64_t count = next[e];
        next[e] = row;
        row += count;
    }
    for (int64_t t = 0; t < call->tokens_num; t++)
        for (int64_t e = first; (e = next_set(call, t, e, end)) < end; e++)
            call->slots.row[t * call->slots_per_token + used[t]++] = next[e - first]++;
    return row;
}

static void assign_dropless(struct call *call, int64_t *used)
{
    int64_t row = 0;
    memset(used, 0, (size_t)call->tokens_num * sizeof *used);
    for (int64_t i = 0; i < call->slots_num; i++)
        call->slots.row[i] = -1;
    for (int64_t e = 0; e < call->experts_num; e += EXPERTS_PER_BLOCK)
        row = assign_block(call, e, row, used);
}

/* Padded: takes tokens for a block's experts, those that are set or those that are not, in
 * ascending order, until each expert has C. taken counts them. */
static void take_tokens(const struct call *call, int64_t first, bool set, int64_t *taken,
                        int64_t *token_of_row)
{
    int64_t end = block_end(call, first), missing = 0;
    for (int64_t e = first; e < end; e++)
        missing += call->capacity - taken[e - first];
    for (int64_t t = 0; t < call->tokens_num && missing > 0; t++)
        for (int64_t e = first; e < end; e++) {
            if (set && (e = next_set(call, t, e, end)) == end)
                break;
            int64_t *count = &taken[e - first];
            if (*count == call->capacity || moetoken_map_is_set(&call->routing_map, t, e) != set)
                continue;
            token_of_row[e * call->capacity + (*count)++] = t;
            missing--;
        }
}

static void assign_padded(const struct call *call, int64_t *token_of_row)
{
    for (int64_t e = 0; e < call->experts_num; e += EXPERTS_PER_BLOCK) {
        int64_t taken[EXPERTS_PER_BLOCK] = {0};
        take_tokens(call, e, true, taken, token_of_row);
        take_tokens(call, e, false, taken, token_of_row);
    }
}

/* ---- move ----------------------------------------------------------------------------------- */

static void copy_prob(const struct call *call, int64_t token, int64_t expert, int64_t row)
{
    memcpy(moetoken_view_at(&call->permuted_probs, row, 0),
           moetoken_view_at(&call->probs, token, expert), (size_t)call->probs.size);
}

static void write_probs_and_indices(const struct call *call, int64_t token)
{
    int64_t expert = -1;
    for (int64_t s = call->slots.start[token]; s < call->slots.start[token + 1]; s++) {
        int64_t row = call->slots.row[s];
        if (call->sorted_indices.given && call->padded)
            moetoken_index_store(&call->sorted_indices, row, token);
        else if (call->sorted_indices.given)
            moetoken_index_store(&call->sorted_indices, s, row);
        if (!call->permuted_probs.given || row < 0)
            continue;
        expert = call->padded ? row / call->capacity
                              : next_set(call, token, expert + 1, call->experts_num);
        copy_prob(call, token, expert, row);
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

static void move(struct call *call)
{
    const struct moetoken_view *in = &call->tokens, *out = &call->permuted_tokens;
    const struct moetoken_view *moved[] = {in, out};
    const struct moetoken_view *per_row = out->given ? out : &call->permuted_probs;
    moetoken_run_plan(&call->options, moetoken_views_bytes(moved, 2),
                      moetoken_views_bytes(&moved[1], 1),
                      !out->given || (moetoken_view_is_unit(in) && moetoken_view_is_unit(out)),
                      false, &call->run);
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

/* Fills the slots: dropless at once, padded by way of the list of every row's token. */
static moetoken_status assign_rows(struct call *call)
{
    if (!call->padded) {
        for (int64_t t = 0; t <= call->tokens_num; t++)
            call->slots.start[t] = t * call->slots_per_token;
        assign_dropless(call, call->slots.scratch);
        return MOETOKEN_OK;
    }
    assign_padded(call, call->slots.scratch);
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
    return moetoken_slots_build(&routing, &call->slots);
}

moetoken_status moetoken_permute(const moetoken_permute_args *args, const moetoken_options *options)
{
    struct call call = {0};
    moetoken_status status = check(args, options, true, &call);
    if (status == MOETOKEN_OK && !call.padded)
        status = check_routing_map(&call);
    if (status != MOETOKEN_OK || call.slots_num == 0)
        return status;
    status = moetoken_slots_take(call.tokens_num, call.slots_num, &call.options, &call.slots);
    if (status == MOETOKEN_OK)
        status = assign_rows(&call);
    if (status == MOETOKEN_OK)
        move(&call);
    moetoken_slots_close(&call.slots);
    return status;
}
