/* rows_blocks.h - the loops that all vector kernels share: pieces of rows, slots, blocks of 32
 * elements, tails.
 *
 * An instruction set's file first defines what happens to one block (its block vocabulary, listed
 * below), then includes this header and fills the kernel table with one-line kernels. `type`,
 * `verbs`, `care`, `store` and `decoded` are constants wherever a body is used.
 *
 * A token is first done with little care, at full speed: NaN is not looked for, and a file may form
 * products in an arithmetic that is exact for all but extreme numbers. What has happened is found
 * out at the end, and the rare token is then done again with care. Its bits are the same as if it
 * had been done so at once.
 *
 * The vocabulary; any alignment:
 *   struct lanes                            the 32 partial sums of a dot product, in registers
 *   lanes_zero(), lanes_load(from), lanes_store(to, lanes)
 *   lanes_total(type, lanes)                adds them in the order of rows.h
 *   decodes(type)                           tokens with many slots are worth decoding once
 *   decode_block(type, token, single)       a block as 32 float32, in an order of the file's own
 *   row_block(type, verbs, care, store, decoded, in, token, weight, out, lanes)
 *                                           a block of one slot: lanes + in * token, and
 *                                           out = weight * token. `token` is the token's block or,
 *                                           decoded, the float32. All of `in` is read before the
 *                                           same bytes of `out` are written
 *   always_exact(type)                      row_block's products are, even without care
 *   exact_begin(type), exact_end(type, sums)  true when all products since the former were exact
 *   block_is_finite(type, token)            no NaN and no infinity in it
 *   struct sums                             32 sums in the arithmetic of the type
 *   sums_zero(), sums_add(type, in, weight, sums)   sums + weight * in, two roundings
 *   sums_store(type, sums, out, store)      rounds them to a block
 *   store_kind(out, streaming)              the best STORE_... that the alignment of `out` allows
 *   copy_bytes(from, to, bytes, streaming)  a row of a copy
 *   SUM_PREFETCH_BYTES                      how far ahead of a sum its rows are asked for */
#ifndef MOETOKEN_ROWS_BLOCKS_H
#define MOETOKEN_ROWS_BLOCKS_H

#include "formats.h"
#include "rows/rows_vector.h"

/* How far ahead of its use the expert side is asked for, in bytes; past the end of a piece that is
 * in the next slot's row. The hardware follows a row once it has begun, but cannot know the next.
 */
#define PREFETCH_BYTES 2048

/* Elements of a token's row that are decoded at a time: they stay in the first-level cache, with
 * room for the slots' rows to pass by. */
#define CHUNK (32 * BLOCK)

/* A piece of a slot's row, and what it meets. */
struct piece {
    const char *token;     /* elements, or their float32 */
    const char *in, *next; /* next: what will be read of `in` after this piece */
    char *out;
    double weight;
    int64_t length;
};

ROW_INLINE int64_t block_bytes(int type)
{
    return (int64_t)(BLOCK * token_size(type));
}

ROW_INLINE void prefetch_block(int type, const struct piece *piece, int64_t at)
{
    int64_t ahead = at + PREFETCH_BYTES, end = piece->length * (int64_t)token_size(type);
    const char *line = ahead < end ? piece->in + ahead : piece->next + (ahead - end);
    for (int64_t i = 0; i < block_bytes(type); i += 64)
        __builtin_prefetch(line + i);
}

ROW_INLINE void piece_blocks(int type, int verbs, int care, int store, bool decoded,
                             const struct piece *from, double *sums)
{
    const struct piece piece = *from;
    const int64_t token_block = decoded ? BLOCK * 4 : block_bytes(type);
    struct lanes lanes = verbs & VERB_DOT ? lanes_load(sums) : lanes_zero();
    for (int64_t b = 0; b < piece.length / BLOCK; b++) {
        const int64_t at = b * block_bytes(type);
        const char *in = verbs & VERB_DOT ? piece.in + at : NULL;
        char *out = verbs & VERB_SCALE ? piece.out + at : NULL;
        if (verbs & VERB_DOT)
            prefetch_block(type, &piece, at);
        row_block(type, verbs, care, store, decoded, in, piece.token + b * token_block,
                  piece.weight, out, &lanes);
    }
    if (verbs & VERB_DOT)
        lanes_store(sums, lanes);
}

/* The incomplete block: the same work on copies that are filled up with zeros. A zero product
 * changes no partial sum, for none is ever -0. */
ROW_INLINE void piece_tail(int type, int verbs, const struct piece *piece, const char *raw_token,
                           double *sums)
{
    const int64_t tail = piece->length % BLOCK;
    if (tail == 0)
        return;
    const int64_t at = (piece->length - tail) * (int64_t)token_size(type);
    const size_t bytes = (size_t)tail * token_size(type);
    char token[BLOCK * 8] = {0}, in[BLOCK * 8] = {0}, out[BLOCK * 8];
    struct lanes lanes = verbs & VERB_DOT ? lanes_load(sums) : lanes_zero();
    memcpy(token, raw_token + at, bytes);
    if (verbs & VERB_DOT)
        memcpy(in, piece->in + at, bytes);
    row_block(type, verbs, WITH_CARE, STORE_CACHED, false, in, token, piece->weight, out, &lanes);
    if (verbs & VERB_DOT)
        lanes_store(sums, lanes);
    if (verbs & VERB_SCALE)
        memcpy(piece->out + at, out, bytes);
}

