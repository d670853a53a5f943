/* slots.c - checks a routing's values and sorts its slots by token.
 *
 * One pass over the index tensors copies, checks and counts the rows; where slots are not in token
 * order, a second one copies the tokens and places the slots; a pass over the routing map checks
 * the slots against it. From then on only the copies are used: a thread that changes an index
 * tensor in the meantime changes results, and nothing else. */
#include "routing/slots.h"

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
    if (routing->padded ? rows != slots : routing->by_map && rows > slots)
        return moetoken_fail(MOETOKEN_ERR_SHAPE,
                             "the permuted tensors have R = %" PRId64
                             " rows, expected %s N = %" PRId64 " slots",
                             rows, routing->padded ? "exactly" : "at most", slots);
    moetoken_status status = MOETOKEN_OK;
    if (routing->token == NULL)
        status = check_slots_per_token(routing);
    if (status == MOETOKEN_OK && routing->columns == MOETOKEN_COLUMNS_OF_ROW)
        status = check_capacity(routing);
    return status;
}

/* ---- check and count ------------------------------------------------------------------------ */

static moetoken_status fail_range(const struct moetoken_view *index, int64_t i, int64_t value,
                                  int64_t end)
{
    return moetoken_fail(MOETOKEN_ERR_INDEX,
                         "%s[%" PRId64 "] = %" PRId64 " is outside [0, %" PRId64 ")", index->name,
                         i, value, end);
}

static moetoken_status fail_row(const struct moetoken_routing *routing, const int64_t *row,
                                int64_t i)
{
    const char *name = routing->row->name;
    int64_t earlier = 0;
    if (row[i] < 0 || row[i] >= routing->rows_num)
        return fail_range(routing->row, i, row[i], routing->rows_num);
    while (row[earlier] != row[i])
        earlier++;
    return moetoken_fail(MOETOKEN_ERR_DUPLICATE,
                         "%s[%" PRId64 "] = %" PRId64 " names the same row as %s[%" PRId64 "]",
                         name, i, row[i], name, earlier);
}

static bool is_row(const struct moetoken_routing *routing, int64_t row)
{
    return (row >= 0 && row < routing->rows_num) || (row == -1 && !routing->padded);
}

/* Copies and checks the rows; where asked for, also that each is named only once. */
static moetoken_status check_rows(const struct moetoken_routing *routing,
                                  struct moetoken_slots *slots)
{
    int64_t i = 0, count = routing->slots_num;
    moetoken_index_load_many(routing->row, 0, count, slots->row);
    if (routing->repeated_rows)
        while (i < count && is_row(routing, slots->row[i]))
            i++;
    else
        i = moetoken_named_rows_check(slots->row, count, routing->rows_num, !routing->padded,
                                      slots->scratch, &slots->named);
    return i < count ? fail_row(routing, slots->row, i) : MOETOKEN_OK;
}

/* Slots whose tokens are unpacked at a time. */
#define SLOTS_PER_BLOCK 256

static moetoken_status check_tokens(const struct moetoken_routing *routing, int64_t first,
                                    int64_t count, const int64_t *token)
{
    for (int64_t j = 0; j < count; j++)
        if (token[j] < 0 || token[j] >= routing->tokens_num)
            return fail_range(routing->token, first + j, token[j], routing->tokens_num);
    return MOETOKEN_OK;
}

/* Leaves the number of slots of token t in start[t + 1]. in_order: slots come token by token. */
static moetoken_status count_tokens(const struct moetoken_routing *routing, int64_t *start,
                                    bool *in_order)
{
    int64_t token[SLOTS_PER_BLOCK], before = 0, left = routing->slots_num;
    memset(start, 0, (size_t)(routing->tokens_num + 1) * sizeof *start);
    *in_order = true;
    for (int64_t first = 0; left > 0; first += SLOTS_PER_BLOCK, left -= SLOTS_PER_BLOCK) {
        int64_t count = left < SLOTS_PER_BLOCK ? left : SLOTS_PER_BLOCK;
        moetoken_index_load_many(routing->token, first, count, token);
        moetoken_status status = check_tokens(routing, first, count, token);
        if (status != MOETOKEN_OK)
            return status;
        for (int64_t j = 0; j < count; j++) {
            start[token[j] + 1]++;
            *in_order &= before <= token[j];
            before = token[j];
        }
    }
    return MOETOKEN_OK;
}

/* ---- place ---------------------------------------------------------------------------------- */

/* Where slots come token by token, their rows are in place already. */
static void begin_in_order(const struct moetoken_routing *routing, int64_t *start)
{
    start[0] = 0;
    for (int64_t t = 0; t < routing->tokens_num; t++)
        start[t + 1] =
            routing->token ? start[t] + start[t + 1] : (t + 1) * routing->slots_per_token;
}

