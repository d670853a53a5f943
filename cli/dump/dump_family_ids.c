/* dump_family_ids.c - torch_npu's functions on a routing by expert ids, and their gradients. */
#include <stdlib.h>

#include "recomputation.h"
#include "values/number_formats.h"

static bool is_whole(const DLTensor *tensor)
{
    moetoken_type type;
    return tensor != NULL && type_of_tensor(tensor, &type) &&
           (type == MOETOKEN_I32 || type == MOETOKEN_I64);
}

/* One more than the largest id. */
static int64_t experts_of(const DLTensor *ids)
{
    int64_t experts = 0;
    for (int64_t i = 0; i < elements_of(ids); i++)
        if (whole_number_at(ids, i) >= experts)
            experts = whole_number_at(ids, i) + 1;
    return experts;
}

/* ids [T] or [T,K] as [T,K]. */
static const DLTensor *as_ids(struct recomputation *r, const DLTensor *ids)
{
    if (!is_whole(ids))
        return NULL;
    return reshaped(r, ids, size_of(ids, 0), ids->ndim == 2 ? size_of(ids, 1) : 1);
}

/* Rows in expert order: what permute, init_routing and their like have in common. */
struct spread {
    const DLTensor *tokens, *ids;
    int64_t experts, begin, end, capacity;
    const DLTensor *rows; /* with a capacity: the rows, whose number it decides */
};

static void judge_spread(struct recomputation *r, const struct spread *s, const char *name,
                         const DLTensor *actual, const char *which)
{
    if (actual == NULL)
        return;
    case_begin(r);
    case_put(r, "tokens", s->tokens);
    case_put(r, "expert_ids", s->ids);
    case_number(r, "experts_num", s->experts);
    if (s->end > 0) {
        case_number(r, "expert_begin", s->begin);
        case_number(r, "expert_end", s->end);
    }
    if (s->capacity > 0) {
        case_number(r, "capacity", s->capacity);
        r->rows = s->rows;
    }
    case_judge(r, OPERATOR_PERMUTE, name, actual, which);
}

/* ---- token_permute --------------------------------------------------------------------------- */

static void token_permute(struct recomputation *r)
{
    const DLTensor *ids = as_ids(r, tensor_of(&r->arguments[1]));
    if (ids == NULL) {
        not_checked(r, "", "", "indices is no tensor of integers");
        return;
    }
    struct spread s = {
        .tokens = tensor_of(&r->arguments[0]), .ids = ids, .experts = experts_of(ids)};
    judge_spread(r, &s, "permuted_tokens", tensor_of(&r->results[0]), "output.0");
    /* All rows, those that num_out_tokens cuts off, too. */
    judge_spread(r, &s, "sorted_indices", tensor_of(&r->results[1]), "output.1");
}

/* A sum over the slots of each token; slots of rows that are not there add nothing. */
static void judge_gathered(struct recomputation *r, const DLTensor *rows, const DLTensor *sorted,
                           int64_t tokens, const DLTensor *actual)
{
    if (actual == NULL)
        return;
    case_begin(r);
    case_put(r, "permuted_tokens_grad", rows);
    case_put(r, "sorted_indices", integers_within(r, sorted, size_of(rows, 0)));
    case_number(r, "tokens_num", tokens);
    case_judge(r, OPERATOR_PERMUTE_GRAD, "tokens_grad", actual, "output.0");
}

static void token_permute_backward(struct recomputation *r)
{
    judge_gathered(r, tensor_of(&r->gradients[0]), tensor_of(&r->results[1]),
                   size_of(tensor_of(&r->arguments[0]), 0), tensor_of(&r->argument_gradients[0]));
}

/* ---- token_unpermute ------------------------------------------------------------------------- */

/* The weighted sums: what unpermute and finalize_routing have in common. */
struct combine {
    const DLTensor *rows, *sorted, *weights, *residual, *residual2, *bias, *ids;
};

static int64_t tokens_of(const struct combine *c, int64_t topk)
{
    return topk > 0 && c->sorted != NULL ? elements_of(c->sorted) / topk : 0;
}

static void put_combine(struct recomputation *r, const struct combine *c, const char *index_name)
{
    int64_t topk = c->weights == NULL ? 1 : size_of(c->weights, 1);
    case_put(r, "permuted_tokens", c->rows);
    case_put(r, index_name, integers_within(r, c->sorted, size_of(c->rows, 0)));
    case_put(r, "weights", c->weights != NULL ? c->weights : ones(r, c->rows, tokens_of(c, topk)));
    case_put(r, "residual", c->residual);
    case_put(r, "residual2", c->residual2);
    case_put(r, "expert_bias", c->bias);
    case_put(r, "expert_ids", c->bias == NULL ? NULL : c->ids);
}

