/* unpermute_grad.c - the gradient of the weighted combine: check, resolve, move.
 *
 * One token at a time: its row of the incoming gradient is read once and serves all its slots, up
 * to MOETOKEN_SLOTS_PER_CALL of them with each call of a kernel. */
#include "arguments.h"
#include "routing/expert_ids.h"
#include "routing/slots.h"
#include "rows/formats.h"
#include "status.h"

enum {
    UNPERMUTED_TOKENS_GRAD,
    OUT_INDEX,
    PERMUTED_TOKENS_GRAD,
    PERMUTED_TOKENS,
    PERMUTE_TOKEN_ID,
    PROBS,
    ROUTING_MAP,
    WEIGHTS,
    EXPERT_IDS,
    EXPERT_BIAS,
    PROBS_GRAD,
    WEIGHTS_GRAD,
    ARGUMENTS
};

#define FACT(argument)  MOETOKEN_FACT(argument)
#define ARGUMENT(field) .name = #field, .offset = offsetof(moetoken_unpermute_grad_args, field)

static const struct moetoken_argument arguments[ARGUMENTS] = {
    [UNPERMUTED_TOKENS_GRAD] = {ARGUMENT(unpermuted_tokens_grad), .sizes = "TH",
                                .types = MOETOKEN_TOKEN_LIKE, .required = {MOETOKEN_FACT_ALWAYS},
                                .read = {MOETOKEN_FACT_ALWAYS}},
    [OUT_INDEX] = {ARGUMENT(out_index), .sizes = "N", .types = MOETOKEN_INDEX_LIKE,
                   .required = {MOETOKEN_FACT_ALWAYS}, .read = {MOETOKEN_FACT_ALWAYS}},
    [PERMUTED_TOKENS_GRAD] = {ARGUMENT(permuted_tokens_grad), .sizes = "RH",
                              .types = MOETOKEN_TOKEN_LIKE, .direction = MOETOKEN_OUTPUT,
                              .same_type = FACT(UNPERMUTED_TOKENS_GRAD),
                              .may_replace = FACT(PERMUTED_TOKENS)},
    [PERMUTED_TOKENS] = {ARGUMENT(permuted_tokens), .sizes = "RH", .types = MOETOKEN_TOKEN_LIKE,
                         .required = {FACT(PROBS), FACT(WEIGHTS_GRAD)},
                         .read = {FACT(PROBS_GRAD), FACT(WEIGHTS_GRAD)},
                         .same_type = FACT(UNPERMUTED_TOKENS_GRAD)},
    [PERMUTE_TOKEN_ID] = {ARGUMENT(permute_token_id), .sizes = "N", .types = MOETOKEN_INDEX_LIKE,
                          .required = {MOETOKEN_FACT_PADDED}, .read = {MOETOKEN_FACT_ALWAYS}},
    [PROBS] = {ARGUMENT(probs), .sizes = "TE", .types = MOETOKEN_TOKEN_LIKE,
               .required = {FACT(PROBS_GRAD)}, .read = {FACT(PERMUTED_TOKENS_GRAD)},
               .goes_with = FACT(UNPERMUTED_TOKENS_GRAD)},
    [ROUTING_MAP] = {ARGUMENT(routing_map), .sizes = "TE", .types = MOETOKEN_MAP_LIKE,
                     .required = {FACT(PROBS), MOETOKEN_FACT_MASKED},
                     .read = {FACT(PROBS), MOETOKEN_FACT_MASKED}},
    [WEIGHTS] = {ARGUMENT(weights), .sizes = "TK", .types = MOETOKEN_TOKEN_LIKE,
                 .required = {FACT(WEIGHTS_GRAD)}, .read = {FACT(PERMUTED_TOKENS_GRAD)},
                 .goes_with = FACT(UNPERMUTED_TOKENS_GRAD)},
    [EXPERT_IDS] = {ARGUMENT(expert_ids), .sizes = "TK", .types = MOETOKEN_INDEX_LIKE,
                    .required = {FACT(EXPERT_BIAS)},
                    .read = {FACT(EXPERT_BIAS) | FACT(WEIGHTS_GRAD)}},
    [EXPERT_BIAS] = {ARGUMENT(expert_bias), .sizes = "EH", .types = MOETOKEN_TOKEN_LIKE,
                     .read = {FACT(WEIGHTS_GRAD)}, .same_type = FACT(UNPERMUTED_TOKENS_GRAD)},
    [PROBS_GRAD] = {ARGUMENT(probs_grad), .sizes = "TE", .types = MOETOKEN_TOKEN_LIKE,
                    .direction = MOETOKEN_OUTPUT, .same_type = FACT(PROBS)},
    [WEIGHTS_GRAD] = {ARGUMENT(weights_grad), .sizes = "TK", .types = MOETOKEN_TOKEN_LIKE,
                      .direction = MOETOKEN_OUTPUT, .same_type = FACT(WEIGHTS)},
};

