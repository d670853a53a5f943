/* unpermute_grad.c - the gradient of the weighted combine: check, resolve, move.
 *
 * One token at a time: its row of the incoming gradient is read once and serves all its slots, up
 * to MOETOKEN_SLOTS_PER_CALL of them with each call of a kernel. */
#include "overlap.h"
#include "rows/formats.h"
#include "run.h"
#include "slots.h"
#include "status.h"

#include <inttypes.h>

struct call {
    struct moetoken_view unpermuted_tokens_grad, out_index, permute_token_id, routing_map,
        permuted_tokens, probs, permuted_tokens_grad, probs_grad;
    struct moetoken_routing routing;
    bool mask_fill_slots;
    moetoken_options options;

    struct moetoken_slots slots;
    struct moetoken_run run;
    moetoken_rows_fn *move_rows;
};

/* ---- check ---------------------------------------------------------------------------------- */

static moetoken_status make_views(const moetoken_unpermute_grad_args *args, bool need_data,
                                  struct call *call)
{
    bool with_dots = args->probs_grad != NULL, with_rows = args->permuted_tokens_grad != NULL;
    bool map_is_read = args->probs || (call->options.flags & MOETOKEN_MASK_FILL_SLOTS);
    const struct moetoken_argument arguments[] = {
        {args->unpermuted_tokens_grad, &call->unpermuted_tokens_grad, "unpermuted_tokens_grad", 2,
         MOETOKEN_TOKEN_LIKE, need_data},
        {args->out_index, &call->out_index, "out_index", 1, MOETOKEN_INDEX_LIKE, need_data},
        {args->permute_token_id, &call->permute_token_id, "permute_token_id", 1,
         MOETOKEN_INDEX_LIKE, need_data},
        {args->routing_map, &call->routing_map, "routing_map", 2, MOETOKEN_MAP_LIKE,
         need_data && map_is_read},
        {args->permuted_tokens, &call->permuted_tokens, "permuted_tokens", 2, MOETOKEN_TOKEN_LIKE,
         need_data && with_dots},
        {args->probs, &call->probs, "probs", 2, MOETOKEN_TOKEN_LIKE, need_data && with_rows},
        {args->permuted_tokens_grad, &call->permuted_tokens_grad, "permuted_tokens_grad", 2,
         MOETOKEN_TOKEN_LIKE, need_data},
        {args->probs_grad, &call->probs_grad, "probs_grad", 2, MOETOKEN_TOKEN_LIKE, need_data},
    };
    return moetoken_views_make(arguments, (int)(sizeof arguments / sizeof arguments[0]));
}

static moetoken_status check_presence(const moetoken_unpermute_grad_args *args, uint32_t flags)
{
    const char *missing = NULL;
    if (args->unpermuted_tokens_grad == NULL)
        missing = "unpermuted_tokens_grad is NULL";
    else if (args->out_index == NULL)
        missing = "out_index is NULL";
    else if (args->drop_and_pad && args->permute_token_id == NULL)
        missing = "permute_token_id is NULL, expected a tensor as drop_and_pad is set";
    else if (args->probs && args->routing_map == NULL)
        missing = "routing_map is NULL, expected a tensor as probs is given";
    else if (args->probs && args->permuted_tokens == NULL)
        missing = "permuted_tokens is NULL, expected a tensor as probs is given";
    else if (args->drop_and_pad && (flags & MOETOKEN_MASK_FILL_SLOTS) && args->routing_map == NULL)
        missing = "routing_map is NULL, expected a tensor as MOETOKEN_MASK_FILL_SLOTS is set";
    else if (args->probs_grad && args->probs == NULL)
        missing = "probs is NULL, expected a tensor as probs_grad is given";
    else if (args->permuted_tokens_grad == NULL && args->probs_grad == NULL)
        missing = "permuted_tokens_grad and probs_grad are NULL, expected at least one output";
    return missing ? moetoken_fail(MOETOKEN_ERR_NULL, "%s", missing) : MOETOKEN_OK;
}

