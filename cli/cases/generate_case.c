/* generate_case.c - cases with the routing of a real layer: plan, list of tensors, contents.
 * The routing itself is drawn in generate_routing.c. */
#include "generate_case.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "generate_routing.h"
#include "values/number_formats.h"
#include "values/random_values.h"

static bool fail(char *error, size_t size, const char *what, int64_t value, const char *expected)
{
    snprintf(error, size, "%s = %" PRId64 ": %s", what, value, expected);
    return false;
}

static bool check_settings(const struct case_settings *settings, char *error, size_t size)
{
    const int64_t most = INT64_C(1) << 31;
    if (settings->tokens < 0 || settings->tokens > most)
        return fail(error, size, "tokens", settings->tokens, "expected 0 to 2^31");
    if (settings->hidden < 0 || settings->hidden > most)
        return fail(error, size, "hidden", settings->hidden, "expected 0 to 2^31");
    if (settings->experts < 1 || settings->experts > 1 << 20)
        return fail(error, size, "experts", settings->experts, "expected 1 to 2^20");
    if (settings->topk < 1 || settings->topk > settings->experts)
        return fail(error, size, "topk", settings->topk, "expected 1 to the number of experts");
    if (settings->capacity < 0 || settings->capacity > settings->tokens)
        return fail(error, size, "capacity", settings->capacity,
                    "expected 0 to the number of tokens");
    if (settings->by_ids && settings->drop_and_pad)
        return fail(error, size, "drop_and_pad", 1, "expected 0 with expert ids");
    if (settings->index_type == MOETOKEN_I32 &&
        settings->tokens > most / (settings->drop_and_pad ? settings->experts : settings->topk))
        return fail(error, size, "tokens", settings->tokens, "row numbers need int64 indices");
    return true;
}

static int64_t chosen_capacity(const struct case_settings *settings)
{
    if (settings->capacity > 0 || settings->experts == 0)
        return settings->capacity;
    int64_t capacity =
        (settings->tokens * settings->topk + settings->experts - 1) / settings->experts;
    return capacity < settings->tokens ? capacity : settings->tokens;
}

static void add_spec(struct generated_case *plan, const char *name, moetoken_type type, int ndim,
                     int64_t first, int64_t second)
{
    plan->specs[plan->count++] =
        (struct tensor_spec){.name = name, .type = type, .ndim = ndim, .shape = {first, second}};
}

static bool has_bias(const char *recipe)
{
    static const char *const names[] = {"deepseek-v3", "kimi-k2", "glm-4.5"};
    for (size_t i = 0; recipe != NULL && i < sizeof names / sizeof names[0]; i++)
        if (strcmp(recipe, names[i]) == 0)
            return true;
    return false;
}

static void list_router_tensors(struct generated_case *plan)
{
    const struct case_settings *s = &plan->settings;
    bool grad = s->operator_kind == OPERATOR_ROUTER_GRAD;
    add_spec(plan, "logits", s->probs_type, 2, s->tokens, s->experts);
    if (s->holes)
        add_spec(plan, "token_mask", s->map_type, 1, s->tokens, 0);
    if (grad) {
        add_spec(plan, "expert_ids", s->index_type, 2, s->tokens, s->topk);
        add_spec(plan, "weights_grad", s->probs_type, 2, s->tokens, s->topk);
        add_spec(plan, "scores_grad", s->probs_type, 2, s->tokens, s->experts);
        return;
    }
    if (has_bias(s->recipe))
        add_spec(plan, "bias", MOETOKEN_F32, 1, s->experts, 0);
    if (s->hidden > 0)
        add_spec(plan, "tokens", s->token_type, 2, s->tokens, s->hidden);
}

static void list_tensors(struct generated_case *plan)
{
    const struct case_settings *s = &plan->settings;
    bool probs = !s->without_probs, map = probs || s->drop_and_pad;
    if (is_router(s->operator_kind)) {
        list_router_tensors(plan);
        return;
    }
    switch (s->operator_kind) {
    case OPERATOR_UNPERMUTE_GRAD:
        add_spec(plan, "unpermuted_tokens_grad", s->token_type, 2, s->tokens, s->hidden);
        add_spec(plan, "out_index", s->index_type, 1, plan->slots, 0);
        if (!s->by_ids)
            add_spec(plan, "permute_token_id", s->index_type, 1, plan->slots, 0);
        if (probs)
            add_spec(plan, "permuted_tokens", s->token_type, 2, plan->rows, s->hidden);
        break;
    case OPERATOR_UNPERMUTE:
        add_spec(plan, "permuted_tokens", s->token_type, 2, plan->rows, s->hidden);
        add_spec(plan, "sorted_indices", s->index_type, 1, plan->slots, 0);
        break;
    case OPERATOR_PERMUTE:
        add_spec(plan, "tokens", s->token_type, 2, s->tokens, s->hidden);
        map = true;
        if (s->by_ids)
            add_spec(plan, "expert_ids", s->index_type, 2, s->tokens, s->topk);
        break;
    case OPERATOR_PERMUTE_GRAD:
        add_spec(plan, "permuted_tokens_grad", s->token_type, 2, plan->rows, s->hidden);
        if (probs)
            add_spec(plan, "permuted_probs_grad", s->probs_type, 1, plan->rows, 0);
        add_spec(plan, "sorted_indices", s->index_type, 1, plan->slots, 0);
        break;
    default:
        break;
    }
    if (s->by_ids) {
        if (probs && s->operator_kind != OPERATOR_PERMUTE_GRAD)
            add_spec(plan, "weights", s->probs_type, 2, s->tokens, s->topk);
        return;
    }
    if (map)
        add_spec(plan, "routing_map", s->map_type, 2, s->tokens, s->experts);
    if (probs && s->operator_kind != OPERATOR_PERMUTE_GRAD)
        add_spec(plan, "probs", s->probs_type, 2, s->tokens, s->experts);
}

