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
 *   row_block(type, verbs, care, store, decoded, block, lanes)
 *                                           lanes + in * token, and out = weight * token. All of
 *                                           `in` is read before the same bytes of `out` are
 *                                           written. decoded: block.decoded may be used
 *   decode_slots(type, verbs)               with how many slots a token is worth decoding once;
 *                                           0: never
 *   decoded_size(type)                      bytes of a decoded element, 8 at most
 *   decode_block(type, token, decoded)      a block in the arithmetic of the products, in an order
 *                                           of the file's own
 *   looks_for_ties(type)                    decoded pieces without ties are rounded faster
 *   struct least, least_begin(), least_add(type, token, least), least_end(type, least)
 *                                           the least magnitude of a token's blocks, zeros left out
 *   has_no_ties(type, weight)               no product of the weight and an element is halfway
 *                                           between two elements, or it is subnormal as float32
 *   always_exact(type)                      row_block's products are, even without care
 *   exact_begin(type), exact_end(type, sums)  true when all products since the former were exact
 *   block_is_finite(type, token)            no NaN and no infinity in it
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

#include <float.h>

/* How far ahead of its use the expert side is asked for, in bytes; past the end of a piece that is
 * in the next slot's row. The hardware follows a row once it has begun, but cannot know the next.
 */
#define PREFETCH_BYTES 2048

/* Elements of a token's row that are decoded at a time: they stay in the first-level cache, with
 * room for the slots' rows to pass by. */
#define CHUNK (32 * BLOCK)

/* A piece of a slot's row, and what it meets. */
struct piece {
    const char *token, *decoded; /* its elements, and the same decoded or NULL */
    const char *in, *next;       /* next: what will be read of `in` after this piece */
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
    struct block block = {.weight = piece.weight};
    struct lanes lanes = verbs & VERB_DOT ? lanes_load(sums) : lanes_zero();
    for (int64_t b = 0; b < piece.length / BLOCK; b++) {
        const int64_t at = b * block_bytes(type);
        block.token = piece.token + at;
        if (decoded)
            block.decoded = piece.decoded + b * BLOCK * decoded_size(type);
        if (verbs & VERB_SCALE)
            block.out = piece.out + at;
        if (verbs & VERB_DOT) {
            block.in = piece.in + at;
            prefetch_block(type, &piece, at);
        }
        row_block(type, verbs, care, store, decoded, block, &lanes);
    }
    if (verbs & VERB_DOT)
        lanes_store(sums, lanes);
}

/* The incomplete block: the same work on copies that are filled up with zeros. A zero product
 * changes no partial sum, for none is ever -0. */
ROW_INLINE void piece_tail_of(int type, int verbs, const struct piece *piece, double *sums)
{
    const int64_t tail = piece->length % BLOCK;
    const int64_t at = (piece->length - tail) * (int64_t)token_size(type);
    const size_t bytes = (size_t)tail * token_size(type);
    char token[BLOCK * 8] = {0}, in[BLOCK * 8] = {0}, out[BLOCK * 8];
    struct block block = {.token = token, .in = in, .out = out, .weight = piece->weight};
    struct lanes lanes = verbs & VERB_DOT ? lanes_load(sums) : lanes_zero();
    memcpy(token, piece->token + at, bytes);
    if (verbs & VERB_DOT)
        memcpy(in, piece->in + at, bytes);
    row_block(type, verbs, WITH_CARE, STORE_CACHED, false, block, &lanes);
    if (verbs & VERB_DOT)
        lanes_store(sums, lanes);
    if (verbs & VERB_SCALE)
        memcpy(piece->out + at, out, bytes);
}

ROW_INLINE void piece_tail_by_verbs(int type, int verbs, const struct piece *piece, double *sums)
{
    if (verbs == VERB_SCALE)
        piece_tail_of(type, VERB_SCALE, piece, sums);
    else if (verbs == VERB_DOT)
        piece_tail_of(type, VERB_DOT, piece, sums);
    else
        piece_tail_of(type, VERB_SCALE | VERB_DOT, piece, sums);
}