static void judge_combine(struct recomputation *r, const struct combine *c, const DLTensor *actual)
{
    if (actual == NULL)
        return;
    case_begin(r);
    put_combine(r, c, "sorted_indices");
    case_judge(r, OPERATOR_UNPERMUTE, "unpermuted_tokens", actual, "output.0");
}

static struct combine unpermute_arguments(const struct recomputation *r)
{
    return (struct combine){.rows = tensor_of(&r->arguments[0]),
                            .sorted = tensor_of(&r->arguments[1]),
                            .weights = tensor_of(&r->arguments[2])};
}

static void token_unpermute(struct recomputation *r)
{
    struct combine c = unpermute_arguments(r);
    judge_combine(r, &c, tensor_of(&r->results[0]));
}

static void token_unpermute_backward(struct recomputation *r)
{
    static const struct {
        const char *name, *which;
        int argument;
    } outputs[] = {{"permuted_tokens_grad", "output.0", 0}, {"weights_grad", "output.2", 2}};
    struct combine c = unpermute_arguments(r);
    for (int i = 0; i < 2; i++) {
        const DLTensor *actual = tensor_of(&r->argument_gradients[outputs[i].argument]);
        if (actual == NULL)
            continue;
        case_begin(r);
        case_put(r, "unpermuted_tokens_grad", tensor_of(&r->gradients[0]));
        put_combine(r, &c, "out_index");
        case_judge(r, OPERATOR_UNPERMUTE_GRAD, outputs[i].name, actual, outputs[i].which);
    }
}

/* ---- init_routing ---------------------------------------------------------------------------- */

/* expert_ids in ascending order. */
static int compare_integers(const void *a, const void *b)
{
    int64_t left = *(const int64_t *)a, right = *(const int64_t *)b;
    return left < right ? -1 : left > right;
}

static const DLTensor *sorted_ids(struct recomputation *r, const DLTensor *ids)
{
    int64_t *values, count = elements_of(ids);
    const DLTensor *made = new_integers(r, count, &values);
    for (int64_t i = 0; made != NULL && i < count; i++)
        values[i] = whole_number_at(ids, i);
    if (made != NULL && count > 0)
        qsort(values, (size_t)count, sizeof *values, compare_integers);
    return made;
}

/* Version 1 numbers the slots as row_idx says, k * T + t by custom; here slot t * K + k. */
static const DLTensor *by_row_idx(struct recomputation *r, const DLTensor *numbers,
                                  const DLTensor *rows)
{
    int64_t *values, count = elements_of(numbers);
    const DLTensor *made = new_integers(r, count, &values);
    if (made == NULL || elements_of(rows) != count)
        return NULL;
    for (int64_t i = 0; i < count; i++) {
        int64_t at = whole_number_at(numbers, i);
        if (at < 0 || at >= count)
            return NULL;
        values[i] = whole_number_at(rows, at);
    }
    return made;
}

static void init_routing(struct recomputation *r)
{
    const DLTensor *row_idx = tensor_of(&r->arguments[1]);
    const DLTensor *ids = as_ids(r, tensor_of(&r->arguments[2]));
    const DLTensor *rows = tensor_of(&r->results[1]), *experts = tensor_of(&r->results[2]);
    if (ids == NULL || !is_whole(row_idx)) {
        not_checked(r, "", "", "row_idx or expert_idx is no tensor of integers");
        return;
    }
    struct spread s = {
        .tokens = tensor_of(&r->arguments[0]), .ids = ids, .experts = experts_of(ids)};
    judge_spread(r, &s, "permuted_tokens", tensor_of(&r->results[0]), "output.0");
    if (is_whole(rows)) {
        const DLTensor *ordered = by_row_idx(r, row_idx, rows);
        if (ordered == NULL)
            not_checked(r, "sorted_indices", "output.1", "row_idx numbers no slots");
        else
            judge_spread(r, &s, "sorted_indices", ordered, "output.1");
    }
    if (experts != NULL)
        judge_integers_directly(r, "sorted expert ids", experts, sorted_ids(r, ids), "output.2");
}

