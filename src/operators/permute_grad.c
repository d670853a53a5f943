/* permute_grad.c - the gradient of permute: check, resolve, add up.
 *
 * The rows of a token's slots are added by the kernels that unpermute uses, with weights of 1; the
 * gradients of the probs go back to the pairs they came from. */
#include "overlap.h"
#include "rows/formats.h"
#include "rows/rows_sum.h"
#include "run.h"
#include "slots.h"
#include "status.h"

#include <inttypes.h>

struct call {
    struct moetoken_view permuted_tokens_grad, permuted_probs_grad, sorted_indices, routing_map,
        tokens_grad, probs_grad;
    struct moetoken_routing routing;
    moetoken_options options;

    struct moetoken_slots slots;
    struct moetoken_run run;
};

/* ---- check ---------------------------------------------------------------------------------- */

static moetoken_status check_presence(const moetoken_permute_grad_args *args)
{
    const char *missing = NULL;
    if (args->sorted_indices == NULL)
        missing = "sorted_indices is NULL";
    else if (args->tokens_grad == NULL && args->probs_grad == NULL)
        missing = "tokens_grad and probs_grad are NULL, expected at least one output";
    else if (args->tokens_grad && args->permuted_tokens_grad == NULL)
        missing = "permuted_tokens_grad is NULL, expected a tensor as tokens_grad is given";
    else if (args->probs_grad && args->permuted_probs_grad == NULL)
        missing = "permuted_probs_grad is NULL, expected a tensor as probs_grad is given";
    else if (args->probs_grad && !args->drop_and_pad && args->routing_map == NULL)
        missing = "routing_map is NULL, expected a tensor as probs_grad is given";
    return missing ? moetoken_fail(MOETOKEN_ERR_NULL, "%s", missing) : MOETOKEN_OK;
}

static moetoken_status make_views(const moetoken_permute_grad_args *args, bool need_data,
                                  struct call *call)
{
    bool with_tokens = args->tokens_grad != NULL, with_probs = args->probs_grad != NULL;
    const struct moetoken_argument arguments[] = {
        {args->permuted_tokens_grad, &call->permuted_tokens_grad, "permuted_tokens_grad", 2,
         MOETOKEN_TOKEN_LIKE, need_data && with_tokens},
        {args->permuted_probs_grad, &call->permuted_probs_grad, "permuted_probs_grad", 1,
         MOETOKEN_TOKEN_LIKE, need_data && with_probs},
        {args->sorted_indices, &call->sorted_indices, "sorted_indices", 1, MOETOKEN_INDEX_LIKE,
         need_data},
        {args->routing_map, &call->routing_map, "routing_map", 2, MOETOKEN_MAP_LIKE,
         need_data && with_probs && !args->drop_and_pad},
        {args->tokens_grad, &call->tokens_grad, "tokens_grad", 2, MOETOKEN_TOKEN_LIKE, need_data},
        {args->probs_grad, &call->probs_grad, "probs_grad", 2, MOETOKEN_TOKEN_LIKE, need_data},
    };
    return moetoken_views_make(arguments, (int)(sizeof arguments / sizeof arguments[0]));
}

static moetoken_status check_types(const struct call *call)
{
    const struct moetoken_view *tokens =
        call->permuted_tokens_grad.given ? &call->permuted_tokens_grad : NULL;
    moetoken_status status = MOETOKEN_OK;
    if (tokens)
        status = moetoken_view_check_same_type(&call->tokens_grad, tokens);
    if (tokens && status == MOETOKEN_OK)
        status = moetoken_view_check_probs_type(&call->permuted_probs_grad, tokens);
    if (status == MOETOKEN_OK && call->probs_grad.given)
        status = moetoken_view_check_same_type(&call->probs_grad, &call->permuted_probs_grad);
    return status;
}

static moetoken_status check_shapes(const struct call *call)
{
    const struct moetoken_routing *routing = &call->routing;
    const struct moetoken_size_check checks[] = {
        {&call->permuted_probs_grad, 0, routing->rows_num, "R", "permuted_tokens_grad"},
        {&call->routing_map, 0, routing->tokens_num, "T", "tokens_num"},
        {&call->routing_map, 1, routing->experts_num, "E", "experts_num"},
        {&call->tokens_grad, 0, routing->tokens_num, "T", "tokens_num"},
        {&call->tokens_grad, 1, call->permuted_tokens_grad.shape[1], "H", "permuted_tokens_grad"},
        {&call->probs_grad, 0, routing->tokens_num, "T", "tokens_num"},
        {&call->probs_grad, 1, routing->experts_num, "E", "experts_num"},
    };
    if (routing->tokens_num < 0 || routing->experts_num < 0)
        return moetoken_fail(MOETOKEN_ERR_SHAPE,
                             "tokens_num = %" PRId64 " and experts_num = %" PRId64
                             ", expected at least 0",
                             routing->tokens_num, routing->experts_num);
    return moetoken_check_sizes(checks, (int)(sizeof checks / sizeof checks[0]));
}