/* One copy of the code for all kernels: it is as long as theirs. */
static __attribute__((noinline)) void piece_tail(int type, int verbs, const struct piece *piece,
                                                 double *sums)
{
    switch (type) {
    case MOETOKEN_F32:
        piece_tail_by_verbs(MOETOKEN_F32, verbs, piece, sums);
        break;
    case MOETOKEN_F16:
        piece_tail_by_verbs(MOETOKEN_F16, verbs, piece, sums);
        break;
    case MOETOKEN_BF16:
        piece_tail_by_verbs(MOETOKEN_BF16, verbs, piece, sums);
        break;
    default:
        piece_tail_by_verbs(MOETOKEN_F64, verbs, piece, sums);
        break;
    }
}

/* Complete blocks, by their stores. What is done with care is rare, and kept small. */
ROW_INLINE void piece_stores(int type, int verbs, int care, bool decoded, int store,
                             const struct piece *piece, double *sums)
{
    const bool streams = (verbs & VERB_SCALE) && care != WITH_CARE;
    if (streams && store == STORE_STREAMING)
        piece_blocks(type, verbs, care, STORE_STREAMING, decoded, piece, sums);
    else if (streams && store == STORE_STREAMING_16)
        piece_blocks(type, verbs, care, STORE_STREAMING_16, decoded, piece, sums);
    else
        piece_blocks(type, verbs, care, STORE_CACHED, decoded, piece, sums);
}

ROW_INLINE void piece_all(int type, int verbs, int care, bool decoded, bool no_ties, int store,
                          const struct piece *piece, double *sums)
{
    const bool looks = (verbs & VERB_SCALE) && care == NO_CARE && decoded && looks_for_ties(type);
    if (looks && no_ties)
        piece_stores(type, verbs, NO_TIES, decoded, store, piece, sums);
    else
        piece_stores(type, verbs, care, decoded, store, piece, sums);
    if (piece->length % BLOCK != 0)
        piece_tail(type, verbs & (VERB_SCALE | VERB_DOT), piece, sums);
}

/* The dot product of a piece with care, should it need any. */
ROW_INLINE void piece_dot(int type, bool decoded, const struct piece *piece, double *sums)
{
    struct lanes before = lanes_load(sums);
    piece_all(type, VERB_DOT, NO_CARE, decoded, false, STORE_CACHED, piece, sums);
    if (exact_end(type, sums))
        return;
    lanes_store(sums, before);
    piece_all(type, VERB_DOT, WITH_CARE, false, false, STORE_CACHED, piece, sums);
    exact_begin(type);
}

/* The row that the next call begins with, or -1. */
ROW_INLINE int64_t next_call_row(const struct moetoken_rows *rows)
{
    return rows->next_count > 0 ? rows->next_rows[0] : -1;
}

