/* layers.h - the layers around the experts: norm, linear, attention, activation and loss.
 *
 * Matrices are contiguous and row-major: activations [rows, width], weights [inputs, outputs].
 * A backward function writes the gradient of its input, except where it says that it adds; a
 * gradient function adds to that of its weights, row by row. */
#ifndef TRAIN_MOE_LAYERS_H
#define TRAIN_MOE_LAYERS_H

#include <stdbool.h>
#include <stdint.h>

#include "real.h"

/* y = x * weight / sqrt(mean(x^2) + epsilon); `inverse` [rows] keeps the reciprocal root. */
void norm_forward(real *y, real *inverse, const real *x, const real *weight, int64_t rows,
                  int64_t width);
/* Adds to dx: the norm sits beside a residual connection. */
void norm_backward(real *dx, const real *dy, const real *x, const real *weight, const real *inverse,
                   int64_t rows, int64_t width);
void norm_gradient(real *dweight, const real *dy, const real *x, const real *inverse, int64_t rows,
                   int64_t width);

/* y [rows,outputs] = x [rows,inputs] * weight [inputs,outputs], or y += that. */
void linear_forward(real *y, const real *x, const real *weight, int64_t rows, int64_t inputs,
                    int64_t outputs, bool accumulate);
/* Or adds to dx. scratch: [inputs * outputs]. */
void linear_backward(real *dx, const real *dy, const real *weight, int64_t rows, int64_t inputs,
                     int64_t outputs, bool accumulate, real *scratch);
void linear_gradient(real *dweight, const real *dy, const real *x, int64_t rows, int64_t inputs,
                     int64_t outputs);

/* Causal attention of `heads` heads over sequences of `context` tokens, with a bias that falls
 * linearly with the distance (a slope for each head) in place of position embeddings. */
struct attention {
    int64_t sequences, context, heads, width;
    real *weights;    /* [sequences * heads, context, context]: what each query takes of each key */
    real *transposed; /* [sequences * context * width]: scratch for keys or values */
    real *row;        /* [sequences * heads, context]: scratch for the gradient of one query */
};
/* qkv [tokens, 3 * width]: query, key and value side by side; y [tokens, width]. */
void attention_forward(const struct attention *attention, real *y, const real *qkv);
void attention_backward(const struct attention *attention, real *dqkv, const real *dy,
                        const real *qkv);

/* y = x * (1 + x / sqrt(1 + x^2)) / 2: the shape of SiLU, but smooth arithmetic only. */
void activation_forward(real *y, const real *x, int64_t count);
/* dy becomes the gradient of x. */
void activation_backward(real *dy, const real *x, int64_t count);

/* The row's softmax in place; returns the logarithm of the sum of exponentials. */
real softmax(real *row, int64_t count);

/* losses [rows]: negative log likelihood, in nats, of each target byte. The logits [rows, classes]
 * become their own gradient in the mean of all_rows such losses. */
void cross_entropy(real *losses, real *logits, const uint8_t *targets, int64_t rows,
                   int64_t all_rows, int64_t classes);

/* The rows of a table, one for each byte, and the sum of their gradients. */
void embedding_forward(real *y, const real *table, const uint8_t *bytes, int64_t rows,
                       int64_t width);
void embedding_gradient(real *dtable, const real *dy, const uint8_t *bytes, int64_t rows,
                        int64_t width);

#endif
