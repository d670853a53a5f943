/* expand.c - see expand.h. moetoken.h's permute drops the rows that it does not make from
 * sorted_indices, where CANN keeps them, and counts what is kept, where CANN counts what there was.
 * So the indices and the counts come from a call without rows, and the rows from a second one. */
#include "operators/routing/expand.h"

#include "operators/by_ids/scratch.h"
#include "operators/routing/tensors.h"
#include "runtime/message.h"

#include <inttypes.h>
#include <string.h>

static bool uses(const aclOpExecutor *executor, int place)
{
    return place >= 0 && executor->operands[place].used;
}

static int64_t slots_num(const aclOpExecutor *executor, const struct expand_places *places)
{
    const int64_t *shape = executor->operands[places->expert_idx].shape;
    return shape[0] * shape[1];
}

/* ---- check ---------------------------------------------------------------------------------- */

static aclnnStatus expect_rows(const aclOpExecutor *executor, const struct expand_places *places,
                               int64_t slots)
{
    const struct attributes *attributes = &executor->attributes;
    int64_t hidden = executor->operands[places->x].shape[1], active = attributes->active_num;
    if (attributes->drop_pad_mode == 1)
        return tensors_expect(executor, places->expanded_x, 3,
                              (int64_t[]){attributes->experts_num, attributes->capacity, hidden},
                              "[E,C,H]");
    int64_t rows = active > 0 && active < slots ? active : slots;
    return tensors_expect(executor, places->expanded_x, 2, (int64_t[]){rows, hidden}, "[R,H]");
}

static aclnnStatus expect_counts(const aclOpExecutor *executor, const struct expand_places *places)
{
    const struct attributes *attributes = &executor->attributes;
    const int64_t experts = attributes->range[1] - attributes->range[0];
    if (places->counts < 0)
        return ACLNN_SUCCESS;
    if (attributes->count_type == EXPAND_PAIRS)
        return tensors_expect(executor, places->counts, 2, (int64_t[]){attributes->experts_num, 2},
                              "[E,2]");
    return tensors_expect(executor, places->counts, 1, &experts, "[experts of the range]");
}

/* [R], [R,1]. */
static aclnnStatus expect_scale(aclOpExecutor *executor, const struct expand_places *places)
{
    int64_t rows = executor->operands[places->expanded_x].shape[0];
    if (!uses(executor, places->scale))
        return ACLNN_SUCCESS;
    aclnnStatus status =
        tensors_expect(executor, places->scale, 1, executor->operands[places->x].shape, "[T]");
    operand_as_column(&executor->operands[places->expanded_scale]);
    return status == ACLNN_SUCCESS
               ? tensors_expect(executor, places->expanded_scale, 2, (int64_t[]){rows, 1}, "[R]")
               : status;
}

static aclnnStatus expect_shapes(aclOpExecutor *executor, const struct expand_places *places)
{
    struct operand *ids = &executor->operands[places->expert_idx];
    const int64_t *x_shape = executor->operands[places->x].shape;
    int64_t slots;
    aclnnStatus status = tensors_expect(executor, places->x, 2, (int64_t[]){-1, -1}, "[T,H]");
    if (status == ACLNN_SUCCESS)
        status =
            tensors_expect(executor, places->expert_idx, 2, (int64_t[]){x_shape[0], -1}, "[T,K]");
    if (status == ACLNN_SUCCESS && __builtin_mul_overflow(ids->shape[0], ids->shape[1], &slots))
        status = fail(executor->description->shape_status,
                      "expertIdx: T * K = %" PRId64 " * %" PRId64 " does not fit in 64 bits",
                      ids->shape[0], ids->shape[1]);
    if (status == ACLNN_SUCCESS)
        status = expect_rows(executor, places, slots);
    if (status == ACLNN_SUCCESS)
        status = tensors_expect(executor, places->row_idx, 1, &slots, "[T*K]");
    if (status == ACLNN_SUCCESS)
        status = expect_counts(executor, places);
    if (status == ACLNN_SUCCESS)
        status = tensors_merge_rows(executor, places->expanded_x);
    return status == ACLNN_SUCCESS ? expect_scale(executor, places) : status;
}

static aclnnStatus need_scratch(aclOpExecutor *executor, const struct expand_places *places)
{
    const int64_t *range = executor->attributes.range;
    int64_t rows = executor->operands[places->expanded_x].shape[0];
    aclnnStatus status =
        executor_need_scratch(executor, slots_num(executor, places), sizeof(int64_t));
    if (status == ACLNN_SUCCESS && uses(executor, places->counts))
        status = executor_need_scratch(executor, range[1] - range[0], sizeof(int64_t));
    if (status == ACLNN_SUCCESS && uses(executor, places->scale))
        status = executor_need_scratch(executor, rows, sizeof(int32_t));
    return status;
}

