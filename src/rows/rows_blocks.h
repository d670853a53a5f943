/* rows_blocks.h - the loops that all vector kernels share: blocks of 32 elements, chunks of blocks,
 * slots, tails.
 *
 * An instruction set's file first defines how one block is decoded, multiplied, rounded and stored
 * (its block vocabulary, listed below), then includes this header and fills the kernel table with
 * one-line kernels. `type`, `verbs`, `store` and `finite` are constants wherever a body is used.
 *
 * The vocabulary; `size` bytes an element, 32 elements a block, any alignment:
 *   struct lanes                            the 32 partial sums of a dot product, in registers
 *   lanes_zero(), lanes_load(from), lanes_store(to, lanes)
 *   lanes_total(type, lanes)                adds them in the order of rows.h
 *   decode_single(type, token, single)      a token's block as 32 float32, in the block's own order
 *   decode_wide(type, token, wide)          the same as 32 binary64
 *   block_is_finite(type, token)            no NaN and no infinity in it
 *   dot_block(type, in, wide, lanes)        lanes + in * wide, products exact or in binary64
 *   scale_block(type, token, single, weight, out, store, finite)  one rounded row block; single for
 *                                           16-bit types, else the block of the token itself
 *   struct sums                             32 sums in the arithmetic of the type
 *   sums_zero(), sums_add(type, in, weight, sums)   sums + weight * in, two roundings
 *   sums_store(type, sums, out)             rounds them to a block
 *   store_kind(out, streaming)              STORE_STREAMING where `out` has the alignment for it
 *   copy_bytes(from, to, bytes, streaming)  a row of a copy
 *   SUM_PREFETCH_BYTES                      how far ahead of a sum its rows are asked for */
#ifndef MOETOKEN_ROWS_BLOCKS_H
#define MOETOKEN_ROWS_BLOCKS_H

#include "formats.h"
#include "rows/rows_vector.h"

/* What a body does with a slot. */
enum {
    VERB_SCALE = 1,
    VERB_DOT = 2
};

/* The decoded piece of the token's row that all slots are served from. It stays in the first-level
 * cache, with room for a slot's rows to pass by. */
#define CHUNK_BLOCKS 32
#define CHUNK        (CHUNK_BLOCKS * BLOCK)

struct token_chunk {
    _Alignas(64) float single[CHUNK];
    _Alignas(64) double wide[CHUNK];
    _Alignas(64) char tail[BLOCK * 8]; /* the last, incomplete block of the row, filled with 0 */
    const char *token;
    int64_t blocks; /* complete blocks */
    size_t tail_bytes;
    bool finite;
};

ROW_INLINE void decode_block(int type, int verbs, const char *token, struct token_chunk *chunk,
                             int64_t b)
{
    if ((verbs & VERB_SCALE) && is_16_bit(type)) {
        decode_single(type, token, chunk->single + b * BLOCK);
        chunk->finite &= block_is_finite(type, token);
    }
    if ((verbs & VERB_DOT) && type != MOETOKEN_TOKEN_F64)
        decode_wide(type, token, chunk->wide + b * BLOCK);
}

/* Decodes `elements` (at most CHUNK) elements of a token's row. */
ROW_INLINE void decode_chunk(int type, int verbs, const char *token, int64_t elements,
                             struct token_chunk *chunk)
{
    const size_t block_bytes = BLOCK * token_size(type);
    chunk->token = token;
    chunk->blocks = elements / BLOCK;
    chunk->tail_bytes = (size_t)(elements % BLOCK) * token_size(type);
    chunk->finite = is_16_bit(type);
    for (int64_t b = 0; b < chunk->blocks; b++)
        decode_block(type, verbs, token + b * (int64_t)block_bytes, chunk, b);
    if (chunk->tail_bytes) {
        memset(chunk->tail, 0, block_bytes);
        memcpy(chunk->tail, token + chunk->blocks * (int64_t)block_bytes, chunk->tail_bytes);
        decode_block(type, verbs, chunk->tail, chunk, chunk->blocks);
    }
}

