/* problem.c - memory of a problem, its one-line description, and its layout: which row each slot
 * has. */
#include "problem.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "values/number_formats.h"
#include "values/random_values.h"

/* ---- memory ---------------------------------------------------------------------------------- */

static int64_t *numbers(int64_t count)
{
    int64_t *values = malloc(((size_t)count + 1) * sizeof *values);
    for (int64_t i = 0; values != NULL && i < count; i++)
        values[i] = i;
    return values;
}

bool problem_allocate(struct problem *problem)
{
    int64_t ids = problem->tokens * problem->topk;
    problem->token_id = numbers(problem->tokens);
    problem->expert_id = numbers(problem->experts);
    problem->slot_id = numbers(problem->topk);
    problem->column_id = numbers(problem->hidden);
    problem->map = calloc((size_t)(problem->tokens * problem->experts) + 1, 1);
    problem->ids = numbers(ids);
    for (int64_t i = 0; problem->ids != NULL && i < ids; i++)
        problem->ids[i] = -1;
    return problem->token_id != NULL && problem->expert_id != NULL && problem->slot_id != NULL &&
           problem->column_id != NULL && problem->map != NULL && problem->ids != NULL;
}

void problem_free(struct problem *problem)
{
    free(problem->token_id);
    free(problem->expert_id);
    free(problem->slot_id);
    free(problem->column_id);
    free(problem->map);
    free(problem->ids);
    problem->token_id = problem->expert_id = problem->slot_id = problem->column_id = NULL;
    problem->ids = NULL;
    problem->map = NULL;
}

bool problem_copy(const struct problem *from, struct problem *to)
{
    const size_t word = sizeof(int64_t);
    *to = *from;
    if (!problem_allocate(to)) {
        problem_free(to);
        return false;
    }
    memcpy(to->token_id, from->token_id, (size_t)from->tokens * word);
    memcpy(to->expert_id, from->expert_id, (size_t)from->experts * word);
    memcpy(to->slot_id, from->slot_id, (size_t)from->topk * word);
    memcpy(to->column_id, from->column_id, (size_t)from->hidden * word);
    memcpy(to->map, from->map, (size_t)(from->tokens * from->experts));
    memcpy(to->ids, from->ids, (size_t)(from->tokens * from->topk) * word);
    return true;
}

/* ---- layout ---------------------------------------------------------------------------------- */

/* Something to be put into an order that is drawn for each, whatever else there is. */
struct drawn {
    uint64_t key;
    int64_t number;
};

static int compare_drawn(const void *a, const void *b)
{
    const struct drawn *left = a, *right = b;
    if (left->key != right->key)
        return left->key < right->key ? -1 : 1;
    return left->number < right->number ? -1 : left->number > right->number;
}

/* 0..count in an order by `keys`. */
static bool draw_order(uint64_t stream, const int64_t *keys, int64_t count, int64_t *order)
{
    struct drawn *drawn = malloc(((size_t)count + 1) * sizeof *drawn);
    if (drawn == NULL)
        return false;
    for (int64_t i = 0; i < count; i++)
        drawn[i] = (struct drawn){random_bits(stream, (uint64_t)keys[i]), i};
    qsort(drawn, (size_t)count, sizeof *drawn, compare_drawn);
    for (int64_t i = 0; i < count; i++)
        order[i] = drawn[i].number;
    free(drawn);
    return true;
}

static int64_t pair_key(int64_t token, int64_t slot_or_expert)
{
    return token * 4096 + slot_or_expert;
}

/* The expert of each slot in token-major order, -1 for none; *key tells slots apart for good. */
static void name_slots(const struct problem *problem, int64_t *expert, int64_t *key)
{
    bool keeps_all = problem->operator_kind == OPERATOR_PERMUTE;
    for (int64_t t = 0; t < problem->tokens; t++) {
        int64_t i = t * problem->topk, end = i + problem->topk;
        for (int64_t k = 0; k < problem->topk && problem->mode == MODE_IDS; k++, i++) {
            expert[i] = problem->ids[t * problem->topk + k];
            key[i] = pair_key(problem->token_id[t], problem->slot_id[k]);
        }
        for (int64_t e = 0; e < problem->experts && i < end; e++) {
            uint8_t state = problem->map[t * problem->experts + e];
            if (state == PAIR_UNSET)
                continue;
            expert[i] = state == PAIR_DROPPED && !keeps_all ? -1 : e;
            key[i++] = pair_key(problem->token_id[t], problem->expert_id[e]);
        }
        for (; i < end; i++) {
            expert[i] = -1;
            key[i] = pair_key(problem->token_id[t], 4095);
        }
    }
}

