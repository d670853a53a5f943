/* named_rows.c - a set of rows as bits or as a sorted list. */
#include "routing/named_rows.h"

#include <string.h>

/* The first slot in [0, slots_num) whose row is neither in [0, rows_num) nor an allowed -1. */
static int64_t first_outside(const int64_t *row, int64_t slots_num, int64_t rows_num, bool holes)
{
    int64_t s = 0;
    while (s < slots_num && ((row[s] >= 0 && row[s] < rows_num) || (holes && row[s] == -1)))
        s++;
    return s;
}

/* ---- bits ----------------------------------------------------------------------------------- */

static int64_t name_bits(const int64_t *row, int64_t slots_num, int64_t rows_num, bool holes,
                         struct moetoken_named_rows *named)
{
    uint64_t *bits = named->bits;
    int64_t used = 0, s = 0;
    for (; s < slots_num; s++) {
        if (row[s] == -1 && holes)
            continue;
        if (row[s] < 0 || row[s] >= rows_num)
            break;
        uint64_t bit = 1ull << (row[s] % 64);
        if (bits[row[s] / 64] & bit)
            break;
        bits[row[s] / 64] |= bit;
        used++;
    }
    named->count = used;
    return s;
}

/* ---- the sorted list ------------------------------------------------------------------------ */

/* Shellsort, with gaps that shrink by thirds: in place, and an insertion sort for short lists. */
static void sort_rows(int64_t *row, int64_t count)
{
    int64_t gap = 1;
    while (gap < count / 3)
        gap = 3 * gap + 1;
    for (; gap > 0; gap /= 3)
        for (int64_t i = gap; i < count; i++) {
            int64_t moving = row[i], j = i;
            for (; j >= gap && moving < row[j - gap]; j -= gap)
                row[j] = row[j - gap];
            row[j] = moving;
        }
}

/* The first slot whose row an earlier slot names too. */
static int64_t first_repeated(const int64_t *row, int64_t slots_num,
                              const struct moetoken_named_rows *named)
{
    int64_t first = slots_num;
    for (int64_t i = 1; i < named->count; i++) {
        if (named->sorted[i - 1] != named->sorted[i])
            continue;
        bool seen = false;
        for (int64_t s = 0; s < first; s++) {
            if (row[s] == named->sorted[i] && seen)
                first = s;
            seen |= row[s] == named->sorted[i];
        }
    }
    return first;
}

static int64_t name_sorted(const int64_t *row, int64_t slots_num, int64_t rows_num, bool holes,
                           struct moetoken_named_rows *named)
{
    int64_t outside = first_outside(row, slots_num, rows_num, holes);
    if (outside < slots_num)
        return outside;
    for (int64_t s = 0; s < slots_num; s++)
        if (row[s] >= 0)
            named->sorted[named->count++] = row[s];
    sort_rows(named->sorted, named->count);
    return first_repeated(row, slots_num, named);
}

bool moetoken_named_rows_has_sorted(const struct moetoken_named_rows *named, int64_t row)
{
    int64_t low = 0, high = named->count;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (named->sorted[middle] < row)
            low = middle + 1;
        else
            high = middle;
    }
    return low < named->count && named->sorted[low] == row;
}

/* ---- either --------------------------------------------------------------------------------- */

int64_t moetoken_named_rows_check(const int64_t *row, int64_t slots_num, int64_t rows_num,
                                  bool holes, void *memory, struct moetoken_named_rows *named)
{
    int64_t words = rows_num / 64 + (rows_num % 64 != 0);
    bool as_bits = words <= slots_num;
    *named = (struct moetoken_named_rows){0};
    if (!as_bits) {
        named->sorted = memory;
        return name_sorted(row, slots_num, rows_num, holes, named);
    }
    named->bits = memory;
    if (words > 0) /* else there may be no memory at all */
        memset(memory, 0, (size_t)words * sizeof *named->bits);
    return name_bits(row, slots_num, rows_num, holes, named);
}

void moetoken_named_rows_make(const int64_t *row, int64_t slots_num, int64_t rows_num, void *memory,
                              struct moetoken_named_rows *named)
{
    (void)moetoken_named_rows_check(row, slots_num, rows_num, true, memory, named);
}
