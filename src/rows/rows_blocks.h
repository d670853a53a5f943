/* rows_blocks.h - the loops that all vector kernels share: slots, blocks of 32 elements, tails.
 *
 * An instruction set's file first defines what happens to one block (its block vocabulary, listed
 * below), then includes this header and names its kernels (ROW_KERNEL). `type`, `verbs` and `care`
 * are constants wherever a body is used.
 *
 * A token is first done without care, at full speed: NaN is not looked for, and products of
 * bfloat16 are formed in float32, which holds all but extreme ones. Whether that was right is known
 * at the end, and the rare token for which it was not is done again with care; its bits are as if
 * it had been done that way from the start.
 *
 * The vocabulary; any alignment:
 *   struct lanes                            the 32 partial sums of a dot product, in registers
 *   lanes_zero(), lanes_total(type, lanes)  the latter adds them in the order of rows.h
 *   exact_begin(type), exact_end(type)      true when all products since the former were exact;
 *                                           only asked where not always_exact(type)
 *   struct products                         what a block's dot product is on its way
 *   form_products(type, care, in, token, products, lanes), add_products(type, care, products,
 *   lanes)                                  together lanes + in * token; the former reads, and what
 *                                           comes between has its turn while products are stored
 *   block_is_finite(type, token)            no NaN and no infinity in it; not float64
 *   scale_block(type, care, token, weight, out, store)   out = weight * token
 *   struct sums                             32 sums in the arithmetic of the type
 *   sums_zero()
 *   sums_load(type, from), sums_save(type, sums, to)   unrounded, in an order of the file's own
 *   sums_add(type, weighted, in, weight, sums)   sums + weight * in, two roundings; or sums + in
 *   sums_store(type, sums, out, store)      rounds them to a block
 *   store_kind(out, streaming)              the best STORE_... that the alignment of `out` allows
 *   copy_bytes(from, to, bytes, streaming)  a row of a copy
 *   SUM_PREFETCH_BYTES                      how far ahead of a sum its rows are asked for */
#ifndef MOETOKEN_ROWS_BLOCKS_H
#define MOETOKEN_ROWS_BLOCKS_H

#include "rows/formats.h"
#include "rows/rows_vector.h"

/* How far ahead of its use the expert side is prefetched, in bytes; past the end of a row that
 * means the next slot's row. The hardware follows a row once it has begun, but cannot guess the
 * next one. */
#define PREFETCH_BYTES 2048

ROW_INLINE int64_t block_bytes(int type)
{
    return (int64_t)(BLOCK * token_size(type));
}

/* ---- a slot ---------------------------------------------------------------------------------- */

/* A slot's row and its operands. */
struct slot {
    const char *token;
    const char *in, *next; /* next: the row that is read after this one */
    char *out;
    double weight;
    int64_t length;
    int store;
};

ROW_INLINE struct slot make_slot(const struct moetoken_rows *rows, int verbs, int64_t s)
{
    struct slot slot = {.token = rows->token_in, .length = rows->length};
    if (verbs & VERB_DOT) {
        int64_t next_call = rows->next_count > 0 ? rows->next_rows[0] : -1;
        int64_t next = s + 1 < rows->count ? rows->row[s + 1] : next_call;
        slot.in = rows->in + rows->row[s] * rows->in_row_stride;
        slot.next = next < 0 ? slot.in : rows->in + next * rows->in_row_stride;
    }
    if (verbs & VERB_SCALE) {
        slot.out = rows->out + rows->row[s] * rows->out_row_stride;
        slot.weight = rows->weight[s];
        slot.store = store_kind(slot.out, rows->streaming);
    }
    return slot;
}

/* The lines that are read PREFETCH_BYTES after byte `at` of a row of `bytes`. */
ROW_INLINE void prefetch_block(int type, const char *in, const char *next, int64_t bytes,
                               int64_t at)
{
    int64_t ahead = at + PREFETCH_BYTES;
    const char *line = ahead < bytes ? in + ahead : next + (ahead - bytes);
    for (int64_t i = 0; i < block_bytes(type); i += 64)
        __builtin_prefetch(line + i);
}