static moetoken_status check_types(const struct call *call)
{
    const struct moetoken_view *g = &call->unpermuted_tokens_grad;
    const struct moetoken_view *like_tokens[] = {&call->permuted_tokens,
                                                 &call->permuted_tokens_grad};
    for (int i = 0; i < 2; i++) {
        moetoken_status status = moetoken_view_check_same_type(like_tokens[i], g);
        if (status != MOETOKEN_OK)
            return status;
    }
    moetoken_status status = moetoken_view_check_probs_type(&call->probs, g);
    if (status != MOETOKEN_OK)
        return status;
    return moetoken_view_check_same_type(&call->probs_grad, &call->probs);
}

/* T, H, N, R and E, each from the tensor that defines it. */
static moetoken_status check_shapes(const int64_t *restore_shape, const struct call *call)
{
    const struct moetoken_routing *routing = &call->routing;
    int64_t tokens = routing->tokens_num, hidden = call->unpermuted_tokens_grad.shape[1];
    const char *from_g = "unpermuted_tokens_grad";
    const char *from_r =
        call->permuted_tokens_grad.given ? "permuted_tokens_grad" : "permuted_tokens";
    const char *from_e = call->probs.given ? "probs" : "routing_map";
    const struct moetoken_size_check checks[] = {
        {&call->permute_token_id, 0, routing->slots_num, "N", "out_index"},
        {&call->permuted_tokens_grad, 1, hidden, "H", from_g},
        {&call->permuted_tokens, 1, hidden, "H", from_g},
        {&call->permuted_tokens, 0, routing->rows_num, "R", from_r},
        {&call->probs, 0, tokens, "T", from_g},
        {&call->routing_map, 0, tokens, "T", from_g},
        {&call->routing_map, 1, routing->experts_num, "E", from_e},
        {&call->probs_grad, 0, tokens, "T", from_g},
        {&call->probs_grad, 1, routing->experts_num, "E", from_e},
    };
    moetoken_status status = moetoken_check_sizes(checks, (int)(sizeof checks / sizeof checks[0]));
    if (status == MOETOKEN_OK)
        status = moetoken_check_restore_shape(restore_shape, tokens, hidden, from_g);
    return status;
}

static moetoken_status check_outputs(const struct call *call)
{
    const struct moetoken_view *outputs[] = {&call->permuted_tokens_grad, &call->probs_grad};
    const struct moetoken_view *inputs[] = {
        &call->unpermuted_tokens_grad,
        &call->out_index,
        &call->permute_token_id,
        &call->routing_map,
        &call->probs,
        &call->permuted_tokens,
    };
    return moetoken_overlap_check_all(outputs, 2, inputs, 6, &call->permuted_tokens);
}

static struct moetoken_routing describe_routing(const moetoken_unpermute_grad_args *args,
                                                const struct call *call)
{
    bool masked = args->drop_and_pad && (call->options.flags & MOETOKEN_MASK_FILL_SLOTS);
    const struct moetoken_view *per_expert = call->probs.given ? &call->probs : &call->routing_map;
    const struct moetoken_view *per_row =
        call->permuted_tokens_grad.given ? &call->permuted_tokens_grad : &call->permuted_tokens;
    return (struct moetoken_routing){
        .row = &call->out_index,
        .token = call->permute_token_id.given ? &call->permute_token_id : NULL,
        .map = &call->routing_map,
        .tokens_num = call->unpermuted_tokens_grad.shape[0],
        .slots_num = call->out_index.shape[0],
        .rows_num = per_row->shape[0],
        .experts_num = per_expert->given ? per_expert->shape[1] : 0,
        .with_experts = call->probs.given || masked,
        .padded = args->drop_and_pad,
        .tolerate_mismatch = (call->options.flags & MOETOKEN_TOLERATE_ROUTING_MISMATCH) != 0,
    };
}

