/* permute.c - tokens to experts: check, assign rows, move.
 *
 * Rows are assigned from the routing map or the expert ids alone. Then each token's row is read
 * once and copied to all its rows. */
#include "routing/expert_ids.h"
#include "routing/map_rows.h"
#include "routing/slots.h"
#include "status.h"
#include "tensors/arguments.h"

#include <inttypes.h>

#define IN(field, letters, types)  INPUT(moetoken_permute_args, field, letters, types)
#define OUT(field, letters, types) OUTPUT(moetoken_permute_args, field, letters, types)

/* clang-format off: a line or two per argument */
enum {
    TOKENS,
    EXPERT_IDS,
    ROUTING_MAP,
    PROBS,
    WEIGHTS,
    PERMUTED_TOKENS,
    PERMUTED_PROBS,
    SORTED_INDICES,
    SOURCE_SLOTS,
    ROWS_PER_EXPERT,
    ARGUMENTS
};

static const struct moetoken_argument arguments[ARGUMENTS] = {
    [TOKENS] = {IN(tokens, "TH", MOETOKEN_TOKEN_LIKE),
                .required = {FACT_BY_MAP, FACT(PERMUTED_TOKENS)}, .read = {FACT(PERMUTED_TOKENS)}},
    [EXPERT_IDS] = {IN(expert_ids, "TK", MOETOKEN_INDEX_LIKE),
                    .required = {FACT(WEIGHTS), FACT(SOURCE_SLOTS), FACT(ROWS_PER_EXPERT)},
                    .read = {FACT_ALWAYS}},
    [ROUTING_MAP] = {IN(routing_map, "TE", MOETOKEN_MAP_LIKE), .required = {FACT_BY_MAP},
                     .read = {FACT_ALWAYS}},
    [PROBS] = {IN(probs, "TE", MOETOKEN_TOKEN_LIKE),
               .required = {FACT(PERMUTED_PROBS) | FACT_BY_MAP}, .read = {FACT(PERMUTED_PROBS)},
               .goes_with = FACT(TOKENS)},
    [WEIGHTS] = {IN(weights, "TK", MOETOKEN_TOKEN_LIKE),
                 .required = {FACT(PERMUTED_PROBS) | FACT_BY_IDS}, .read = {FACT(PERMUTED_PROBS)},
                 .goes_with = FACT(TOKENS)},
    [PERMUTED_TOKENS] = {OUT(permuted_tokens, "RH", MOETOKEN_TOKEN_LIKE),
                         .same_type = FACT(TOKENS)},
    [PERMUTED_PROBS] = {OUT(permuted_probs, "R", MOETOKEN_TOKEN_LIKE),
                        .same_type = FACT(PROBS) | FACT(WEIGHTS)},
    [SORTED_INDICES] = {OUT(sorted_indices, "N", MOETOKEN_INDEX_LIKE)},
    [SOURCE_SLOTS] = {OUT(source_slots, "R", MOETOKEN_INDEX_LIKE)},
    [ROWS_PER_EXPERT] = {OUT(rows_per_expert, "L", 1u << MOETOKEN_I64)},
};
/* clang-format on */

static const struct moetoken_table table = {
    .arguments = arguments,
    .count = ARGUMENTS,
    .args_size = sizeof(moetoken_permute_args),
    .drop_and_pad_offset = offsetof(moetoken_permute_args, drop_and_pad),
    .flags_taken = 0,
    .by_map = FACT(ROUTING_MAP) | FACT(PROBS),
    .by_ids = FACT(EXPERT_IDS) | FACT(WEIGHTS) | FACT(SOURCE_SLOTS) | FACT(ROWS_PER_EXPERT),
};

struct call {
    struct moetoken_call known; /* first: what the table says of the call */
    moetoken_permute_args args;
    bool by_ids, padded;
    int64_t tokens_num, slots_num;
    struct moetoken_expert_rows rows;    /* by expert ids */
    struct moetoken_routing routing;     /* the columns of the slots, for their weights */
    const struct moetoken_view *weights; /* probs [T,E] or weights [T,K]; NULL: none */

    struct moetoken_slots slots;
    int64_t rows_used; /* rows that some slot fills; without capacity the first ones */
    struct moetoken_run run;
};

/* ---- check ---------------------------------------------------------------------------------- */

static moetoken_status refuse_number(const char *name, int64_t value, const char *spelling)
{
    if (value == 0)
        return MOETOKEN_OK;
    return moetoken_fail(MOETOKEN_ERR_OPTION, "%s = %" PRId64 ", expected 0 with a routing by %s",
                         name, value, spelling);
}