/* Sets start from the tokens in `token`, then turns each of them into the place of its slot. */
static void tokens_to_places(int64_t tokens_num, int64_t slots_num, int64_t *token, int64_t *start)
{
    int64_t begin = 0;
    memset(start, 0, (size_t)(tokens_num + 1) * sizeof *start);
    for (int64_t i = 0; i < slots_num; i++)
        start[token[i] + 1]++;
    for (int64_t t = 0; t < tokens_num; t++) { /* from counts to where the slots of t begin */
        int64_t count = start[t + 1];
        start[t + 1] = begin;
        begin += count;
    }
    for (int64_t i = 0; i < slots_num; i++) /* moves on to where those of t + 1 begin */
        token[i] = start[token[i] + 1]++;
}

void moetoken_slots_place(int64_t tokens_num, int64_t slots_num, struct moetoken_slots *slots)
{
    tokens_to_places(tokens_num, slots_num, slots->scratch, slots->start);
    for (int64_t i = 0; i < slots_num; i++)
        slots->row[slots->scratch[i]] = i;
}

/* Row i moves to place[i]: along each cycle of the permutation, which ends up as the identity. */
static void move_to_places(int64_t *row, int64_t *place, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        while (place[i] != i) {
            int64_t to = place[i], moved = row[to];
            row[to] = row[i];
            row[i] = moved;
            place[i] = place[to];
            place[to] = to;
        }
}

static void name_rows_again(const struct moetoken_routing *routing, struct moetoken_slots *slots)
{
    if (routing->row && !routing->repeated_rows)
        moetoken_named_rows_make(slots->row, routing->slots_num, routing->rows_num, slots->scratch,
                                 &slots->named);
}

/* Slots in any order: the tokens are copied, and checked in the copy, before they are used. */
static moetoken_status place_by_token(const struct moetoken_routing *routing,
                                      struct moetoken_slots *slots)
{
    int64_t tokens = routing->tokens_num, count = routing->slots_num;
    assert(routing->token);
    moetoken_index_load_many(routing->token, 0, count, slots->scratch);
    moetoken_status status = check_tokens(routing, 0, count, slots->scratch);
    if (status != MOETOKEN_OK)
        return status;
    if (routing->row == NULL) {
        moetoken_slots_place(tokens, count, slots);
        return MOETOKEN_OK;
    }
    tokens_to_places(tokens, count, slots->scratch, slots->start);
    move_to_places(slots->row, slots->scratch, count);
    name_rows_again(routing, slots);
    return MOETOKEN_OK;
}

static moetoken_status build(const struct moetoken_routing *routing, struct moetoken_slots *slots)
{
    bool in_order = true;
    moetoken_status status = MOETOKEN_OK;
    if (routing->row)
        status = check_rows(routing, slots);
    if (status == MOETOKEN_OK && routing->token && routing->row)
        status = count_tokens(routing, slots->start, &in_order);
    if (status != MOETOKEN_OK)
        return status;
    if (routing->row == NULL || !in_order)
        return place_by_token(routing, slots);
    begin_in_order(routing, slots->start);
    return MOETOKEN_OK;
}

/* ---- against the routing map ---------------------------------------------------------------- */