static void list_metadata(struct generated_case *plan)
{
    const struct case_settings *s = &plan->settings;
    char(*text)[sizeof plan->metadata_text[0]] = plan->metadata_text;
    const size_t size = sizeof text[0];
    snprintf(text[0], size, "%s", operator_outputs[s->operator_kind].name);
    snprintf(text[1], size, "%s", s->drop_and_pad ? "true" : "false");
    snprintf(text[2], size, "%" PRId64 ",%" PRId64, s->tokens, s->hidden);
    snprintf(text[3], size, "%" PRId64, plan->slots);
    snprintf(text[4], size, "%" PRId64, s->tokens);
    snprintf(text[5], size, "%" PRId64, s->experts);
    snprintf(text[6], size, "%" PRId64, s->drop_and_pad ? s->capacity : s->topk);
    snprintf(text[7], size, "%" PRIu64, s->seed);
    bool router = is_router(s->operator_kind);
    const char *const keys[CASE_METADATA_MOST] = {"operator",
                                                  "drop_and_pad",
                                                  "restore_shape",
                                                  "num_out_tokens",
                                                  "tokens_num",
                                                  "experts_num",
                                                  s->drop_and_pad ? "capacity"
                                                  : router        ? "topk"
                                                                  : "topK_num",
                                                  "seed"};
    for (size_t i = 0; i < CASE_METADATA_MOST; i++) {
        plan->metadata[2 * i] = keys[i];
        plan->metadata[2 * i + 1] = text[i];
    }
    if (router && s->recipe != NULL) {
        plan->metadata[2 * CASE_METADATA_MOST] = "recipe";
        plan->metadata[2 * CASE_METADATA_MOST + 1] = s->recipe;
    }
}

static bool allocate(struct generated_case *plan)
{
    const struct case_settings *s = &plan->settings;
    size_t most = (size_t)plan->slots;
    if (most < (size_t)s->experts)
        most = (size_t)s->experts;
    if (most < (size_t)s->tokens)
        most = (size_t)s->tokens;
    plan->slowness = malloc((size_t)s->experts * sizeof *plan->slowness);
    plan->map = calloc((size_t)s->tokens * (size_t)s->experts + 1, 1);
    plan->row = malloc((most + 1) * sizeof *plan->row);
    plan->token = malloc((most + 1) * sizeof *plan->token);
    plan->by_row = malloc((most + 1) * sizeof *plan->by_row);
    plan->expert = malloc((most + 1) * sizeof *plan->expert);
    return plan->expert != NULL && plan->slowness != NULL && plan->map != NULL &&
           plan->row != NULL && plan->token != NULL && plan->by_row != NULL;
}

bool plan_case(struct generated_case *plan, const struct case_settings *settings, char *error,
               size_t error_size)
{
    memset(plan, 0, sizeof *plan);
    if (!check_settings(settings, error, error_size))
        return false;
    plan->settings = *settings;
    plan->settings.capacity = chosen_capacity(settings);
    plan->slots = settings->drop_and_pad ? settings->experts * plan->settings.capacity
                                         : settings->tokens * settings->topk;
    if (!allocate(plan) || !route_case(plan)) {
        free_case(plan);
        snprintf(error, error_size, "no memory for %" PRId64 " slots", plan->slots);
        return false;
    }
    list_tensors(plan);
    list_metadata(plan);
    return true;
}

void free_case(struct generated_case *plan)
{
    free(plan->slowness);
    free(plan->map);
    free(plan->row);
    free(plan->token);
    free(plan->by_row);
    free(plan->expert);
    plan->slowness = NULL;
    plan->map = NULL;
    plan->row = plan->token = plan->by_row = plan->expert = NULL;
}

static size_t spec_elements(const struct tensor_spec *spec)
{
    size_t count = 1;
    for (int d = 0; d < spec->ndim; d++)
        count *= (size_t)spec->shape[d];
    return count;
}

int64_t case_bytes(const struct generated_case *plan)
{
    size_t bytes = 0;
    for (size_t i = 0; i < plan->count; i++)
        bytes += spec_elements(&plan->specs[i]) * type_size(plan->specs[i].type);
    return (int64_t)bytes;
}