/* Complete blocks, by their stores. */
ROW_INLINE void piece_all(int type, int verbs, int care, bool decoded, int store,
                          const struct piece *piece, double *sums)
{
    if ((verbs & VERB_SCALE) && store == STORE_STREAMING)
        piece_blocks(type, verbs, care, STORE_STREAMING, decoded, piece, sums);
    else if ((verbs & VERB_SCALE) && store == STORE_STREAMING_16)
        piece_blocks(type, verbs, care, STORE_STREAMING_16, decoded, piece, sums);
    else
        piece_blocks(type, verbs, care, STORE_CACHED, decoded, piece, sums);
}

/* Where slot s continues at element h, and what comes after that piece. */
ROW_INLINE struct piece make_piece(const struct moetoken_rows *rows, int type, int verbs, int64_t s,
                                   int64_t h, int64_t length)
{
    const int64_t at = h * (int64_t)token_size(type);
    struct piece piece = {.length = length};
    if (verbs & VERB_DOT) {
        bool last_slot = s + 1 == rows->count, last_piece = h + length == rows->length;
        int64_t next_row = !last_slot    ? rows->row[s + 1]
                           : !last_piece ? rows->row[0]
                                         : rows->next_row;
        int64_t next_at = !last_slot    ? at
                          : !last_piece ? at + length * (int64_t)token_size(type)
                                        : 0;
        piece.in = rows->in + rows->row[s] * rows->in_row_stride + at;
        piece.next = next_row < 0 ? piece.in : rows->in + next_row * rows->in_row_stride + next_at;
    }
    if (verbs & VERB_SCALE) {
        piece.out = rows->out + rows->row[s] * rows->out_row_stride + at;
        piece.weight = rows->weight[s];
    }
    return piece;
}

/* All slots of the token, piece by piece: chunks that are decoded first, or whole rows. */
ROW_INLINE void all_slots(const struct moetoken_rows *rows, int type, int verbs, int care,
                          bool decoded, double sums[][MOETOKEN_DOT_LANES])
{
    _Alignas(64) float single[CHUNK];
    const int64_t most = decoded ? CHUNK : rows->length;
    for (int64_t s = 0; (verbs & VERB_DOT) && s < rows->count; s++)
        lanes_store(sums[s], lanes_zero());
    for (int64_t h = 0; h < rows->length; h += most) {
        const char *token = rows->token_in + h * (int64_t)token_size(type);
        int64_t length = rows->length - h < most ? rows->length - h : most;
        for (int64_t b = 0; decoded && b < length / BLOCK; b++)
            decode_block(type, token + b * block_bytes(type), single + b * BLOCK);
        for (int64_t s = 0; s < rows->count; s++) {
            struct piece piece = make_piece(rows, type, verbs, s, h, length);
            double *slot_sums = verbs & VERB_DOT ? sums[s] : NULL;
            piece.token = decoded ? (const char *)single : token;
            piece_all(type, verbs, care, decoded, store_kind(piece.out, rows->streaming), &piece,
                      slot_sums);
            piece_tail(type, verbs, &piece, token, slot_sums);
        }
    }
}

ROW_INLINE bool is_finite(double value)
{
    return value - value == 0;
}

/* Slots from which on decoding first pays; with fewer, writing and reading the float32 costs more
 * than it saves. */
#define DECODE_SLOTS 3

/* The fast pass over all slots. */
ROW_INLINE void all_slots_fast(const struct moetoken_rows *rows, int type, int verbs,
                               double sums[][MOETOKEN_DOT_LANES])
{
    if (decodes(type) && rows->count >= DECODE_SLOTS)
        all_slots(rows, type, verbs, NO_CARE, decodes(type), sums);
    else
        all_slots(rows, type, verbs, NO_CARE, false, sums);
}

ROW_INLINE void scale_slots(const struct moetoken_rows *rows, int type, bool finite)
{
    for (int64_t s = 0; finite && s < rows->count; s++)
        finite = is_finite(rows->weight[s]);
    if (finite)
        all_slots_fast(rows, type, VERB_SCALE, NULL);
    else
        all_slots(rows, type, VERB_SCALE, WITH_CARE, false, NULL);
}

/* The dot products; with VERB_SCALE too, the scaled rows in the same pass. True when all of them
 * are finite. That they can be only if all elements of the token's row are. */
ROW_INLINE bool dot_slots(const struct moetoken_rows *rows, int type, int verbs)
{
    _Alignas(64) double sums[MOETOKEN_SLOTS_PER_CALL][MOETOKEN_DOT_LANES];
    bool finite = true;
    exact_begin(type);
    all_slots_fast(rows, type, verbs, sums);
    if (!exact_end(type, sums))
        all_slots(rows, type, VERB_DOT, WITH_CARE, false, sums);
    for (int64_t s = 0; s < rows->count; s++) {
        double dot = lanes_total(type, lanes_load(sums[s]));
        finite &= is_finite(dot);
        rows->dot[s] = dot != dot ? NAN : dot;
    }
    return finite;
}

