/* slots.c - checks a routing's values and sorts its slots by token.
 *
 * Two passes over the index tensors (check and count; place), one over the routing map (check),
 * then nothing of the indices is looked at again. */
#include "slots.h"

#include "status.h"

#include <assert.h>
#include <inttypes.h>

/* ---- sizes ---------------------------------------------------------------------------------- */

static moetoken_status check_slots_per_token(struct moetoken_routing *routing)
{
    int64_t slots = routing->slots_num, tokens = routing->tokens_num;
    if (tokens == 0 ? slots != 0 : slots % tokens != 0)
        return moetoken_fail(MOETOKEN_ERR_SHAPE,
                             "N = %" PRId64 " (from %s) is not a multiple of T = %" PRId64, slots,
                             routing->row->name, tokens);
    routing->slots_per_token = tokens ? slots / tokens : 0;
    return MOETOKEN_OK;
}

static moetoken_status check_capacity(struct moetoken_routing *routing)
{
    int64_t slots = routing->slots_num, experts = routing->experts_num;
    if (experts == 0 ? slots != 0 : slots % experts != 0)
        return moetoken_fail(MOETOKEN_ERR_SHAPE,
                             "N = %" PRId64 " slots is not a multiple of E = %" PRId64, slots,
                             experts);
    routing->capacity = experts ? slots / experts : 0;
    if (routing->capacity > routing->tokens_num)
        return moetoken_fail(MOETOKEN_ERR_SHAPE,
                             "the capacity C = N / E = %" PRId64 " / %" PRId64 " = %" PRId64
                             " is more than T = %" PRId64,
                             slots, experts, routing->capacity, routing->tokens_num);
    return MOETOKEN_OK;
}

moetoken_status moetoken_routing_check(struct moetoken_routing *routing)
{
    int64_t slots = routing->slots_num, rows = routing->rows_num;
    if (routing->padded ? rows != slots : rows > slots)
        return moetoken_fail(MOETOKEN_ERR_SHAPE,
                             "the permuted tensors have R = %" PRId64
                             " rows, expected %s N = %" PRId64 " slots",
                             rows, routing->padded ? "exactly" : "at most", slots);
    moetoken_status status = MOETOKEN_OK;
    if (routing->token == NULL)
        status = check_slots_per_token(routing);
    if (status == MOETOKEN_OK && routing->padded && routing->with_experts)
        status = check_capacity(routing);
    return status;
}

static int64_t row_of_slot(const struct moetoken_routing *routing, int64_t i)
{
    return routing->row ? moetoken_index_load(routing->row, i) : i;
}

static int64_t token_of_slot(const struct moetoken_routing *routing, int64_t i)
{
    return routing->token ? moetoken_index_load(routing->token, i) : i / routing->slots_per_token;
}

/* ---- check and count ------------------------------------------------------------------------ */

static moetoken_status fail_range(const struct moetoken_view *index, int64_t i, int64_t value,
                                  int64_t end)
{
    return moetoken_fail(MOETOKEN_ERR_INDEX,
                         "%s[%" PRId64 "] = %" PRId64 " is outside [0, %" PRId64 ")", index->name,
                         i, value, end);
}

static moetoken_status fail_duplicate(const struct moetoken_routing *routing, int64_t i,
                                      int64_t row)
{
    int64_t earlier = 0;
    while (row_of_slot(routing, earlier) != row)
        earlier++;
    return moetoken_fail(MOETOKEN_ERR_DUPLICATE,
                         "%s[%" PRId64 "] = %" PRId64 " names the same row as %s[%" PRId64 "]",
                         routing->row->name, i, row, routing->row->name, earlier);
}

static moetoken_status check_row(const struct moetoken_routing *routing, int64_t i,
                                 struct moetoken_slots *slots)
{
    int64_t row = moetoken_index_load(routing->row, i);
    if (row == -1 && !routing->padded)
        return MOETOKEN_OK;
    if (row < 0 || row >= routing->rows_num)
        return fail_range(routing->row, i, row, routing->rows_num);
    assert(slots->named);
    uint64_t bit = 1ull << (row % 64);
    if (slots->named[row / 64] & bit)
        return fail_duplicate(routing, i, row);
    slots->named[row / 64] |= bit;
    slots->named_count++;
    return MOETOKEN_OK;
}

