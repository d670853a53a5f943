/* unpermute_grad.c - the gradient of the weighted combine: check, resolve, move.
 *
 * One token at a time: its row of the incoming gradient is read once and serves all its slots, up
 * to MOETOKEN_SLOTS_PER_CALL of them with each call of a kernel. */
#include "operators/resolve.h"
#include "routing/expert_ids.h"
#include "rows/formats.h"
#include "status.h"

#define IN(field, letters, types)  INPUT(moetoken_unpermute_grad_args, field, letters, types)
#define OUT(field, letters, types) OUTPUT(moetoken_unpermute_grad_args, field, letters, types)

/* clang-format off: a line or two per argument */
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

static const struct moetoken_argument arguments[ARGUMENTS] = {
    [UNPERMUTED_TOKENS_GRAD] = {IN(unpermuted_tokens_grad, "TH", MOETOKEN_TOKEN_LIKE),
                                .required = {FACT_ALWAYS}, .read = {FACT_ALWAYS}},
    [OUT_INDEX] = {IN(out_index, "N", MOETOKEN_INDEX_LIKE), .required = {FACT_ALWAYS},
                   .read = {FACT_ALWAYS}},
    [PERMUTED_TOKENS_GRAD] = {OUT(permuted_tokens_grad, "RH", MOETOKEN_TOKEN_LIKE),
                              .same_type = FACT(UNPERMUTED_TOKENS_GRAD),
                              .may_replace = FACT(PERMUTED_TOKENS)},
    [PERMUTED_TOKENS] = {IN(permuted_tokens, "RH", MOETOKEN_TOKEN_LIKE),
                         .required = {FACT(PROBS), FACT(WEIGHTS_GRAD)},
                         .read = {FACT(PROBS_GRAD), FACT(WEIGHTS_GRAD)},
                         .same_type = FACT(UNPERMUTED_TOKENS_GRAD)},
    [PERMUTE_TOKEN_ID] = {IN(permute_token_id, "N", MOETOKEN_INDEX_LIKE), .required = {FACT_PADDED},
                          .read = {FACT_ALWAYS}},
    [PROBS] = {IN(probs, "TE", MOETOKEN_TOKEN_LIKE), .required = {FACT(PROBS_GRAD)},
               .read = {FACT(PERMUTED_TOKENS_GRAD)}, .goes_with = FACT(UNPERMUTED_TOKENS_GRAD)},
    [ROUTING_MAP] = {IN(routing_map, "TE", MOETOKEN_MAP_LIKE),
                     .required = {FACT(PROBS), FACT_MASKED}, .read = {FACT(PROBS), FACT_MASKED}},
    [WEIGHTS] = {IN(weights, "TK", MOETOKEN_TOKEN_LIKE), .required = {FACT(WEIGHTS_GRAD)},
                 .read = {FACT(PERMUTED_TOKENS_GRAD)}, .goes_with = FACT(UNPERMUTED_TOKENS_GRAD)},
    [EXPERT_IDS] = {IN(expert_ids, "TK", MOETOKEN_INDEX_LIKE), .required = {FACT(EXPERT_BIAS)},
                    .read = {FACT(EXPERT_BIAS) | FACT(WEIGHTS_GRAD)}},
    [EXPERT_BIAS] = {IN(expert_bias, "EH", MOETOKEN_TOKEN_LIKE), .read = {FACT(WEIGHTS_GRAD)},
                     .same_type = FACT(UNPERMUTED_TOKENS_GRAD)},
    [PROBS_GRAD] = {OUT(probs_grad, "TE", MOETOKEN_TOKEN_LIKE), .same_type = FACT(PROBS)},
    [WEIGHTS_GRAD] = {OUT(weights_grad, "TK", MOETOKEN_TOKEN_LIKE), .same_type = FACT(WEIGHTS)},
};
/* clang-format on */

static const struct moetoken_table table = {
    .arguments = arguments,
    .count = ARGUMENTS,
    .args_size = sizeof(moetoken_unpermute_grad_args),
    .drop_and_pad_offset = offsetof(moetoken_unpermute_grad_args, drop_and_pad),
    .flags_taken = MOETOKEN_MASK_FILL_SLOTS | MOETOKEN_TOLERATE_ROUTING_MISMATCH,
    .by_map = FACT(PROBS) | FACT(ROUTING_MAP) | FACT(PERMUTE_TOKEN_ID) | FACT(PROBS_GRAD),
    .by_ids = FACT(WEIGHTS) | FACT(EXPERT_IDS) | FACT(EXPERT_BIAS) | FACT(WEIGHTS_GRAD),
};

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

/* Everything that can be told without reading an element. */
static moetoken_status check(const moetoken_unpermute_grad_args *args,
                             const moetoken_options *options, bool need_data, struct call *call)
{
    const struct moetoken_routing_arguments routing = {OUT_INDEX, PERMUTE_TOKEN_ID, ROUTING_MAP,
                                                       PROBS, WEIGHTS};
    moetoken_status status =
        moetoken_call_read(&call->known, &table, args, &call->args, options, need_data);
    if (status == MOETOKEN_OK)
        status = check_sizes(call);
    if (status != MOETOKEN_OK)
        return status;
    call->mask_fill_slots = (call->known.facts & FACT_MASKED) != 0;
    call->weights = moetoken_either_given(&call->known, PROBS, WEIGHTS);
    call->weights_grad = moetoken_either_given(&call->known, PROBS_GRAD, WEIGHTS_GRAD);
    return moetoken_resolve_routing(&call->known, &routing, false, &call->routing);
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
    const struct moetoken_view *out = &call->known.view[PERMUTED_TOKENS_GRAD];
    if (out->given && !moetoken_view_is_empty(out) && call->slots.named.count < rows)
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