static const struct moetoken_table table = {arguments, ARGUMENTS,
                                            sizeof(moetoken_unpermute_grad_args)};

#define BY_MAP (FACT(PROBS) | FACT(ROUTING_MAP) | FACT(PERMUTE_TOKEN_ID) | FACT(PROBS_GRAD))
#define BY_IDS (FACT(WEIGHTS) | FACT(EXPERT_IDS) | FACT(EXPERT_BIAS) | FACT(WEIGHTS_GRAD))

struct call {
    struct moetoken_call known; /* first: what the table says of the call */
    moetoken_unpermute_grad_args args;
    struct moetoken_routing routing;
    const struct moetoken_view *weights;      /* probs [T,E] or weights [T,K]; NULL: all 1 */
    const struct moetoken_view *weights_grad; /* their gradient, or NULL: not wanted */
    bool mask_fill_slots;

    struct moetoken_slots slots;
    struct moetoken_run run;
    moetoken_rows_fn *move_rows;
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
    moetoken_status status = moetoken_call_check_sizes(known);
    if (status == MOETOKEN_OK)
        status = moetoken_check_restore_shape(
            call->args.restore_shape, moetoken_call_size(known, 'T'),
            moetoken_call_size(known, 'H'), known->view[UNPERMUTED_TOKENS_GRAD].name);
    if (status == MOETOKEN_OK)
        status = moetoken_call_check_slots(known);
    return status;
}

static const struct moetoken_view *either_given(const struct moetoken_call *known, int one,
                                                int other)
{
    if (known->view[one].given)
        return &known->view[one];
    return known->view[other].given ? &known->view[other] : NULL;
}

static void describe_routing(struct call *call)
{
    const struct moetoken_call *known = &call->known;
    bool padded = call->args.drop_and_pad, probs = moetoken_call_given(known, PROBS);
    call->mask_fill_slots = (known->facts & MOETOKEN_FACT_MASKED) != 0;
    call->weights = either_given(known, PROBS, WEIGHTS);
    call->weights_grad = either_given(known, PROBS_GRAD, WEIGHTS_GRAD);
    call->routing = (struct moetoken_routing){
        .row = &known->view[OUT_INDEX],
        .token =
            moetoken_call_given(known, PERMUTE_TOKEN_ID) ? &known->view[PERMUTE_TOKEN_ID] : NULL,
        .map = &known->view[ROUTING_MAP],
        .tokens_num = moetoken_call_size(known, 'T'),
        .slots_num = moetoken_call_size(known, 'N'),
        .rows_num = moetoken_call_size(known, 'R'),
        .experts_num = moetoken_call_size(known, 'E'),
        .columns = padded && (probs || call->mask_fill_slots) ? MOETOKEN_COLUMNS_OF_ROW
                   : probs                                    ? MOETOKEN_COLUMNS_OF_MAP
                   : call->weights                            ? MOETOKEN_COLUMNS_COUNTED
                                                              : MOETOKEN_NO_COLUMNS,
        .padded = padded,
        .by_map = (known->facts & BY_MAP) != 0,
        .tolerate_mismatch = (known->options.flags & MOETOKEN_TOLERATE_ROUTING_MISMATCH) != 0,
    };
}

