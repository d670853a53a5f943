/* rows_vector.h - the few words that all vector kernel files start from; rows_blocks.h has the
 * loops and lists what else a file brings. */
#ifndef MOETOKEN_ROWS_VECTOR_H
#define MOETOKEN_ROWS_VECTOR_H

#include "rows/rows.h"

/* Bodies take types and choices as constants: they only make sense inlined, at any -O level. */
#define ROW_INLINE static inline __attribute__((always_inline))

/* Elements of a block: one for each partial sum of a dot product. */
#define BLOCK MOETOKEN_DOT_LANES

/* What is done with a slot, or-ed. */
enum {
    VERB_SCALE = 1,
    VERB_DOT = 2
};

/* How a row is written: through the caches, past them in whole registers, or past them in pieces of
 * 16 bytes, for rows with no better alignment than malloc's. */
enum {
    STORE_CACHED,
    STORE_STREAMING,
    STORE_STREAMING_16
};

ROW_INLINE bool is_16_bit(int type)
{
    return type == MOETOKEN_F16 || type == MOETOKEN_BF16;
}

/* Whether the product of two elements always fits the arithmetic it is formed in without care. Only
 * bfloat16's exponents can add up beyond float32's. */
ROW_INLINE bool always_exact(int type)
{
    return type != MOETOKEN_BF16;
}

#endif
