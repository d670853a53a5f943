/* oracle_slots.c - index tensors and routing map -> row, token, expert and weight of every slot.
 * Written down from docs/contract.md sections 2 and 3, one rule after the other. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "oracle.h"
#include "values/number_formats.h"

static bool fail_index(const struct oracle_case *oracle, const char *name, int64_t i, int64_t value,
                       int64_t end)
{
    snprintf(oracle->error, TENSOR_FILE_ERROR_SIZE,
             "%s[%" PRId64 "] = %" PRId64 " is outside [0, %" PRId64 ")", name, i, value, end);
    return false;
}

static bool fail_sizes(const struct oracle_case *oracle, const char *what, int64_t n, int64_t of)
{
    snprintf(oracle->error, TENSOR_FILE_ERROR_SIZE, "%s: N = %" PRId64 ", of %" PRId64, what, n,
             of);
    return false;
}

/* Whether slots have experts at all: something is looked up or stored for each pair. */
static bool needs_experts(const struct oracle_case *oracle)
{
    if (oracle->by_ids)
        return false;
    if (oracle->operator_kind == OPERATOR_PERMUTE_GRAD)
        return oracle->permuted_probs_grad != NULL;
    return oracle->operator_kind == OPERATOR_PERMUTE || oracle->probs != NULL ||
           (oracle->drop_and_pad && oracle->mask_fill_slots);
}

static bool allocate(const struct oracle_case *oracle, struct oracle_slots *slots)
{
    size_t n = (size_t)oracle->slots + 1, t = (size_t)oracle->tokens + 2,
           r = (size_t)oracle->rows + 1;
    slots->row = malloc(n * sizeof *slots->row);
    slots->token = malloc(n * sizeof *slots->token);
    slots->expert = malloc(n * sizeof *slots->expert);
    slots->weight = malloc(n * sizeof *slots->weight);
    slots->masked = calloc(n, sizeof *slots->masked);
    slots->start = calloc(t, sizeof *slots->start);
    slots->order = malloc(n * sizeof *slots->order);
    slots->slot_of_row = malloc(r * sizeof *slots->slot_of_row);
    if (slots->row != NULL && slots->token != NULL && slots->expert != NULL &&
        slots->weight != NULL && slots->masked != NULL && slots->start != NULL &&
        slots->order != NULL && slots->slot_of_row != NULL)
        return true;
    snprintf(oracle->error, TENSOR_FILE_ERROR_SIZE, "no memory for %" PRId64 " slots",
             oracle->slots);
    return false;
}

void oracle_slots_free(struct oracle_slots *slots)
{
    free(slots->row);
    free(slots->token);
    free(slots->expert);
    free(slots->weight);
    free(slots->masked);
    free(slots->start);
    free(slots->order);
    free(slots->slot_of_row);
}

/* unpermute_grad: out_index and permute_token_id say it. */
static void read_grad_slots(const struct oracle_case *oracle, struct oracle_slots *slots)
{
    int64_t per_token = oracle->tokens > 0 ? oracle->slots / oracle->tokens : 1;
    for (int64_t i = 0; i < oracle->slots; i++) {
        slots->row[i] = integer_at(oracle->out_index, i);
        slots->token[i] = oracle->permute_token_id != NULL ? integer_at(oracle->permute_token_id, i)
                                                           : i / per_token;
    }
}

/* The others: sorted_indices holds rows (dropless, token-major) or tokens (padded, by row). */
static bool read_sorted_slots(const struct oracle_case *oracle, struct oracle_slots *slots)
{
    int64_t per_token = oracle->tokens > 0 ? oracle->slots / oracle->tokens : 1;
    int64_t *sorted = malloc(((size_t)oracle->slots + 1) * sizeof *sorted);
    if (sorted == NULL)
        return fail_sizes(oracle, "no memory", oracle->slots, oracle->tokens);
    bool good = true;
    if (oracle->operator_kind == OPERATOR_PERMUTE)
        good = oracle->by_ids ? oracle_sorted_by_ids(oracle, sorted)
                              : oracle_sorted_indices(oracle, sorted);
    else
        for (int64_t i = 0; i < oracle->slots; i++)
            sorted[i] = integer_at(oracle->sorted_indices, i);
    for (int64_t i = 0; good && i < oracle->slots; i++) {
        slots->row[i] = oracle->drop_and_pad ? i : sorted[i];
        slots->token[i] = oracle->drop_and_pad ? sorted[i] : i / per_token;
    }
    free(sorted);
    return good;
}

