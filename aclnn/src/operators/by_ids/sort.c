/* sort.c - see sort.h. The public interface sorts ids and moves rows in one call, but drops the
 * rows that it does not make from sorted_indices, where CANN keeps them. So sorted_indices come
 * from a call without rows, and the rows from a second one in which each row that is wanted is an
 * expert. */
#include "operators/by_ids/sort.h"

#include "operators/by_ids/rules.h"
#include "runtime/message.h"

#include <inttypes.h>
#include <string.h>

/* ---- prepare -------------------------------------------------------------------------------- */

/* What moetoken.h sees of one operand in one call and of another in the next. */
static void set_aside(aclOpExecutor *executor, int place)
{
    if (place >= 0 && executor->operands[place].used)
        executor->operands[place].set_aside = true;
}

static aclnnStatus check_shapes(aclOpExecutor *executor, const struct sort_places *places)
{
    struct operand *tokens = &executor->operands[places->tokens];
    struct operand *permuted = &executor->operands[places->permuted];
    struct operand *indices = &executor->operands[places->indices];
    if (tokens->tensor.ndim < 2 || permuted->tensor.ndim < 2)
        return fail(ACLNN_ERR_INNER_TILING_ERROR, "%s has rank %d and %s has rank %d, expected 2",
                    executor_name(executor, (size_t)places->tokens), tokens->tensor.ndim,
                    executor_name(executor, (size_t)places->permuted), permuted->tensor.ndim);
    if (!operand_flatten_rows(tokens) || !operand_flatten_rows(permuted))
        return fail(ACLNN_ERR_INNER_TILING_ERROR,
                    "%s or %s: no stride goes through all dimensions behind the first",
                    executor_name(executor, (size_t)places->tokens),
                    executor_name(executor, (size_t)places->permuted));
    if (indices->tensor.ndim != 1 && indices->tensor.ndim != 2)
        return fail(ACLNN_ERR_INNER_TILING_ERROR, "indices has rank %d, expected 1 or 2",
                    indices->tensor.ndim);
    return ACLNN_SUCCESS;
}

/* probs have the very shape of indices. */
static aclnnStatus check_probs(aclOpExecutor *executor, const struct sort_places *places)
{
    if (places->probs < 0 || !executor->operands[places->probs].used)
        return ACLNN_SUCCESS;
    struct operand *probs = &executor->operands[places->probs];
    int rank = executor->operands[places->indices].tensor.ndim;
    if (probs->tensor.ndim != rank)
        return fail(ACLNN_ERR_INNER_TILING_ERROR,
                    "%s has rank %d, expected %d, the rank of indices",
                    executor_name(executor, (size_t)places->probs), probs->tensor.ndim, rank);
    operand_as_column(probs);
    return ACLNN_SUCCESS;
}

static aclnnStatus check_rows(const aclOpExecutor *executor, const struct sort_places *places)
{
    const int64_t *range = executor->attributes.range;
    int64_t rows = executor->operands[places->permuted].shape[0];
    if (rows == range[1] - range[0])
        return ACLNN_SUCCESS;
    return fail(ACLNN_ERR_INNER_TILING_ERROR, "%s has %" PRId64 " rows, expected %" PRId64,
                executor_name(executor, (size_t)places->permuted), rows, range[1] - range[0]);
}

int64_t sort_rows_num(int64_t num_out_tokens, int64_t slots_num)
{
    if (num_out_tokens > 0)
        return num_out_tokens < slots_num ? num_out_tokens : slots_num;
    return num_out_tokens > -slots_num ? slots_num + num_out_tokens : 0;
}

static aclnnStatus check_range(aclOpExecutor *executor, int64_t slots_num)
{
    struct attributes *attributes = &executor->attributes;
    int64_t *range = attributes->range;
    if (!attributes->range_given) {
        range[0] = 0;
        range[1] = sort_rows_num(attributes->num_out_tokens, slots_num);
    }
    if (range[0] >= 0 && range[0] <= range[1] && range[1] <= slots_num)
        return ACLNN_SUCCESS;
    return fail(ACLNN_ERR_INNER_TILING_ERROR,
                "rangeOptional = {%" PRId64 ", %" PRId64
                "}, expected 0 <= begin <= end <= T * K = %" PRId64,
                range[0], range[1], slots_num);
}

aclnnStatus sort_prepare(aclOpExecutor *executor, const struct sort_places *places)
{
    struct operand *indices = &executor->operands[places->indices];
    int64_t slots_num;
    aclnnStatus status = check_shapes(executor, places);
    if (status == ACLNN_SUCCESS)
        status = check_probs(executor, places);
    if (status != ACLNN_SUCCESS)
        return status;
    operand_as_column(indices);
    if (__builtin_mul_overflow(indices->shape[0], indices->shape[1], &slots_num))
        return fail(ACLNN_ERR_INNER_TILING_ERROR, "indices: T * K does not fit in 64 bits");
    status = rules_topk(indices->shape[1], "K");
    if (status == ACLNN_SUCCESS)
        status = rules_sorted_slots(slots_num);
    if (status == ACLNN_SUCCESS)
        status = check_range(executor, slots_num);
    if (status == ACLNN_SUCCESS)
        status = check_rows(executor, places);
    if (status == ACLNN_SUCCESS)
        status = executor_need_scratch(executor, slots_num, sizeof(int64_t));
    const int aside[] = {places->tokens,   places->indices,        places->probs,
                         places->permuted, places->sorted_indices, places->permuted_probs};
    for (size_t i = 0; i < sizeof aside / sizeof aside[0]; i++)
        set_aside(executor, aside[i]);
    return status;
}

