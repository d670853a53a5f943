/* expert_ids.c - a stable counting sort of slots by expert, in parallel.
 *
 * The tokens are cut into parts. Each part reads its ids and counts its slots of each expert, the
 * counts become the row where each part's slots of each expert begin, and the parts number their
 * slots from there. The counts live in the scratch memory, which has one number per slot. Where
 * there are as many experts as slots or more, the slots are sorted by comparison instead.
 *
 * Between reading and numbering a slot holds its expert, counted from the first one whose rows are
 * made; E' stands for a slot without one of these. */
#include "routing/expert_ids.h"

#include "status.h"

#include <inttypes.h>

struct sort {
    const struct moetoken_view *expert_ids;
    const struct moetoken_expert_rows *rows;
    const struct moetoken_expert_outputs *outputs;
    int64_t *row, *used;
    int64_t tokens, slots_num, parts;
    int64_t *first_wrong; /* the first slot of the first block that holds a wrong id */
    int64_t experts;      /* E' */
    int64_t *next;        /* counts, then the next row; NULL: not counted */
};

/* Between the counts of two parts, so that no two threads write to one line or its neighbour. */
#define COUNTS_APART 16

/* How many parts the counts of E' + 1 numbers each find room for in one number per slot. */
static int64_t parts_most(int64_t slots, int64_t experts)
{
    if (experts >= slots)
        return 0;
    int64_t most = slots / (experts + 1 + COUNTS_APART);
    return most > 0 ? most : 1;
}

static int64_t *counts_of_part(const struct sort *sort, int64_t part)
{
    return sort->next ? sort->next + part * (sort->experts + 1 + COUNTS_APART) : NULL;
}

/* Sorting so many bytes of slots takes about as long as reading a map of MOETOKEN_SERIAL_MAP_BYTES
 * with as many bytes as that. */
#define MAP_BYTES_PER_SLOT 64

static void run_parts(const struct sort *sort, const struct moetoken_run *run,
                      moetoken_range_fn *body)
{
    moetoken_run_map_ranges(run, sort->slots_num * MAP_BYTES_PER_SLOT, sort->parts, body, sort);
}

/* The first slot of a part. Parts are made of whole tokens. */
static int64_t part_begin(const struct sort *sort, int64_t part)
{
    int64_t length = sort->tokens / sort->parts, longer = sort->tokens % sort->parts;
    return (part * length + (part < longer ? part : longer)) * sort->expert_ids->shape[1];
}

/* ---- ids ------------------------------------------------------------------------------------ */

/* Reads the ids of `length` slots that lie in one line and turns them into experts as described
 * above. False if one of the ids is out of range. */
static bool read_line(const struct sort *sort, int64_t s, int64_t length, int64_t *count)
{
    const struct moetoken_view *ids = sort->expert_ids;
    const uint64_t all = (uint64_t)sort->rows->experts_num, own = (uint64_t)sort->experts;
    const uint64_t begin = (uint64_t)sort->rows->begin;
    const char *at = moetoken_view_at(ids, s / ids->shape[1], s % ids->shape[1]);
    const int64_t step = ids->stride[1];
    int64_t *row = sort->row + s;
    bool wrong = false;
    for (int64_t i = 0; i < length; i++, at += step) {
        uint64_t id = (uint64_t)moetoken_index_load_from(ids, at), expert = id - begin;
        wrong |= id + 1 > all; /* -1 becomes 0 */
        expert = expert < own ? expert : own;
        row[i] = (int64_t)expert;
        if (count)
            count[expert]++;
    }
    return !wrong;
}

/* Slots whose ids are read together where they all lie in one line, or whose rows are stored. */
#define SLOTS_PER_BLOCK 256

static void read_slots(const struct sort *sort, int64_t s, int64_t stop, int64_t *count)
{
    const struct moetoken_view *ids = sort->expert_ids;
    const int64_t per_token = ids->shape[1];
    const bool flat = ids->stride[0] == per_token * ids->stride[1];
    const int64_t block = flat ? SLOTS_PER_BLOCK : per_token;
    for (; s < stop; s += block)
        if (!read_line(sort, s, block < stop - s ? block : stop - s, count)) {
            moetoken_keep_lowest(sort->first_wrong, s);
            return;
        }
}

