/* slots.c - checks a routing's values and sorts its slots by token.
 *
 * One pass over the index tensors (check and count), another where slots do not come token by token
 * (place), one over the routing map (check), then nothing of the indices is looked at again. */
#include "slots.h"

#include "status.h"

#include <assert.h>
#include <inttypes.h>
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

/* ---- the routing map ------------------------------------------------------------------------ */

#define EXPERTS_PER_WORD 8

/* Bit j: from[j] is not zero, of eight bytes. */
static uint64_t mask_of_word(const char *from)
{
    const uint64_t low = UINT64_C(0x7f7f7f7f7f7f7f7f); /* all but the top bit of each byte */
    uint64_t word;
    memcpy(&word, from, sizeof word);
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    word = __builtin_bswap64(word);
#endif
    uint64_t tops = (((word & low) + low) | word) & ~low;    /* bit 8 j + 7 */
    return (tops >> 7) * UINT64_C(0x0102040810204080) >> 56; /* which moves bit 8 j to 56 + j */
}

#if defined(__SSE2__) /* part of x86-64 */

/* The same of 64 bytes. */
static uint64_t mask_of_64(const char *from)
{
    uint64_t zero = 0;
    for (int j = 0; j < 64; j += 16) {
        __m128i bytes = _mm_loadu_si128((const __m128i *)(const void *)(from + j));
        int mask = _mm_movemask_epi8(_mm_cmpeq_epi8(bytes, _mm_setzero_si128()));
        zero |= (uint64_t)(unsigned)mask << j;
    }
    return ~zero;
}

#else

static uint64_t mask_of_64(const char *from)
{
    uint64_t mask = 0;
    for (int j = 0; j < 64; j += EXPERTS_PER_WORD)
        mask |= mask_of_word(from + j) << j;
    return mask;
}

#endif

/* The same of up to 64 bytes of a row of the map, at least 8 of which lie before their end. What
 * lies behind it is not read: the last word begins earlier instead. */
static uint64_t mask_of_bytes(const char *from, int64_t count)
{
    uint64_t mask = 0;
    int64_t j = 0;
    if (count == 64)
        return mask_of_64(from);
    for (; j + EXPERTS_PER_WORD <= count; j += EXPERTS_PER_WORD)
        mask |= mask_of_word(from + j) << j;
    if (j < count) {
        j = count - EXPERTS_PER_WORD;
        uint64_t last = mask_of_word(from + j);
        mask |= j < 0 ? last >> -j : last << j;
    }
    return mask;
}

uint64_t moetoken_map_mask(const struct moetoken_view *map, int64_t token, int64_t first,
                           int64_t end)
{
    int64_t count = end - first, stride = map->stride[1];
    const char *map_row = moetoken_view_at(map, token, 0);
    if (count > MOETOKEN_EXPERTS_PER_MASK)
        count = MOETOKEN_EXPERTS_PER_MASK;
    if (stride == 1 && first + count >= EXPERTS_PER_WORD)
        return mask_of_bytes(map_row + first, count);
    uint64_t mask = 0;
    for (int64_t j = 0; j < count; j++)
        mask |= (uint64_t)(map_row[(first + j) * stride] != 0) << j;
    return mask;
}

int64_t moetoken_map_count_set(const struct moetoken_view *map, int64_t token)
{
    int64_t count = 0, experts = map->shape[1];
    for (int64_t e = 0; e < experts; e += MOETOKEN_EXPERTS_PER_MASK)
        count += __builtin_popcountll(moetoken_map_mask(map, token, e, experts));
    return count;
}

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

/* Slots whose indices are unpacked at a time. */
#define SLOTS_PER_BLOCK 256

static int64_t block_length(const struct moetoken_routing *routing, int64_t first)
{
    int64_t left = routing->slots_num - first;
    return left < SLOTS_PER_BLOCK ? left : SLOTS_PER_BLOCK;
}

static void load_rows(const struct moetoken_routing *routing, int64_t first, int64_t count,
                      int64_t *row)
{
    if (routing->row)
        moetoken_index_load_many(routing->row, first, count, row);
    else
        for (int64_t j = 0; j < count; j++)
            row[j] = first + j;
}

/* Marks rows as named up to the first one, if any, that is not right, and returns its place. */
static int64_t name_rows(const struct moetoken_routing *routing, const int64_t *row, int64_t count,
                         struct moetoken_slots *slots)
{
    uint64_t *named = slots->named;
    int64_t rows_num = routing->rows_num, used = 0, j = 0;
    for (; j < count; j++) {
        if (row[j] == -1 && !routing->padded)
            continue;
        if (row[j] < 0 || row[j] >= rows_num)
            break;
        uint64_t bit = 1ull << (row[j] % 64);
        if (named[row[j] / 64] & bit)
            break;
        named[row[j] / 64] |= bit;
        used++;
    }
    slots->named_count += used;
    return j;
}

static moetoken_status fail_row(const struct moetoken_routing *routing, int64_t i)
{
    int64_t row = row_of_slot(routing, i);
    if (row < 0 || row >= routing->rows_num)
        return fail_range(routing->row, i, row, routing->rows_num);
    return fail_duplicate(routing, i, row);
}