ROW_INLINE void row_block(int type, int verbs, bool care, const char *in, const char *token,
                          double weight, char *out, int store, struct lanes *lanes)
{
    struct products products;
    if (verbs & VERB_DOT)
        form_products(type, care, in, token, &products, lanes);
    if (verbs & VERB_SCALE)
        scale_block(type, care, token, weight, out, store);
    if (verbs & VERB_DOT)
        add_products(type, care, &products, lanes);
}

ROW_INLINE void tail_block(int type, int verbs, const char *in, const char *token, double weight,
                           char *out, struct lanes *lanes)
{
    if (verbs == VERB_SCALE)
        row_block(type, VERB_SCALE, true, in, token, weight, out, STORE_CACHED, lanes);
    else if (verbs == VERB_DOT)
        row_block(type, VERB_DOT, true, in, token, weight, out, STORE_CACHED, lanes);
    else
        row_block(type, VERB_SCALE | VERB_DOT, true, in, token, weight, out, STORE_CACHED, lanes);
}

/* The incomplete last block: the same work on copies that are padded with zeros. A zero product
 * changes no partial sum, for none is ever -0. One copy of the code for all kernels. */
static __attribute__((noinline)) void slot_tail(int type, int verbs, const struct slot *slot,
                                                struct lanes *lanes)
{
    const int64_t tail = slot->length % BLOCK;
    const int64_t at = (slot->length - tail) * (int64_t)token_size(type);
    const size_t bytes = (size_t)tail * token_size(type);
    char token[BLOCK * 8] = {0}, in[BLOCK * 8] = {0}, out[BLOCK * 8];
    memcpy(token, slot->token + at, bytes);
    if (verbs & VERB_DOT)
        memcpy(in, slot->in + at, bytes);
    if (type == MOETOKEN_F32)
        tail_block(MOETOKEN_F32, verbs, in, token, slot->weight, out, lanes);
    else if (type == MOETOKEN_F16)
        tail_block(MOETOKEN_F16, verbs, in, token, slot->weight, out, lanes);
    else if (type == MOETOKEN_BF16)
        tail_block(MOETOKEN_BF16, verbs, in, token, slot->weight, out, lanes);
    else
        tail_block(MOETOKEN_F64, verbs, in, token, slot->weight, out, lanes);
    if (verbs & VERB_SCALE)
        memcpy(slot->out + at, out, bytes);
}

/* A whole row, with its dot product where asked for. A block of `in` is read before the same bytes
 * of `out` are written. */
ROW_INLINE double slot_row(int type, int verbs, bool care, struct slot slot)
{
    const char *const in = slot.in, *const token = slot.token, *const next = slot.next;
    const int64_t bytes = slot.length * (int64_t)token_size(type);
    const double weight = slot.weight;
    const int store = slot.store;
    char *const out = slot.out;
    struct lanes lanes = lanes_zero();
    int64_t at = 0;
    for (; at + block_bytes(type) <= bytes; at += block_bytes(type)) {
        if (verbs & VERB_DOT)
            prefetch_block(type, in, next, bytes, at);
        row_block(type, verbs, care, verbs & VERB_DOT ? in + at : NULL, token + at, weight,
                  verbs & VERB_SCALE ? out + at : NULL, store, &lanes);
    }
    if (at < bytes) {
        struct lanes in_memory = lanes; /* those of the loop stay in registers */
        slot_tail(type, verbs, &slot, &in_memory);
        lanes = in_memory;
    }
    return verbs & VERB_DOT ? lanes_total(type, lanes) : 0;
}

/* ---- a token and its slots ------------------------------------------------------------------- */

ROW_INLINE bool is_finite(double value)
{
    return value - value == 0;
}

/* NaN without sign or payload, which are the CPU's. */
ROW_INLINE double canonical_dot(double dot)
{
    return dot != dot ? NAN : dot;
}

ROW_INLINE void scale_slots_by_care(const struct moetoken_rows *rows, int type, bool care)
{
    for (int64_t s = 0; s < rows->count; s++)
        slot_row(type, VERB_SCALE, care, make_slot(rows, VERB_SCALE, s));
}

/* The second attempt, after a dot product came out as NaN or infinity: one copy of the code. */
static __attribute__((noinline)) void scale_slots_with_care(const struct moetoken_rows *rows,
                                                            int type)
{
    if (type == MOETOKEN_F32)
        scale_slots_by_care(rows, MOETOKEN_F32, true);
    else if (type == MOETOKEN_F16)
        scale_slots_by_care(rows, MOETOKEN_F16, true);
    else if (type == MOETOKEN_BF16)
        scale_slots_by_care(rows, MOETOKEN_BF16, true);
    else
        scale_slots_by_care(rows, MOETOKEN_F64, true);
}