enum {
    INIT_X,
    INIT_IDS,
    INIT_SCALE,
    INIT_OFFSET,
    INIT_ACTIVE,
    INIT_CAPACITY,
    INIT_EXPERTS,
    INIT_PAD,
    INIT_COUNT_TYPE,
    INIT_COUNT_FLAG,
    INIT_QUANT,
    INIT_RANGE,
    INIT_INDEX_TYPE
};

/* The slots of each expert of the range, or their running sums. */
static const DLTensor *slots_of_experts(struct recomputation *r, const struct spread *s,
                                        bool running)
{
    int64_t *counts, first = s->end > 0 ? s->begin : 0, end = s->end > 0 ? s->end : s->experts;
    if (end - first > elements_of(s->ids) + 65536)
        return NULL;
    const DLTensor *made = new_integers(r, end - first, &counts);
    for (int64_t i = 0; made != NULL && i < elements_of(s->ids); i++) {
        int64_t id = whole_number_at(s->ids, i);
        if (id >= first && id < end)
            counts[id - first]++;
    }
    for (int64_t e = 1; made != NULL && running && e < end - first; e++)
        counts[e] += counts[e - 1];
    return made;
}

static void judge_counts(struct recomputation *r, const struct spread *s)
{
    static const char name[] = "rows_per_expert", which[] = "output.2";
    const DLTensor *actual = tensor_of(&r->results[2]);
    int64_t type = number_of(&r->arguments[INIT_COUNT_TYPE], 0);
    if (actual == NULL || number_of(&r->arguments[INIT_COUNT_FLAG], 0) == 0)
        return;
    if (type == 0 || type == 1)
        judge_integers_directly(r, name, actual, slots_of_experts(r, s, type == 0), which);
    else
        not_checked(r, name, which, "pairs of expert and count are not recomputed");
}

/* expanded_x, of three dimensions with a capacity. */
static const DLTensor *expanded_rows(struct recomputation *r)
{
    const DLTensor *x = tensor_of(&r->results[0]);
    if (x != NULL && x->ndim == 3)
        x = reshaped(r, x, size_of(x, 0) * size_of(x, 1), size_of(x, 2));
    return x;
}

static void init_routing_v2(struct recomputation *r)
{
    const DLTensor *ids = as_ids(r, tensor_of(&r->arguments[INIT_IDS]));
    const struct dump_value *range = &r->arguments[INIT_RANGE];
    bool padded = number_of(&r->arguments[INIT_PAD], 0) == 1;
    if (ids == NULL || number_of(&r->arguments[INIT_QUANT], -1) != -1) {
        not_checked(r, "", "",
                    ids == NULL ? "expert_idx is no tensor of integers"
                                : "quantised modes are not recomputed");
        return;
    }
    struct spread s = {.tokens = tensor_of(&r->arguments[INIT_X]), .ids = ids};
    int64_t known = number_of(&r->arguments[INIT_EXPERTS], -1), found = experts_of(ids);
    s.experts = known > found ? known : found;
    if (range->kind == VALUE_LIST && range->list_count == 2) {
        s.begin = range->list[0];
        s.end = range->list[1];
    }
    if (padded)
        s.capacity = number_of(&r->arguments[INIT_CAPACITY], 0);
    s.rows = expanded_rows(r);
    judge_spread(r, &s, "permuted_tokens", s.rows, "output.0");
    if (number_of(&r->arguments[INIT_INDEX_TYPE], 0) == 0)
        judge_spread(r, &s, "sorted_indices", tensor_of(&r->results[1]), "output.1");
    else if (s.end == 0)
        judge_spread(r, &s, "source_slots", tensor_of(&r->results[1]), "output.1");
    else /* behind the last row the device writes nothing */
        not_checked(r, "source_slots", "output.1", "its end is not written by the device");
    judge_counts(r, &s);
    if (tensor_of(&r->arguments[INIT_SCALE]) != NULL)
        not_checked(r, "expanded_scale", "output.3", "scales are not recomputed");
}

/* ---- finalize_routing ------------------------------------------------------------------------ */