/* Everything that can be told without reading an element. */
static moetoken_status check(const moetoken_unpermute_grad_args *args,
                             const moetoken_options *options, bool need_data, struct call *call)
{
    if (args == NULL)
        return moetoken_fail(MOETOKEN_ERR_NULL, "args is NULL");
    moetoken_status status = moetoken_run_check_options(
        options, MOETOKEN_MASK_FILL_SLOTS | MOETOKEN_TOLERATE_ROUTING_MISMATCH, &call->options);
    if (status == MOETOKEN_OK)
        status = check_presence(args, call->options.flags);
    if (status == MOETOKEN_OK)
        status = make_views(args, need_data, call);
    if (status == MOETOKEN_OK)
        status = check_types(call);
    if (status != MOETOKEN_OK)
        return status;

    call->routing = describe_routing(args, call);
    call->mask_fill_slots =
        args->drop_and_pad && (call->options.flags & MOETOKEN_MASK_FILL_SLOTS) != 0;
    status = check_shapes(args->restore_shape, call);
    if (status == MOETOKEN_OK)
        status = moetoken_routing_check(&call->routing);
    if (status == MOETOKEN_OK)
        status = check_outputs(call);
    return status;
}

/* ---- move ----------------------------------------------------------------------------------- */

/* The sum of the dot products of one (token, expert) pair, while its slots are gone through. */
struct pair_sum {
    int64_t expert; /* -1: none yet */
    double sum;
};

static void store_pair(const struct call *call, int64_t token, const struct pair_sum *pair)
{
    if (pair->expert >= 0)
        element_store((int)call->probs.type,
                      moetoken_view_at(&call->probs_grad, token, pair->expert), pair->sum);
}

/* Slots of one pair are neighbours (moetoken_slots_group_by_expert). */
static void add_dots(const struct call *call, int64_t token, const struct moetoken_rows *rows,
                     const int64_t *expert, struct pair_sum *pair)
{
    for (int64_t s = 0; s < rows->count; s++) {
        if (expert[s] != pair->expert) {
            store_pair(call, token, pair);
            *pair = (struct pair_sum){expert[s], 0};
        }
        pair->sum += rows->dot[s];
    }
}

static double weight_of(const struct call *call, int64_t token, int64_t expert)
{
    if (expert < 0)
        return 0;
    return element_load((int)call->probs.type, moetoken_view_at(&call->probs, token, expert));
}

static struct moetoken_rows describe_rows(const struct call *call, int64_t token)
{
    const struct moetoken_view *g = &call->unpermuted_tokens_grad;
    const struct moetoken_view *in = &call->permuted_tokens, *out = &call->permuted_tokens_grad;
    return (struct moetoken_rows){
        .length = g->shape[1],
        .token_in = moetoken_view_at(g, token, 0),
        .token_stride = g->stride[1],
        .in = in->data,
        .in_row_stride = in->stride[0],
        .in_stride = in->stride[1],
        .out = out->data,
        .out_row_stride = out->stride[0],
        .out_stride = out->stride[1],
        .streaming = call->run.streaming,
    };
}

/* The next slots of a token from position *s on, as many as a kernel takes: their rows, weights and
 * experts. Slots without effect are dealt with on the way. Moves *s behind the last one. */
static void gather_slots(const struct call *call, int64_t token, int64_t *s,
                         struct moetoken_expert_walk *walk, struct moetoken_rows *rows,
                         int64_t *row, double *weight, int64_t *expert)
{
    const struct moetoken_slots *slots = &call->slots;
    rows->count = 0;
    for (; *s < slots->start[token + 1] && rows->count < MOETOKEN_SLOTS_PER_CALL; ++*s) {
        int64_t r = slots->row[*s];
        int64_t e = moetoken_expert_walk_next(walk, r);
        if (r < 0)
            continue;
        if (call->mask_fill_slots && !moetoken_map_is_set(&call->routing_map, token, e)) {
            if (call->permuted_tokens_grad.given)
                moetoken_view_zero_row(&call->permuted_tokens_grad, r);
            continue;
        }
        row[rows->count] = r;
        expert[rows->count] = e;
        if (call->probs.given && call->permuted_tokens_grad.given)
            weight[rows->count] = weight_of(call, token, e);
        rows->count++;
    }
    rows->next_rows = slots->row + *s;
    rows->next_count = call->routing.slots_num - *s;
}