/* The whole blocks; the tail is always done with care. */
ROW_INLINE bool row_is_finite(const struct moetoken_rows *rows, int type)
{
    bool finite = true;
    for (int64_t b = 0; finite && b < rows->length / BLOCK; b++)
        finite = block_is_finite(type, rows->token_in + b * block_bytes(type));
    return finite;
}

/* Scanning the token's row once pays where it serves two slots. */
ROW_INLINE void scale_slots(const struct moetoken_rows *rows, int type)
{
    bool finite = type != MOETOKEN_F64 && rows->count > 1 && row_is_finite(rows, type);
    for (int64_t s = 0; finite && s < rows->count; s++)
        finite = is_finite(rows->weight[s]);
    if (finite)
        scale_slots_by_care(rows, type, false);
    else
        scale_slots_with_care(rows, type);
}

ROW_INLINE void dot_slots_by_care(const struct moetoken_rows *rows, int type, bool care)
{
    for (int64_t s = 0; s < rows->count; s++)
        rows->dot[s] = canonical_dot(slot_row(type, VERB_DOT, care, make_slot(rows, VERB_DOT, s)));
}

/* Dot products of bfloat16 whose products float32 does not hold. */
static __attribute__((noinline)) void dot_slots_with_care(const struct moetoken_rows *rows)
{
    dot_slots_by_care(rows, MOETOKEN_BF16, true);
}

ROW_INLINE void dot_slots(const struct moetoken_rows *rows, int type)
{
    if (!always_exact(type))
        exact_begin();
    dot_slots_by_care(rows, type, false);
    if (!always_exact(type) && !exact_end())
        dot_slots_with_care(rows);
}

/* One pass, and its second part once more where a dot product is NaN or infinite: it is finite only
 * if all elements of the token's row are. */
ROW_INLINE void scale_dot_slots_at_once(const struct moetoken_rows *rows, int type)
{
    bool finite = true;
    if (!always_exact(type))
        exact_begin();
    for (int64_t s = 0; s < rows->count; s++) {
        double dot =
            slot_row(type, VERB_SCALE | VERB_DOT, false, make_slot(rows, VERB_SCALE | VERB_DOT, s));
        rows->dot[s] = canonical_dot(dot);
    }
    if (!always_exact(type) && !exact_end())
        dot_slots_with_care(rows);
    for (int64_t s = 0; s < rows->count; s++)
        finite &= is_finite(rows->dot[s]) && is_finite(rows->weight[s]);
    if (!finite)
        scale_slots_with_care(rows, type);
}

/* In place, what a dot product may have to be done again from must not be overwritten before. */
ROW_INLINE void scale_dot_slots(const struct moetoken_rows *rows, int type)
{
    if (always_exact(type) || rows->in != rows->out) {
        scale_dot_slots_at_once(rows, type);
    } else {
        dot_slots(rows, type);
        scale_slots(rows, type);
    }
}

/* ---- sums ------------------------------------------------------------------------------------ */

/* Each row is a stream of its own, more than the hardware can follow, and each begins where no
 * hardware expects it. So the lines to come are prefetched here; past the end of the row, those of
 * the next sum. */
ROW_INLINE void prefetch_addend(const struct moetoken_rows *rows, int type, int64_t i, int64_t at,
                                int64_t bytes)
{
    const int64_t row_bytes = rows->length * (int64_t)token_size(type);
    int64_t ahead = at + SUM_PREFETCH_BYTES;
    const char *line = rows->in_row[i] + ahead;
    if (ahead >= row_bytes) {
        int64_t next = i < rows->next_count ? rows->next_rows[i] : -1;
        line = next < 0 ? rows->in_row[i] : rows->in + next * rows->in_row_stride;
        line += ahead - row_bytes;
    }
    for (int64_t line_at = 0; line_at < bytes; line_at += 64)
        __builtin_prefetch(line + line_at);
}

/* Where the partial sums of the block at byte `at` of a row are. */
ROW_INLINE int64_t partial_at(int type, int64_t at)
{
    return type == MOETOKEN_F64 ? at : at / (int64_t)token_size(type) * (int64_t)sizeof(float);
}

