/* rows_sum.h - the sum of any number of rows, by kernels that add a bounded number of them. */
#ifndef MOETOKEN_ROWS_SUM_H
#define MOETOKEN_ROWS_SUM_H

#include "rows/rows.h"

/* Rows to add, in their order, each times its weight. */
struct moetoken_addends {
    int64_t count;
    int64_t stride; /* bytes between the elements of each of these rows */
    const char *row[MOETOKEN_ROWS_PER_SUM];
    double weight[MOETOKEN_ROWS_PER_SUM];
};

static inline void moetoken_addends_add(struct moetoken_addends *addends, const char *row,
                                        double weight)
{
    addends->row[addends->count] = row;
    addends->weight[addends->count++] = weight;
}

static inline bool moetoken_addends_are_full(const struct moetoken_addends *addends)
{
    return addends->count == MOETOKEN_ROWS_PER_SUM;
}

/* Adds the next rows from *position on to the empty list `addends`, until it is full or none are
 * left, moves *position behind the last one, and says whether any are left. Positions are the
 * caller's own and begin at 0; the same rows may be asked for again. A slot that is unused or whose
 * weight is 0 is no row. `stride` comes as rows->in_stride of moetoken_rows_sum; rows of another
 * stride make a list of their own, with theirs. */
typedef bool moetoken_list_addends_fn(const void *context, int64_t *position,
                                      struct moetoken_addends *addends);

/* Writes the sum of all rows that `list` finds to rows->token_out, with the sum kernel of `type`.
 * `rows` has length, token_out, token_stride, in_stride, streaming, and the hints in,
 * in_row_stride, next_rows and next_count; the rest is filled in here. */
void moetoken_rows_sum(moetoken_rows_fn *kernel, int type, const struct moetoken_rows *rows,
                       moetoken_list_addends_fn *list, const void *context);

#endif
