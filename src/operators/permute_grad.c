/* permute_grad.c - the gradient of permute: check, resolve, add up.
 *
 * The rows of a token's slots are added by the kernels that unpermute uses, with weights of 1; the
 * gradients of the weights go back to where the weights came from. */
#include "operators/resolve.h"
#include "rows/formats.h"
#include "rows/rows_sum.h"
#include "status.h"

#define IN(field, letters, types)  INPUT(moetoken_permute_grad_args, field, letters, types)
#define OUT(field, letters, types) OUTPUT(moetoken_permute_grad_args, field, letters, types)

/* clang-format off: a line or two per argument */
enum {
    PERMUTED_TOKENS_GRAD,
    PERMUTED_PROBS_GRAD,
    SORTED_INDICES,
    ROUTING_MAP,
    TOKENS_GRAD,
    PROBS_GRAD,
    WEIGHTS_GRAD,
    ARGUMENTS
};

static const struct moetoken_argument arguments[ARGUMENTS] = {
    [PERMUTED_TOKENS_GRAD] = {IN(permuted_tokens_grad, "RH", MOETOKEN_TOKEN_LIKE),
                              .required = {FACT(TOKENS_GRAD)}, .read = {FACT(TOKENS_GRAD)}},
    [PERMUTED_PROBS_GRAD] = {IN(permuted_probs_grad, "R", MOETOKEN_TOKEN_LIKE),
                             .required = {FACT(PROBS_GRAD), FACT(WEIGHTS_GRAD)},
                             .read = {FACT(PROBS_GRAD), FACT(WEIGHTS_GRAD)},
                             .goes_with = FACT(PERMUTED_TOKENS_GRAD)},
    [SORTED_INDICES] = {IN(sorted_indices, "N", MOETOKEN_INDEX_LIKE), .required = {FACT_ALWAYS},
                        .read = {FACT_ALWAYS}},
    [ROUTING_MAP] = {IN(routing_map, "TE", MOETOKEN_MAP_LIKE),
                     .required = {FACT(PROBS_GRAD) | FACT_DROPLESS},
                     .read = {FACT(PROBS_GRAD) | FACT_DROPLESS}},
    [TOKENS_GRAD] = {OUT(tokens_grad, "TH", MOETOKEN_TOKEN_LIKE),
                     .same_type = FACT(PERMUTED_TOKENS_GRAD)},
    [PROBS_GRAD] = {OUT(probs_grad, "TE", MOETOKEN_TOKEN_LIKE),
                    .same_type = FACT(PERMUTED_PROBS_GRAD)},
    [WEIGHTS_GRAD] = {OUT(weights_grad, "TK", MOETOKEN_TOKEN_LIKE),
                      .same_type = FACT(PERMUTED_PROBS_GRAD)},
};
/* clang-format on */

static const struct moetoken_table table = {
    .arguments = arguments,
    .count = ARGUMENTS,
    .args_size = sizeof(moetoken_permute_grad_args),
    .drop_and_pad_offset = offsetof(moetoken_permute_grad_args, drop_and_pad),
    .flags_taken = MOETOKEN_TOLERATE_ROUTING_MISMATCH,
    .by_map = FACT(PROBS_GRAD) | FACT(ROUTING_MAP),
    .by_ids = FACT(WEIGHTS_GRAD),
};

struct call {
    struct moetoken_call known; /* first: what the table says of the call */
    moetoken_permute_grad_args args;
    struct moetoken_routing routing;
    const struct moetoken_view *weights_grad; /* probs_grad [T,E], weights_grad [T,K], or NULL */

    struct moetoken_slots slots;
    struct moetoken_run run;
};

/* ---- check ---------------------------------------------------------------------------------- */

static moetoken_status check_sizes(struct call *call)
{
    struct moetoken_call *known = &call->known;
    moetoken_status status =
        moetoken_call_set_size(known, 'T', call->args.tokens_num, "tokens_num");
    if (status == MOETOKEN_OK)
        status = moetoken_call_set_size(known, 'E', call->args.experts_num, "experts_num");
    if (status == MOETOKEN_OK)
        status = moetoken_call_check_sizes(known);
    if (status == MOETOKEN_OK)
        status = moetoken_call_check_slots(known);
    return status;
}

static moetoken_status check(const moetoken_permute_grad_args *args,
                             const moetoken_options *options, bool need_data, struct call *call)
{
    const struct moetoken_routing_arguments routing = {SORTED_INDICES, -1, ROUTING_MAP, PROBS_GRAD,
                                                       WEIGHTS_GRAD};
    moetoken_status status =
        moetoken_call_read(&call->known, &table, args, &call->args, options, need_data);
    if (status == MOETOKEN_OK)
        status = check_sizes(call);
    if (status != MOETOKEN_OK)
        return status;
    call->weights_grad = moetoken_either_given(&call->known, PROBS_GRAD, WEIGHTS_GRAD);
    return moetoken_resolve_routing(&call->known, &routing, false, &call->routing);
}

/* ---- weights -------------------------------------------------------------------------------- */

/* Slots of one column are neighbours: dropless slots have a column each, and padded slots come in
 * the order of their rows, which is that of experts. */
static void scatter_weights_grad(const struct call *call, int64_t token)
{
    const struct moetoken_view *from = &call->known.view[PERMUTED_PROBS_GRAD];
    struct moetoken_column_walk walk = moetoken_column_walk_begin(&call->routing, token);
    int type = (int)from->type;
    int64_t column = -1;
    double sum = 0;
    moetoken_view_zero_row(call->weights_grad, token);
    for (int64_t s = call->slots.start[token]; s < call->slots.start[token + 1]; s++) {
        int64_t row = call->slots.row[s], next = moetoken_column_walk_next(&walk, row);
        if (row < 0 || next < 0)
            continue;
        double grad = element_load(type, moetoken_view_at(from, row, 0));
        sum = next == column ? sum + grad : grad;
        column = next;
        element_store(type, moetoken_view_at(call->weights_grad, token, column), sum);
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
    const struct moetoken_view *in = &slots->call->known.view[PERMUTED_TOKENS_GRAD];
    const int64_t *row = slots->call->slots.row + slots->begin;
    for (; *position < slots->count && !moetoken_addends_are_full(addends); ++*position)
        if (row[*position] >= 0)
            moetoken_addends_add(addends, moetoken_view_at(in, row[*position], 0), 1);
    return *position < slots->count;
}

static void sum_token(const struct call *call, int64_t token)
{
    const struct moetoken_view *in = &call->known.view[PERMUTED_TOKENS_GRAD];
    const struct moetoken_view *out = &call->known.view[TOKENS_GRAD];
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
        if (call->weights_grad)
            scatter_weights_grad(call, t);
        if (call->known.view[TOKENS_GRAD].given)
            sum_token(call, t);
    }
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
    moetoken_call_plan(&call.known, &call.run);
    status = moetoken_slots_open(&call.routing, &call.known.options, &call.run, &call.slots);
    if (status == MOETOKEN_OK)
        moetoken_run_ranges(&call.run, call.routing.tokens_num, move_tokens, &call);
    moetoken_slots_close(&call.slots);
    return status;
}
