/* unpermute.c - the weighted combine: check, resolve, add up.
 *
 * One token at a time: the weights of its slots are looked up once, then a kernel adds the rows of
 * all its slots in one pass over the token's row. */
#include "overlap.h"
#include "rows/formats.h"
#include "rows/rows_sum.h"
#include "run.h"
#include "slots.h"
#include "status.h"

#include <inttypes.h>

struct call {
    struct moetoken_view permuted_tokens, sorted_indices, routing_map, probs, unpermuted_tokens,
        out_index, permute_token_id, permuted_probs;
    struct moetoken_routing routing;
    bool mask_fill_slots;
    moetoken_options options;

    struct moetoken_slots slots;
    double *weight; /* [N] by token, in the slots' scratch memory */
    struct moetoken_run run;
};

/* ---- check ---------------------------------------------------------------------------------- */

static moetoken_status check_presence(const moetoken_unpermute_args *args, uint32_t flags)
{
    const char *missing = NULL;
    if (args->permuted_tokens == NULL)
        missing = "permuted_tokens is NULL";
    else if (args->sorted_indices == NULL)
        missing = "sorted_indices is NULL";
    else if (args->probs && args->routing_map == NULL)
        missing = "routing_map is NULL, expected a tensor as probs is given";
    else if (args->drop_and_pad && (flags & MOETOKEN_MASK_FILL_SLOTS) && args->routing_map == NULL)
        missing = "routing_map is NULL, expected a tensor as MOETOKEN_MASK_FILL_SLOTS is set";
    else if (!args->unpermuted_tokens && !args->out_index && !args->permute_token_id &&
             !args->permuted_probs)
        missing = "unpermuted_tokens, out_index, permute_token_id and permuted_probs are NULL, "
                  "expected at least one output";
    else if (!args->unpermuted_tokens && !args->restore_shape)
        missing = "restore_shape is NULL, expected {T, H} as unpermuted_tokens is not given";
    return missing ? moetoken_fail(MOETOKEN_ERR_NULL, "%s", missing) : MOETOKEN_OK;
}

static moetoken_status make_views(const moetoken_unpermute_args *args, bool need_data,
                                  struct call *call)
{
    bool map_is_read = args->probs || (call->options.flags & MOETOKEN_MASK_FILL_SLOTS);
    const struct moetoken_argument arguments[] = {
        {args->permuted_tokens, &call->permuted_tokens, "permuted_tokens", 2, MOETOKEN_TOKEN_LIKE,
         need_data && args->unpermuted_tokens},
        {args->sorted_indices, &call->sorted_indices, "sorted_indices", 1, MOETOKEN_INDEX_LIKE,
         need_data},
        {args->routing_map, &call->routing_map, "routing_map", 2, MOETOKEN_MAP_LIKE,
         need_data && map_is_read},
        {args->probs, &call->probs, "probs", 2, MOETOKEN_TOKEN_LIKE, need_data},
        {args->unpermuted_tokens, &call->unpermuted_tokens, "unpermuted_tokens", 2,
         MOETOKEN_TOKEN_LIKE, need_data},
        {args->out_index, &call->out_index, "out_index", 1, MOETOKEN_INDEX_LIKE, need_data},
        {args->permute_token_id, &call->permute_token_id, "permute_token_id", 1,
         MOETOKEN_INDEX_LIKE, need_data},
        {args->permuted_probs, &call->permuted_probs, "permuted_probs", 1, MOETOKEN_TOKEN_LIKE,
         need_data},
    };
    return moetoken_views_make(arguments, (int)(sizeof arguments / sizeof arguments[0]));
}

static moetoken_status check_types(const struct call *call)
{
    const struct moetoken_view *tokens = &call->permuted_tokens;
    moetoken_status status = moetoken_view_check_same_type(&call->unpermuted_tokens, tokens);
    if (status == MOETOKEN_OK)
        status = moetoken_view_check_probs_type(&call->probs, tokens);
    if (status == MOETOKEN_OK && call->probs.given)
        return moetoken_view_check_same_type(&call->permuted_probs, &call->probs);
    if (status == MOETOKEN_OK)
        status = moetoken_view_check_probs_type(&call->permuted_probs, tokens);
    return status;
}

