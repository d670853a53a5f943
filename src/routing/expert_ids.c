/* expert_ids.c - a stable counting sort of slots by expert, in parallel.
 *
 * The slots are cut into parts, the parts count their slots of each expert, the counts become the
 * row where each part's slots of each expert begin, and the parts number their slots from there.
 * The counts live in the scratch memory, which has one number per slot. Where there are more
 * experts than slots, the slots are sorted by comparison instead. */
#include "routing/expert_ids.h"

#include "status.h"

#include <inttypes.h>

/* A slot that has no row yet holds its expert as a number below -1; -1 is an unused slot. */
static int64_t pending(int64_t expert)
{
    return -2 - expert;
}

struct sort {
    const struct moetoken_view *expert_ids;
    const struct moetoken_expert_rows *rows;
    const struct moetoken_view *rows_per_expert;
    int64_t *row, *used;
    int64_t slots_num, parts;
    int64_t *first_wrong; /* the first slot of the first block that holds a wrong id */
    int64_t experts;      /* E' */
    int64_t *next;        /* [parts][experts] counts, then the next row */
};

/* ---- ids ------------------------------------------------------------------------------------ */

/* Slots whose ids are read together. */
#define SLOTS_PER_BLOCK 256

/* Turns ids into pending experts, or -1. False if one of them is out of range. */
static bool take_ids(const struct moetoken_expert_rows *rows, int64_t *row, int64_t count)
{
    const uint64_t all = (uint64_t)rows->experts_num, own = (uint64_t)(rows->end - rows->begin);
    const int64_t begin = rows->begin;
    uint64_t wrong = 0;
    for (int64_t s = 0; s < count; s++) {
        int64_t id = row[s];
        wrong |= (uint64_t)id + 1 > all; /* -1 becomes 0 */
        row[s] = (uint64_t)id - (uint64_t)begin < own ? pending(id - begin) : -1;
    }
    return wrong == 0;
}

/* Reads the ids of tokens [first, end), all at once where they are contiguous, else token by token.
 */
static void read_ids(const void *context, int64_t first, int64_t end)
{
    const struct sort *sort = context;
    const struct moetoken_view *ids = sort->expert_ids;
    const bool flat = ids->stride[0] == ids->shape[1] * ids->stride[1];
    const int64_t per_token = ids->shape[1], stop = end * per_token;
    for (int64_t s = first * per_token; s < stop;) {
        int64_t length = flat ? SLOTS_PER_BLOCK : per_token;
        length = length < stop - s ? length : stop - s;
        struct moetoken_view line = *ids; /* as a tensor of one dimension, from slot s on */
        line.data = moetoken_view_at(ids, s / per_token, s % per_token);
        line.stride[0] = ids->stride[1];
        moetoken_index_load_many(&line, 0, length, sort->row + s);
        if (!take_ids(sort->rows, sort->row + s, length)) {
            moetoken_keep_lowest(sort->first_wrong, s);
            return;
        }
        s += length;
    }
}

/* Reports the first wrong id of the block of slots that starts at *first_wrong. */
static moetoken_status fail_id(const struct sort *sort)
{
    const struct moetoken_view *ids = sort->expert_ids;
    int64_t per_token = ids->shape[1], experts = sort->rows->experts_num, id = 0, s;
    for (s = *sort->first_wrong; s < sort->slots_num - 1; s++) {
        id = moetoken_index_load_at(ids, s / per_token, s % per_token);
        if (id < -1 || id >= experts)
            break;
    }
    return moetoken_fail(MOETOKEN_ERR_INDEX,
                         "%s[%" PRId64 ", %" PRId64 "] = %" PRId64 " is outside [-1, %" PRId64 ")",
                         ids->name, s / per_token, s % per_token,
                         moetoken_index_load_at(ids, s / per_token, s % per_token), experts);
}

/* ---- count and number ----------------------------------------------------------------------- */

static int64_t part_begin(const struct sort *sort, int64_t part)
{
    int64_t length = sort->slots_num / sort->parts, longer = sort->slots_num % sort->parts;
    return part * length + (part < longer ? part : longer);
}

static void count_parts(const void *context, int64_t first, int64_t end)
{
    const struct sort *sort = context;
    for (int64_t part = first; part < end; part++) {
        int64_t *count = sort->next + part * sort->experts;
        const int64_t *slot = sort->row, stop = part_begin(sort, part + 1);
        const uint64_t experts = (uint64_t)sort->experts;
        memset(count, 0, (size_t)experts * sizeof *count);
        for (int64_t s = part_begin(sort, part); s < stop; s++) {
            uint64_t expert = (uint64_t)pending(slot[s]);
            if (expert < experts)
                count[expert]++;
        }
    }
}

/* One past the last row that an expert may fill. */
static int64_t last_row(const struct moetoken_expert_rows *rows, int64_t expert)
{
    return rows->capacity ? (expert + 1) * rows->capacity : rows->rows_num;
}

static void number_parts(const void *context, int64_t first, int64_t end)
{
    const struct sort *sort = context;
    for (int64_t part = first; part < end; part++) {
        int64_t *next = sort->next + part * sort->experts, *slot = sort->row;
        const int64_t stop = part_begin(sort, part + 1);
        const uint64_t experts = (uint64_t)sort->experts;
        for (int64_t s = part_begin(sort, part); s < stop; s++) {
            uint64_t expert = (uint64_t)pending(slot[s]);
            if (expert >= experts)
                continue;
            int64_t row = next[expert]++;
            slot[s] = row < last_row(sort->rows, (int64_t)expert) ? row : -1;
        }
    }
}