/* The caller's number of a token's slot with this ordinal. */
static int64_t slot_of_ordinal(const struct moetoken_routing *routing, int64_t token,
                               int64_t ordinal)
{
    int64_t i = 0;
    for (; i < routing->slots_num; i++)
        if ((routing->token ? moetoken_index_load(routing->token, i)
                            : i / routing->slots_per_token) == token &&
            ordinal-- == 0)
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

struct search {
    const struct moetoken_routing *routing;
    const struct moetoken_slots *slots;
    int64_t *found; /* the first token whose slots and set experts do not belong together */
};

/* The ordinal of a token's first slot that has a row but no expert; the number of its slots if
 * there is none. */
static int64_t first_without_expert(const struct moetoken_slots *slots, int64_t token,
                                    int64_t experts)
{
    int64_t begin = slots->start[token], count = slots->start[token + 1] - begin;
    while (experts < count && slots->row[begin + experts] == -1)
        experts++;
    return experts;
}

/* A token has as many set experts as slots, or fewer where the slots beyond are unused. */
static void find_mismatch(const void *context, int64_t first, int64_t end)
{
    const struct search *search = context;
    const int64_t *start = search->slots->start;
    for (int64_t t = first; t < end; t++)
        if (first_without_expert(search->slots, t,
                                 moetoken_map_count_set(search->routing->map, t)) !=
            start[t + 1] - start[t]) {
            moetoken_keep_lowest(search->found, t);
            return;
        }
}

static moetoken_status fail_mismatch(const struct moetoken_routing *routing,
                                     const struct moetoken_slots *slots, int64_t token)
{
    assert(routing->row);
    int64_t count = slots->start[token + 1] - slots->start[token];
    int64_t experts = moetoken_map_count_set(routing->map, token);
    if (experts > count)
        return moetoken_fail(MOETOKEN_ERR_ROUTING,
                             "%s[%" PRId64 "] has %" PRId64 " set experts, but token %" PRId64
                             " has only %" PRId64 " slot%s",
                             routing->map->name, token, experts, token, count,
                             count == 1 ? "" : "s");
    int64_t ordinal = first_without_expert(slots, token, experts);
    return fail_no_expert(routing, token, ordinal, slots->row[slots->start[token] + ordinal],
                          experts);
}

static moetoken_status check_against_map(const struct moetoken_routing *routing,
                                         const struct moetoken_run *run,
                                         const struct moetoken_slots *slots)
{
    int64_t tokens = routing->tokens_num, found = tokens;
    const struct search search = {routing, slots, &found};
    moetoken_run_map_ranges(run, tokens * routing->experts_num, tokens, find_mismatch, &search);
    return found < tokens ? fail_mismatch(routing, slots, found) : MOETOKEN_OK;
}

/* ---- take, open, close ---------------------------------------------------------------------- */

moetoken_status moetoken_slots_take(int64_t tokens_num, int64_t slots_num,
                                    const moetoken_options *options, struct moetoken_slots *slots)
{
    *slots = (struct moetoken_slots){0};
    size_t bytes;
    moetoken_status status = moetoken_workspace_size(tokens_num, slots_num, &bytes);
    if (status == MOETOKEN_OK)
        status = moetoken_workspace_take(options, bytes, &slots->workspace);
    if (status != MOETOKEN_OK)
        return status;
    slots->start = slots->workspace.memory;
    slots->row = slots->start + tokens_num + 1;
    slots->scratch = slots->row + slots_num;
    return MOETOKEN_OK;
}

moetoken_status moetoken_slots_open(const struct moetoken_routing *routing,
                                    const moetoken_options *options, const struct moetoken_run *run,
                                    struct moetoken_slots *slots)
{
    *slots = (struct moetoken_slots){0};
    if (routing->tokens_num == 0) {
        if (routing->slots_num == 0)
            return MOETOKEN_OK;
        assert(routing->token); /* else N is a multiple of 0 */
        return fail_range(routing->token, 0, moetoken_index_load(routing->token, 0), 0);
    }
    moetoken_status status =
        moetoken_slots_take(routing->tokens_num, routing->slots_num, options, slots);
    if (status == MOETOKEN_OK)
        status = build(routing, slots);
    if (status == MOETOKEN_OK && routing->columns == MOETOKEN_COLUMNS_OF_MAP &&
        !routing->tolerate_mismatch)
        status = check_against_map(routing, run, slots);
    return status;
}

void moetoken_slots_close(struct moetoken_slots *slots)
{
    moetoken_workspace_release(&slots->workspace);
}

/* ---- by expert ------------------------------------------------------------------------------ */

/* Rows that ascend have experts that ascend: no division is needed to see it. */
static bool is_grouped(const int64_t *row, int64_t count, int64_t capacity)
{
    for (int64_t s = 1; s < count; s++)
        if (row[s - 1] > row[s] && row[s - 1] / capacity > row[s] / capacity)
            return false;
    return true;
}

/* Merges two runs that lie side by side, each in the order of its experts; among equals, slots of
 * the first run come first. */
static void merge(const int64_t *row, int64_t first_count, int64_t count, int64_t capacity,
                  int64_t *merged)
{
    int64_t i = 0, j = first_count;
    for (int64_t k = 0; k < count; k++) {
        bool second = i == first_count || (j < count && row[j] / capacity < row[i] / capacity);
        merged[k] = row[second ? j++ : i++];
    }
}

/* A stable sort by expert: runs of 1, 2, 4, ... are merged in `scratch` and copied back. */
static void sort_by_expert(int64_t *row, int64_t count, int64_t capacity, int64_t *scratch)
{
    for (int64_t run = 1; run < count; run *= 2) {
        for (int64_t i = 0; i < count; i += 2 * run) {
            int64_t left = count - i;
            merge(row + i, left < run ? left : run, left < 2 * run ? left : 2 * run, capacity,
                  scratch + i);
        }
        memcpy(row, scratch, (size_t)count * sizeof *row);
    }
}

/* Rarely anything to do: index tensors made by unpermute are grouped already. */
void moetoken_slots_group_by_expert(const struct moetoken_routing *routing,
                                    struct moetoken_slots *slots)
{
    bool sorted = false;
    for (int64_t t = 0; t < routing->tokens_num; t++) {
        int64_t begin = slots->start[t], count = slots->start[t + 1] - begin;
        if (is_grouped(slots->row + begin, count, routing->capacity))
            continue;
        sort_by_expert(slots->row + begin, count, routing->capacity, slots->scratch);
        sorted = true;
    }
    if (sorted)
        name_rows_again(routing, slots);
}
