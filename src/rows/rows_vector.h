/* rows_vector.h - the few words that all vector kernel files start from; rows_blocks.h has the
 * loops and lists what else a file brings. */
#ifndef MOETOKEN_ROWS_VECTOR_H
#define MOETOKEN_ROWS_VECTOR_H

#include "rows/rows.h"

/* Bodies take types and choices as constants: they only make sense inlined, at any -O level. */
#define ROW_INLINE static inline __attribute__((always_inline))

/* Elements of a block: one for each partial sum of a dot product. */
#define BLOCK MOETOKEN_DOT_LANES

/* What is done with a slot, or-ed. VERB_DOT_FIRST with both others: the dot product of a piece is
 * finished, and seen to be exact, before the piece is overwritten. */
enum {
    VERB_SCALE = 1,
    VERB_DOT = 2,
    VERB_DOT_FIRST = 4
};

/* What is seen to: nothing, when even ties of the rounding are known not to occur; ties, but
 * neither NaN nor products that are not exact; everything. */
enum {
    NO_TIES,
    NO_CARE,
    WITH_CARE
};

/* How a row is written: through the caches, past them in whole registers, or past them in pieces of
 * 16 bytes, for rows with no better alignment than malloc's. */
enum {
    STORE_CACHED,
    STORE_STREAMING,
    STORE_STREAMING_16
};

/* A block of one slot: out = weight * token, and the products in * token. */
struct block {
    const char *token, *decoded; /* the token's block, and the same decoded, where it is */
    const char *in;
    double weight;
    char *out;
};

ROW_INLINE bool is_16_bit(int type)
{
    return type == MOETOKEN_F16 || type == MOETOKEN_BF16;
}

#endif