static void move_token(const struct call *call, int64_t token)
{
    int64_t row[MOETOKEN_SLOTS_PER_CALL], expert[MOETOKEN_SLOTS_PER_CALL] = {0};
    double weight[MOETOKEN_SLOTS_PER_CALL], dot[MOETOKEN_SLOTS_PER_CALL];
    struct moetoken_rows rows = describe_rows(call, token);
    rows.row = row;
    rows.weight = weight;
    rows.dot = dot;

    struct moetoken_expert_walk walk = moetoken_expert_walk_begin(&call->routing, token);
    struct pair_sum pair = {-1, 0};
    if (call->probs_grad.given)
        moetoken_view_zero_row(&call->probs_grad, token);
    for (int64_t s = call->slots.start[token]; s < call->slots.start[token + 1];) {
        gather_slots(call, token, &s, &walk, &rows, row, weight, expert);
        call->move_rows(&rows);
        if (call->probs_grad.given)
            add_dots(call, token, &rows, expert, &pair);
    }
    if (call->probs_grad.given)
        store_pair(call, token, &pair);
}

static void move_tokens(const void *context, int64_t first, int64_t end)
{
    const struct call *call = context;
    for (int64_t t = first; t < end; t++)
        move_token(call, t);
}

static void zero_unnamed_rows(const void *context, int64_t first, int64_t end)
{
    const struct call *call = context;
    for (int64_t r = first; r < end; r++)
        if (!moetoken_slots_is_named(&call->slots, r))
            moetoken_view_zero_row(&call->permuted_tokens_grad, r);
}

static moetoken_rows_fn *choose_kernel(const struct call *call)
{
    const struct moetoken_row_kernels *kernels = &call->run.kernels;
    int type = (int)call->unpermuted_tokens_grad.type;
    if (!call->probs.given)
        return moetoken_row_kernels_copy(kernels, call->unpermuted_tokens_grad.size);
    if (!call->probs_grad.given)
        return kernels->scale[type];
    return call->permuted_tokens_grad.given ? kernels->scale_dot[type] : kernels->dot[type];
}

static void plan(struct call *call)
{
    const struct moetoken_view *g = &call->unpermuted_tokens_grad;
    const struct moetoken_view *in = &call->permuted_tokens, *out = &call->permuted_tokens_grad;
    const struct moetoken_view *moved[] = {g, out, call->probs_grad.given ? in : out};
    bool unit = moetoken_view_is_unit(g) && (!out->given || moetoken_view_is_unit(out)) &&
                (!call->probs_grad.given || moetoken_view_is_unit(in));
    bool in_place = in->given && out->given && in->data == out->data;
    moetoken_run_plan(&call->options, moetoken_views_bytes(moved, 3),
                      moetoken_views_bytes(&moved[1], 1), unit, in_place, &call->run);
    call->move_rows = choose_kernel(call);
}

static void move(struct call *call)
{
    if (call->probs_grad.given && call->routing.padded)
        moetoken_slots_group_by_expert(&call->routing, &call->slots);
    if (call->permuted_tokens_grad.given && call->slots.named_count < call->routing.rows_num)
        moetoken_run_ranges(&call->run, call->routing.rows_num, zero_unnamed_rows, call);
    moetoken_run_ranges(&call->run, call->routing.tokens_num, move_tokens, call);
}

/* ---- the operator --------------------------------------------------------------------------- */

moetoken_status moetoken_unpermute_grad_check(const moetoken_unpermute_grad_args *args,
                                              const moetoken_options *options)
{
    struct call call = {0};
    return check(args, options, false, &call);
}

moetoken_status moetoken_unpermute_grad(const moetoken_unpermute_grad_args *args,
                                        const moetoken_options *options)
{
    struct call call = {0};
    moetoken_status status = check(args, options, true, &call);
    if (status != MOETOKEN_OK)
        return status;
    plan(&call);
    status = moetoken_slots_open(&call.routing, &call.options, &call.run, &call.slots);
    if (status == MOETOKEN_OK)
        move(&call);
    moetoken_slots_close(&call.slots);
    return status;
}