static moetoken_status check_shapes(const int64_t *restore_shape, const struct call *call)
{
    const struct moetoken_routing *routing = &call->routing;
    int64_t hidden = call->permuted_tokens.shape[1], slots = routing->slots_num;
    const char *from_t = call->unpermuted_tokens.given ? "unpermuted_tokens" : "restore_shape";
    const char *from_e = call->probs.given ? "probs" : "routing_map";
    const struct moetoken_size_check checks[] = {
        {&call->unpermuted_tokens, 1, hidden, "H", "permuted_tokens"},
        {&call->probs, 0, routing->tokens_num, "T", from_t},
        {&call->routing_map, 0, routing->tokens_num, "T", from_t},
        {&call->routing_map, 1, routing->experts_num, "E", from_e},
        {&call->out_index, 0, slots, "N", "sorted_indices"},
        {&call->permute_token_id, 0, slots, "N", "sorted_indices"},
        {&call->permuted_probs, 0, slots, "N", "sorted_indices"},
    };
    moetoken_status status = moetoken_check_sizes(checks, (int)(sizeof checks / sizeof checks[0]));
    if (status == MOETOKEN_OK)
        status = moetoken_check_restore_shape(restore_shape, routing->tokens_num, hidden,
                                              "the token tensors");
    if (status == MOETOKEN_OK)
        status = moetoken_index_check_holds(&call->out_index, slots);
    if (status == MOETOKEN_OK)
        status = moetoken_index_check_holds(&call->permute_token_id, routing->tokens_num);
    return status;
}

static moetoken_status check_outputs(const struct call *call)
{
    const struct moetoken_view *outputs[] = {&call->unpermuted_tokens, &call->out_index,
                                             &call->permute_token_id, &call->permuted_probs};
    const struct moetoken_view *inputs[] = {&call->permuted_tokens, &call->sorted_indices,
                                            &call->routing_map, &call->probs};
    return moetoken_overlap_check_all(outputs, 4, inputs, 4, NULL);
}

static struct moetoken_routing describe_routing(const moetoken_unpermute_args *args,
                                                const struct call *call)
{
    bool padded = args->drop_and_pad;
    const struct moetoken_view *per_expert = call->probs.given ? &call->probs : &call->routing_map;
    return (struct moetoken_routing){
        .row = padded ? NULL : &call->sorted_indices,
        .token = padded ? &call->sorted_indices : NULL,
        .map = &call->routing_map,
        .tokens_num = call->unpermuted_tokens.given ? call->unpermuted_tokens.shape[0]
                                                    : args->restore_shape[0],
        .slots_num = call->sorted_indices.shape[0],
        .rows_num = call->permuted_tokens.shape[0],
        .experts_num = per_expert->given ? per_expert->shape[1] : 0,
        .with_experts = call->probs.given || call->mask_fill_slots,
        .padded = padded,
        .tolerate_mismatch = (call->options.flags & MOETOKEN_TOLERATE_ROUTING_MISMATCH) != 0,
    };
}

static moetoken_status check(const moetoken_unpermute_args *args, const moetoken_options *options,
                             bool need_data, struct call *call)
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

    call->mask_fill_slots =
        args->drop_and_pad && (call->options.flags & MOETOKEN_MASK_FILL_SLOTS) != 0;
    call->routing = describe_routing(args, call);
    status = check_shapes(args->restore_shape, call);
    if (status == MOETOKEN_OK)
        status = moetoken_routing_check(&call->routing);
    if (status == MOETOKEN_OK)
        status = check_outputs(call);
    return status;
}

/* ---- weights and indices -------------------------------------------------------------------- */

/* Where a slot's weight stands in probs; NULL when its weight is *constant. */
static const char *find_weight(const struct call *call, int64_t token, int64_t expert, int64_t row,
                               double *constant)
{
    *constant = 0;
    if (row < 0 || (call->routing.with_experts && expert < 0))
        return NULL;
    if (call->mask_fill_slots && !moetoken_map_is_set(&call->routing_map, token, expert))
        return NULL;
    *constant = 1;
    return call->probs.given ? moetoken_view_at(&call->probs, token, expert) : NULL;
}