static bool check_sizes(const struct oracle_case *oracle)
{
    bool token_is_named = oracle->drop_and_pad || oracle->permute_token_id != NULL;
    if (!token_is_named &&
        (oracle->tokens > 0 ? oracle->slots % oracle->tokens != 0 : oracle->slots > 0))
        return fail_sizes(oracle, "the slots are no multiple of the tokens", oracle->slots,
                          oracle->tokens);
    if (oracle->by_ids && oracle->topk >= 0 && oracle->topk * oracle->tokens != oracle->slots)
        return fail_sizes(oracle, "the slots are not T times K", oracle->slots, oracle->tokens);
    if (!needs_experts(oracle))
        return true;
    if (oracle->experts < 0 ||
        (oracle->routing_map == NULL && (!oracle->drop_and_pad || oracle->mask_fill_slots)))
        return fail_sizes(oracle, "routing_map is missing", oracle->slots, oracle->tokens);
    if (!oracle->drop_and_pad)
        return true;
    if (oracle->experts > 0 ? oracle->slots % oracle->experts != 0 : oracle->slots > 0)
        return fail_sizes(oracle, "the slots are no multiple of the experts", oracle->slots,
                          oracle->experts);
    if (oracle->experts > 0 && oracle->slots / oracle->experts > oracle->tokens)
        return fail_sizes(oracle, "the capacity is above the number of tokens", oracle->slots,
                          oracle->experts);
    return true;
}

static bool check_indices(const struct oracle_case *oracle, struct oracle_slots *slots)
{
    bool grad = oracle->operator_kind == OPERATOR_UNPERMUTE_GRAD;
    const char *row_name = grad ? "out_index" : "sorted_indices";
    const char *token_name = grad ? "permute_token_id" : "sorted_indices";
    for (int64_t r = 0; r < oracle->rows; r++)
        slots->slot_of_row[r] = -1;
    for (int64_t i = 0; i < oracle->slots; i++) {
        int64_t row = slots->row[i], token = slots->token[i];
        if (token < 0 || token >= oracle->tokens)
            return fail_index(oracle, token_name, i, token, oracle->tokens);
        slots->start[token + 1]++;
        if (row == -1 && !oracle->drop_and_pad)
            continue;
        if (row < 0 || row >= oracle->rows)
            return fail_index(oracle, row_name, i, row, oracle->rows);
        if (oracle->by_ids && oracle->operator_kind == OPERATOR_UNPERMUTE)
            continue; /* it only reads: a row may be named twice */
        if (slots->slot_of_row[row] >= 0) {
            snprintf(oracle->error, TENSOR_FILE_ERROR_SIZE,
                     "%s[%" PRId64 "] = %" PRId64 " names the row of slot %" PRId64, row_name, i,
                     row, slots->slot_of_row[row]);
            return false;
        }
        slots->slot_of_row[row] = i;
    }
    return true;
}

/* The slots of each token, in slot order. start[t + 1] holds the count of t. */
static void order_by_token(const struct oracle_case *oracle, struct oracle_slots *slots)
{
    for (int64_t t = 0; t < oracle->tokens; t++)
        slots->start[t + 1] += slots->start[t];
    for (int64_t i = oracle->slots - 1; i >= 0; i--)
        slots->order[--slots->start[slots->token[i] + 1]] = i;
    /* start[t + 1] is now where t begins; the begin of t + 1 is the end of t */
    for (int64_t t = 0; t < oracle->tokens; t++)
        slots->start[t] = slots->start[t + 1];
    slots->start[oracle->tokens] = oracle->slots;
}

/* Dropless: the j-th slot of a token has its j-th set expert. */
static bool name_experts_of_token(const struct oracle_case *oracle, struct oracle_slots *slots,
                                  int64_t token)
{
    int64_t next = slots->start[token], end = slots->start[token + 1], set = 0;
    for (int64_t e = 0; e < oracle->experts; e++) {
        if (!set_at(oracle->routing_map, token * oracle->experts + e))
            continue;
        set++;
        if (next < end)
            slots->expert[slots->order[next++]] = e;
    }
    if (oracle->tolerate_routing_mismatch)
        return true;
    bool good = set <= end - slots->start[token];
    for (; next < end; next++)
        good = good && slots->row[slots->order[next]] == -1;
    if (!good)
        snprintf(oracle->error, TENSOR_FILE_ERROR_SIZE,
                 "routing_map[%" PRId64 "] has %" PRId64
                 " set experts, which does not fit the %" PRId64 " slots of the token",
                 token, set, end - slots->start[token]);
    return good;
}

/* By ids: expert_ids say it, where there are any; an unused slot has none. */
static bool read_experts(const struct oracle_case *oracle, struct oracle_slots *slots)
{
    for (int64_t i = 0; oracle->expert_ids != NULL && i < oracle->slots; i++) {
        int64_t expert = integer_at(oracle->expert_ids, i);
        if (slots->row[i] < 0)
            continue;
        if (expert < 0 || expert >= oracle->experts)
            return fail_index(oracle, "expert_ids", i, expert, oracle->experts);
        slots->expert[i] = expert;
    }
    return true;
}

