/* rows_blocks.h - the loops that all vector kernels share: slots, blocks of 32 elements, tails.
 *
 * An instruction set's file first defines what happens to one block (its block vocabulary, listed
 * below), then includes this header and fills the kernel table with one-line kernels. `type`,
 * `verbs`, `care` and `store` are constants wherever a body is used.
 *
 * Rows are first done with little care, at full speed: NaN is not looked for, and a file may form
 * products in an arithmetic that is exact for all but extreme numbers. What has happened is found
 * out at the end of a row, and the rare row is then done again with care. Its bits are the same as
 * if it had been done so at once.
 *
 * The vocabulary; any alignment:
 *   struct lanes                            the 32 partial sums of a dot product, in registers
 *   lanes_zero(), lanes_total(type, lanes)  the latter adds them in the order of rows.h
 *   row_block(type, verbs, care, store, in, token, weight, out, lanes)
 *                                           a block of one slot: lanes + in * token, and
 *                                           out = weight * token. All of `in` is read before the
 *                                           same bytes of `out` are written
 *   always_exact(type)                      row_block's products are, even without care
 *   exact_begin(type), exact_end(type, lanes)  true when all products since the former were exact
 *   block_is_finite(type, token)            no NaN and no infinity in it
 *   struct sums                             32 sums in the arithmetic of the type
 *   sums_zero(), sums_add(type, in, weight, sums)   sums + weight * in, two roundings
 *   sums_store(type, sums, out)             rounds them to a block
 *   store_kind(out, streaming)              STORE_STREAMING where `out` has the alignment for it
 *   copy_bytes(from, to, bytes, streaming)  a row of a copy */
#ifndef MOETOKEN_ROWS_BLOCKS_H
#define MOETOKEN_ROWS_BLOCKS_H

#include "formats.h"
#include "rows/rows_vector.h"

/* How far ahead of its use a row of the expert side is asked for, in bytes; past the end of the row
 * it is the next slot's. The hardware follows a row once it has begun, but cannot know the next. */
#ifndef PREFETCH_BYTES
#define PREFETCH_BYTES 2048
#endif

ROW_INLINE int64_t block_bytes(int type)
{
    return (int64_t)(BLOCK * token_size(type));
}

/* One slot. */
struct slot {
    const char *token, *in, *next; /* next: the row of `in` that comes after this one */
    char *out;
    double weight;
    int64_t length;
};

ROW_INLINE void prefetch_block(int type, const struct slot *slot, int64_t at)
{
    int64_t ahead = at + PREFETCH_BYTES, end = slot->length * (int64_t)token_size(type);
    const char *line = ahead < end ? slot->in + ahead : slot->next + (ahead - end);
    for (int64_t i = 0; i < block_bytes(type); i += 64)
        __builtin_prefetch(line + i);
}

ROW_INLINE void row_blocks(int type, int verbs, int care, int store, const struct slot *slot,
                           struct lanes *lanes)
{
    const struct slot row = *slot;
    struct lanes sums = *lanes;
    for (int64_t h = 0; h + BLOCK <= row.length; h += BLOCK) {
        const int64_t at = h * (int64_t)token_size(type);
        if (verbs & VERB_DOT)
            prefetch_block(type, &row, at);
        row_block(type, verbs, care, store, row.in + at, row.token + at, row.weight, row.out + at,
                  &sums);
    }
    *lanes = sums;
}

/* The incomplete block: the same work on copies that are filled up with zeros. A zero product
 * changes no partial sum, for none is ever -0. */
ROW_INLINE void row_tail(int type, int verbs, const struct slot *slot, struct lanes *lanes)
{
    const int64_t tail = slot->length % BLOCK,
                  at = (slot->length - tail) * (int64_t)token_size(type);
    const size_t bytes = (size_t)tail * token_size(type);
    char token[BLOCK * 8] = {0}, in[BLOCK * 8] = {0}, out[BLOCK * 8];
    if (tail == 0)
        return;
    memcpy(token, slot->token + at, bytes);
    if (verbs & VERB_DOT)
        memcpy(in, slot->in + at, bytes);
    row_block(type, verbs, WITH_CARE, STORE_CACHED, in, token, slot->weight, out, lanes);
    if (verbs & VERB_SCALE)
        memcpy(slot->out + at, out, bytes);
}

/* Whole rows, by their stores. */
ROW_INLINE struct lanes row_all(int type, int verbs, int care, int store, const struct slot *slot)
{
    struct lanes lanes = lanes_zero();
    if ((verbs & VERB_SCALE) && store == STORE_STREAMING)
        row_blocks(type, verbs, care, STORE_STREAMING, slot, &lanes);
    else
        row_blocks(type, verbs, care, STORE_CACHED, slot, &lanes);
    row_tail(type, verbs, slot, &lanes);
    return lanes;
}

ROW_INLINE double canonical_nan(double value)
{
    return value != value ? NAN : value;
}

ROW_INLINE bool is_finite(double value)
{
    return value - value == 0;
}

ROW_INLINE struct lanes dot_slot(int type, const struct slot *slot)
{
    exact_begin(type);
    struct lanes lanes = row_all(type, VERB_DOT, NO_CARE, STORE_CACHED, slot);
    if (!exact_end(type, &lanes))
        lanes = row_all(type, VERB_DOT, WITH_CARE, STORE_CACHED, slot);
    return lanes;
}