aclnnStatus expand_check(aclOpExecutor *executor, const struct expand_places *places)
{
    aclnnStatus status = executor_same_type(executor, places->expanded_x, places->x);
    if (status == ACLNN_SUCCESS)
        status = expect_shapes(executor, places);
    if (status == ACLNN_SUCCESS)
        status = need_scratch(executor, places);
    for (size_t i = 0; i < executor->description->count; i++)
        executor->operands[i].set_aside = executor->operands[i].used;
    return status == ACLNN_SUCCESS ? executor_check(executor) : status;
}

/* ---- ids ------------------------------------------------------------------------------------ */

/* The largest id that is not out of range. */
static int64_t largest_id(const struct attributes *attributes)
{
    return attributes->experts_num > 0 ? attributes->experts_num - 1 : INT64_MAX - 4;
}

/* Ids from the range's first on, -1 for an unused slot. */
static aclnnStatus copy_ids(const aclOpExecutor *executor, const struct expand_places *places,
                            int64_t *ids, int64_t *experts_num)
{
    const struct attributes *attributes = &executor->attributes;
    const int64_t *range = attributes->range, *shape = executor->operands[places->expert_idx].shape;
    const int64_t largest = largest_id(attributes);
    *experts_num = range[1] - range[0];
    for (int64_t i = 0; i < shape[0] * shape[1]; i++) {
        int64_t id = tensors_load_index(executor, places->expert_idx, i / shape[1], i % shape[1]);
        bool inside = id >= range[0] && id < range[1];
        if (!attributes->range_given && (id < 0 || id > largest))
            return fail(ACLNN_ERR_INNER_TILING_ERROR,
                        "expertIdx[%" PRId64 ", %" PRId64 "] = %" PRId64 " is outside [0, %" PRId64
                        "]",
                        i / shape[1], i % shape[1], id, largest);
        ids[i] = attributes->range_given ? (inside ? id - range[0] : -1) : id;
        if (!attributes->range_given && id >= *experts_num)
            *experts_num = id + 1;
    }
    return ACLNN_SUCCESS;
}

/* ---- outputs that are made of others -------------------------------------------------------- */

static void store_pairs(const aclOpExecutor *executor, int place, const int64_t *counts)
{
    const int64_t *range = executor->attributes.range;
    int64_t pair = 0;
    for (int64_t e = range[0]; e < range[1]; e++)
        if (counts[e - range[0]] > 0) {
            tensors_store_index(executor, place, pair, 0, e);
            tensors_store_index(executor, place, pair++, 1, counts[e - range[0]]);
        }
    for (; pair < executor->attributes.experts_num; pair++) {
        tensors_store_index(executor, place, pair, 0, 0);
        tensors_store_index(executor, place, pair, 1, 0);
    }
}

static void store_counts(const aclOpExecutor *executor, int place, const int64_t *counts)
{
    const int64_t *range = executor->attributes.range;
    int64_t sum = 0;
    if (executor->attributes.count_type == EXPAND_PAIRS) {
        store_pairs(executor, place, counts);
        return;
    }
    for (int64_t e = 0; e < range[1] - range[0]; e++) {
        sum += counts[e];
        tensors_store_index(executor, place, e, 0,
                            executor->attributes.count_type == EXPAND_NUMBERS ? counts[e] : sum);
    }
}

/* The scale of the token of each row, zero for a row that no slot fills. */
static void store_scale(const aclOpExecutor *executor, const struct expand_places *places,
                        const int32_t *sources)
{
    const struct operand *scale = &executor->operands[places->scale];
    const struct operand *out = &executor->operands[places->expanded_scale];
    const int64_t topk = executor->operands[places->expert_idx].shape[1];
    const float zero = 0;
    for (int64_t row = 0; row < out->shape[0]; row++)
        memcpy(tensors_at(out, row, 0),
               sources[row] < 0 ? (const char *)&zero : tensors_at(scale, sources[row] / topk, 0),
               sizeof zero);
}

/* ---- call ----------------------------------------------------------------------------------- */

static aclnnStatus permute(const aclOpExecutor *executor, const moetoken_permute_args *args,
                           const moetoken_options *options, bool check_only)
{
    return executor_result(executor, check_only,
                           check_only ? moetoken_permute_check(args, options)
                                      : moetoken_permute(args, options));
}

struct expansion {
    DLTensor ids, counts, sources;
    int64_t experts_num, experts_shape;
};