/* Everything that can be told without reading an element. */
static moetoken_status check(const moetoken_unpermute_grad_args *args,
                             const moetoken_options *options, bool need_data, struct call *call)
{
    struct moetoken_call *known = &call->known;
    moetoken_status status = moetoken_call_begin(
        known, &table, args, &call->args, options,
        MOETOKEN_MASK_FILL_SLOTS | MOETOKEN_TOLERATE_ROUTING_MISMATCH, need_data);
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

/* ---- move ----------------------------------------------------------------------------------- */

/* The slots of a token that one call of a kernel serves. */
struct batch {
    struct moetoken_rows rows;
    int64_t row[MOETOKEN_SLOTS_PER_CALL];
    int64_t column[MOETOKEN_SLOTS_PER_CALL]; /* where the gradients of their weights go */
    int64_t bias[MOETOKEN_SLOTS_PER_CALL];   /* their experts, with expert_bias */
    double weight[MOETOKEN_SLOTS_PER_CALL], dot[MOETOKEN_SLOTS_PER_CALL];
};

/* The sum of the dot products of one column, while its slots are gone through. */
struct column_sum {
    int64_t column; /* -1: none yet */
    double sum;
};

static void store_sum(const struct call *call, int64_t token, const struct column_sum *column)
{
    if (column->column >= 0)
        element_store((int)call->weights_grad->type,
                      moetoken_view_at(call->weights_grad, token, column->column), column->sum);
}

/* Slots of one column are neighbours (moetoken_slots_group_by_expert). */
static void add_dots(const struct call *call, int64_t token, const struct batch *batch,
                     struct column_sum *column)
{
    for (int64_t s = 0; s < batch->rows.count; s++) {
        if (batch->column[s] != column->column) {
            store_sum(call, token, column);
            *column = (struct column_sum){batch->column[s], 0};
        }
        column->sum += batch->dot[s];
    }
}

/* The products with the experts' biases, added to those with the rows. */
static void add_bias_dots(const struct call *call, struct batch *batch)
{
    const struct moetoken_view *bias = &call->known.view[EXPERT_BIAS];
    double dot[MOETOKEN_SLOTS_PER_CALL];
    struct moetoken_rows rows = batch->rows;
    rows.row = batch->bias;
    rows.dot = dot;
    rows.in = bias->data;
    rows.in_row_stride = bias->stride[0];
    rows.in_stride = bias->stride[1];
    rows.next_count = 0;
    call->run.kernels.dot[bias->type](&rows);
    for (int64_t s = 0; s < rows.count; s++)
        batch->dot[s] += dot[s];
}

static double weight_of(const struct call *call, int64_t token, int64_t column)
{
    if (column < 0)
        return 0;
    return element_load((int)call->weights->type, moetoken_view_at(call->weights, token, column));
}

static void describe_rows(const struct call *call, int64_t token, struct batch *batch)
{
    const struct moetoken_view *g = &call->known.view[UNPERMUTED_TOKENS_GRAD];
    const struct moetoken_view *in = &call->known.view[PERMUTED_TOKENS];
    const struct moetoken_view *out = &call->known.view[PERMUTED_TOKENS_GRAD];
    batch->rows = (struct moetoken_rows){
        .length = g->shape[1],
        .row = batch->row,
        .weight = batch->weight,
        .dot = batch->dot,
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

/* A fill slot that is masked has no effect but a row of zeros. */
static bool is_masked(const struct call *call, int64_t token, int64_t column, int64_t row)
{
    const struct moetoken_view *rows = &call->known.view[PERMUTED_TOKENS_GRAD];
    if (!call->mask_fill_slots ||
        moetoken_map_is_set(&call->known.view[ROUTING_MAP], token, column))
        return false;
    if (rows->given)
        moetoken_view_zero_row(rows, row);
    return true;
}

/* The next slots of a token from position *s on, as many as a kernel takes. Slots without effect
 * are dealt with on the way. Moves *s behind the last one. */
static void gather_slots(const struct call *call, int64_t token, int64_t *s,
                         struct moetoken_column_walk *walk, struct batch *batch)
{
    const struct moetoken_slots *slots = &call->slots;
    bool with_weights = call->weights && call->known.view[PERMUTED_TOKENS_GRAD].given;
    bool with_bias = call->weights_grad && call->known.view[EXPERT_BIAS].given;
    int64_t count = 0;
    for (; *s < slots->start[token + 1] && count < MOETOKEN_SLOTS_PER_CALL; ++*s) {
        int64_t row = slots->row[*s], column = moetoken_column_walk_next(walk, row);
        if (row < 0 || is_masked(call, token, column, row))
            continue;
        batch->row[count] = row;
        batch->column[count] = column;
        if (with_weights)
            batch->weight[count] = weight_of(call, token, column);
        if (with_bias) {
            int64_t expert = moetoken_expert_id_of_slot(&call->known.view[EXPERT_IDS], token,
                                                        column, call->routing.experts_num);
            batch->bias[count] = expert < 0 ? 0 : expert; /* checked, and changed since */
        }
        count++;
    }
    batch->rows.count = count;
    batch->rows.next_rows = slots->row + *s;
    batch->rows.next_count = call->routing.slots_num - *s;
}

static void move_token(const struct call *call, int64_t token)
{
    struct moetoken_column_walk walk = moetoken_column_walk_begin(&call->routing, token);
    struct column_sum column = {-1, 0};
    struct batch batch;
    describe_rows(call, token, &batch);
    if (call->weights_grad)
        moetoken_view_zero_row(call->weights_grad, token);
    for (int64_t s = call->slots.start[token]; s < call->slots.start[token + 1];) {
        gather_slots(call, token, &s, &walk, &batch);
        call->move_rows(&batch.rows);
        if (call->weights_grad && call->known.view[EXPERT_BIAS].given)
            add_bias_dots(call, &batch);
        if (call->weights_grad)
            add_dots(call, token, &batch, &column);
    }
    if (call->weights_grad)
        store_sum(call, token, &column);
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
        if (!moetoken_named_rows_has(&call->slots.named, r))
            moetoken_view_zero_row(&call->known.view[PERMUTED_TOKENS_GRAD], r);
}

static moetoken_rows_fn *choose_kernel(const struct call *call)
{
    const struct moetoken_row_kernels *kernels = &call->run.kernels;
    const struct moetoken_view *g = &call->known.view[UNPERMUTED_TOKENS_GRAD];
    if (!call->weights)
        return moetoken_row_kernels_copy(kernels, g->size);
    if (!call->weights_grad)
        return kernels->scale[g->type];
    return call->known.view[PERMUTED_TOKENS_GRAD].given ? kernels->scale_dot[g->type]
                                                        : kernels->dot[g->type];
}

static void move(struct call *call)
{
    int64_t rows = call->routing.rows_num;
    call->move_rows = choose_kernel(call);
    if (call->weights_grad && call->routing.padded)
        moetoken_slots_group_by_expert(&call->routing, &call->slots);
    if (call->known.view[PERMUTED_TOKENS_GRAD].given && call->slots.named.count < rows)
        moetoken_run_ranges(&call->run, rows, zero_unnamed_rows, call);
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
    moetoken_call_plan(&call.known, &call.run);
    status = moetoken_slots_open(&call.routing, &call.known.options, &call.run, &call.slots);
    if (status == MOETOKEN_OK && call.weights_grad && moetoken_call_given(&call.known, EXPERT_BIAS))
        status = moetoken_expert_ids_check_used(&call.known.view[EXPERT_IDS], call.slots.row,
                                                call.routing.experts_num);
    if (status == MOETOKEN_OK)
        move(&call);
    moetoken_slots_close(&call.slots);
    return status;
}
