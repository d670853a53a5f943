/* rows_undecoded.h - the part of the block vocabulary (rows_blocks.h) of instruction sets to which
 * decoding is cheap: tokens are not decoded beforehand, ties are not looked for, and all products
 * are formed exactly at once. */
#ifndef MOETOKEN_ROWS_UNDECODED_H
#define MOETOKEN_ROWS_UNDECODED_H

#include "rows/rows_vector.h"

ROW_INLINE int64_t decode_slots(int type, int verbs)
{
    (void)type;
    (void)verbs;
    return 0;
}

ROW_INLINE int64_t decoded_size(int type)
{
    (void)type;
    return 0;
}

ROW_INLINE void decode_block(int type, const char *token, char *decoded)
{
    (void)type;
    (void)token;
    (void)decoded;
}

ROW_INLINE bool looks_for_ties(int type)
{
    (void)type;
    return false;
}

ROW_INLINE bool has_no_ties(int type, double weight)
{
    (void)type;
    (void)weight;
    return false;
}

struct least {
    double magnitude;
};

ROW_INLINE struct least least_begin(void)
{
    return (struct least){0};
}

ROW_INLINE void least_add(int type, const char *token, struct least *least)
{
    (void)type;
    (void)token;
    (void)least;
}

ROW_INLINE double least_end(int type, struct least least)
{
    (void)type;
    return least.magnitude;
}

ROW_INLINE bool always_exact(int type)
{
    (void)type;
    return true;
}

ROW_INLINE void exact_begin(int type)
{
    (void)type;
}

ROW_INLINE bool exact_end(int type, const void *sums)
{
    (void)type;
    (void)sums;
    return true;
}

#endif