/* Rows in expert order, inside an expert in slot order; with a capacity, C rows of each expert. */
static void place_slots(const struct problem *problem, const int64_t *expert, const int64_t *key,
                        struct layout *layout)
{
    int64_t next = 0, capacity = problem->mode == MODE_IDS ? problem->capacity : 0;
    for (int64_t i = 0; i < layout->slots; i++) {
        layout->row[i] = -1;
        layout->token[i] = i / problem->topk;
    }
    for (int64_t e = 0; e < problem->experts; e++) {
        int64_t end = capacity > 0 ? (e + 1) * capacity : INT64_MAX;
        next = capacity > 0 ? e * capacity : next;
        for (int64_t i = 0; i < layout->slots; i++) {
            if (expert[i] != e || next == end)
                continue;
            layout->row_key[next] = key[i];
            layout->by_row[next] = layout->token[i];
            layout->row[i] = next++;
            layout->used++;
        }
    }
    layout->rows = capacity > 0 ? problem->experts * capacity : next;
}

/* R beyond the used rows. Where no tensor of the case tells R, it is N. */
static void add_spare_rows(const struct problem *problem, struct layout *layout)
{
    bool untold = problem->operator_kind == OPERATOR_UNPERMUTE_GRAD && !problem->weighted;
    if (problem->operator_kind == OPERATOR_PERMUTE)
        return;
    int64_t room = layout->slots - layout->rows;
    if (untold)
        layout->rows = layout->slots;
    else if (room > 0)
        layout->rows += problem->spare_rows < room ? problem->spare_rows : room;
}

static bool shuffle_rows(const struct problem *problem, struct layout *layout)
{
    int64_t *order = malloc(((size_t)layout->rows + 1) * sizeof *order);
    int64_t *place = malloc(((size_t)layout->rows + 1) * sizeof *place);
    int64_t *old = malloc(2 * ((size_t)layout->rows + 1) * sizeof *old);
    bool good = order != NULL && place != NULL && old != NULL &&
                draw_order(random_key(problem->seed, 1), layout->row_key, layout->rows, order);
    for (int64_t r = 0; good && r < layout->rows; r++) {
        place[order[r]] = r;
        old[2 * r] = layout->row_key[r];
        old[2 * r + 1] = layout->by_row[r];
    }
    for (int64_t r = 0; good && r < layout->rows; r++) {
        layout->row_key[place[r]] = old[2 * r];
        layout->by_row[place[r]] = old[2 * r + 1];
    }
    for (int64_t i = 0; good && i < layout->slots; i++)
        layout->row[i] = layout->row[i] < 0 ? -1 : place[layout->row[i]];
    free(order);
    free(place);
    free(old);
    return good;
}

/* unpermute-grad by map: slots in any order, but those of a token among themselves as before. */
static bool shuffle_slots(const struct problem *problem, const int64_t *key, struct layout *layout)
{
    int64_t *order = malloc(((size_t)layout->slots + 1) * sizeof *order);
    int64_t *row = malloc(((size_t)layout->slots + 1) * sizeof *row);
    int64_t *next = malloc(((size_t)problem->tokens + 1) * sizeof *next);
    bool good = order != NULL && row != NULL && next != NULL &&
                draw_order(random_key(problem->seed, 2), key, layout->slots, order);
    for (int64_t t = 0; good && t < problem->tokens; t++)
        next[t] = t * problem->topk;
    for (int64_t i = 0; good && i < layout->slots; i++)
        row[i] = layout->row[i];
    for (int64_t i = 0; good && i < layout->slots; i++) {
        layout->token[i] = order[i] / problem->topk;
        layout->row[i] = row[next[layout->token[i]]++];
    }
    free(order);
    free(row);
    free(next);
    return good;
}

static bool lay_out_slots(const struct problem *problem, struct layout *layout)
{
    int64_t *expert = numbers(layout->slots), *key = numbers(layout->slots);
    bool good = expert != NULL && key != NULL;
    if (good) {
        name_slots(problem, expert, key);
        place_slots(problem, expert, key, layout);
        add_spare_rows(problem, layout);
    }
    if (good && problem->shuffled && problem->operator_kind != OPERATOR_PERMUTE)
        good = shuffle_rows(problem, layout);
    if (good && problem->shuffled && problem->operator_kind == OPERATOR_UNPERMUTE_GRAD &&
        problem->mode == MODE_DROPLESS)
        good = shuffle_slots(problem, key, layout);
    free(expert);
    free(key);
    return good;
}