/* ---- ids ------------------------------------------------------------------------------------ */

static int64_t id_at(const DLTensor *indices, int64_t token, int64_t k)
{
    int64_t element = token * indices->strides[0] + k * indices->strides[1];
    const char *data = (const char *)indices->data + indices->byte_offset;
    if (indices->dtype.bits == 64) {
        int64_t id;
        memcpy(&id, data + element * 8, sizeof id);
        return id;
    }
    int32_t id;
    memcpy(&id, data + element * 4, sizeof id);
    return id;
}

/* Of at least one id. */
static void find_bounds(const DLTensor *indices, int64_t *least, int64_t *largest)
{
    *least = *largest = id_at(indices, 0, 0);
    for (int64_t t = 0; t < indices->shape[0]; t++)
        for (int64_t k = 0; k < indices->shape[1]; k++) {
            int64_t id = id_at(indices, t, k);
            *least = id < *least ? id : *least;
            *largest = id > *largest ? id : *largest;
        }
}

/* What moetoken.h takes as an id: one below 0 is an unused slot there. */
static const int64_t ID_MAX = INT64_MAX - 4;

/* The ids as they are, or moved into [0, ID_MAX] in the scratch: their order is all that counts. */
static aclnnStatus find_ids(const aclOpExecutor *executor, int place, DLTensor *ids,
                            int64_t *experts_num)
{
    int64_t least = 0, largest = 0, span, *moved = executor->scratch;
    const DLTensor *indices = executor_tensor(executor, place);
    if (indices->shape[0] > 0 && indices->shape[1] > 0)
        find_bounds(indices, &least, &largest);
    if (__builtin_sub_overflow(largest, least, &span) || span > ID_MAX)
        return fail(ACLNN_ERR_INNER_TILING_ERROR,
                    "indices go from %" PRId64 " to %" PRId64 ", expected at most %" PRId64
                    " apart",
                    least, largest, ID_MAX);
    *ids = *indices;
    bool as_they_are = least >= 0 && largest <= ID_MAX;
    *experts_num = (as_they_are ? largest : span) + 1;
    if (!as_they_are) {
        for (int64_t t = 0; t < indices->shape[0]; t++)
            for (int64_t k = 0; k < indices->shape[1]; k++)
                *moved++ = id_at(indices, t, k) - least;
        *ids = moetoken_tensor(executor->scratch, MOETOKEN_I64, 2, indices->shape);
    }
    return rules_sorted_id(largest);
}

/* The slots of the rows [range[0], range[1]) as ids of an expert each, the others unused. */
static DLTensor rows_as_ids(const aclOpExecutor *executor, const struct sort_places *places)
{
    const DLTensor *sorted = executor_tensor(executor, places->sorted_indices);
    const int64_t *range = executor->attributes.range;
    const char *row_at = (const char *)sorted->data + sorted->byte_offset;
    int32_t *ids = executor->scratch;
    for (int64_t i = 0; i < sorted->shape[0]; i++) {
        int32_t row;
        memcpy(&row, row_at + i * sorted->strides[0] * (int64_t)sizeof row, sizeof row);
        ids[i] = row >= range[0] && row < range[1] ? (int32_t)(row - range[0]) : -1;
    }
    return moetoken_tensor(ids, MOETOKEN_I32, 2, executor_tensor(executor, places->indices)->shape);
}

/* ---- call ----------------------------------------------------------------------------------- */

static const DLTensor *optional(const aclOpExecutor *executor, int place)
{
    return place < 0 ? NULL : executor_tensor(executor, place);
}

/* All arguments but the ids. */
static moetoken_permute_args arguments(const aclOpExecutor *executor,
                                       const struct sort_places *places)
{
    return (moetoken_permute_args){.struct_size = sizeof(moetoken_permute_args),
                                   .tokens = executor_tensor(executor, places->tokens),
                                   .weights = optional(executor, places->probs),
                                   .permuted_tokens = executor_tensor(executor, places->permuted),
                                   .permuted_probs = optional(executor, places->permuted_probs),
                                   .sorted_indices =
                                       executor_tensor(executor, places->sorted_indices)};
}

static aclnnStatus permute(const aclOpExecutor *executor, const moetoken_permute_args *args,
                           const moetoken_options *options)
{
    return executor_result(executor, false, moetoken_permute(args, options));
}

aclnnStatus sort_call(const aclOpExecutor *executor, const struct sort_places *places,
                      const moetoken_options *options, bool check_only)
{
    const int64_t *range = executor->attributes.range;
    moetoken_permute_args args = arguments(executor, places), sort_args = {0};
    DLTensor ids;
    if (check_only) {
        args.expert_ids = executor_tensor(executor, places->indices);
        return executor_result(executor, true, moetoken_permute_check(&args, options));
    }
    if (executor_outputs_empty(executor))
        return ACLNN_SUCCESS;
    args.expert_ids = &ids;
    aclnnStatus status = find_ids(executor, places->indices, &ids, &args.experts_num);
    if (status != ACLNN_SUCCESS)
        return status;
    if (range[0] == 0 && range[1] == ids.shape[0] * ids.shape[1])
        return permute(executor, &args, options);
    sort_args.expert_ids = &ids;
    sort_args.experts_num = args.experts_num;
    sort_args.sorted_indices = args.sorted_indices;
    status = permute(executor, &sort_args, options);
    if (status != ACLNN_SUCCESS)
        return status;
    ids = rows_as_ids(executor, places);
    args.sorted_indices = NULL;
    args.experts_num = range[1] - range[0];
    return permute(executor, &args, options);
}