/* Which slot stands where when all experts have all their slots, and their numbers. */
static aclnnStatus expand_indices(const aclOpExecutor *executor, const struct expand_places *places,
                                  struct expansion *expansion, const moetoken_options *options,
                                  bool check_only)
{
    bool dropless = executor->attributes.drop_pad_mode == 0;
    bool by_row = executor->attributes.row_idx_type == 1;
    const DLTensor *row_idx = dropless ? executor_tensor(executor, places->row_idx) : NULL;
    moetoken_permute_args args = {.struct_size = sizeof args,
                                  .expert_ids = &expansion->ids,
                                  .experts_num = expansion->experts_num,
                                  .sorted_indices = by_row ? NULL : row_idx,
                                  .source_slots = by_row ? row_idx : NULL};
    if (uses(executor, places->counts))
        args.rows_per_expert = &expansion->counts;
    if (row_idx == NULL && args.rows_per_expert == NULL)
        return ACLNN_SUCCESS;
    return permute(executor, &args, options, check_only);
}

/* The rows that are made, and what depends on them. */
static aclnnStatus expand_rows(const aclOpExecutor *executor, const struct expand_places *places,
                               struct expansion *expansion, const moetoken_options *options,
                               bool check_only)
{
    bool dropless = executor->attributes.drop_pad_mode == 0;
    moetoken_permute_args args = {
        .struct_size = sizeof args,
        .tokens = executor_tensor(executor, places->x),
        .expert_ids = &expansion->ids,
        .experts_num = expansion->experts_num,
        .capacity = dropless ? 0 : executor->attributes.capacity,
        .permuted_tokens = executor_tensor(executor, places->expanded_x),
        .sorted_indices = dropless ? NULL : executor_tensor(executor, places->row_idx),
        .source_slots = uses(executor, places->scale) ? &expansion->sources : NULL};
    return permute(executor, &args, options, check_only);
}

/* With check_only the ids are the operand, and the copies have no data. */
static aclnnStatus expansion_make(const aclOpExecutor *executor, const struct expand_places *places,
                                  bool check_only, struct expansion *expansion)
{
    const struct operand *ids = &executor->operands[places->expert_idx];
    const int64_t *range = executor->attributes.range;
    void *next = executor->scratch;
    int64_t *copy = scratch_take(&next, slots_num(executor, places), sizeof *copy);
    aclnnStatus status = ACLNN_SUCCESS;
    *expansion = (struct expansion){.ids = ids->tensor, .experts_num = range[1] - range[0]};
    expansion->experts_shape = range[1] - range[0];
    if (!check_only) {
        expansion->ids = moetoken_tensor(copy, MOETOKEN_I64, 2, ids->tensor.shape);
        status = copy_ids(executor, places, copy, &expansion->experts_num);
    }
    if (uses(executor, places->counts))
        expansion->counts =
            moetoken_tensor(scratch_take(&next, expansion->experts_shape, sizeof(int64_t)),
                            MOETOKEN_I64, 1, &expansion->experts_shape);
    if (uses(executor, places->scale)) {
        int64_t *shape = executor->operands[places->expanded_x].tensor.shape;
        expansion->sources =
            moetoken_tensor(scratch_take(&next, shape[0], sizeof(int32_t)), MOETOKEN_I32, 1, shape);
    }
    return status;
}

aclnnStatus expand_call(const aclOpExecutor *executor, const struct expand_places *places,
                        const moetoken_options *options, bool check_only)
{
    struct expansion expansion;
    if (!check_only && executor_outputs_empty(executor))
        return ACLNN_SUCCESS;
    aclnnStatus status = expansion_make(executor, places, check_only, &expansion);
    if (status == ACLNN_SUCCESS)
        status = expand_indices(executor, places, &expansion, options, check_only);
    if (status == ACLNN_SUCCESS)
        status = expand_rows(executor, places, &expansion, options, check_only);
    if (status != ACLNN_SUCCESS || check_only)
        return status;
    if (uses(executor, places->counts))
        store_counts(executor, places->counts, expansion.counts.data);
    if (uses(executor, places->scale))
        store_scale(executor, places, expansion.sources.data);
    return ACLNN_SUCCESS;
}

aclnnStatus expand_finish(aclOpExecutor *executor, aclnnStatus status,
                          const struct expand_places *places, uint64_t *workspace_size,
                          aclOpExecutor **out)
{
    const int64_t *shape = executor->operands[places->expert_idx].shape;
    return executor_finish(executor, status, shape[0],
                           status == ACLNN_SUCCESS ? shape[0] * shape[1] : 0, workspace_size, out);
}