/* Where slot s continues at element h, and what comes after that piece. */
ROW_INLINE struct piece make_piece(const struct moetoken_rows *rows, int type, int verbs, int64_t s,
                                   int64_t h, int64_t length)
{
    const int64_t at = h * (int64_t)token_size(type);
    struct piece piece = {.token = rows->token_in + at, .length = length};
    if (verbs & VERB_DOT) {
        bool last_slot = s + 1 == rows->count, last_piece = h + length == rows->length;
        int64_t next_row = !last_slot    ? rows->row[s + 1]
                           : !last_piece ? rows->row[0]
                                         : next_call_row(rows);
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

/* A token's row that is worked on in pieces, because they are decoded first, or whole. */
struct token_row {
    _Alignas(64) char decoded[CHUNK * 8];
    double least;                          /* magnitude in the decoded piece, zeros left out */
    bool no_ties[MOETOKEN_SLOTS_PER_CALL]; /* has_no_ties of each slot's weight */
};

/* Rows from which on it pays to know whether there are ties. */
#define TIES_LENGTH 512

ROW_INLINE void look_for_ties(const struct moetoken_rows *rows, int type, struct token_row *token)
{
    for (int64_t s = 0; s < rows->count; s++)
        token->no_ties[s] = rows->length >= TIES_LENGTH && has_no_ties(type, rows->weight[s]);
}

ROW_INLINE void decode_piece(int type, const char *piece, int64_t length, bool ties,
                             struct token_row *token)
{
    struct least least = least_begin();
    for (int64_t b = 0; b < length / BLOCK; b++) {
        decode_block(type, piece + b * block_bytes(type),
                     token->decoded + b * BLOCK * decoded_size(type));
        if (ties)
            least_add(type, piece + b * block_bytes(type), &least);
    }
    if (ties)
        token->least = least_end(type, least);
}

/* All slots of the token, piece by piece. */
ROW_INLINE void all_slots(const struct moetoken_rows *rows, int type, int verbs, int care,
                          bool decoded, double sums[][MOETOKEN_DOT_LANES])
{
    const int64_t most = decoded ? CHUNK : rows->length;
    const bool ties = decoded && (verbs & VERB_SCALE) && looks_for_ties(type);
    struct token_row token;
    if (ties)
        look_for_ties(rows, type, &token);
    for (int64_t s = 0; (verbs & VERB_DOT) && s < rows->count; s++)
        lanes_store(sums[s], lanes_zero());
    for (int64_t h = 0; h < rows->length; h += most) {
        int64_t length = rows->length - h < most ? rows->length - h : most;
        if (decoded)
            decode_piece(type, rows->token_in + h * (int64_t)token_size(type), length, ties,
                         &token);
        for (int64_t s = 0; s < rows->count; s++) {
            struct piece piece = make_piece(rows, type, verbs, s, h, length);
            bool no_ties = ties && token.no_ties[s] && fabs(piece.weight) * token.least >= FLT_MIN;
            int store = store_kind(piece.out, rows->streaming);
            piece.decoded = decoded ? token.decoded : NULL;
            if (verbs & VERB_DOT_FIRST) {
                piece_dot(type, decoded, &piece, sums[s]);
                piece_all(type, VERB_SCALE, care, decoded, no_ties, store, &piece, NULL);
            } else {
                piece_all(type, verbs, care, decoded, no_ties, store, &piece,
                          verbs & VERB_DOT ? sums[s] : NULL);
            }
        }
    }
}

ROW_INLINE bool is_finite(double value)
{
    return value - value == 0;
}

ROW_INLINE void all_slots_with_care_by_verbs(const struct moetoken_rows *rows, int type, int verbs,
                                             double sums[][MOETOKEN_DOT_LANES])
{
    if (verbs == VERB_SCALE)
        all_slots(rows, type, VERB_SCALE, WITH_CARE, false, NULL);
    else
        all_slots(rows, type, VERB_DOT, WITH_CARE, false, sums);
}

/* The rare pass, VERB_SCALE or VERB_DOT: one copy of the code for all kernels. */
static __attribute__((noinline)) void all_slots_with_care(const struct moetoken_rows *rows,
                                                          int type, int verbs,
                                                          double sums[][MOETOKEN_DOT_LANES])
{
    switch (type) {
    case MOETOKEN_F32:
        all_slots_with_care_by_verbs(rows, MOETOKEN_F32, verbs, sums);
        break;
    case MOETOKEN_F16:
        all_slots_with_care_by_verbs(rows, MOETOKEN_F16, verbs, sums);
        break;
    case MOETOKEN_BF16:
        all_slots_with_care_by_verbs(rows, MOETOKEN_BF16, verbs, sums);
        break;
    default:
        all_slots_with_care_by_verbs(rows, MOETOKEN_F64, verbs, sums);
        break;
    }
}

/* The fast pass over all slots. */
ROW_INLINE void all_slots_fast(const struct moetoken_rows *rows, int type, int verbs,
                               double sums[][MOETOKEN_DOT_LANES])
{
    const int64_t from = decode_slots(type, verbs);
    if (from != 0 && rows->count >= from)
        all_slots(rows, type, verbs, NO_CARE, from != 0, sums);
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
        all_slots_with_care(rows, type, VERB_SCALE, NULL);
}

/* The dot products; with VERB_SCALE too, the scaled rows in the same pass. True when all of them
 * are finite. That they can be only if all elements of the token's row are. */
ROW_INLINE bool dot_slots(const struct moetoken_rows *rows, int type, int verbs)
{
    _Alignas(64) double sums[MOETOKEN_SLOTS_PER_CALL][MOETOKEN_DOT_LANES];
    bool finite = true;
    exact_begin(type);
    all_slots_fast(rows, type, verbs, sums);
    if (!(verbs & VERB_DOT_FIRST) && !exact_end(type, sums))
        all_slots_with_care(rows, type, VERB_DOT, sums);
    for (int64_t s = 0; s < rows->count; s++) {
        double dot = lanes_total(type, lanes_load(sums[s]));
        finite &= is_finite(dot);
        rows->dot[s] = dot != dot ? NAN : dot;
    }
    return finite;
}

/* One pass. In place, what dot products may have to be done again from is overwritten only after
 * them. */
ROW_INLINE void scale_dot_slots(const struct moetoken_rows *rows, int type)
{
    bool finite = rows->in == rows->out && !always_exact(type)
                      ? dot_slots(rows, type, VERB_SCALE | VERB_DOT | VERB_DOT_FIRST)
                      : dot_slots(rows, type, VERB_SCALE | VERB_DOT);
    for (int64_t s = 0; finite && s < rows->count; s++)
        finite = is_finite(rows->weight[s]);
    if (!finite)
        all_slots_with_care(rows, type, VERB_SCALE, NULL);
}

ROW_INLINE bool row_is_finite(int type, const char *token, int64_t length)
{
    bool finite = type != MOETOKEN_F64;
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

/* Each row is a stream of its own, too many for the hardware to follow, and each begins where no
 * hardware expects it: the lines to come are asked for here, past the end of the row those of the
 * next sum. */
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

/* Adds one or two blocks, from byte `at` on, of every row. */
ROW_INLINE void sum_blocks(const struct moetoken_rows *rows, int type, bool weighted, int store,
                           int64_t at, int blocks)
{
    const int64_t second_at = at + block_bytes(type);
    struct sums first = sums_begin(rows, type, at), second = sums_zero();
    if (blocks == 2)
        second = sums_begin(rows, type, second_at);
    for (int64_t i = 0; i < rows->count; i++) {
        const double weight = weighted ? rows->weight[i] : 1;
        prefetch_addend(rows, type, i, at, blocks * block_bytes(type));
        sums_add(type, weighted, rows->in_row[i] + at, weight, &first);
        if (blocks == 2)
            sums_add(type, weighted, rows->in_row[i] + second_at, weight, &second);
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

/* Two blocks at a time share the work that each row costs; two of float64 have no room in the
 * registers of some. */
ROW_INLINE void sum_row(const struct moetoken_rows *rows, int type, bool weighted)
{
    const int most = type == MOETOKEN_F64 ? 1 : 2;
    const int store = store_kind(rows->token_out, rows->streaming);
    const int64_t count = rows->length / BLOCK;
    int64_t b = 0;
    for (; b + most <= count; b += most)
        sum_blocks(rows, type, weighted, store, b * block_bytes(type), most);
    if (b < count)
        sum_blocks(rows, type, weighted, store, b * block_bytes(type), 1);
}

ROW_INLINE void slots_to_token(const struct moetoken_rows *rows, int type)
{
    const int64_t tail = rows->length % BLOCK;
    if (rows->weight)
        sum_row(rows, type, true);
    else
        sum_row(rows, type, false);
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