ROW_INLINE struct sums sums_begin(const struct moetoken_rows *rows, int type, int64_t at)
{
    return rows->partial_in ? sums_load(type, (const char *)rows->partial_in + partial_at(type, at))
                            : sums_zero();
}

/* The weights in the arithmetic of all types but float64. */
struct weights {
    float single[MOETOKEN_ROWS_PER_SUM];
};

/* Adds one or two blocks, from byte `at` on, of every row. */
ROW_INLINE void sum_blocks(const struct moetoken_rows *rows, int type,
                           const struct weights *weights, int store, int64_t at, int blocks)
{
    const int64_t second_at = at + block_bytes(type);
    const int64_t count = rows->count;
    const char *const *in_row = rows->in_row;
    struct sums first = sums_begin(rows, type, at), second = sums_zero();
    if (blocks == 2)
        second = sums_begin(rows, type, second_at);
    for (int64_t i = 0; i < count; i++) {
        double weight = 1;
        if (weights)
            weight = type == MOETOKEN_F64 ? rows->weight[i] : (double)weights->single[i];
        prefetch_addend(rows, type, i, at, blocks * block_bytes(type));
        sums_add(type, weights != NULL, in_row[i] + at, weight, &first);
        if (blocks == 2)
            sums_add(type, weights != NULL, in_row[i] + second_at, weight, &second);
    }
    if (rows->partial_out) {
        sums_save(type, first, (char *)rows->partial_out + partial_at(type, at));
        if (blocks == 2)
            sums_save(type, second, (char *)rows->partial_out + partial_at(type, second_at));
        return;
    }
    sums_store(type, first, rows->token_out + at, store);
    if (blocks == 2)
        sums_store(type, second, rows->token_out + second_at, store);
}

ROW_INLINE void sum_tail(const struct moetoken_rows *rows, int type, int64_t at, size_t bytes)
{
    char in[BLOCK * 8] = {0}, out[BLOCK * 8];
    struct sums sums = sums_begin(rows, type, at);
    for (int64_t i = 0; i < rows->count; i++) {
        memcpy(in, rows->in_row[i] + at, bytes);
        sums_add(type, true, in, rows->weight ? rows->weight[i] : 1, &sums);
    }
    if (rows->partial_out) {
        sums_save(type, sums, (char *)rows->partial_out + partial_at(type, at));
        return;
    }
    sums_store(type, sums, out, STORE_CACHED);
    memcpy(rows->token_out + at, out, bytes);
}

/* Two blocks at a time share the work that each row costs; two blocks of float64 do not fit in the
 * registers of some CPUs. */
ROW_INLINE void sum_whole_blocks(const struct moetoken_rows *rows, int type,
                                 const struct weights *weights)
{
    const int most = type == MOETOKEN_F64 ? 1 : 2;
    const int store = store_kind(rows->token_out, rows->streaming);
    const int64_t count = rows->length / BLOCK;
    int64_t b = 0;
    for (; b + most <= count; b += most)
        sum_blocks(rows, type, weights, store, b * block_bytes(type), most);
    if (b < count)
        sum_blocks(rows, type, weights, store, b * block_bytes(type), 1);
}

ROW_INLINE void sum_rows_weighted(const struct moetoken_rows *rows, int type)
{
    struct weights weights;
    for (int64_t i = 0; type != MOETOKEN_F64 && i < rows->count; i++)
        weights.single[i] = (float)rows->weight[i];
    sum_whole_blocks(rows, type, &weights);
}

ROW_INLINE void sum_rows(const struct moetoken_rows *rows, int type)
{
    const int64_t tail = rows->length % BLOCK;
    if (rows->weight)
        sum_rows_weighted(rows, type);
    else
        sum_whole_blocks(rows, type, NULL);
    if (tail != 0)
        sum_tail(rows, type, (rows->length - tail) * (int64_t)token_size(type),
                 (size_t)tail * token_size(type));
}

/* ---- copies ---------------------------------------------------------------------------------- */

ROW_INLINE void copy_slots(const struct moetoken_rows *rows, int64_t size)
{
    for (int64_t s = 0; rows->length > 0 && s < rows->count; s++)
        copy_bytes(rows->token_in, rows->out + rows->row[s] * rows->out_row_stride,
                   rows->length * size, rows->streaming);
}

#endif
