/* expert_ids.c - a stable counting sort of slots by expert, in parallel.
 *
 * The slots are cut into parts, the parts count their slots of each expert, the counts become the
 * row where each part's slots of each expert begin, and the parts number their slots from there.
 * The counts stand in the scratch memory, a number a slot: where experts are more than that leaves
 * for one part, they are sorted in blocks of as many experts as there are slots. */
#include "routing/expert_ids.h"

#include "status.h"

#include <inttypes.h>

/* A slot that waits for its row holds its expert below -1, which is an unused slot. */
static int64_t pending(int64_t expert)
{
    return -2 - expert;
}

struct sort {
    const struct moetoken_view *expert_ids;
    const struct moetoken_expert_rows *rows;
    int64_t *row;
    int64_t slots_num, parts;
    int64_t *first_wrong; /* the first slot whose id is out of range */

    int64_t first, experts; /* the block: experts [first, first + experts), from rows->begin on */
    int64_t *next;          /* [parts][experts] counts, then the next row */
};

/* ---- ids ------------------------------------------------------------------------------------ */

/* Reads the ids of tokens [first, end): each slot's expert, pending, or -1. */
static void read_ids(const void *context, int64_t first, int64_t end)
{
    const struct sort *sort = context;
    const struct moetoken_expert_rows *rows = sort->rows;
    int64_t slots = sort->expert_ids->shape[1];
    for (int64_t t = first; t < end; t++) {
        int64_t *row = sort->row + t * slots;
        for (int64_t k = 0; k < slots; k++) {
            int64_t id = moetoken_index_load_at(sort->expert_ids, t, k);
            if (id < -1 || id >= rows->experts_num) {
                moetoken_keep_lowest(sort->first_wrong, t * slots + k);
                return;
            }
            row[k] = id >= rows->begin && id < rows->end ? pending(id - rows->begin) : -1;
        }
    }
}

static moetoken_status fail_id(const struct sort *sort)
{
    int64_t slots = sort->expert_ids->shape[1];
    int64_t t = *sort->first_wrong / slots, k = *sort->first_wrong % slots;
    return moetoken_fail(MOETOKEN_ERR_INDEX,
                         "%s[%" PRId64 ", %" PRId64 "] = %" PRId64 " is outside [-1, %" PRId64 ")",
                         sort->expert_ids->name, t, k,
                         moetoken_index_load_at(sort->expert_ids, t, k), sort->rows->experts_num);
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
        memset(count, 0, (size_t)sort->experts * sizeof *count);
        for (int64_t s = part_begin(sort, part); s < part_begin(sort, part + 1); s++) {
            uint64_t expert = (uint64_t)(pending(sort->row[s]) - sort->first);
            if (expert < (uint64_t)sort->experts)
                count[expert]++;
        }
    }
}

/* The row behind the last one that an expert may fill. */
static int64_t last_row(const struct moetoken_expert_rows *rows, int64_t expert)
{
    return rows->capacity ? (expert + 1) * rows->capacity : rows->rows_num;
}

static void number_parts(const void *context, int64_t first, int64_t end)
{
    const struct sort *sort = context;
    for (int64_t part = first; part < end; part++) {
        int64_t *next = sort->next + part * sort->experts;
        for (int64_t s = part_begin(sort, part); s < part_begin(sort, part + 1); s++) {
            uint64_t expert = (uint64_t)(pending(sort->row[s]) - sort->first);
            if (expert >= (uint64_t)sort->experts)
                continue;
            int64_t row = next[expert]++;
            sort->row[s] = row < last_row(sort->rows, sort->first + (int64_t)expert) ? row : -1;
        }
    }
}

/* From counts to the first rows of each expert's slots, part by part; *used moves on. */
static void counts_to_rows(const struct sort *sort, const struct moetoken_view *rows_per_expert,
                           int64_t *row, int64_t *used)
{
    for (int64_t e = 0; e < sort->experts; e++) {
        int64_t expert = sort->first + e, end = last_row(sort->rows, expert);
        int64_t begin = sort->rows->capacity ? expert * sort->rows->capacity : *row;
        *row = begin;
        for (int64_t part = 0; part < sort->parts; part++) {
            int64_t *next = &sort->next[part * sort->experts + e], count = *next;
            *next = *row;
            *row += count;
        }
        int64_t kept = *row < end ? *row - begin : end > begin ? end - begin : 0;
        if (rows_per_expert->given)
            moetoken_index_store(rows_per_expert, expert, kept);
        *used += kept;
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
    int64_t experts = rows->end - rows->begin, first_wrong = slots, next_row = 0;
    struct sort sort = {.expert_ids = expert_ids,
                        .rows = rows,
                        .row = row,
                        .slots_num = slots,
                        .first_wrong = &first_wrong,
                        .next = scratch};
    *used = 0;
    moetoken_run_map_ranges(run, slots * (int64_t)sizeof *row, tokens, read_ids, &sort);
    if (first_wrong < slots)
        return fail_id(&sort);
    for (; slots > 0 && sort.first < experts; sort.first += sort.experts) {
        int64_t left = experts - sort.first;
        sort.experts = left < slots ? left : slots;
        sort.parts = slots / sort.experts < run->threads ? slots / sort.experts : run->threads;
        moetoken_run_map_ranges(run, slots * (int64_t)sizeof *row, sort.parts, count_parts, &sort);
        counts_to_rows(&sort, rows_per_expert, &next_row, used);
        moetoken_run_map_ranges(run, slots * (int64_t)sizeof *row, sort.parts, number_parts, &sort);
    }
    for (int64_t e = 0; slots == 0 && rows_per_expert->given && e < experts; e++)
        moetoken_index_store(rows_per_expert, e, 0);
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