ROW_INLINE void scale_slot(int type, int store, const struct slot *slot, bool finite)
{
    if (finite)
        row_all(type, VERB_SCALE, NO_CARE, store, slot);
    else
        row_all(type, VERB_SCALE, WITH_CARE, store, slot);
}

/* In one pass where `in` is still there should its dot product have to be done again. A finite dot
 * product is the sign that all elements of the token's row are finite, and with the weight their
 * products no NaN. */
ROW_INLINE double scale_dot_slot(int type, int store, const struct slot *slot)
{
    bool one_pass = slot->in != slot->out || always_exact(type);
    struct lanes lanes;
    if (one_pass) {
        exact_begin(type);
        lanes = row_all(type, VERB_SCALE | VERB_DOT, NO_CARE, store, slot);
        if (!exact_end(type, &lanes) && slot->in != slot->out)
            lanes = row_all(type, VERB_DOT, WITH_CARE, STORE_CACHED, slot);
    } else {
        lanes = dot_slot(type, slot);
    }
    double dot = lanes_total(type, lanes);
    bool finite = is_finite(dot) && is_finite(slot->weight);
    if (!one_pass || !finite)
        scale_slot(type, store, slot, finite);
    return canonical_nan(dot);
}

ROW_INLINE bool row_is_finite(int type, const char *token, int64_t length)
{
    bool finite = type != MOETOKEN_TOKEN_F64;
    for (int64_t h = 0; finite && h + BLOCK <= length; h += BLOCK)
        finite = block_is_finite(type, token + h * (int64_t)token_size(type));
    return finite;
}

/* scale, dot and scale_dot. */
ROW_INLINE void token_to_slots(const struct moetoken_rows *rows, int type, int verbs)
{
    bool finite =
        verbs == VERB_SCALE && rows->count > 1 && row_is_finite(type, rows->token_in, rows->length);
    for (int64_t s = 0; s < rows->count; s++) {
        struct slot slot = {.token = rows->token_in, .length = rows->length};
        if (verbs & VERB_DOT) {
            int64_t next = s + 1 < rows->count ? rows->row[s + 1] : rows->next_row;
            slot.in = rows->in + rows->row[s] * rows->in_row_stride;
            slot.next = next < 0 ? slot.in : rows->in + next * rows->in_row_stride;
        }
        if (verbs & VERB_SCALE) {
            slot.out = rows->out + rows->row[s] * rows->out_row_stride;
            slot.weight = rows->weight[s];
        }
        int store = store_kind(slot.out, rows->streaming);
        if (verbs == VERB_DOT)
            rows->dot[s] = canonical_nan(lanes_total(type, dot_slot(type, &slot)));
        else if (verbs == VERB_SCALE)
            scale_slot(type, store, &slot, finite && is_finite(slot.weight));
        else
            rows->dot[s] = scale_dot_slot(type, store, &slot);
    }
}

/* Adds block `at` (in bytes) of every slot's row. Each row is a stream of its own, too many for
 * the hardware to follow, so the lines to come are asked for here. */
ROW_INLINE void sum_one_block(const struct moetoken_rows *rows, int type, int64_t at)
{
    const int64_t row_bytes = rows->length * (int64_t)token_size(type);
    const int64_t ahead = at + SUM_PREFETCH_BYTES < row_bytes ? SUM_PREFETCH_BYTES : 0;
    struct sums sums = sums_zero();
    for (int64_t s = 0; s < rows->count; s++) {
        double weight = rows->weight ? rows->weight[s] : 1;
        if (weight == 0)
            continue;
        const char *in = rows->in + rows->row[s] * rows->in_row_stride + at;
        for (int64_t i = 0; i < block_bytes(type); i += 64)
            __builtin_prefetch(in + ahead + i);
        sums_add(type, in, weight, &sums);
    }
    sums_store(type, sums, rows->token_out + at);
}

ROW_INLINE void sum_tail(const struct moetoken_rows *rows, int type, int64_t at, size_t bytes)
{
    char in[BLOCK * 8] = {0}, out[BLOCK * 8];
    struct sums sums = sums_zero();
    for (int64_t s = 0; s < rows->count; s++) {
        double weight = rows->weight ? rows->weight[s] : 1;
        if (weight == 0)
            continue;
        memcpy(in, rows->in + rows->row[s] * rows->in_row_stride + at, bytes);
        sums_add(type, in, weight, &sums);
    }
    sums_store(type, sums, out);
    memcpy(rows->token_out + at, out, bytes);
}

ROW_INLINE void slots_to_token(const struct moetoken_rows *rows, int type)
{
    const int64_t size = (int64_t)token_size(type), complete = rows->length / BLOCK * BLOCK;
    for (int64_t h = 0; h < complete; h += BLOCK)
        sum_one_block(rows, type, h * size);
    if (complete < rows->length)
        sum_tail(rows, type, complete * size, (size_t)((rows->length - complete) * size));
}

ROW_INLINE void copy_to_slots(const struct moetoken_rows *rows, int64_t size)
{
    for (int64_t s = 0; s < rows->count; s++)
        copy_bytes(rows->token_in, rows->out + rows->row[s] * rows->out_row_stride,
                   rows->length * size, rows->streaming);
}

#endif