static void read_parts(const void *context, int64_t first, int64_t end)
{
    const struct sort *sort = context;
    for (int64_t part = first; part < end; part++) {
        int64_t *count = counts_of_part(sort, part);
        if (count)
            memset(count, 0, (size_t)(sort->experts + 1) * sizeof *count);
        read_slots(sort, part_begin(sort, part), part_begin(sort, part + 1), count);
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

/* ---- rows of experts ------------------------------------------------------------------------ */

/* One past the last row that an expert may fill. */
static int64_t last_row(const struct moetoken_expert_rows *rows, int64_t expert)
{
    return rows->capacity ? (expert + 1) * rows->capacity : rows->rows_num;
}

/* Records how many of an expert's `count` rows from `begin` on are kept. */
static void keep_rows(const struct sort *sort, int64_t expert, int64_t begin, int64_t count)
{
    int64_t room = last_row(sort->rows, expert) - begin;
    int64_t kept = count < room ? count : room > 0 ? room : 0;
    if (sort->outputs->rows_per_expert->given)
        moetoken_index_store(sort->outputs->rows_per_expert, expert, kept);
    *sort->used += kept;
}

/* An expert's first row, where `row` is the first one that no earlier expert has. */
static int64_t first_row(const struct moetoken_expert_rows *rows, int64_t expert, int64_t row)
{
    return rows->capacity ? expert * rows->capacity : row;
}

/* ---- number --------------------------------------------------------------------------------- */

/* From counts to the first rows of each expert's slots, part by part. */
static void counts_to_rows(const struct sort *sort)
{
    int64_t row = 0;
    for (int64_t e = 0; e < sort->experts; e++) {
        int64_t begin = row = first_row(sort->rows, e, row);
        for (int64_t part = 0; part < sort->parts; part++) {
            int64_t *next = counts_of_part(sort, part) + e, count = *next;
            *next = row;
            row += count;
        }
        keep_rows(sort, e, begin, row - begin);
    }
}

/* Slots without an expert are numbered as well, from beyond all rows on, and so get none: the loop
 * needs no branch. Unsigned, as E' * capacity may be 2^63 - 1. */
static void number_slots(const struct sort *sort, int64_t *next, int64_t *slot, int64_t count)
{
    const uint64_t capacity = (uint64_t)sort->rows->capacity;
    const int64_t room = capacity ? sort->rows->capacity : sort->rows->rows_num;
    const uint64_t last = (uint64_t)(room < sort->slots_num ? room : sort->slots_num);
    for (int64_t s = 0; s < count; s++) {
        uint64_t expert = (uint64_t)slot[s], row = (uint64_t)next[expert]++;
        slot[s] = row < last + expert * capacity ? (int64_t)row : -1;
    }
}

static void store_rows(const struct sort *sort, int64_t s, int64_t count)
{
    const struct moetoken_view *sorted_indices = sort->outputs->sorted_indices;
    const struct moetoken_view *source_slots = sort->outputs->source_slots;
    const int64_t *row = sort->row;
    if (sorted_indices->given)
        moetoken_index_store_many(sorted_indices, s, count, row + s);
    if (source_slots->given)
        moetoken_index_store_places(source_slots, s, count, row + s);
}

static void number_parts(const void *context, int64_t first, int64_t end)
{
    const struct sort *sort = context;
    for (int64_t part = first; part < end; part++) {
        int64_t *next = counts_of_part(sort, part), stop = part_begin(sort, part + 1);
        next[sort->experts] = -1 - sort->slots_num;
        for (int64_t s = part_begin(sort, part); s < stop; s += SLOTS_PER_BLOCK) {
            int64_t count = SLOTS_PER_BLOCK < stop - s ? SLOTS_PER_BLOCK : stop - s;
            number_slots(sort, next, sort->row + s, count);
            store_rows(sort, s, count);
        }
    }
}

/* ---- compare and number --------------------------------------------------------------------- */

static bool comes_before(const int64_t *row, int64_t a, int64_t b)
{
    return row[a] != row[b] ? row[a] < row[b] : a < b;
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

static void number_by_comparing(const struct sort *sort, int64_t *slot)
{
    int64_t *row = sort->row, count = 0, next = 0;
    for (int64_t s = 0; s < sort->slots_num; s++)
        if (row[s] < sort->experts)
            slot[count++] = s;
        else
            row[s] = -1;
    sort_slots(row, slot, count);
    for (int64_t e = 0; sort->outputs->rows_per_expert->given && e < sort->experts; e++)
        moetoken_index_store(sort->outputs->rows_per_expert, e, 0);
    for (int64_t i = 0, end; i < count; i = end) {
        int64_t expert = row[slot[i]], stop = last_row(sort->rows, expert);
        int64_t begin = next = first_row(sort->rows, expert, next);
        for (end = i; end < count && row[slot[end]] == expert; end++)
            next++;
        for (int64_t j = i; j < end; j++)
            row[slot[j]] = begin + (j - i) < stop ? begin + (j - i) : -1;
        keep_rows(sort, expert, begin, end - i);
    }
}

/* ---- both ----------------------------------------------------------------------------------- */

moetoken_status moetoken_expert_ids_to_rows(const struct moetoken_view *expert_ids,
                                            const struct moetoken_expert_rows *rows,
                                            const struct moetoken_run *run, int64_t *row,
                                            int64_t *scratch,
                                            const struct moetoken_expert_outputs *outputs,
                                            int64_t *used)
{
    int64_t tokens = expert_ids->shape[0], slots = tokens * expert_ids->shape[1];
    int64_t experts = rows->end - rows->begin, most = parts_most(slots, experts);
    int64_t parts = most < run->threads ? most : run->threads, first_wrong = slots;
    struct sort sort = {.expert_ids = expert_ids,
                        .rows = rows,
                        .outputs = outputs,
                        .row = row,
                        .tokens = tokens,
                        .slots_num = slots,
                        .parts = parts > 0 ? parts : 1,
                        .used = used,
                        .first_wrong = &first_wrong,
                        .experts = experts,
                        .next = most > 0 ? scratch : NULL};
    *used = 0;
    run_parts(&sort, run, read_parts);
    if (first_wrong < slots)
        return fail_id(&sort);
    if (sort.next == NULL) {
        number_by_comparing(&sort, scratch);
        if (slots > 0)
            store_rows(&sort, 0, slots);
    } else {
        counts_to_rows(&sort);
        run_parts(&sort, run, number_parts);
    }
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