/* Records how many of an expert's `count` rows from `begin` on are kept. */
static void keep_rows(const struct sort *sort, int64_t expert, int64_t begin, int64_t count)
{
    int64_t room = last_row(sort->rows, expert) - begin;
    int64_t kept = count < room ? count : room > 0 ? room : 0;
    if (sort->rows_per_expert->given)
        moetoken_index_store(sort->rows_per_expert, expert, kept);
    *sort->used += kept;
}

/* An expert's first row, where `row` is the first one that no earlier expert has. */
static int64_t first_row(const struct moetoken_expert_rows *rows, int64_t expert, int64_t row)
{
    return rows->capacity ? expert * rows->capacity : row;
}

/* From counts to the first rows of each expert's slots, part by part. */
static void counts_to_rows(const struct sort *sort)
{
    int64_t row = 0;
    for (int64_t e = 0; e < sort->experts; e++) {
        int64_t begin = row = first_row(sort->rows, e, row);
        for (int64_t part = 0; part < sort->parts; part++) {
            int64_t *next = &sort->next[part * sort->experts + e], count = *next;
            *next = row;
            row += count;
        }
        keep_rows(sort, e, begin, row - begin);
    }
}

static void number_by_counting(struct sort *sort, const struct moetoken_run *run)
{
    int64_t bytes = sort->slots_num * (int64_t)sizeof *sort->row;
    int64_t most = sort->experts > 0 ? sort->slots_num / sort->experts : 1;
    sort->parts = most < run->threads ? most : run->threads;
    moetoken_run_map_ranges(run, bytes, sort->parts, count_parts, sort);
    counts_to_rows(sort);
    moetoken_run_map_ranges(run, bytes, sort->parts, number_parts, sort);
}

/* ---- compare and number --------------------------------------------------------------------- */

static bool comes_before(const int64_t *row, int64_t a, int64_t b)
{
    return row[a] != row[b] ? pending(row[a]) < pending(row[b]) : a < b;
}

/* Shellsort, with gaps that shrink by thirds. */
static void sort_slots(const int64_t *row, int64_t *slot, int64_t count)
{
    int64_t gap = 1;
    while (gap < count / 3)
        gap = 3 * gap + 1;
    for (; gap > 0; gap /= 3)
        for (int64_t i = gap; i < count; i++) {
            int64_t moving = slot[i], j = i;
            for (; j >= gap && comes_before(row, moving, slot[j - gap]); j -= gap)
                slot[j] = slot[j - gap];
            slot[j] = moving;
        }
}

static void number_by_comparing(const struct sort *sort)
{
    int64_t *slot = sort->next, *row = sort->row, count = 0, next = 0;
    for (int64_t s = 0; s < sort->slots_num; s++)
        if (row[s] != -1)
            slot[count++] = s;
    sort_slots(row, slot, count);
    for (int64_t e = 0; sort->rows_per_expert->given && e < sort->experts; e++)
        moetoken_index_store(sort->rows_per_expert, e, 0);
    for (int64_t i = 0, end; i < count; i = end) {
        int64_t expert = pending(row[slot[i]]), stop = last_row(sort->rows, expert);
        int64_t begin = next = first_row(sort->rows, expert, next);
        for (end = i; end < count && pending(row[slot[end]]) == expert; end++)
            next++;
        for (int64_t j = i; j < end; j++)
            row[slot[j]] = begin + (j - i) < stop ? begin + (j - i) : -1;
        keep_rows(sort, expert, begin, end - i);
    }
}

moetoken_status moetoken_expert_ids_to_rows(const struct moetoken_view *expert_ids,
                                            const struct moetoken_expert_rows *rows,
                                            const struct moetoken_run *run, int64_t *row,
                                            int64_t *scratch,
                                            const struct moetoken_view *rows_per_expert,
                                            int64_t *used)
{
    int64_t tokens = expert_ids->shape[0], slots = tokens * expert_ids->shape[1];
    int64_t first_wrong = slots;
    struct sort sort = {.expert_ids = expert_ids,
                        .rows = rows,
                        .rows_per_expert = rows_per_expert,
                        .row = row,
                        .slots_num = slots,
                        .used = used,
                        .first_wrong = &first_wrong,
                        .experts = rows->end - rows->begin,
                        .next = scratch};
    *used = 0;
    moetoken_run_map_ranges(run, slots * (int64_t)sizeof *row, tokens, read_ids, &sort);
    if (first_wrong < slots)
        return fail_id(&sort);
    if (slots > 0 && sort.experts <= slots)
        number_by_counting(&sort, run);
    else
        number_by_comparing(&sort);
    return MOETOKEN_OK;
}

/* ---- the slots that are used ---------------------------------------------------------------- */

moetoken_status moetoken_expert_ids_check_used(const struct moetoken_view *expert_ids,
                                               const int64_t *row, int64_t experts_num)
{
    int64_t tokens = expert_ids->shape[0], slots = expert_ids->shape[1];
    for (int64_t t = 0; t < tokens; t++)
        for (int64_t k = 0; k < slots; k++) {
            int64_t id = moetoken_index_load_at(expert_ids, t, k);
            if (row[t * slots + k] >= 0 && (id < 0 || id >= experts_num))
                return moetoken_fail(MOETOKEN_ERR_INDEX,
                                     "%s[%" PRId64 ", %" PRId64 "] = %" PRId64
                                     " is outside [0, %" PRId64 "), and its slot has row %" PRId64,
                                     expert_ids->name, t, k, id, experts_num, row[t * slots + k]);
        }
    return MOETOKEN_OK;
}