static void fill_indices(DLTensor *tensor, moetoken_type type, const int64_t *values, int64_t count)
{
    size_t size = type_size(type);
    for (int64_t i = 0; i < count; i++)
        store_bits((char *)tensor->data + tensor->byte_offset + (size_t)i * size, size,
                   (uint64_t)values[i]);
}

/* bool: 0 or 1. int8 and uint8: any non-zero byte is set, so any comes up. */
static void fill_map(const struct generated_case *plan, DLTensor *tensor)
{
    uint8_t *out = (uint8_t *)tensor->data + tensor->byte_offset;
    uint64_t key = random_key(plan->settings.seed, STREAM_MAP_BYTES);
    int64_t count = plan->settings.tokens * plan->settings.experts;
    if (plan->settings.map_type == MOETOKEN_BOOL) {
        memcpy(out, plan->map, (size_t)count);
        return;
    }
    for (int64_t i = 0; i < count; i++)
        out[i] = plan->map[i] == 0 ? 0 : (uint8_t)(1 + random_bits(key, (uint64_t)i) % 255);
}

static void fill_probs(const struct generated_case *plan, DLTensor *tensor)
{
    moetoken_type type = plan->settings.probs_type;
    size_t size = type_size(type);
    int64_t experts = plan->settings.experts;
    char *out = (char *)tensor->data + tensor->byte_offset;
#pragma omp parallel for schedule(static) if (plan->settings.tokens * experts > 1 << 14)
    for (int64_t t = 0; t < plan->settings.tokens; t++) {
        double sum = share_sum(plan, t);
        for (int64_t e = 0; e < experts; e++)
            store_bits(out + (size_t)(t * experts + e) * size, size,
                       double_to_bits(type, share_before_division(plan, t, e) / sum));
    }
}

static void fill_weights(const struct generated_case *plan, DLTensor *tensor)
{
    moetoken_type type = plan->settings.probs_type;
    size_t size = type_size(type);
    int64_t topk = plan->settings.topk;
    char *out = (char *)tensor->data + tensor->byte_offset;
#pragma omp parallel for schedule(static) if (plan->slots > 1 << 14)
    for (int64_t t = 0; t < plan->settings.tokens; t++) {
        double sum = share_sum(plan, t);
        for (int64_t i = t * topk; i < (t + 1) * topk; i++) {
            double weight = 0.5;
            if (plan->expert[i] >= 0)
                weight = share_before_division(plan, t, plan->expert[i]) / sum;
            store_bits(out + (size_t)i * size, size, double_to_bits(type, weight));
        }
    }
}

/* Within 1/16 of 0, a multiple of 2^-28: exact in float32. */
static void fill_bias(const struct generated_case *plan, DLTensor *tensor)
{
    uint64_t key = random_key(plan->settings.seed, STREAM_BIAS);
    for (int64_t e = 0; e < plan->settings.experts; e++) {
        double value = ((double)(random_bits(key, (uint64_t)e) >> 39) - 0x1p24) * 0x1p-28;
        store_bits((char *)tensor->data + tensor->byte_offset + 4 * (size_t)e, 4,
                   double_to_bits(MOETOKEN_F32, value));
    }
}

/* One token in 16 is not routed. */
static void fill_token_mask(const struct generated_case *plan, DLTensor *tensor)
{
    uint64_t key = random_key(plan->settings.seed, STREAM_DROPS);
    uint8_t *out = (uint8_t *)tensor->data + tensor->byte_offset;
    for (int64_t t = 0; t < plan->settings.tokens; t++)
        out[t] = random_bits(key, (uint64_t)t) % 16 != 0;
}

void fill_case_tensor(const struct generated_case *plan, size_t i, DLTensor *tensor,
                      struct progress *progress)
{
    const struct tensor_spec *spec = &plan->specs[i];
    const struct case_settings *s = &plan->settings;
    if (strcmp(spec->name, "routing_map") == 0)
        fill_map(plan, tensor);
    else if (strcmp(spec->name, "probs") == 0)
        fill_probs(plan, tensor);
    else if (strcmp(spec->name, "weights") == 0)
        fill_weights(plan, tensor);
    else if (strcmp(spec->name, "bias") == 0)
        fill_bias(plan, tensor);
    else if (strcmp(spec->name, "token_mask") == 0)
        fill_token_mask(plan, tensor);
    else if (strcmp(spec->name, "expert_ids") == 0)
        fill_indices(tensor, spec->type, plan->expert, plan->slots);
    else if (strcmp(spec->name, "permute_token_id") == 0)
        fill_indices(tensor, spec->type, plan->token, plan->slots);
    else if (!type_is_float(spec->type))
        fill_indices(tensor, spec->type,
                     s->drop_and_pad && strcmp(spec->name, "sorted_indices") == 0 ? plan->by_row
                                                                                  : plan->row,
                     plan->slots);
    else {
        random_fill(tensor, spec->type, random_key(s->seed, STREAM_TENSORS + i), s->extremes,
                    progress);
        return;
    }
    progress_add(progress, (int64_t)(spec_elements(spec) * type_size(spec->type)));
}
