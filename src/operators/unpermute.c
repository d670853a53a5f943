/* unpermute.c - the weighted combine: check, resolve, add up.
 *
 * One token at a time: the weights of its slots are looked up once, then a kernel adds the rows of
 * all its slots, and the residual and bias rows with them, in one pass over the token's row. */
#include "operators/resolve.h"
#include "routing/expert_ids.h"
#include "rows/formats.h"
#include "rows/rows_sum.h"
#include "status.h"

#define IN(field, letters, types)  INPUT(moetoken_unpermute_args, field, letters, types)
#define OUT(field, letters, types) OUTPUT(moetoken_unpermute_args, field, letters, types)

/* clang-format off: a line or two per argument */
enum {
    PERMUTED_TOKENS,
    SORTED_INDICES,
    UNPERMUTED_TOKENS,
    PROBS,
    ROUTING_MAP,
    WEIGHTS,
    EXPERT_IDS,
    RESIDUAL,
    RESIDUAL2,
    EXPERT_BIAS,
    OUT_INDEX,
    PERMUTE_TOKEN_ID,
    PERMUTED_PROBS,
    ARGUMENTS
};

static const struct moetoken_argument arguments[ARGUMENTS] = {
    [PERMUTED_TOKENS] = {IN(permuted_tokens, "RH", MOETOKEN_TOKEN_LIKE), .required = {FACT_ALWAYS},
                         .read = {FACT(UNPERMUTED_TOKENS)}},
    [SORTED_INDICES] = {IN(sorted_indices, "N", MOETOKEN_INDEX_LIKE), .required = {FACT_ALWAYS},
                        .read = {FACT_ALWAYS}},
    [UNPERMUTED_TOKENS] = {OUT(unpermuted_tokens, "TH", MOETOKEN_TOKEN_LIKE),
                           .same_type = FACT(PERMUTED_TOKENS)},
    [PROBS] = {IN(probs, "TE", MOETOKEN_TOKEN_LIKE), .read = {FACT_ALWAYS},
               .goes_with = FACT(PERMUTED_TOKENS)},
    [ROUTING_MAP] = {IN(routing_map, "TE", MOETOKEN_MAP_LIKE),
                     .required = {FACT(PROBS), FACT_MASKED}, .read = {FACT(PROBS), FACT_MASKED}},
    [WEIGHTS] = {IN(weights, "TK", MOETOKEN_TOKEN_LIKE), .read = {FACT_ALWAYS},
                 .goes_with = FACT(PERMUTED_TOKENS)},
    [EXPERT_IDS] = {IN(expert_ids, "TK", MOETOKEN_INDEX_LIKE), .required = {FACT(EXPERT_BIAS)},
                    .read = {FACT(EXPERT_BIAS) | FACT(UNPERMUTED_TOKENS)}},
    [RESIDUAL] = {IN(residual, "TH", MOETOKEN_TOKEN_LIKE), .required = {FACT(RESIDUAL2)},
                  .read = {FACT(UNPERMUTED_TOKENS)}, .same_type = FACT(PERMUTED_TOKENS)},
    [RESIDUAL2] = {IN(residual2, "TH", MOETOKEN_TOKEN_LIKE), .read = {FACT(UNPERMUTED_TOKENS)},
                   .same_type = FACT(PERMUTED_TOKENS)},
    [EXPERT_BIAS] = {IN(expert_bias, "EH", MOETOKEN_TOKEN_LIKE), .read = {FACT(UNPERMUTED_TOKENS)},
                     .same_type = FACT(PERMUTED_TOKENS)},
    [OUT_INDEX] = {OUT(out_index, "N", MOETOKEN_INDEX_LIKE)},
    [PERMUTE_TOKEN_ID] = {OUT(permute_token_id, "N", MOETOKEN_INDEX_LIKE)},
    [PERMUTED_PROBS] = {OUT(permuted_probs, "N", MOETOKEN_TOKEN_LIKE),
                        .same_type = FACT(PROBS) | FACT(WEIGHTS),
                        .goes_with = FACT(PERMUTED_TOKENS)},
};
/* clang-format on */

static const struct moetoken_table table = {
    .arguments = arguments,
    .count = ARGUMENTS,
    .args_size = sizeof(moetoken_unpermute_args),
    .drop_and_pad_offset = offsetof(moetoken_unpermute_args, drop_and_pad),
    .flags_taken =
        MOETOKEN_MASK_FILL_SLOTS | MOETOKEN_TOLERATE_ROUTING_MISMATCH | MOETOKEN_REPEATED_ROWS,
    .by_map = FACT(PROBS) | FACT(ROUTING_MAP),
    .by_ids = FACT(WEIGHTS) | FACT(EXPERT_IDS) | FACT(EXPERT_BIAS),
};