/* One block of one slot. A block of `in` is read before the block of `out` is written. */
ROW_INLINE void slot_block(int type, int verbs, const struct token_chunk *chunk, int64_t b,
                           const char *token, const char *in, char *out, double weight, int store,
                           bool finite, struct lanes *lanes)
{
    const double *wide = chunk->wide + b * BLOCK;
    if (verbs & VERB_DOT)
        dot_block(type, in, type == MOETOKEN_TOKEN_F64 ? (const double *)(const void *)token : wide,
                  lanes);
    if (verbs & VERB_SCALE)
        scale_block(type, token, chunk->single + b * BLOCK, weight, out, store, finite);
}

ROW_INLINE void slot_blocks(int type, int verbs, const struct token_chunk *chunk, const char *in,
                            char *out, double weight, int store, bool finite, double *sums,
                            const char *next)
{
    const int64_t block_bytes = (int64_t)(BLOCK * token_size(type));
    struct lanes lanes = lanes_load(sums);
    for (int64_t b = 0; b < chunk->blocks; b++) {
        int64_t at = b * block_bytes;
        if (verbs & VERB_DOT)
            for (int64_t line = 0; line < block_bytes; line += 64)
                __builtin_prefetch(next + at + line);
        slot_block(type, verbs, chunk, b, chunk->token + at, in + at, out + at, weight, store,
                   finite, &lanes);
    }
    lanes_store(sums, lanes);
}

/* The incomplete block: the same work on copies that are filled up with zeros. A zero product
 * changes no partial sum, for none is ever -0. */
ROW_INLINE void slot_tail(int type, int verbs, const struct token_chunk *chunk, const char *in,
                          char *out, double weight, double *sums)
{
    const int64_t at = chunk->blocks * (int64_t)(BLOCK * token_size(type));
    _Alignas(64) char in_block[BLOCK * 8] = {0};
    _Alignas(64) char out_block[BLOCK * 8];
    struct lanes lanes = lanes_load(sums);
    if (verbs & VERB_DOT)
        memcpy(in_block, in + at, chunk->tail_bytes);
    slot_block(type, verbs, chunk, chunk->blocks, chunk->tail, in_block, out_block, weight,
               STORE_CACHED, false, &lanes);
    lanes_store(sums, lanes);
    if (verbs & VERB_SCALE)
        memcpy(out + at, out_block, chunk->tail_bytes);
}

/* One chunk of one slot: picks the loop for its stores and its values. */
ROW_INLINE void slot_chunk(int type, int verbs, const struct token_chunk *chunk, const char *in,
                           char *out, double weight, int store, double *sums, const char *next)
{
    bool finite = chunk->finite && weight - weight == 0;
    if (!(verbs & VERB_SCALE))
        slot_blocks(type, verbs, chunk, in, out, weight, STORE_CACHED, true, sums, next);
    else if (store == STORE_CACHED && finite)
        slot_blocks(type, verbs, chunk, in, out, weight, STORE_CACHED, true, sums, next);
    else if (store == STORE_CACHED)
        slot_blocks(type, verbs, chunk, in, out, weight, STORE_CACHED, false, sums, next);
    else if (finite)
        slot_blocks(type, verbs, chunk, in, out, weight, STORE_STREAMING, true, sums, next);
    else
        slot_blocks(type, verbs, chunk, in, out, weight, STORE_STREAMING, false, sums, next);
    if (chunk->tail_bytes)
        slot_tail(type, verbs, chunk, in, out, weight, sums);
}

ROW_INLINE double canonical_nan(double value)
{
    return value != value ? NAN : value;
}

