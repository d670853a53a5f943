/* rows.h - what moves and adds rows: the kernel table and the one argument struct of all kernels.
 *
 * The last stop of the data: operators resolve tensors and slots into struct moetoken_rows, one
 * token at a time, and call a kernel of the table. A kernel knows pointers, lengths and strides,
 * and nothing of tensors, tokens or experts. docs/kernels.md is the guide for their authors. */
#ifndef MOETOKEN_ROWS_H
#define MOETOKEN_ROWS_H

#include "threads/float_build.h"
#include <moetoken/moetoken.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The partial sums of a dot product: element h goes to lane h % 32, in ascending h. The lanes are
 * then added in halves: lane j += lane j+16 for j < 16, then j+8, j+4, j+2, j+1. */
#define MOETOKEN_DOT_LANES 32

/* The most slots that one call of a scale_dot, scale, dot or copy kernel serves. */
#define MOETOKEN_SLOTS_PER_CALL 16

/* The most rows that one call of a sum kernel adds; rows_sum.h adds any number. */
#define MOETOKEN_ROWS_PER_SUM 64

/* The element types, which are moetoken_type's first ones: they index the tables. */
#define MOETOKEN_TOKEN_TYPES (MOETOKEN_F64 + 1)

/* One row of the token side and the rows of its slots on the expert side.
 *
 * Expert-side row s (0 <= s < count) starts at in + row[s] * in_row_stride, and the same for out;
 * those of a sum start at in_row[s], wherever that is. All strides are in bytes. The variants are
 * for rows whose elements lie side by side (token_stride, in_stride and out_stride equal to the
 * element's size, where used); for anything else the caller takes the scalar kernels. Pointers have
 * any alignment. */
struct moetoken_rows {
    int64_t length;            /* H: elements in a row; may be 0 */
    int64_t count;             /* slots, or rows of a sum; may be 0 */
    const int64_t *row;        /* [count] row numbers on the expert side (not sums) */
    const char *const *in_row; /* [count] the rows that a sum adds */
    const double *weight;      /* [count] exact float32 values, or binary64 with float64 tokens */
    double *dot;               /* [count] results of the dot products */

    const char *token_in; /* the token's row when the expert side is written (copy, scale, dot) */
    char *token_out;      /* the token's row when the expert side is added up (sum) */
    int64_t token_stride; /* between elements of the token's row */

    /* A sum of more rows than one call takes: partial_out (or NULL) gets the sums so far instead
     * of token_out, and the next call goes on from them as its partial_in (NULL: from 0). Both are
     * aligned to 64 bytes and have room for moetoken_partial_bytes; in between only kernels of the
     * same table know what is in them. May be one buffer. */
    const void *partial_in;
    void *partial_out;

    const char *in; /* the expert side that is read: permuted tokens. Sums: what next_rows are of */
    int64_t in_row_stride, in_stride;
    char *out; /* the expert side that is written; may be `in` itself (same strides) */
    int64_t out_row_stride, out_stride;

    /* Rows of `in` that the following calls will read, in their order, as a hint for prefetching:
     * -1 where a slot has none, and next_count 0 when nothing is known. */
    const int64_t *next_rows;
    int64_t next_count;

    bool streaming; /* write rows past the caches (non-temporal stores); same bits. The caller
                       of the kernels issues the fence, moetoken_row_kernels.fence */
};

/* Bytes of the partial sums of `length` elements: float32, or binary64 for float64, in blocks. */
static inline size_t moetoken_partial_bytes(int type, int64_t length)
{
    size_t size = type == MOETOKEN_F64 ? sizeof(double) : sizeof(float);
    return (size_t)((length + MOETOKEN_DOT_LANES - 1) / MOETOKEN_DOT_LANES * MOETOKEN_DOT_LANES) *
           size;
}

typedef void moetoken_rows_fn(const struct moetoken_rows *rows);

/* Defines the kernel `name`: a body of which the type, or the element's size, is a constant. */
#define MOETOKEN_ROW_KERNEL(name, body, type)                                                      \
    static void name(const struct moetoken_rows *rows)                                             \
    {                                                                                              \
        body(rows, type);                                                                          \
    }

/* One instruction set's kernels, or the scalar ones where it brings none. */
struct moetoken_row_kernels {
    uint32_t isa; /* the highest MOETOKEN_ISA_... bit that filled something in */

    /* out[row[s], h] = token[h], bit for bit; by element size: 2, 4, 8 bytes */
    moetoken_rows_fn *copy_2, *copy_4, *copy_8;

    /* out[row[s], h] = round(float32(weight[s]) * float32(token[h])) */
    moetoken_rows_fn *scale[MOETOKEN_TOKEN_TYPES];

    /* dot[s] = sum over h of in[row[s], h] * token[h] */
    moetoken_rows_fn *dot[MOETOKEN_TOKEN_TYPES];

    /* both of the above in one pass; out may be in */
    moetoken_rows_fn *scale_dot[MOETOKEN_TOKEN_TYPES];

    /* token[h] = round(0 + weight[0] * in_row[0][h] + weight[1] * in_row[1][h] + ...), in float32
     * (binary64 for float64), multiply then add, row by row. weight NULL: all 1. Rows that must not
     * count are left out of the list: a row of weight 0 would leak its infinities. */
    moetoken_rows_fn *sum[MOETOKEN_TOKEN_TYPES];

    void (*fence)(void); /* after the last streaming store of a thread */
};

/* The kernels allowed by isa_mask (0: all) on this CPU and by MOETOKEN_ISA. Cheap enough for every
 * call. */
void moetoken_row_kernels_select(uint32_t isa_mask, struct moetoken_row_kernels *kernels);

/* The copy kernel for an element size of 2, 4 or 8 bytes. */
static inline moetoken_rows_fn *
moetoken_row_kernels_copy(const struct moetoken_row_kernels *kernels, int64_t element_size)
{
    if (element_size == 2)
        return kernels->copy_2;
    return element_size == 4 ? kernels->copy_4 : kernels->copy_8;
}

/* What each instruction set overrides; called in rising order by moetoken_row_kernels_select. */
void moetoken_row_kernels_scalar(struct moetoken_row_kernels *kernels);
void moetoken_row_kernels_avx2(struct moetoken_row_kernels *kernels);
void moetoken_row_kernels_avx512(struct moetoken_row_kernels *kernels);
void moetoken_row_kernels_neon(struct moetoken_row_kernels *kernels);

/* The one list of kernels: dispatch prints it, tests and bench walk it. */
enum moetoken_row_verb {
    MOETOKEN_COPY_ROWS,
    MOETOKEN_SCALE_ROWS,
    MOETOKEN_DOT_ROWS,
    MOETOKEN_SCALE_DOT_ROWS,
    MOETOKEN_SUM_ROWS
};

struct moetoken_row_kernel_entry {
    const char *name; /* "scale_dot_rows_bf16" */
    enum moetoken_row_verb verb;
    int type;            /* moetoken_type, or -1 for copies */
    size_t element_size; /* bytes */
    size_t offset;       /* of the pointer in struct moetoken_row_kernels */
};

#define MOETOKEN_ROW_KERNEL_COUNT 19
extern const struct moetoken_row_kernel_entry moetoken_row_kernel_list[MOETOKEN_ROW_KERNEL_COUNT];

/* The kernel of an entry in a table. */
moetoken_rows_fn *moetoken_row_kernel_get(const struct moetoken_row_kernels *kernels,
                                          const struct moetoken_row_kernel_entry *entry);

#endif