static void finalize_routing(struct recomputation *r)
{
    const DLTensor *rows = tensor_of(&r->arguments[0]);
    const DLTensor *ids = tensor_of(&r->arguments[6]);
    struct combine c = {.sorted = tensor_of(&r->arguments[5]),
                        .weights = tensor_of(&r->arguments[4]),
                        .residual = tensor_of(&r->arguments[1]),
                        .residual2 = tensor_of(&r->arguments[2]),
                        .bias = tensor_of(&r->arguments[3])};
    int64_t mode = number_of(&r->arguments[7], 0);
    if (rows == NULL || rows->ndim < 2 || c.sorted == NULL) {
        not_checked(r, "", "", "the rows or their indices are no tensor");
        return;
    }
    int64_t hidden = size_of(rows, rows->ndim - 1);
    c.rows = reshaped(r, rows, hidden > 0 ? elements_of(rows) / hidden : 0, hidden);
    if (c.bias != NULL)
        c.ids = as_ids(r, ids);
    if (mode < 2)
        c.sorted =
            tokens_first(r, c.sorted, tokens_of(&c, c.weights == NULL ? 1 : size_of(c.weights, 1)));
    judge_combine(r, &c, tensor_of(&r->results[0]));
}

/* ---- re_routing ------------------------------------------------------------------------------ */

/* Tokens come from the ranks one after another, of each by expert, as many as counts [ranks, E]
 * say: the expert of each, [A,1]. */
static const DLTensor *experts_of_ranks(struct recomputation *r, const DLTensor *counts,
                                        int64_t tokens)
{
    int64_t *ids, done = 0, experts = size_of(counts, 1);
    const DLTensor *made = new_integers(r, tokens, &ids);
    for (int64_t i = 0; made != NULL && i < elements_of(counts); i++) {
        int64_t count = whole_number_at(counts, i);
        if (count < 0 || count > tokens - done)
            return NULL;
        for (int64_t end = done + count; done < end; done++)
            ids[done] = i % experts;
    }
    return done == tokens ? reshaped(r, made, tokens, 1) : NULL;
}

static void re_routing(struct recomputation *r)
{
    const DLTensor *tokens = tensor_of(&r->arguments[0]), *counts = tensor_of(&r->arguments[1]);
    const DLTensor *totals = tensor_of(&r->results[3]);
    bool good = tokens != NULL && is_whole(counts) && counts->ndim == 2;
    const DLTensor *ids = good ? experts_of_ranks(r, counts, size_of(tokens, 0)) : NULL;
    if (ids == NULL) {
        not_checked(r, "", "", "expert_token_num_per_rank does not tell the expert of each token");
        return;
    }
    struct spread s = {.tokens = tokens, .ids = ids, .experts = size_of(counts, 1)};
    judge_spread(r, &s, "permuted_tokens", tensor_of(&r->results[0]), "output.0");
    judge_spread(r, &s, number_of(&r->arguments[4], 0) == 0 ? "source_slots" : "sorted_indices",
                 tensor_of(&r->results[2]), "output.2");
    if (totals != NULL)
        judge_integers_directly(r, "rows_per_expert", totals,
                                slots_of_experts(r, &s, number_of(&r->arguments[3], 1) == 0),
                                "output.3");
    if (tensor_of(&r->arguments[2]) != NULL)
        not_checked(r, "permute_per_token_scales", "output.1", "scales are not recomputed");
}

/* ---- the functions --------------------------------------------------------------------------- */

const struct family_function family_by_ids[] = {
    {"npu_moe_token_permute",
     {"tokens", "indices", "num_out_tokens", "padded_mode"},
     token_permute,
     token_permute_backward},
    {"npu_moe_token_unpermute",
     {"permuted_tokens", "sorted_indices", "probs", "padded_mode", "restore_shape"},
     token_unpermute,
     token_unpermute_backward},
    {"npu_moe_init_routing", {"x", "row_idx", "expert_idx", "active_num"}, init_routing, NULL},
    {"npu_moe_init_routing_v2",
     {"x", "expert_idx", "scale", "offset", "active_num", "expert_capacity", "expert_num",
      "drop_pad_mode", "expert_tokens_num_type", "expert_tokens_num_flag", "quant_mode",
      "active_expert_range", "row_idx_type"},
     init_routing_v2,
     NULL},
    {"npu_moe_finalize_routing",
     {"expanded_permuted_rows", "skip1", "skip2", "bias", "scales", "expanded_src_to_dst_row",
      "export_for_source_row", "drop_pad_mode", "k"},
     finalize_routing,
     NULL},
    {"npu_moe_re_routing",
     {"tokens", "expert_token_num_per_rank", "per_token_scales", "expert_token_num_type",
      "idx_type"},
     re_routing,
     NULL},
};
const int family_by_ids_count = sizeof family_by_ids / sizeof family_by_ids[0];