/* Numbers of the other spelling must be zero, as tensors of it must be NULL. */
static moetoken_status check_numbers(const struct call *call)
{
    const moetoken_permute_args *args = &call->args;
    if (call->by_ids)
        return refuse_number("num_out_tokens", args->num_out_tokens, "expert ids");
    moetoken_status status = refuse_number("experts_num", args->experts_num, "map");
    if (status == MOETOKEN_OK)
        status = refuse_number("expert_begin", args->expert_begin, "map");
    if (status == MOETOKEN_OK)
        status = refuse_number("expert_end", args->expert_end, "map");
    if (status == MOETOKEN_OK)
        status = refuse_number("capacity", args->capacity, "map");
    return status;
}

/* By map: K or C, and with it N. */
static moetoken_status count_slots(struct call *call)
{
    int64_t num_out_tokens = call->args.num_out_tokens;
    int64_t tokens = call->known.view[TOKENS].shape[0];
    int64_t experts = call->known.view[ROUTING_MAP].shape[1];
    int64_t groups = call->padded ? experts : tokens;
    int64_t per_group = groups ? num_out_tokens / groups : 0;
    if (num_out_tokens < 0)
        return moetoken_fail(MOETOKEN_ERR_SHAPE,
                             "num_out_tokens = %" PRId64 ", expected at least 0", num_out_tokens);
    if (call->padded && per_group > tokens)
        return moetoken_fail(MOETOKEN_ERR_SHAPE,
                             "the capacity C = num_out_tokens / E = %" PRId64 " / %" PRId64
                             " = %" PRId64 " is more than T = %" PRId64,
                             num_out_tokens, groups, per_group, tokens);
    call->routing.slots_per_token = call->padded ? 0 : per_group;
    call->routing.capacity = call->padded ? per_group : 0;
    return moetoken_call_set_size(&call->known, 'N', per_group * groups, "num_out_tokens");
}

/* By expert ids: E', and R where there is a capacity. */
static moetoken_status count_experts(struct call *call)
{
    const moetoken_permute_args *args = &call->args;
    int64_t experts = args->experts_num, begin = args->expert_begin, end = args->expert_end, rows;
    moetoken_status status = moetoken_call_set_size(&call->known, 'E', experts, "experts_num");
    if (status != MOETOKEN_OK)
        return status;
    if (begin == 0 && end == 0)
        end = experts;
    if (begin < 0 || begin > end || end > experts)
        return moetoken_fail(MOETOKEN_ERR_SHAPE,
                             "expert_begin = %" PRId64 " and expert_end = %" PRId64
                             ", expected 0 <= expert_begin <= expert_end <= experts_num = %" PRId64,
                             begin, end, experts);
    call->rows = (struct moetoken_expert_rows){experts, begin, end, args->capacity, INT64_MAX};
    status = moetoken_call_set_size(&call->known, 'L', end - begin, "expert_end - expert_begin");
    if (status != MOETOKEN_OK || args->capacity == 0)
        return status;
    if (args->capacity < 0)
        return moetoken_fail(MOETOKEN_ERR_SHAPE, "capacity = %" PRId64 ", expected at least 0",
                             args->capacity);
    if (__builtin_mul_overflow(end - begin, args->capacity, &rows))
        return moetoken_fail(MOETOKEN_ERR_OVERFLOW,
                             "E' * capacity = %" PRId64 " * %" PRId64 " is more than 2^63 - 1 rows",
                             end - begin, args->capacity);
    return moetoken_call_set_size(&call->known, 'R', rows, "capacity");
}

/* By map: R against N. */
static moetoken_status check_rows_num(const struct call *call)
{
    const struct moetoken_size *rows = &call->known.size['R' - 'A'];
    int64_t slots = call->slots_num;
    if (call->by_ids || rows->source == NULL ||
        (call->padded ? rows->value == slots : rows->value <= slots))
        return MOETOKEN_OK;
    return moetoken_fail(MOETOKEN_ERR_SHAPE,
                         "%s has R = %" PRId64 " rows, expected %s N = %" PRId64 " slots",
                         rows->source, rows->value, call->padded ? "exactly" : "at most", slots);
}

static moetoken_status check_sizes(struct call *call)
{
    struct moetoken_call *known = &call->known;
    moetoken_status status = call->by_ids ? count_experts(call) : count_slots(call);
    if (status == MOETOKEN_OK && call->by_ids) {
        const struct moetoken_view *ids = &known->view[EXPERT_IDS];
        status = moetoken_call_set_size(known, 'N', ids->shape[0] * ids->shape[1], "expert_ids");
    }
    if (status == MOETOKEN_OK)
        status = moetoken_call_check_sizes(known);
    if (status != MOETOKEN_OK)
        return status;
    call->tokens_num = moetoken_call_size(known, 'T');
    call->slots_num = moetoken_call_size(known, 'N');
    return check_rows_num(call);
}