/* One pass, unless it would overwrite what dot products may have to be done again from. */
ROW_INLINE void scale_dot_slots(const struct moetoken_rows *rows, int type)
{
    if (rows->in == rows->out && !always_exact(type)) {
        bool finite = dot_slots(rows, type, VERB_DOT);
        scale_slots(rows, type, finite);
        return;
    }
    bool finite = dot_slots(rows, type, VERB_SCALE | VERB_DOT);
    for (int64_t s = 0; finite && s < rows->count; s++)
        finite = is_finite(rows->weight[s]);
    if (!finite)
        all_slots(rows, type, VERB_SCALE, WITH_CARE, false, NULL);
}

ROW_INLINE bool row_is_finite(int type, const char *token, int64_t length)
{
    bool finite = type != MOETOKEN_TOKEN_F64;
    for (int64_t b = 0; finite && b < length / BLOCK; b++)
        finite = block_is_finite(type, token + b * block_bytes(type));
    return finite;
}

ROW_INLINE void token_to_slots(const struct moetoken_rows *rows, int type, int verbs)
{
    if (verbs == VERB_DOT)
        dot_slots(rows, type, VERB_DOT);
    else if (verbs == VERB_SCALE)
        scale_slots(rows, type,
                    rows->count > 1 && row_is_finite(type, rows->token_in, rows->length));
    else
        scale_dot_slots(rows, type);
}

/* Adds one or two blocks, from byte `at` on, of every slot's row. Each row is a stream of its own,
 * too many for the hardware to follow, so the lines to come are asked for here. */
ROW_INLINE void sum_blocks(const struct moetoken_rows *rows, int type, int store, int64_t at,
                           int blocks)
{
    const int64_t row_bytes = rows->length * (int64_t)token_size(type);
    const int64_t ahead = at + SUM_PREFETCH_BYTES < row_bytes ? SUM_PREFETCH_BYTES : 0;
    struct sums first = sums_zero(), second = sums_zero();
    for (int64_t s = 0; s < rows->count; s++) {
        double weight = rows->weight ? rows->weight[s] : 1;
        if (weight == 0)
            continue;
        const char *in = rows->in + rows->row[s] * rows->in_row_stride + at;
        for (int64_t i = 0; i < blocks * block_bytes(type); i += 64)
            __builtin_prefetch(in + ahead + i);
        sums_add(type, in, weight, &first);
        if (blocks == 2)
            sums_add(type, in + block_bytes(type), weight, &second);
    }
    sums_store(type, first, rows->token_out + at, store);
    if (blocks == 2)
        sums_store(type, second, rows->token_out + at + block_bytes(type), store);
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
    sums_store(type, sums, out, STORE_CACHED);
    memcpy(rows->token_out + at, out, bytes);
}

/* Two blocks at a time share the work that each slot costs; two of float64 have no room in the
 * registers of some. */
ROW_INLINE void sum_row(const struct moetoken_rows *rows, int type, int store)
{
    const int64_t most = type == MOETOKEN_TOKEN_F64 ? 1 : 2, count = rows->length / BLOCK;
    const int64_t slots =
        rows->count < MOETOKEN_SLOTS_PER_CALL ? rows->count : MOETOKEN_SLOTS_PER_CALL;
    int64_t b = 0;
    for (int64_t i = 0; i < SUM_PREFETCH_BYTES && count > 0; i += 64)
        for (int64_t s = 0; s < slots; s++)
            __builtin_prefetch(rows->in + rows->row[s] * rows->in_row_stride + i);
    for (; b + most <= count; b += most)
        sum_blocks(rows, type, store, b * block_bytes(type), type == MOETOKEN_TOKEN_F64 ? 1 : 2);
    if (b < count)
        sum_blocks(rows, type, store, b * block_bytes(type), 1);
}

ROW_INLINE void slots_to_token(const struct moetoken_rows *rows, int type)
{
    const int64_t tail = rows->length % BLOCK;
    switch (store_kind(rows->token_out, rows->streaming)) {
    case STORE_STREAMING:
        sum_row(rows, type, STORE_STREAMING);
        break;
    case STORE_STREAMING_16:
        sum_row(rows, type, STORE_STREAMING_16);
        break;
    default:
        sum_row(rows, type, STORE_CACHED);
        break;
    }
    if (tail != 0)
        sum_tail(rows, type, (rows->length - tail) * (int64_t)token_size(type),
                 (size_t)tail * token_size(type));
}

ROW_INLINE void copy_to_slots(const struct moetoken_rows *rows, int64_t size)
{
    for (int64_t s = 0; rows->length > 0 && s < rows->count; s++)
        copy_bytes(rows->token_in, rows->out + rows->row[s] * rows->out_row_stride,
                   rows->length * size, rows->streaming);
}

#endif
