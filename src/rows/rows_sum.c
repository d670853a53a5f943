/* rows_sum.c - the sum of any number of rows: at once where one call of the kernel takes them all,
 * else column by column, with the partial sums of a column handed from call to call. */
#include "rows/rows_sum.h"

/* Bytes of the partial sums of a column of the rows. */
#define COLUMN_BYTES 2048

/* The rest of the description for a call of the kernel that adds these rows. */
static void describe(struct moetoken_rows *rows, const struct moetoken_addends *addends)
{
    bool weighted = false;
    for (int64_t i = 0; i < addends->count; i++)
        weighted |= addends->weight[i] != 1;
    rows->count = addends->count;
    rows->in_row = addends->row;
    rows->in_stride = addends->stride;
    rows->weight = weighted ? addends->weight : NULL; /* a kernel multiplies only where it must */
}

/* Adds the elements from h on of all rows, as many as `column` says; lists are made anew. */
static void sum_column(moetoken_rows_fn *kernel, const struct moetoken_rows *column, int64_t h,
                       moetoken_list_addends_fn *list, const void *context, void *partial)
{
    struct moetoken_addends addends;
    struct moetoken_rows rows = *column;
    int64_t position = 0;
    for (bool more = true; more;) {
        addends.count = 0;
        addends.stride = column->in_stride;
        more = list(context, &position, &addends);
        for (int64_t i = 0; i < addends.count; i++)
            addends.row[i] += h * addends.stride;
        describe(&rows, &addends);
        rows.partial_out = more ? partial : NULL;
        rows.next_count = more ? 0 : column->next_count;
        kernel(&rows);
        rows.partial_in = partial;
    }
}

/* Not inlined, so that the ordinary sum does not pay for its stack. */
static __attribute__((noinline)) void sum_columns(moetoken_rows_fn *kernel, int type,
                                                  const struct moetoken_rows *rows,
                                                  moetoken_list_addends_fn *list,
                                                  const void *context)
{
    _Alignas(64) char partial[COLUMN_BYTES];
    const int64_t most =
        COLUMN_BYTES / (int64_t)(type == MOETOKEN_F64 ? sizeof(double) : sizeof(float));
    for (int64_t h = 0; h < rows->length; h += most) {
        struct moetoken_rows column = *rows;
        bool last = rows->length - h <= most;
        column.length = last ? rows->length - h : most;
        column.token_out += h * rows->token_stride;
        column.next_count = last ? rows->next_count : 0;
        sum_column(kernel, &column, h, list, context, partial);
    }
}

/* True when one list held all rows, and their sum is written. */
static __attribute__((noinline)) bool sum_at_once(moetoken_rows_fn *kernel,
                                                  const struct moetoken_rows *whole,
                                                  moetoken_list_addends_fn *list,
                                                  const void *context)
{
    struct moetoken_addends addends;
    struct moetoken_rows rows = *whole;
    int64_t position = 0;
    addends.count = 0;
    addends.stride = rows.in_stride;
    if (list(context, &position, &addends))
        return false;
    describe(&rows, &addends);
    kernel(&rows);
    return true;
}

void moetoken_rows_sum(moetoken_rows_fn *kernel, int type, const struct moetoken_rows *rows,
                       moetoken_list_addends_fn *list, const void *context)
{
    if (!sum_at_once(kernel, rows, list, context))
        sum_columns(kernel, type, rows, list, context);
}
