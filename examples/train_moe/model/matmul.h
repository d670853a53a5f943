/* matmul.h - the one matrix product that forward and backward pass are made of. */
#ifndef TRAIN_MOE_MATMUL_H
#define TRAIN_MOE_MATMUL_H

#include <stdbool.h>
#include <stdint.h>

#include "real.h"

/* c = a * b, or c += a * b. c [m,n] and b [k,n] are contiguous; element (i,p) of a [m,k] is
 * a[i * a_row + p * a_column], so a transposed `a` costs nothing. Every element of c is the sum of
 * its products in ascending p, computed by one thread: the bits do not depend on their number. */
void matmul(real *c, const real *a, int64_t a_row, int64_t a_column, const real *b, int64_t m,
            int64_t n, int64_t k, bool accumulate);

/* out [columns,rows] = in [rows,columns] transposed. */
void transpose(real *out, const real *in, int64_t rows, int64_t columns);

#endif
