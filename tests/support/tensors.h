/* tensors.h - DLTensors over guarded memory, in any layout, with element access.
 *
 * A tensor made here knows what its memory held before a call, so that a test can say "nothing was
 * written" or "nothing but the elements was written". */
#ifndef MOETOKEN_TESTS_TENSORS_H
#define MOETOKEN_TESTS_TENSORS_H

#include "buffers.h"
#include "numbers.h"

struct layout {
    int64_t column_stride; /* in elements; 0: 1 */
    int64_t row_gap;       /* elements between the end of a row and the next */
    size_t misalignment;   /* bytes */
    uint64_t byte_offset;
    enum buffer_placement placement;
    bool transposed;     /* the first dimension is the one that runs through memory fastest */
    bool repeat_rows;    /* stride 0 in the first dimension */
    bool repeat_columns; /* stride 0 in the second */
    bool write_strides;  /* explicit strides even when contiguous */
};

struct test_tensor {
    DLTensor dl; /* points into this struct: it must not move */
    int64_t shape[2], strides[2];
    moetoken_type type;
    struct buffer buffer;
    char *snapshot; /* the buffer's bytes when tensor_snapshot was called */
};

/* A tensor whose memory holds the guard pattern. ndim is 1 or 2; with 1, columns is ignored.
 * layout NULL: contiguous, aligned. */
void tensor_make(struct test_tensor *tensor, moetoken_type type, int ndim, int64_t rows,
                 int64_t columns, const struct layout *layout);
void tensor_free(struct test_tensor *tensor); /* an all-zero struct is fine */

/* A layout picked at random: contiguous or strided, aligned or not, beside a page or not. Outputs
 * never repeat. */
struct layout layout_random(bool output);

/* Elements of any DLTensor of rank 1 (column 0) or 2. */
moetoken_type tensor_type(const DLTensor *tensor);
void *tensor_at(const DLTensor *tensor, int64_t row, int64_t column);
int64_t tensor_columns(const DLTensor *tensor);
double tensor_get(const DLTensor *tensor, int64_t row, int64_t column);
int64_t tensor_get_index(const DLTensor *tensor, int64_t i);
uint64_t tensor_get_bits(const DLTensor *tensor, int64_t row, int64_t column);
void tensor_set(const DLTensor *tensor, int64_t row, int64_t column, double value);
void tensor_set_bits(const DLTensor *tensor, int64_t row, int64_t column, uint64_t bits);

/* Fills: one value everywhere, row-major values, random numbers (special_percent of them NaN, Inf,
 * zeros, subnormals), NaN for outputs (-1 for indices). */
void tensor_fill(const DLTensor *tensor, double value);
void tensor_fill_from(const DLTensor *tensor, const double *values);
void tensor_fill_indices(const DLTensor *tensor, const int64_t *values);
void tensor_fill_random(const DLTensor *tensor, int special_percent);
void tensor_fill_poison(const DLTensor *tensor);

void tensor_snapshot(struct test_tensor *tensor);
/* No byte has changed since the snapshot, and the guards hold. */
bool tensor_unchanged(const struct test_tensor *tensor);
/* No byte outside the elements has changed since the snapshot, and the guards hold. */
bool tensor_gaps_unchanged(const struct test_tensor *tensor);

/* Where two tensors of one shape and type first differ in bits: row * columns + column, or -1. */
int64_t tensor_difference(const DLTensor *left, const DLTensor *right);

#endif