struct call {
    struct moetoken_call known; /* first: what the table says of the call */
    moetoken_unpermute_args args;
    struct moetoken_routing routing;
    const struct moetoken_view *weights; /* probs [T,E] or weights [T,K]; NULL: all weights are 1 */
    bool mask_fill_slots;

    struct moetoken_slots slots;
    double *weight; /* [N] by token, in the slots' scratch memory */
    struct moetoken_run run;
};

/* ---- check ---------------------------------------------------------------------------------- */

static moetoken_status check_sizes(struct call *call)
{
    struct moetoken_call *known = &call->known;
    const int64_t *restore_shape = call->args.restore_shape;
    moetoken_status status = MOETOKEN_OK;
    if (!moetoken_call_given(known, UNPERMUTED_TOKENS)) {
        if (restore_shape == NULL)
            return moetoken_fail(MOETOKEN_ERR_NULL, "restore_shape is NULL, expected {T, H} as "
                                                    "unpermuted_tokens is not given");
        status = moetoken_call_set_size(known, 'T', restore_shape[0], "restore_shape[0]");
    }
    if (status == MOETOKEN_OK)
        status = moetoken_call_check_sizes(known);
    if (status == MOETOKEN_OK)
        status = moetoken_check_restore_shape(restore_shape, moetoken_call_size(known, 'T'),
                                              moetoken_call_size(known, 'H'), "the token tensors");
    if (status == MOETOKEN_OK)
        status = moetoken_call_check_slots(known);
    return status;
}

/* The index outputs of the caller's type hold what will be written to them. */
static moetoken_status check_index_outputs(const struct call *call)
{
    const struct moetoken_routing *routing = &call->routing;
    int64_t rows = routing->padded ? routing->slots_num : routing->rows_num;
    moetoken_status status = moetoken_index_check_holds(&call->known.view[OUT_INDEX], rows);
    if (status == MOETOKEN_OK)
        status =
            moetoken_index_check_holds(&call->known.view[PERMUTE_TOKEN_ID], routing->tokens_num);
    return status;
}

/* Rows may repeat by expert ids; the flag says so where nothing else tells the spelling. */
static moetoken_status check_repeated_rows(const struct moetoken_call *known, bool *repeated)
{
    bool flag = known->options.flags & MOETOKEN_REPEATED_ROWS;
    *repeated = flag || (known->facts & FACT_BY_IDS);
    if (flag && (known->facts & (table.by_map | FACT_PADDED)))
        return moetoken_fail(
            MOETOKEN_ERR_OPTION,
            "options.flags has MOETOKEN_REPEATED_ROWS, which a routing by map does "
            "not take");
    return MOETOKEN_OK;
}

static moetoken_status check(const moetoken_unpermute_args *args, const moetoken_options *options,
                             bool need_data, struct call *call)
{
    const struct moetoken_routing_arguments routing = {SORTED_INDICES, -1, ROUTING_MAP, PROBS,
                                                       WEIGHTS};
    bool repeated;
    moetoken_status status =
        moetoken_call_read(&call->known, &table, args, &call->args, options, need_data);
    if (status == MOETOKEN_OK)
        status = check_repeated_rows(&call->known, &repeated);
    if (status == MOETOKEN_OK)
        status = check_sizes(call);
    if (status != MOETOKEN_OK)
        return status;
    call->mask_fill_slots = (call->known.facts & FACT_MASKED) != 0;
    call->weights = moetoken_either_given(&call->known, PROBS, WEIGHTS);
    status = moetoken_resolve_routing(&call->known, &routing, repeated, &call->routing);
    if (status == MOETOKEN_OK)
        status = check_index_outputs(call);
    return status;
}

/* ---- weights and indices -------------------------------------------------------------------- */

/* Where a slot's weight stands; NULL when its weight is *constant. */
static const char *find_weight(const struct call *call, int64_t token, int64_t column, int64_t row,
                               double *constant)
{
    *constant = 0;
    if (row < 0 || (call->routing.columns != MOETOKEN_NO_COLUMNS && column < 0))
        return NULL;
    if (call->mask_fill_slots &&
        !moetoken_map_is_set(&call->known.view[ROUTING_MAP], token, column))
        return NULL;
    *constant = 1;
    return call->weights ? moetoken_view_at(call->weights, token, column) : NULL;
}

/* Position s of the slots by token is slot s for the caller when dropless, as those come token by
 * token, and slot `row` when padded. The weight goes out as a bit copy. */
static void resolve_slot(const struct call *call, int64_t token, int64_t column, int64_t s)
{
    const struct moetoken_view *view = call->known.view;
    int64_t row = call->slots.row[s], slot = call->routing.padded ? row : s;
    double constant;
    const char *weight = find_weight(call, token, column, row, &constant);
    call->weight[s] = weight ? element_load((int)call->weights->type, weight) : constant;
    if (view[OUT_INDEX].given)
        moetoken_index_store(&view[OUT_INDEX], s, row);
    if (view[PERMUTE_TOKEN_ID].given)
        moetoken_index_store(&view[PERMUTE_TOKEN_ID], s, token);
    if (!view[PERMUTED_PROBS].given)
        return;
    char *to = moetoken_view_at(&view[PERMUTED_PROBS], slot, 0);
    if (weight)
        moetoken_element_copy(to, weight, call->weights->size);
    else
        element_store((int)view[PERMUTED_PROBS].type, to, constant);
}