static moetoken_status check_outputs(const struct call *call)
{
    const struct moetoken_view *outputs[] = {&call->tokens_grad, &call->probs_grad};
    const struct moetoken_view *inputs[] = {&call->permuted_tokens_grad, &call->permuted_probs_grad,
                                            &call->sorted_indices, &call->routing_map};
    return moetoken_overlap_check_all(outputs, 2, inputs, 4, NULL);
}

static moetoken_status check(const moetoken_permute_grad_args *args,
                             const moetoken_options *options, bool need_data, struct call *call)
{
    if (args == NULL)
        return moetoken_fail(MOETOKEN_ERR_NULL, "args is NULL");
    moetoken_status status =
        moetoken_run_check_options(options, MOETOKEN_TOLERATE_ROUTING_MISMATCH, &call->options);
    if (status == MOETOKEN_OK)
        status = check_presence(args);
    if (status == MOETOKEN_OK)
        status = make_views(args, need_data, call);
    if (status == MOETOKEN_OK)
        status = check_types(call);
    if (status != MOETOKEN_OK)
        return status;

    const struct moetoken_view *per_row =
        call->permuted_tokens_grad.given ? &call->permuted_tokens_grad : &call->permuted_probs_grad;
    call->routing = (struct moetoken_routing){
        .row = args->drop_and_pad ? NULL : &call->sorted_indices,
        .token = args->drop_and_pad ? &call->sorted_indices : NULL,
        .map = &call->routing_map,
        .tokens_num = args->tokens_num,
        .slots_num = call->sorted_indices.shape[0],
        .rows_num = per_row->shape[0],
        .experts_num = args->experts_num,
        .with_experts = call->probs_grad.given,
        .padded = args->drop_and_pad,
        .tolerate_mismatch = (call->options.flags & MOETOKEN_TOLERATE_ROUTING_MISMATCH) != 0,
    };
    status = check_shapes(call);
    if (status == MOETOKEN_OK)
        status = moetoken_routing_check(&call->routing);
    if (status == MOETOKEN_OK)
        status = check_outputs(call);
    return status;
}

/* ---- probs ---------------------------------------------------------------------------------- */

/* Slots of one pair are neighbours: dropless slots have an expert each, and padded slots come in
 * the order of their rows, which is that of experts. */
static void scatter_probs(const struct call *call, int64_t token)
{
    struct moetoken_expert_walk walk = moetoken_expert_walk_begin(&call->routing, token);
    int type = (int)call->probs_grad.type;
    int64_t expert = -1;
    double sum = 0;
    moetoken_view_zero_row(&call->probs_grad, token);
    for (int64_t s = call->slots.start[token]; s < call->slots.start[token + 1]; s++) {
        int64_t row = call->slots.row[s], next = moetoken_expert_walk_next(&walk, row);
        if (row < 0 || next < 0)
            continue;
        double grad = element_load(type, moetoken_view_at(&call->permuted_probs_grad, row, 0));
        sum = next == expert ? sum + grad : grad;
        expert = next;
        element_store(type, moetoken_view_at(&call->probs_grad, token, expert), sum);
    }
}

/* ---- tokens --------------------------------------------------------------------------------- */

struct token_slots {
    const struct call *call;
    int64_t begin, count;
};

static bool list_rows(const void *context, int64_t *position, struct moetoken_addends *addends)
{
    const struct token_slots *slots = context;
    const int64_t *row = slots->call->slots.row + slots->begin;
    for (; *position < slots->count && !moetoken_addends_are_full(addends); ++*position)
        if (row[*position] >= 0)
            moetoken_addends_add(
                addends, moetoken_view_at(&slots->call->permuted_tokens_grad, row[*position], 0),
                1);
    return *position < slots->count;
}

static void sum_token(const struct call *call, int64_t token)
{
    const struct moetoken_view *in = &call->permuted_tokens_grad, *out = &call->tokens_grad;
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
        if (call->probs_grad.given)
            scatter_probs(call, t);
        if (call->tokens_grad.given)
            sum_token(call, t);
    }
}

static void plan(struct call *call)
{
    const struct moetoken_view *in = &call->permuted_tokens_grad, *out = &call->tokens_grad;
    const struct moetoken_view *moved[] = {in, out};
    bool unit = !out->given || (moetoken_view_is_unit(in) && moetoken_view_is_unit(out));
    moetoken_run_plan(&call->options, moetoken_views_bytes(moved, 2),
                      moetoken_views_bytes(&moved[1], 1), unit, false, &call->run);
}

/* ---- the operator --------------------------------------------------------------------------- */

moetoken_status moetoken_permute_grad_check(const moetoken_permute_grad_args *args,
                                            const moetoken_options *options)
{
    struct call call = {0};
    return check(args, options, false, &call);
}

moetoken_status moetoken_permute_grad(const moetoken_permute_grad_args *args,
                                      const moetoken_options *options)
{
    struct call call = {0};
    moetoken_status status = check(args, options, true, &call);
    if (status != MOETOKEN_OK)
        return status;
    plan(&call);
    status = moetoken_slots_open(&call.routing, &call.options, &call.run, &call.slots);
    if (status == MOETOKEN_OK)
        moetoken_run_ranges(&call.run, call.routing.tokens_num, move_tokens, &call);
    moetoken_slots_close(&call.slots);
    return status;
}
