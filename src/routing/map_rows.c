/* map_rows.c - rows from the routing map: counted and numbered when dropless, taken by each expert
 * when padded. */
#include "routing/map_rows.h"

#include "status.h"

#include <inttypes.h>

/* ---- dropless ------------------------------------------------------------------------------- */

/* A slot that has no row yet holds its expert as a number below -1; -1 is an unused slot. */
static int64_t pending(int64_t expert)
{
    return -2 - expert;
}

struct listing {
    const struct moetoken_view *map;
    int64_t *row;
    int64_t slots_per_token;
    int64_t *too_many; /* the first token with more set experts than slots */
};

/* Each token's slots get its set experts, in ascending order. */
static void list_experts(const void *context, int64_t first, int64_t end)
{
    const struct listing *listing = context;
    int64_t slots = listing->slots_per_token;
    for (int64_t t = first; t < end; t++) {
        int64_t *row = listing->row + t * slots, count = 0, expert;
        struct moetoken_map_walk walk = moetoken_map_walk_begin(listing->map, t);
        while ((expert = moetoken_map_walk_next(&walk)) >= 0 && count < slots)
            row[count++] = pending(expert);
        if (expert >= 0) {
            moetoken_keep_lowest(listing->too_many, t);
            return;
        }
        while (count < slots)
            row[count++] = -1;
    }
}

static moetoken_status fail_too_many(const struct listing *listing)
{
    int64_t token = *listing->too_many;
    return moetoken_fail(MOETOKEN_ERR_ROUTING,
                         "%s[%" PRId64 "] has %" PRId64
                         " set experts, but a token has only K = num_out_tokens / T = %" PRId64
                         " slots",
                         listing->map->name, token, moetoken_map_count_set(listing->map, token),
                         listing->slots_per_token);
}

/* The rows of experts [first, end) follow those of the experts before, from `row` on. next has room
 * for one number per expert. Returns one past the last row. */
static int64_t number_experts(int64_t *slot, int64_t slots_num, int64_t first, int64_t end,
                              int64_t row, int64_t *next)
{
    memset(next, 0, (size_t)(end - first) * sizeof *next);
    for (int64_t s = 0; s < slots_num; s++) {
        int64_t expert = pending(slot[s]);
        if (expert >= first && expert < end)
            next[expert - first]++;
    }
    for (int64_t e = 0; e < end - first; e++) {
        int64_t count = next[e];
        next[e] = row;
        row += count;
    }
    for (int64_t s = 0; s < slots_num; s++) {
        int64_t expert = pending(slot[s]);
        if (expert >= first && expert < end)
            slot[s] = next[expert - first]++;
    }
    return row;
}

/* The scratch memory holds counts for as many experts at a time as there are slots: usually all. */
moetoken_status moetoken_map_to_rows_dropless(const struct moetoken_view *map,
                                              int64_t slots_per_token,
                                              const struct moetoken_run *run,
                                              struct moetoken_slots *slots, int64_t *used)
{
    int64_t tokens = map->shape[0], experts = map->shape[1], too_many = tokens;
    int64_t slots_num = tokens * slots_per_token;
    const struct listing listing = {map, slots->row, slots_per_token, &too_many};
    moetoken_run_map_ranges(run, tokens * experts, tokens, list_experts, &listing);
    if (too_many < tokens)
        return fail_too_many(&listing);
    *used = 0;
    for (int64_t e = 0; slots_num > 0 && e < experts; e += slots_num)
        *used = number_experts(slots->row, slots_num, e,
                               experts - e < slots_num ? experts : e + slots_num, *used,
                               slots->scratch);
    return MOETOKEN_OK;
}

/* ---- padded --------------------------------------------------------------------------------- */

struct filling {
    const struct moetoken_view *map;
    int64_t capacity;
    int64_t *token_of_row; /* [E*C] */
};

/* Takes tokens for experts [first, end), at most as many as a mask holds: those that are set or
 * those that are not, in ascending order, until each expert has C. taken counts them. */
static void take_tokens(const struct filling *filling, int64_t first, int64_t end, bool set,
                        int64_t *taken)
{
    int64_t capacity = filling->capacity;
    uint64_t wanting = 0; /* bit j: expert first + j does not have C yet */
    for (int64_t e = first; e < end; e++)
        wanting |= (uint64_t)(taken[e - first] < capacity) << (e - first);
    for (int64_t t = 0; t < filling->map->shape[0] && wanting != 0; t++) {
        uint64_t mask = moetoken_map_mask(filling->map, t, first, end);
        mask = (set ? mask : ~mask) & wanting;
        for (; mask != 0; mask &= mask - 1) {
            int64_t j = __builtin_ctzll(mask);
            filling->token_of_row[(first + j) * capacity + taken[j]++] = t;
            if (taken[j] == capacity)
                wanting ^= mask & -mask;
        }
    }
}

/* Should the map change meanwhile, so that an expert finds fewer than C tokens, it gets token 0. */
static void pad_tokens(const struct filling *filling, int64_t expert, int64_t taken)
{
    for (int64_t c = taken; c < filling->capacity; c++)
        filling->token_of_row[expert * filling->capacity + c] = 0;
}

static void fill_experts(const void *context, int64_t first_mask, int64_t end_mask)
{
    const struct filling *filling = context;
    for (int64_t m = first_mask; m < end_mask; m++) {
        int64_t taken[MOETOKEN_EXPERTS_PER_MASK] = {0};
        int64_t first = m * MOETOKEN_EXPERTS_PER_MASK, end = first + MOETOKEN_EXPERTS_PER_MASK;
        if (end > filling->map->shape[1])
            end = filling->map->shape[1];
        take_tokens(filling, first, end, true, taken);
        take_tokens(filling, first, end, false, taken);
        for (int64_t e = first; e < end; e++)
            pad_tokens(filling, e, taken[e - first]);
    }
}

/* Works from a list of every row's token. */
void moetoken_map_to_rows_padded(const struct moetoken_view *map, int64_t capacity,
                                 const struct moetoken_run *run, struct moetoken_slots *slots)
{
    int64_t tokens = map->shape[0], experts = map->shape[1];
    int64_t masks = experts / MOETOKEN_EXPERTS_PER_MASK + (experts % MOETOKEN_EXPERTS_PER_MASK > 0);
    const struct filling filling = {map, capacity, slots->scratch};
    moetoken_run_map_ranges(run, tokens * experts, masks, fill_experts, &filling);
    moetoken_slots_place(tokens, experts * capacity, slots);
}