/* Padded: the tokens of expert e's rows. The first C set ones, then fill slots. */
static void fill_expert(const struct problem *problem, int64_t e, struct layout *layout)
{
    int64_t first = e * problem->capacity, r = first, end = first + problem->capacity;
    uint64_t fill = random_key(problem->seed, 3);
    const uint8_t *map = problem->map + e;
    bool random_fill = problem->random_fill && problem->operator_kind != OPERATOR_PERMUTE;
    for (int64_t t = 0; t < problem->tokens && r < end; t++)
        if (map[t * problem->experts] != PAIR_UNSET)
            layout->by_row[r++] = t;
    for (; random_fill && r < end; r++)
        layout->by_row[r] = (int64_t)(random_bits(fill, (uint64_t)r) % (uint64_t)problem->tokens);
    for (int64_t t = 0; t < problem->tokens && r < end; t++)
        if (map[t * problem->experts] == PAIR_UNSET)
            layout->by_row[r++] = t;
    for (r = first; r < end; r++)
        layout->row_key[r] = pair_key(problem->token_id[layout->by_row[r]], problem->expert_id[e]);
}

/* Padded: the slots are the rows in a stable ascending order of their tokens, or in any order. */
static bool lay_out_padded(const struct problem *problem, struct layout *layout)
{
    int64_t next = 0;
    layout->rows = layout->used = layout->slots;
    for (int64_t e = 0; e < problem->experts; e++)
        fill_expert(problem, e, layout);
    if (problem->shuffled &&
        !draw_order(random_key(problem->seed, 2), layout->row_key, layout->rows, layout->row))
        return false;
    for (int64_t t = 0; t < problem->tokens && !problem->shuffled; t++)
        for (int64_t r = 0; r < layout->rows; r++)
            if (layout->by_row[r] == t)
                layout->row[next++] = r;
    for (int64_t i = 0; i < layout->slots; i++)
        layout->token[i] = layout->by_row[layout->row[i]];
    return true;
}

bool layout_build(const struct problem *problem, struct layout *layout)
{
    bool padded = problem->mode == MODE_PADDED;
    *layout = (struct layout){.slots = padded ? problem->experts * problem->capacity
                                              : problem->tokens * problem->topk};
    int64_t most = layout->slots;
    if (problem->mode == MODE_IDS && problem->capacity * problem->experts > most)
        most = problem->capacity * problem->experts;
    layout->row = numbers(most);
    layout->token = numbers(most);
    layout->by_row = numbers(most);
    layout->row_key = numbers(most);
    bool good = layout->row != NULL && layout->token != NULL && layout->by_row != NULL &&
                layout->row_key != NULL;
    for (int64_t r = 0; good && r < most; r++) {
        layout->by_row[r] = -1;
        layout->row_key[r] = pair_key(INT32_MAX, r % 4096);
    }
    good = good && (padded ? lay_out_padded(problem, layout) : lay_out_slots(problem, layout));
    if (!good)
        layout_free(layout);
    return good;
}

void layout_free(struct layout *layout)
{
    free(layout->row);
    free(layout->token);
    free(layout->by_row);
    free(layout->row_key);
    layout->row = layout->token = layout->by_row = layout->row_key = NULL;
}

/* ---- words ----------------------------------------------------------------------------------- */

void problem_describe(const struct problem *problem, const struct layout *layout, char *text,
                      size_t size)
{
    static const char *const modes[] = {"dropless", "padded", "by expert ids"};
    static const char *const values[] = {"within 0.001",  "within 5", "normal",   "outliers",
                                         "subnormals",    "some -0",  "some NaN", "some infinite",
                                         "whole numbers", "ones"};
    static const char *const weights[] = {"shares", "some 0", "huge", "ones"};
    bool padded = problem->mode == MODE_PADDED;
    size_t length = (size_t)snprintf(
        text, size,
        "%s, %s, T=%" PRId64 " H=%" PRId64 " E=%" PRId64 " %s=%" PRId64 " N=%" PRId64 " R=%" PRId64,
        modes[problem->mode], type_name(problem->token_type), problem->tokens, problem->hidden,
        problem->experts, padded ? "C" : "K", padded ? problem->capacity : problem->topk,
        layout->slots, layout->rows);
    if (length < size && problem->mode == MODE_IDS && problem->capacity > 0)
        length += (size_t)snprintf(text + length, size - length, " C=%" PRId64, problem->capacity);
    if (length < size)
        snprintf(text + length, size - length, ", values %s%s%s", values[problem->values],
                 problem->weighted ? ", weights " : ", no weights",
                 problem->weighted ? weights[problem->weights] : "");
}