/* Checks all indices; leaves the number of slots of token t in start[t + 1]. */
static moetoken_status check_and_count(const struct moetoken_routing *routing,
                                       struct moetoken_slots *slots)
{
    memset(slots->start, 0, (size_t)(routing->tokens_num + 1) * sizeof *slots->start);
    if (slots->named)
        memset(slots->named, 0, (size_t)((routing->rows_num + 63) / 64) * sizeof *slots->named);
    for (int64_t i = 0; i < routing->slots_num; i++) {
        if (routing->row) {
            moetoken_status status = check_row(routing, i, slots);
            if (status != MOETOKEN_OK)
                return status;
        }
        int64_t token = token_of_slot(routing, i);
        if (token < 0 || token >= routing->tokens_num)
            return fail_range(routing->token, i, token, routing->tokens_num);
        slots->start[token + 1]++;
    }
    return MOETOKEN_OK;
}

/* ---- place ---------------------------------------------------------------------------------- */

/* From counts to places: start[t + 1] becomes where the slots of t begin. place_slots moves it on
 * to where they end, which is where those of t + 1 begin. */
static void counts_to_begins(const struct moetoken_routing *routing, struct moetoken_slots *slots)
{
    int64_t begin = 0;
    for (int64_t t = 0; t < routing->tokens_num; t++) {
        int64_t count = slots->start[t + 1];
        slots->start[t + 1] = begin;
        begin += count;
    }
}

static void place_slots(const struct moetoken_routing *routing, struct moetoken_slots *slots)
{
    for (int64_t i = 0; i < routing->slots_num; i++)
        slots->row[slots->start[token_of_slot(routing, i) + 1]++] = row_of_slot(routing, i);
}

/* ---- against the routing map ---------------------------------------------------------------- */

static uint64_t load_word(const char *from)
{
    uint64_t word;
    memcpy(&word, from, sizeof word);
    return word;
}

int64_t moetoken_map_next_set(const struct moetoken_view *map, const char *map_row, int64_t expert,
                              int64_t end)
{
    int64_t stride = map->stride[1];
    if (stride == 1) /* eight experts that are not set, at a time */
        while (expert + 8 <= end && load_word(map_row + expert) == 0)
            expert += 8;
    while (expert < end && map_row[expert * stride] == 0)
        expert++;
    return expert;
}

int64_t moetoken_expert_walk_next(struct moetoken_expert_walk *walk, int64_t row)
{
    const struct moetoken_routing *routing = walk->routing;
    if (!routing->with_experts)
        return -1;
    if (routing->padded)
        return row / routing->capacity;
    int64_t expert =
        moetoken_map_next_set(routing->map, walk->map, walk->next, routing->experts_num);
    if (expert == routing->experts_num)
        return -1;
    walk->next = expert + 1;
    return expert;
}

/* The slot, as the caller numbers them, of a token's slot with this ordinal. */
static int64_t slot_of_ordinal(const struct moetoken_routing *routing, int64_t token,
                               int64_t ordinal)
{
    int64_t i = 0;
    for (; i < routing->slots_num; i++)
        if (token_of_slot(routing, i) == token && ordinal-- == 0)
            break;
    return i;
}

static moetoken_status fail_no_expert(const struct moetoken_routing *routing, int64_t token,
                                      int64_t ordinal, int64_t row, int64_t experts)
{
    int64_t i = slot_of_ordinal(routing, token, ordinal);
    return moetoken_fail(MOETOKEN_ERR_ROUTING,
                         "%s[%" PRId64 "] = %" PRId64 " is slot %" PRId64 " of token %" PRId64
                         ", but %s[%" PRId64 "] has only %" PRId64 " set expert%s",
                         routing->row->name, i, row, ordinal, token, routing->map->name, token,
                         experts, experts == 1 ? "" : "s");
}

static moetoken_status check_token_against_map(const struct moetoken_routing *routing,
                                               const struct moetoken_slots *slots, int64_t token)
{
    assert(routing->row);
    int64_t begin = slots->start[token], count = slots->start[token + 1] - begin;
    const char *map_row = moetoken_view_at(routing->map, token, 0);
    int64_t experts = 0, end = routing->experts_num;
    for (int64_t e = 0; (e = moetoken_map_next_set(routing->map, map_row, e, end)) < end; e++)
        experts++;
    if (experts > count)
        return moetoken_fail(MOETOKEN_ERR_ROUTING,
                             "%s[%" PRId64 "] has %" PRId64 " set experts, but token %" PRId64
                             " has only %" PRId64 " slot%s",
                             routing->map->name, token, experts, token, count,
                             count == 1 ? "" : "s");
    for (int64_t j = experts; j < count; j++)
        if (slots->row[begin + j] != -1)
            return fail_no_expert(routing, token, j, slots->row[begin + j], experts);
    return MOETOKEN_OK;
}