/* Position s of the slots by token is slot s for the caller when dropless, as those come token by
 * token, and slot `row` when padded. The weight goes out as a bit copy. */
static void resolve_slot(const struct call *call, int64_t token, int64_t expert, int64_t s)
{
    int64_t row = call->slots.row[s], slot = call->routing.padded ? row : s;
    double constant;
    const char *prob = find_weight(call, token, expert, row, &constant);
    call->weight[s] = prob ? element_load((int)call->probs.type, prob) : constant;
    if (call->out_index.given)
        moetoken_index_store(&call->out_index, s, row);
    if (call->permute_token_id.given)
        moetoken_index_store(&call->permute_token_id, s, token);
    if (!call->permuted_probs.given)
        return;
    char *to = moetoken_view_at(&call->permuted_probs, slot, 0);
    if (prob)
        moetoken_element_copy(to, prob, call->probs.size);
    else
        element_store((int)call->permuted_probs.type, to, constant);
}

/* ---- add up --------------------------------------------------------------------------------- */

struct token_slots {
    const struct call *call;
    int64_t begin, count;
};

/* A slot without effect adds nothing: an Inf or NaN in its row does not leak. */
static bool list_rows(const void *context, int64_t *position, struct moetoken_addends *addends)
{
    const struct token_slots *slots = context;
    const struct call *call = slots->call;
    for (; *position < slots->count && !moetoken_addends_are_full(addends); ++*position) {
        int64_t s = slots->begin + *position;
        if (call->weight[s] != 0)
            moetoken_addends_add(addends,
                                 moetoken_view_at(&call->permuted_tokens, call->slots.row[s], 0),
                                 call->weight[s]);
    }
    return *position < slots->count;
}

static void sum_token(const struct call *call, int64_t token)
{
    const struct moetoken_view *in = &call->permuted_tokens, *out = &call->unpermuted_tokens;
    int64_t begin = call->slots.start[token], end = call->slots.start[token + 1];
    struct token_slots slots = {call, begin, end - begin};
    struct moetoken_rows rows = {
        .length = out->shape[1],
        .token_out = moetoken_view_at(out, token, 0),
        .token_stride = out->stride[1],
        .in = in->data,
        .in_row_stride = in->stride[0],
        .in_stride = in->stride[1],
        .next_rows = call->slots.row + end,
        .next_count = call->routing.slots_num - end,
        .streaming = call->run.streaming,
    };
    moetoken_rows_sum(call->run.kernels.sum[in->type], in->type, &rows, list_rows, &slots);
}

static void move_tokens(const void *context, int64_t first, int64_t end)
{
    const struct call *call = context;
    for (int64_t t = first; t < end; t++) {
        struct moetoken_expert_walk walk = moetoken_expert_walk_begin(&call->routing, t);
        for (int64_t s = call->slots.start[t]; s < call->slots.start[t + 1]; s++)
            resolve_slot(call, t, moetoken_expert_walk_next(&walk, call->slots.row[s]), s);
        if (call->unpermuted_tokens.given)
            sum_token(call, t);
    }
}

static void plan(struct call *call)
{
    const struct moetoken_view *in = &call->permuted_tokens, *out = &call->unpermuted_tokens;
    const struct moetoken_view *moved[] = {in, out};
    moetoken_run_plan(&call->options, moetoken_views_bytes(moved, 2),
                      moetoken_views_bytes(&moved[1], 1),
                      moetoken_view_is_unit(in) && (!out->given || moetoken_view_is_unit(out)),
                      false, &call->run);
}

static void move(struct call *call)
{
    call->weight = call->slots.scratch;
    moetoken_run_ranges(&call->run, call->routing.tokens_num, move_tokens, call);
}

/* ---- the operator --------------------------------------------------------------------------- */

moetoken_status moetoken_unpermute_check(const moetoken_unpermute_args *args,
                                         const moetoken_options *options)
{
    struct call call = {0};
    return check(args, options, false, &call);
}

moetoken_status moetoken_unpermute(const moetoken_unpermute_args *args,
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