static void describe_rows(struct call *call)
{
    const struct moetoken_call *known = &call->known;
    if (moetoken_call_knows_size(known, 'R'))
        call->rows.rows_num = moetoken_call_size(known, 'R');
    if (moetoken_call_given(known, PERMUTED_PROBS))
        call->weights = &known->view[call->by_ids ? WEIGHTS : PROBS];
    call->routing.map = &known->view[ROUTING_MAP];
    call->routing.columns = call->weights == NULL ? MOETOKEN_NO_COLUMNS
                            : call->by_ids        ? MOETOKEN_COLUMNS_COUNTED
                            : call->padded        ? MOETOKEN_COLUMNS_OF_ROW
                                                  : MOETOKEN_COLUMNS_OF_MAP;
}

/* The index outputs of the caller's type hold what will be written to them. */
static moetoken_status check_index_outputs(const struct call *call)
{
    int64_t rows = call->rows.rows_num < INT64_MAX ? call->rows.rows_num : call->slots_num;
    int64_t indices = call->padded ? call->tokens_num : call->by_ids ? rows : call->slots_num;
    moetoken_status status = moetoken_index_check_holds(&call->known.view[SORTED_INDICES], indices);
    if (status == MOETOKEN_OK)
        status = moetoken_index_check_holds(&call->known.view[SOURCE_SLOTS], call->slots_num);
    return status;
}

static moetoken_status check(const moetoken_permute_args *args, const moetoken_options *options,
                             bool need_data, struct call *call)
{
    struct moetoken_call *known = &call->known;
    moetoken_status status =
        moetoken_call_read(known, &table, args, &call->args, options, need_data);
    call->by_ids = (known->facts & FACT_BY_IDS) != 0;
    call->padded = call->args.drop_and_pad;
    if (status == MOETOKEN_OK)
        status = check_numbers(call);
    if (status == MOETOKEN_OK)
        status = check_sizes(call);
    if (status != MOETOKEN_OK)
        return status;
    describe_rows(call);
    status = check_index_outputs(call);
    if (status == MOETOKEN_OK)
        status = moetoken_call_check_memory(known, call->tokens_num, call->slots_num);
    return status;
}

/* ---- assign rows ---------------------------------------------------------------------------- */

static void begin_slots(struct call *call, int64_t slots_per_token)
{
    for (int64_t t = 0; t <= call->tokens_num; t++)
        call->slots.start[t] = t * slots_per_token;
}

static moetoken_status assign_by_ids(struct call *call)
{
    const struct moetoken_view *view = call->known.view;
    const struct moetoken_expert_outputs outputs = {&view[SORTED_INDICES], &view[SOURCE_SLOTS],
                                                    &view[ROWS_PER_EXPERT]};
    moetoken_status status =
        moetoken_expert_ids_to_rows(&view[EXPERT_IDS], &call->rows, &call->run, call->slots.row,
                                    call->slots.scratch, &outputs, &call->rows_used);
    if (status != MOETOKEN_OK)
        return status;
    if (call->tokens_num > 0)
        begin_slots(call, call->known.view[EXPERT_IDS].shape[1]);
    if (call->rows.capacity && moetoken_call_knows_size(&call->known, 'R'))
        moetoken_named_rows_make(call->slots.row, call->slots_num, call->rows.rows_num,
                                 call->slots.scratch, &call->slots.named);
    return MOETOKEN_OK;
}

static moetoken_status assign_dropless(struct call *call)
{
    const struct moetoken_size *rows = &call->known.size['R' - 'A'];
    moetoken_status status =
        moetoken_map_to_rows_dropless(call->routing.map, call->routing.slots_per_token, &call->run,
                                      &call->slots, &call->rows_used);
    if (status != MOETOKEN_OK)
        return status;
    begin_slots(call, call->routing.slots_per_token);
    if (rows->source && call->rows_used > rows->value)
        return moetoken_fail(MOETOKEN_ERR_ROUTING,
                             "routing_map has %" PRId64 " set pairs, but %s has only R = %" PRId64
                             " rows",
                             call->rows_used, rows->source, rows->value);
    return MOETOKEN_OK;
}

static moetoken_status assign(struct call *call)
{
    if (call->by_ids)
        return assign_by_ids(call);
    if (!call->padded)
        return assign_dropless(call);
    moetoken_map_to_rows_padded(call->routing.map, call->routing.capacity, &call->run,
                                &call->slots);
    call->rows_used = call->slots_num;
    return MOETOKEN_OK;
}

/* ---- move ----------------------------------------------------------------------------------- */