/* Counts the slots of token t in start[t + 1], up to the first token, if any, that is not right,
 * and returns its place. */
static int64_t count_tokens(const struct moetoken_routing *routing, const int64_t *token,
                            int64_t count, int64_t *start)
{
    int64_t tokens_num = routing->tokens_num;
    for (int64_t j = 0; j < count; j++) {
        if (token[j] < 0 || token[j] >= tokens_num)
            return j;
        start[token[j] + 1]++;
    }
    return count;
}

static bool is_ascending(const int64_t *token, int64_t count)
{
    for (int64_t j = 1; j < count; j++)
        if (token[j - 1] > token[j])
            return false;
    return true;
}

/* Checks all indices; leaves the number of slots of token t in start[t + 1], where tokens are
 * given, and the rows in the order of the slots. in_order: that is token by token. */
static moetoken_status check_and_count(const struct moetoken_routing *routing,
                                       struct moetoken_slots *slots, bool *in_order)
{
    int64_t before_and_block[1 + SLOTS_PER_BLOCK], *token = before_and_block + 1;
    memset(slots->start, 0, (size_t)(routing->tokens_num + 1) * sizeof *slots->start);
    if (slots->named)
        memset(slots->named, 0, (size_t)((routing->rows_num + 63) / 64) * sizeof *slots->named);
    *in_order = true;
    before_and_block[0] = 0;
    for (int64_t first = 0; first < routing->slots_num; first += SLOTS_PER_BLOCK) {
        int64_t count = block_length(routing, first), rows_good = count, tokens_good = count;
        load_rows(routing, first, count, slots->row + first);
        if (slots->named)
            rows_good = name_rows(routing, slots->row + first, count, slots);
        if (routing->token) {
            moetoken_index_load_many(routing->token, first, count, token);
            tokens_good = count_tokens(routing, token, count, slots->start);
            *in_order = *in_order && is_ascending(before_and_block, 1 + count);
            before_and_block[0] = token[count - 1];
        }
        if (rows_good < count && rows_good <= tokens_good)
            return fail_row(routing, first + rows_good);
        if (tokens_good < count)
            return fail_range(routing->token, first + tokens_good, token[tokens_good],
                              routing->tokens_num);
    }
    return MOETOKEN_OK;
}

/* ---- place ---------------------------------------------------------------------------------- */

/* Where slots come token by token, their rows are in place already. */
static void place_nothing(const struct moetoken_routing *routing, struct moetoken_slots *slots)
{
    for (int64_t t = 0; t < routing->tokens_num; t++)
        slots->start[t + 1] = routing->token ? slots->start[t] + slots->start[t + 1]
                                             : (t + 1) * routing->slots_per_token;
}

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
    int64_t row[SLOTS_PER_BLOCK], token[SLOTS_PER_BLOCK];
    for (int64_t first = 0; first < routing->slots_num; first += SLOTS_PER_BLOCK) {
        int64_t count = block_length(routing, first);
        load_rows(routing, first, count, row);
        moetoken_index_load_many(routing->token, first, count, token);
        for (int64_t j = 0; j < count; j++)
            slots->row[slots->start[token[j] + 1]++] = row[j];
    }
}

/* ---- against the routing map ---------------------------------------------------------------- */

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

struct search {
    const struct moetoken_routing *routing;
    const struct moetoken_slots *slots;
    int64_t *found; /* the first token whose slots and set experts do not belong together */
};

/* The first slot of a token that holds a row but has no expert, as an ordinal, or the number of its
 * slots. */
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
                                     const struct moetoken_run *run, struct moetoken_slots *slots)
{
    bool in_order;
    slots->named = routing->row ? slots->scratch : NULL;
    moetoken_status status = check_and_count(routing, slots, &in_order);
    if (status != MOETOKEN_OK)
        return status;
    if (in_order) {
        place_nothing(routing, slots);
    } else {
        counts_to_begins(routing, slots);
        place_slots(routing, slots);
    }
    if (routing->with_experts && !routing->padded && !routing->tolerate_mismatch)
        status = check_against_map(routing, run, slots);
    return status;
}

moetoken_status moetoken_slots_open(const struct moetoken_routing *routing,
                                    const moetoken_options *options, const struct moetoken_run *run,
                                    struct moetoken_slots *slots)
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
        status = moetoken_slots_build(routing, run, slots);
    return status;
}

void moetoken_slots_close(struct moetoken_slots *slots)
{
    moetoken_workspace_release(&slots->workspace);
}

/* ---- by expert ------------------------------------------------------------------------------ */

/* Rows that ascend need no division to tell that their experts do. */
static bool is_grouped(const struct moetoken_routing *routing, const struct moetoken_slots *slots)
{
    const int64_t *row = slots->row, *start = slots->start;
    int64_t capacity = routing->capacity;
    for (int64_t t = 0; t < routing->tokens_num; t++)
        for (int64_t s = start[t] + 1; s < start[t + 1]; s++)
            if (row[s - 1] > row[s] && row[s - 1] / capacity > row[s] / capacity)
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