/* scale, dot and scale_dot: the token's row chunk by chunk, each chunk for all slots. */
ROW_INLINE void token_to_slots(const struct moetoken_rows *rows, int type, int verbs)
{
    const int64_t size = (int64_t)token_size(type);
    struct token_chunk chunk;
    _Alignas(64) double sums[MOETOKEN_SLOTS_PER_CALL][MOETOKEN_DOT_LANES];
    if (verbs & VERB_DOT)
        for (int64_t s = 0; s < rows->count; s++)
            lanes_store(sums[s], lanes_zero());
    for (int64_t h = 0; h < rows->length; h += CHUNK) {
        int64_t left = rows->length - h;
        decode_chunk(type, verbs, rows->token_in + h * size, left < CHUNK ? left : CHUNK, &chunk);
        for (int64_t s = 0; s < rows->count; s++) {
            bool last = s + 1 == rows->count, end = left <= CHUNK;
            int64_t next_row = !last ? rows->row[s + 1] : !end ? rows->row[0] : rows->next_row;
            int64_t next_at = !last ? h : !end ? h + CHUNK : 0;
            const char *in = NULL, *next = NULL;
            char *out = NULL;
            if (verbs & VERB_DOT) {
                in = rows->in + rows->row[s] * rows->in_row_stride + h * size;
                next = rows->in + (next_row < 0 ? rows->row[s] : next_row) * rows->in_row_stride +
                       next_at * size;
            }
            if (verbs & VERB_SCALE)
                out = rows->out + rows->row[s] * rows->out_row_stride + h * size;
            slot_chunk(type, verbs, &chunk, in, out, verbs & VERB_SCALE ? rows->weight[s] : 0,
                       store_kind(out, rows->streaming), sums[s], next);
        }
    }
    if (verbs & VERB_DOT)
        for (int64_t s = 0; s < rows->count; s++)
            rows->dot[s] = canonical_nan(lanes_total(type, lanes_load(sums[s])));
}

/* Adds block `at` (in bytes) of every slot's row. Each row is a stream of its own, too many for
 * the hardware to follow, so the lines to come are asked for here. */
ROW_INLINE void sum_one_block(const struct moetoken_rows *rows, int type, int64_t at)
{
    const int64_t block_bytes = (int64_t)(BLOCK * token_size(type));
    const int64_t row_bytes = rows->length * (int64_t)token_size(type);
    const int64_t ahead = at + SUM_PREFETCH_BYTES < row_bytes ? SUM_PREFETCH_BYTES : 0;
    struct sums sums = sums_zero();
    for (int64_t s = 0; s < rows->count; s++) {
        double weight = rows->weight ? rows->weight[s] : 1;
        if (weight == 0)
            continue;
        const char *in = rows->in + rows->row[s] * rows->in_row_stride + at;
        for (int64_t line = 0; line < block_bytes; line += 64)
            __builtin_prefetch(in + ahead + line);
        sums_add(type, in, weight, &sums);
    }
    sums_store(type, sums, rows->token_out + at);
}

ROW_INLINE void sum_tail(const struct moetoken_rows *rows, int type, int64_t at, size_t bytes)
{
    _Alignas(64) char in_block[BLOCK * 8] = {0};
    _Alignas(64) char out_block[BLOCK * 8];
    struct sums sums = sums_zero();
    for (int64_t s = 0; s < rows->count; s++) {
        double weight = rows->weight ? rows->weight[s] : 1;
        if (weight == 0)
            continue;
        memcpy(in_block, rows->in + rows->row[s] * rows->in_row_stride + at, bytes);
        sums_add(type, in_block, weight, &sums);
    }
    sums_store(type, sums, out_block);
    memcpy(rows->token_out + at, out_block, bytes);
}

ROW_INLINE void slots_to_token(const struct moetoken_rows *rows, int type)
{
    const int64_t size = (int64_t)token_size(type);
    const int64_t complete = rows->length / BLOCK * BLOCK;
    for (int64_t h = 0; h < complete; h += BLOCK)
        sum_one_block(rows, type, h * size);
    if (complete < rows->length)
        sum_tail(rows, type, complete * size, (size_t)((rows->length - complete) * size));
}

ROW_INLINE void copy_to_slots(const struct moetoken_rows *rows, int64_t size)
{
    for (int64_t s = 0; s < rows->count; s++) {
        char *out = rows->out + rows->row[s] * rows->out_row_stride;
        copy_bytes(rows->token_in, out, rows->length * size, rows->streaming);
    }
}

#endif