/* What each slot of a token writes for itself. */
static void write_slots(const struct call *call, int64_t token)
{
    const struct moetoken_view *view = call->known.view, *weights = call->weights;
    struct moetoken_column_walk walk = moetoken_column_walk_begin(&call->routing, token);
    for (int64_t s = call->slots.start[token]; s < call->slots.start[token + 1]; s++) {
        int64_t row = call->slots.row[s];
        if (call->padded && view[SORTED_INDICES].given)
            moetoken_index_store(&view[SORTED_INDICES], row, token);
        int64_t column = row < 0 && !call->by_ids ? -1 : moetoken_column_walk_next(&walk, row);
        if (row < 0)
            continue;
        if (weights && column >= 0)
            moetoken_element_copy(moetoken_view_at(&view[PERMUTED_PROBS], row, 0),
                                  moetoken_view_at(weights, token, column), weights->size);
    }
}

/* The rows of a token's slots from position *s on, as many as a kernel takes. */
static int64_t gather_rows(const struct call *call, int64_t *s, int64_t end, int64_t *row)
{
    int64_t count = 0;
    for (; *s < end && count < MOETOKEN_SLOTS_PER_CALL; ++*s)
        if (call->slots.row[*s] >= 0)
            row[count++] = call->slots.row[*s];
    return count;
}

static void copy_token(const struct call *call, int64_t token)
{
    const struct moetoken_view *in = &call->known.view[TOKENS];
    const struct moetoken_view *out = &call->known.view[PERMUTED_TOKENS];
    moetoken_rows_fn *copy_rows = moetoken_row_kernels_copy(&call->run.kernels, in->size);
    int64_t row[MOETOKEN_SLOTS_PER_CALL];
    struct moetoken_rows rows = {
        .length = in->shape[1],
        .row = row,
        .token_in = moetoken_view_at(in, token, 0),
        .token_stride = in->stride[1],
        .out = out->data,
        .out_row_stride = out->stride[0],
        .out_stride = out->stride[1],
        .streaming = call->run.streaming,
    };
    for (int64_t s = call->slots.start[token]; s < call->slots.start[token + 1];) {
        rows.count = gather_rows(call, &s, call->slots.start[token + 1], row);
        copy_rows(&rows);
    }
}

/* What is stored slot by slot. */
static bool each_slot(const struct call *call)
{
    return call->weights || (call->padded && call->known.view[SORTED_INDICES].given);
}

/* What is stored of all slots in a row. Routing by ids has done so as it made them. */
static bool all_slots(const struct call *call)
{
    return call->known.view[SORTED_INDICES].given && !call->padded && !call->by_ids;
}

static void move_tokens(const void *context, int64_t first, int64_t end)
{
    const struct call *call = context;
    const struct moetoken_view *view = call->known.view;
    const int64_t *start = call->slots.start;
    bool each = each_slot(call);
    if (all_slots(call))
        moetoken_index_store_many(&view[SORTED_INDICES], start[first], start[end] - start[first],
                                  call->slots.row + start[first]);
    for (int64_t t = first; t < end; t++) {
        if (each)
            write_slots(call, t);
        if (view[PERMUTED_TOKENS].given)
            copy_token(call, t);
    }
}

static bool is_filled(const struct call *call, int64_t row)
{
    return call->rows.capacity ? moetoken_named_rows_has(&call->slots.named, row)
                               : row < call->rows_used;
}

static void empty_unused_rows(const void *context, int64_t first, int64_t end)
{
    const struct call *call = context;
    const struct moetoken_view *view = call->known.view;
    for (int64_t r = first; r < end; r++) {
        if (is_filled(call, r))
            continue;
        if (view[PERMUTED_TOKENS].given)
            moetoken_view_zero_row(&view[PERMUTED_TOKENS], r);
        if (view[PERMUTED_PROBS].given)
            moetoken_view_zero_row(&view[PERMUTED_PROBS], r);
        if (view[SOURCE_SLOTS].given)
            moetoken_index_store(&view[SOURCE_SLOTS], r, -1);
    }
}

static void move(struct call *call)
{
    const struct moetoken_size *rows = &call->known.size['R' - 'A'];
    const struct moetoken_view *view = call->known.view;
    bool any = view[PERMUTED_PROBS].given || view[SOURCE_SLOTS].given ||
               (view[PERMUTED_TOKENS].given && !moetoken_view_is_empty(&view[PERMUTED_TOKENS]));
    if (any && call->rows_used < rows->value)
        moetoken_run_ranges(&call->run, rows->value, empty_unused_rows, call);
    if (call->tokens_num > 0 && (each_slot(call) || all_slots(call) || view[PERMUTED_TOKENS].given))
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
    if (status != MOETOKEN_OK || (call.tokens_num == 0 && !call.by_ids))
        return status;
    moetoken_call_plan(&call.known, &call.run);
    if (call.tokens_num > 0)
        status =
            moetoken_slots_take(call.tokens_num, call.slots_num, &call.known.options, &call.slots);
    if (status == MOETOKEN_OK)
        status = assign(&call);
    if (status == MOETOKEN_OK)
        move(&call);
    moetoken_slots_close(&call.slots);
    return status;
}