/* ---- take, build, close ---------------------------------------------------------------------- */

moetoken_status moetoken_slots_take(int64_t tokens_num, int64_t slots_num,
                                    const moetoken_options *options, struct moetoken_slots *slots)
{
    *slots = (struct moetoken_slots){0};
    moetoken_status status =
        moetoken_workspace_take(options, tokens_num, slots_num, &slots->workspace);
    if (status != MOETOKEN_OK)
        return status;
    slots->start = slots->workspace.memory;
    slots->row = slots->start + tokens_num + 1;
    slots->scratch = slots->row + slots_num;
    return MOETOKEN_OK;
}

moetoken_status moetoken_slots_build(const struct moetoken_routing *routing,
                                     struct moetoken_slots *slots)
{
    slots->named = routing->row ? slots->scratch : NULL;
    moetoken_status status = check_and_count(routing, slots);
    if (status != MOETOKEN_OK)
        return status;
    counts_to_begins(routing, slots);
    place_slots(routing, slots);
    bool check_map = routing->with_experts && !routing->padded && !routing->tolerate_mismatch;
    for (int64_t t = 0; check_map && t < routing->tokens_num && status == MOETOKEN_OK; t++)
        status = check_token_against_map(routing, slots, t);
    return status;
}

moetoken_status moetoken_slots_open(const struct moetoken_routing *routing,
                                    const moetoken_options *options, struct moetoken_slots *slots)
{
    *slots = (struct moetoken_slots){0};
    if (routing->tokens_num == 0) {
        if (routing->slots_num == 0)
            return MOETOKEN_OK;
        return fail_range(routing->token, 0, token_of_slot(routing, 0), 0);
    }
    moetoken_status status =
        moetoken_slots_take(routing->tokens_num, routing->slots_num, options, slots);
    if (status == MOETOKEN_OK)
        status = moetoken_slots_build(routing, slots);
    return status;
}

void moetoken_slots_close(struct moetoken_slots *slots)
{
    moetoken_workspace_release(&slots->workspace);
}

/* ---- by expert ------------------------------------------------------------------------------ */

static bool is_grouped(const struct moetoken_routing *routing, const struct moetoken_slots *slots)
{
    for (int64_t t = 0; t < routing->tokens_num; t++)
        for (int64_t s = slots->start[t] + 1; s < slots->start[t + 1]; s++)
            if (slots->row[s - 1] / routing->capacity > slots->row[s] / routing->capacity)
                return false;
    return true;
}

static bool slot_comes_before(const struct moetoken_routing *routing, int64_t a, int64_t b)
{
    int64_t expert_a = row_of_slot(routing, a) / routing->capacity;
    int64_t expert_b = row_of_slot(routing, b) / routing->capacity;
    return expert_a != expert_b ? expert_a < expert_b : a < b;
}

/* Shell's sort, by thirds: in place, and an insertion sort where there are few. */
static void sort_slots(const struct moetoken_routing *routing, int64_t *slot, int64_t count)
{
    int64_t gap = 1;
    while (gap < count / 3)
        gap = 3 * gap + 1;
    for (; gap > 0; gap /= 3)
        for (int64_t i = gap; i < count; i++) {
            int64_t moving = slot[i], j = i;
            for (; j >= gap && slot_comes_before(routing, moving, slot[j - gap]); j -= gap)
                slot[j] = slot[j - gap];
            slot[j] = moving;
        }
}

/* A row's slot is not kept, so the slots are placed anew, as numbers, sorted, and turned into rows
 * again. Rare: index tensors made by unpermute are grouped already. */
void moetoken_slots_group_by_expert(const struct moetoken_routing *routing,
                                    struct moetoken_slots *slots)
{
    if (is_grouped(routing, slots))
        return;
    memmove(slots->start + 1, slots->start, (size_t)routing->tokens_num * sizeof *slots->start);
    for (int64_t i = 0; i < routing->slots_num; i++)
        slots->row[slots->start[token_of_slot(routing, i) + 1]++] = i;
    for (int64_t t = 0; t < routing->tokens_num; t++)
        sort_slots(routing, slots->row + slots->start[t], slots->start[t + 1] - slots->start[t]);
    for (int64_t s = 0; s < routing->slots_num; s++)
        slots->row[s] = row_of_slot(routing, slots->row[s]);
}