/* ---- add up --------------------------------------------------------------------------------- */

struct token_sum {
    const struct call *call;
    int64_t token, begin, end; /* its slots */
    int64_t residuals;         /* 0, 1 or 2 rows that come first */
    bool with_bias;            /* each slot adds its row, then its expert's bias */
};

/* The row at a position of the sum and its weight; NULL where it adds nothing, so that an Inf or
 * NaN in it does not leak. *view: what it is a row of. */
static const char *find_addend(const struct token_sum *sum, int64_t position,
                               const struct moetoken_view **view, double *weight)
{
    const struct call *call = sum->call;
    *weight = 1;
    if (position < sum->residuals) {
        *view = &call->known.view[RESIDUAL + position];
        return moetoken_view_at(*view, sum->token, 0);
    }
    int64_t slot_position = position - sum->residuals;
    int64_t k = sum->with_bias ? slot_position / 2 : slot_position;
    *weight = call->weight[sum->begin + k];
    *view = &call->known.view[PERMUTED_TOKENS];
    int64_t row = call->slots.row[sum->begin + k];
    if (sum->with_bias && slot_position % 2 != 0) {
        *view = &call->known.view[EXPERT_BIAS];
        row = moetoken_expert_id_of_slot(&call->known.view[EXPERT_IDS], sum->token, k,
                                         call->routing.experts_num);
    }
    return *weight == 0 || row < 0 ? NULL : moetoken_view_at(*view, row, 0);
}

/* Rows of another stride wait for a list of their own. */
static bool list_rows(const void *context, int64_t *position, struct moetoken_addends *addends)
{
    const struct token_sum *sum = context;
    int64_t count = sum->residuals + (sum->end - sum->begin) * (sum->with_bias ? 2 : 1);
    for (; *position < count && !moetoken_addends_are_full(addends); ++*position) {
        const struct moetoken_view *view;
        double weight;
        const char *row = find_addend(sum, *position, &view, &weight);
        if (row == NULL)
            continue;
        if (addends->count > 0 && addends->stride != view->stride[1])
            break;
        addends->stride = view->stride[1];
        moetoken_addends_add(addends, row, weight);
    }
    return *position < count;
}

static void sum_token(const struct call *call, int64_t token)
{
    const struct moetoken_view *view = call->known.view;
    const struct moetoken_view *in = &view[PERMUTED_TOKENS], *out = &view[UNPERMUTED_TOKENS];
    struct token_sum sum = {
        .call = call,
        .token = token,
        .begin = call->slots.start[token],
        .end = call->slots.start[token + 1],
        .residuals = view[RESIDUAL].given + view[RESIDUAL2].given,
        .with_bias = view[EXPERT_BIAS].given,
    };
    struct moetoken_rows rows = {
        .length = out->shape[1],
        .token_out = moetoken_view_at(out, token, 0),
        .token_stride = out->stride[1],
        .in = in->data,
        .in_row_stride = in->stride[0],
        .in_stride = in->stride[1],
        .next_rows = call->slots.row + sum.end,
        .next_count = call->routing.slots_num - sum.end,
        .streaming = call->run.streaming,
    };
    moetoken_rows_sum(call->run.kernels.sum[in->type], in->type, &rows, list_rows, &sum);
}

static void move_tokens(const void *context, int64_t first, int64_t end)
{
    const struct call *call = context;
    for (int64_t t = first; t < end; t++) {
        struct moetoken_column_walk walk = moetoken_column_walk_begin(&call->routing, t);
        for (int64_t s = call->slots.start[t]; s < call->slots.start[t + 1]; s++)
            resolve_slot(call, t, moetoken_column_walk_next(&walk, call->slots.row[s]), s);
        if (call->known.view[UNPERMUTED_TOKENS].given)
            sum_token(call, t);
    }
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
    moetoken_call_plan(&call.known, &call.run);
    status = moetoken_slots_open(&call.routing, &call.known.options, &call.run, &call.slots);
    if (status == MOETOKEN_OK && moetoken_call_given(&call.known, EXPERT_BIAS))
        status = moetoken_expert_ids_check_used(&call.known.view[EXPERT_IDS], call.slots.row,
                                                call.routing.experts_num);
    call.weight = (double *)(void *)call.slots.scratch;
    if (status == MOETOKEN_OK)
        moetoken_run_ranges(&call.run, call.routing.tokens_num, move_tokens, &call);
    moetoken_slots_close(&call.slots);
    return status;
}
