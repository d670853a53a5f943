/* permute_grad.c - the gradient of permute: check, resolve, add up.
 *
 * The rows of a token's slots are added by the kernels that unpermute uses, with weights of 1; the
 * gradients of the weights go back to where the weights came from. */
#include "arguments.h"
#include "routing/slots.h"
#include "rows/formats.h"
#include "rows/rows_sum.h"
#include "status.h"

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

#define FACT(argument)  MOETOKEN_FACT(argument)
#define ARGUMENT(field) .name = #field, .offset = offsetof(moetoken_permute_grad_args, field)

static const struct moetoken_argument arguments[ARGUMENTS] = {
    [PERMUTED_TOKENS_GRAD] = {ARGUMENT(permuted_tokens_grad), .sizes = "RH",
                              .types = MOETOKEN_TOKEN_LIKE, .required = {FACT(TOKENS_GRAD)},
                              .read = {FACT(TOKENS_GRAD)}},
    [PERMUTED_PROBS_GRAD] = {ARGUMENT(permuted_probs_grad), .sizes = "R",
                             .types = MOETOKEN_TOKEN_LIKE,
                             .required = {FACT(PROBS_GRAD), FACT(WEIGHTS_GRAD)},
                             .read = {FACT(PROBS_GRAD), FACT(WEIGHTS_GRAD)},
                             .goes_with = FACT(PERMUTED_TOKENS_GRAD)},
    [SORTED_INDICES] = {ARGUMENT(sorted_indices), .sizes = "N", .types = MOETOKEN_INDEX_LIKE,
                        .required = {MOETOKEN_FACT_ALWAYS}, .read = {MOETOKEN_FACT_ALWAYS}},
    [ROUTING_MAP] = {ARGUMENT(routing_map), .sizes = "TE", .types = MOETOKEN_MAP_LIKE,
                     .required = {FACT(PROBS_GRAD) | MOETOKEN_FACT_DROPLESS},
                     .read = {FACT(PROBS_GRAD) | MOETOKEN_FACT_DROPLESS}},
    [TOKENS_GRAD] = {ARGUMENT(tokens_grad), .sizes = "TH", .types = MOETOKEN_TOKEN_LIKE,
                     .direction = MOETOKEN_OUTPUT, .same_type = FACT(PERMUTED_TOKENS_GRAD)},
    [PROBS_GRAD] = {ARGUMENT(probs_grad), .sizes = "TE", .types = MOETOKEN_TOKEN_LIKE,
                    .direction = MOETOKEN_OUTPUT, .same_type = FACT(PERMUTED_PROBS_GRAD)},
    [WEIGHTS_GRAD] = {ARGUMENT(weights_grad), .sizes = "TK", .types = MOETOKEN_TOKEN_LIKE,
                      .direction = MOETOKEN_OUTPUT, .same_type = FACT(PERMUTED_PROBS_GRAD)},
};

static const struct moetoken_table table = {arguments, ARGUMENTS,
                                            sizeof(moetoken_permute_grad_args)};

#define BY_MAP (FACT(PROBS_GRAD) | FACT(ROUTING_MAP))
#define BY_IDS FACT(WEIGHTS_GRAD)

struct call {
    struct moetoken_call known; /* first: what the table says of the call */
    moetoken_permute_grad_args args;
    struct moetoken_routing routing;
    const struct moetoken_view *weights_grad; /* probs_grad [T,E], weights_grad [T,K], or NULL */

    struct moetoken_slots slots;
    struct moetoken_run run;
};

/* ---- check ---------------------------------------------------------------------------------- */

static moetoken_status check_mode(struct call *call)
{
    moetoken_call_set_mode(&call->known, call->args.drop_and_pad);
    if (call->args.drop_and_pad && (call->known.facts & BY_IDS))
        return moetoken_fail(MOETOKEN_ERR_OPTION,
                             "drop_and_pad is set, expected false with a routing by expert ids");
    return moetoken_call_check_spelling(&call->known, BY_MAP, BY_IDS);
}

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

static void describe_routing(struct call *call)
{
    const struct moetoken_call *known = &call->known;
    bool padded = call->args.drop_and_pad, probs_grad = moetoken_call_given(known, PROBS_GRAD);
    call->weights_grad = probs_grad                                 ? &known->view[PROBS_GRAD]
                         : moetoken_call_given(known, WEIGHTS_GRAD) ? &known->view[WEIGHTS_GRAD]
                                                                    : NULL;
    call->routing = (struct moetoken_routing){
        .row = padded ? NULL : &known->view[SORTED_INDICES],
        .token = padded ? &known->view[SORTED_INDICES] : NULL,
        .map = &known->view[ROUTING_MAP],
        .tokens_num = moetoken_call_size(known, 'T'),
        .slots_num = moetoken_call_size(known, 'N'),
        .rows_num = moetoken_call_size(known, 'R'),
        .experts_num = moetoken_call_size(known, 'E'),
        .columns = probs_grad && padded ? MOETOKEN_COLUMNS_OF_ROW
                   : probs_grad         ? MOETOKEN_COLUMNS_OF_MAP
                   : call->weights_grad ? MOETOKEN_COLUMNS_COUNTED
                                        : MOETOKEN_NO_COLUMNS,
        .padded = padded,
        .by_map = (known->facts & BY_MAP) != 0,
        .tolerate_mismatch = (known->options.flags & MOETOKEN_TOLERATE_ROUTING_MISMATCH) != 0,
    };
}

static moetoken_status check(const moetoken_permute_grad_args *args,
                             const moetoken_options *options, bool need_data, struct call *call)
{
    struct moetoken_call *known = &call->known;
    moetoken_status status = moetoken_call_begin(known, &table, args, &call->args, options,
                                                 MOETOKEN_TOLERATE_ROUTING_MISMATCH, need_data);
    if (status == MOETOKEN_OK)
        status = check_mode(call);
    if (status == MOETOKEN_OK)
        status = moetoken_call_read_tensors(known, &call->args);
    if (status == MOETOKEN_OK)
        status = check_sizes(call);
    if (status != MOETOKEN_OK)
        return status;
    describe_routing(call);
    status = moetoken_routing_check(&call->routing);
    if (status == MOETOKEN_OK)
        status =
            moetoken_call_check_memory(known, call->routing.tokens_num, call->routing.slots_num);
    return status;
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
