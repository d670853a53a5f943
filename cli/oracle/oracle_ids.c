/* oracle_ids.c - expert ids -> the row of every slot, by sorting, as docs/contract.md section 8 has
 * it. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "oracle.h"
#include "values/number_formats.h"

struct named_slot {
    int64_t expert, slot;
};

static int compare_slots(const void *a, const void *b)
{
    const struct named_slot *left = a, *right = b;
    if (left->expert != right->expert)
        return left->expert < right->expert ? -1 : 1;
    return left->slot < right->slot ? -1 : 1;
}

/* The used slots, in slot order; -1 after a bad id. */
static int64_t find_used(const struct oracle_case *oracle, struct named_slot *used)
{
    int64_t count = 0;
    for (int64_t i = 0; i < oracle->slots; i++) {
        int64_t expert = integer_at(oracle->expert_ids, i);
        if (expert < -1 || expert >= oracle->experts) {
            snprintf(oracle->error, TENSOR_FILE_ERROR_SIZE,
                     "expert_ids[%" PRId64 "] = %" PRId64 " is outside [-1, %" PRId64 ")", i,
                     expert, oracle->experts);
            return -1;
        }
        if (expert >= oracle->expert_begin && expert < oracle->expert_end)
            used[count++] = (struct named_slot){expert, i};
    }
    return count;
}

/* Sorted by expert, then slot: the rows in a row or, with a capacity, the first C of each expert
 * from its first row on. */
static void place_rows(const struct oracle_case *oracle, const struct named_slot *used,
                       int64_t count, int64_t *sorted)
{
    int64_t in_expert = 0;
    for (int64_t i = 0; i < count; i++) {
        in_expert = i > 0 && used[i].expert == used[i - 1].expert ? in_expert + 1 : 0;
        int64_t row = i;
        if (oracle->capacity > 0)
            row = in_expert < oracle->capacity
                      ? (used[i].expert - oracle->expert_begin) * oracle->capacity + in_expert
                      : -1;
        sorted[used[i].slot] = row < oracle->rows ? row : -1;
    }
}

bool oracle_sorted_by_ids(const struct oracle_case *oracle, int64_t *sorted)
{
    if (oracle->capacity > 0 &&
        (oracle->expert_end - oracle->expert_begin) != oracle->rows / oracle->capacity) {
        snprintf(oracle->error, TENSOR_FILE_ERROR_SIZE,
                 "permuted_tokens has %" PRId64 " rows, expected %" PRId64 " experts of %" PRId64,
                 oracle->rows, oracle->expert_end - oracle->expert_begin, oracle->capacity);
        return false;
    }
    struct named_slot *used = malloc(((size_t)oracle->slots + 1) * sizeof *used);
    if (used == NULL) {
        snprintf(oracle->error, TENSOR_FILE_ERROR_SIZE, "no memory for %" PRId64 " slots",
                 oracle->slots);
        return false;
    }
    int64_t count = find_used(oracle, used);
    for (int64_t i = 0; i < oracle->slots; i++)
        sorted[i] = -1;
    if (count > 0) {
        qsort(used, (size_t)count, sizeof *used, compare_slots);
        place_rows(oracle, used, count, sorted);
    }
    free(used);
    return count >= 0;
}