static bool name_experts(const struct oracle_case *oracle, struct oracle_slots *slots)
{
    for (int64_t i = 0; i < oracle->slots; i++)
        slots->expert[i] = -1;
    if (oracle->by_ids &&
        (oracle->expert_bias != NULL || oracle->operator_kind == OPERATOR_PERMUTE))
        return read_experts(oracle, slots);
    if (!needs_experts(oracle))
        return true;
    if (oracle->drop_and_pad) {
        for (int64_t i = 0; i < oracle->slots; i++)
            slots->expert[i] = slots->row[i] / (oracle->slots / oracle->experts);
        return true;
    }
    for (int64_t t = 0; t < oracle->tokens; t++)
        if (!name_experts_of_token(oracle, slots, t))
            return false;
    return true;
}

static void weigh_slots(const struct oracle_case *oracle, struct oracle_slots *slots)
{
    bool grad_or_combine = oracle->operator_kind == OPERATOR_UNPERMUTE_GRAD ||
                           oracle->operator_kind == OPERATOR_UNPERMUTE;
    bool mask = grad_or_combine && oracle->drop_and_pad && oracle->mask_fill_slots;
    for (int64_t i = 0; i < oracle->slots; i++) {
        int64_t expert = slots->expert[i];
        int64_t pair = expert < 0 ? -1 : slots->token[i] * oracle->experts + expert;
        slots->weight[i] = 1;
        slots->masked[i] = mask && !set_at(oracle->routing_map, pair);
        if (grad_or_combine && oracle->weights != NULL && slots->row[i] >= 0)
            slots->weight[i] = float_at(oracle->weights, i);
        if (grad_or_combine && oracle->probs != NULL)
            slots->weight[i] = pair < 0 ? 0 : float_at(oracle->probs, pair);
        if (slots->masked[i] || slots->row[i] < 0)
            slots->weight[i] = 0;
    }
}

bool oracle_slots_build(const struct oracle_case *oracle, struct oracle_slots *slots)
{
    memset(slots, 0, sizeof *slots);
    if (!check_sizes(oracle) || !allocate(oracle, slots))
        return false;
    if (oracle->operator_kind == OPERATOR_UNPERMUTE_GRAD)
        read_grad_slots(oracle, slots);
    else if (!read_sorted_slots(oracle, slots))
        return false;
    if (!check_indices(oracle, slots))
        return false;
    order_by_token(oracle, slots);
    if (!name_experts(oracle, slots))
        return false;
    weigh_slots(oracle, slots);
    return true;
}

/* Dropless: rows in expert order, ascending token inside; slot t*K + j is the j-th set expert. */
static bool sort_dropless(const struct oracle_case *oracle, int64_t *sorted)
{
    int64_t tokens = oracle->tokens, experts = oracle->experts, next_row = 0;
    int64_t per_token = tokens > 0 ? oracle->slots / tokens : 0;
    int64_t *used = calloc((size_t)tokens + 1, sizeof *used);
    bool good = true;
    if (used == NULL)
        return fail_sizes(oracle, "no memory", oracle->slots, oracle->tokens);
    for (int64_t i = 0; i < oracle->slots; i++)
        sorted[i] = -1;
    for (int64_t e = 0; good && tokens > 0 && e < experts; e++) {
        for (int64_t t = 0; good && t < tokens; t++) {
            if (!set_at(oracle->routing_map, t * experts + e))
                continue;
            good = used[t] < per_token && next_row < oracle->rows;
            if (good)
                sorted[t * per_token + used[t]++] = next_row++;
        }
    }
    free(used);
    if (!good)
        snprintf(oracle->error, TENSOR_FILE_ERROR_SIZE,
                 "routing_map has more set experts than %" PRId64 " slots or %" PRId64 " rows hold",
                 oracle->slots, oracle->rows);
    return good;
}

/* Padded: of each expert the first C tokens that are set, then the lowest that are not. */
static void sort_padded(const struct oracle_case *oracle, int64_t *sorted)
{
    int64_t experts = oracle->experts, capacity = experts > 0 ? oracle->slots / experts : 0;
    for (int64_t e = 0; capacity > 0 && e < experts; e++) {
        int64_t filled = 0;
        for (int pass = 0; pass < 2; pass++)
            for (int64_t t = 0; t < oracle->tokens && filled < capacity; t++)
                if (set_at(oracle->routing_map, t * experts + e) == (pass == 0))
                    sorted[e * capacity + filled++] = t;
    }
}

bool oracle_sorted_indices(const struct oracle_case *oracle, int64_t *sorted)
{
    if (!oracle->drop_and_pad)
        return sort_dropless(oracle, sorted);
    sort_padded(oracle, sorted);
    return true;
}
