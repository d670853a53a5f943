/* named_rows.h - which rows of the permuted tensors some slot names, in 8 bytes a slot: a bit for
 * each row, or where rows are many more than slots the named ones as a sorted list. */
#ifndef MOETOKEN_NAMED_ROWS_H
#define MOETOKEN_NAMED_ROWS_H

#include <stdbool.h>
#include <stdint.h>

struct moetoken_named_rows {
    uint64_t *bits;  /* bit r % 64 of word r / 64: row r is named; or NULL */
    int64_t *sorted; /* [count] the named rows, ascending, where bits is NULL; or NULL */
    int64_t count;   /* rows that are named */
};

/* From the slots' rows, -1 for an unused slot, no row twice. memory: 8 bytes a slot. */
void moetoken_named_rows_make(const int64_t *row, int64_t slots_num, int64_t rows_num, void *memory,
                              struct moetoken_named_rows *named);

/* Builds the set as above, up to the first slot that neither names a row of its own in [0,
 * rows_num) nor, where `holes` allows it, is -1. Returns that slot, or slots_num if there is none.
 * With the sorted list, slots out of range are reported before those that repeat a row. */
int64_t moetoken_named_rows_check(const int64_t *row, int64_t slots_num, int64_t rows_num,
                                  bool holes, void *memory, struct moetoken_named_rows *named);

bool moetoken_named_rows_has_sorted(const struct moetoken_named_rows *named, int64_t row);

static inline bool moetoken_named_rows_has(const struct moetoken_named_rows *named, int64_t row)
{
    return named->bits ? named->bits[row / 64] >> (row % 64) & 1
                       : moetoken_named_rows_has_sorted(named, row);
}

#endif
