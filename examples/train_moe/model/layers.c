/* layers.c - forward and backward of the layers around the experts.
 *
 * Every sum has a fixed order, and threads share out whole rows or whole heads only: the bits do
 * not depend on the number of threads. */
#include "layers.h"

#include <string.h>
#include <tgmath.h>

#include "matmul.h"

#define NORM_EPSILON ((real)1e-5)

void norm_forward(real *y, real *inverse, const real *x, const real *weight, int64_t rows,
                  int64_t width)
{
#pragma omp parallel for schedule(static) if (rows * width > 65536)
    for (int64_t r = 0; r < rows; r++) {
        const real *in = x + r * width;
        real squares = 0;
        for (int64_t i = 0; i < width; i++)
            squares += in[i] * in[i];
        inverse[r] = 1 / sqrt(squares / (real)width + NORM_EPSILON);
        for (int64_t i = 0; i < width; i++)
            y[r * width + i] = in[i] * inverse[r] * weight[i];
    }
}

void norm_backward(real *dx, const real *dy, const real *x, const real *weight, const real *inverse,
                   int64_t rows, int64_t width)
{
    for (int64_t r = 0; r < rows; r++) {
        const real *in = x + r * width, *g = dy + r * width;
        real *out = dx + r * width, scale = inverse[r], dot = 0;
        for (int64_t i = 0; i < width; i++)
            dot += g[i] * weight[i] * in[i];
        real pull = dot * scale * scale / (real)width;
        for (int64_t i = 0; i < width; i++)
            out[i] += scale * (g[i] * weight[i] - in[i] * pull);
    }
}

void norm_gradient(real *dweight, const real *dy, const real *x, const real *inverse, int64_t rows,
                   int64_t width)
{
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < width; i++)
            dweight[i] += dy[r * width + i] * x[r * width + i] * inverse[r];
}

void linear_forward(real *y, const real *x, const real *weight, int64_t rows, int64_t inputs,
                    int64_t outputs, bool accumulate)
{
    matmul(y, x, inputs, 1, weight, rows, outputs, inputs, accumulate);
}

void linear_backward(real *dx, const real *dy, const real *weight, int64_t rows, int64_t inputs,
                     int64_t outputs, bool accumulate, real *scratch)
{
    transpose(scratch, weight, inputs, outputs);
    matmul(dx, dy, outputs, 1, scratch, rows, inputs, outputs, accumulate);
}

void linear_gradient(real *dweight, const real *dy, const real *x, int64_t rows, int64_t inputs,
                     int64_t outputs)
{
    matmul(dweight, x, 1, inputs, dy, inputs, outputs, rows, true);
}

/* One head of one sequence: where its parts lie. */
struct head {
    int64_t context, size, stride; /* stride: from one token's q, k and v to the next token's */
    int64_t offset;                /* of its query in qkv; key and value follow by `width` */
    int64_t width;
    real slope, scale;
    real *weights, *transposed, *row;
};

static struct head head_at(const struct attention *attention, int64_t index)
{
    int64_t sequence = index / attention->heads, h = index % attention->heads;
    int64_t context = attention->context, size = attention->width / attention->heads;
    return (struct head){
        .context = context,
        .size = size,
        .stride = 3 * attention->width,
        .offset = sequence * context * 3 * attention->width + h * size,
        .width = attention->width,
        .slope = exp2((real)(-8 * (h + 1)) / (real)attention->heads),
        .scale = 1 / sqrt((real)size),
        .weights = attention->weights + index * context * context,
        .transposed = attention->transposed + index * context * size,
        .row = attention->row + index * context,
    };
}

/* One element of all tokens side by side, so that loops over tokens become vectors. */
static void transpose_head(const struct head *head, const real *matrix)
{
    for (int64_t t = 0; t < head->context; t++)
        for (int64_t i = 0; i < head->size; i++)
            head->transposed[i * head->context + t] = matrix[t * head->stride + i];
}

/* out[j] = sum over i of left[i] * transposed[i][j], for j < count */
static void dot_with_tokens(const struct head *head, real *restrict out, const real *left,
                            int64_t count)
{
    memset(out, 0, (size_t)count * sizeof(real));
    for (int64_t i = 0; i < head->size; i++) {
        const real *restrict right = head->transposed + i * head->context;
        real factor = left[i];
        for (int64_t j = 0; j < count; j++)
            out[j] += factor * right[j];
    }
}

static void add_scaled(real *restrict out, real factor, const real *restrict in, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        out[i] += factor * in[i];
}

real softmax(real *row, int64_t count)
{
    real largest = row[0], total = 0;
    for (int64_t j = 1; j < count; j++)
        largest = row[j] > largest ? row[j] : largest;
    for (int64_t j = 0; j < count; j++)
        row[j] = exp(row[j] - largest);
    for (int64_t j = 0; j < count; j++)
        total += row[j];
    real factor = 1 / total;
    for (int64_t j = 0; j < count; j++)
        row[j] *= factor;
    return largest + log(total);
}

static void head_forward(const struct head *head, real *y, const real *qkv)
{
    const real *query = qkv + head->offset, *key = query + head->width, *value = key + head->width;
    transpose_head(head, key);
    for (int64_t t = 0; t < head->context; t++) {
        real *weights = head->weights + t * head->context, *out = y + t * head->width;
        dot_with_tokens(head, weights, query + t * head->stride, t + 1);
        for (int64_t j = 0; j <= t; j++)
            weights[j] = weights[j] * head->scale - head->slope * (real)(t - j);
        softmax(weights, t + 1);
        memset(out, 0, (size_t)head->size * sizeof(real));
        for (int64_t j = 0; j <= t; j++)
            add_scaled(out, weights[j], value + j * head->stride, head->size);
    }
}

void attention_forward(const struct attention *attention, real *y, const real *qkv)
{
    int64_t tasks = attention->sequences * attention->heads;
#pragma omp parallel for schedule(static) if (tasks * attention->context > 1024)
    for (int64_t index = 0; index < tasks; index++) {
        struct head head = head_at(attention, index);
        int64_t sequence = index / attention->heads, h = index % attention->heads;
        head_forward(&head, y + sequence * head.context * head.width + h * head.size, qkv);
    }
}

static void head_backward(const struct head *head, real *dqkv, const real *dy, const real *qkv)
{
    const real *query = qkv + head->offset, *key = query + head->width, *value = key + head->width;
    real *dquery = dqkv + head->offset, *dkey = dquery + head->width, *dvalue = dkey + head->width;
    real *row = head->row;
    transpose_head(head, value);
    for (int64_t t = 0; t < head->context; t++) {
        const real *weights = head->weights + t * head->context, *g = dy + t * head->width;
        dot_with_tokens(head, row, g, t + 1);
        real dot = 0;
        for (int64_t j = 0; j <= t; j++)
            dot += weights[j] * row[j];
        for (int64_t j = 0; j <= t; j++) {
            real dscore = weights[j] * (row[j] - dot) * head->scale;
            add_scaled(dvalue + j * head->stride, weights[j], g, head->size);
            add_scaled(dkey + j * head->stride, dscore, query + t * head->stride, head->size);
            add_scaled(dquery + t * head->stride, dscore, key + j * head->stride, head->size);
        }
    }
}

void attention_backward(const struct attention *attention, real *dqkv, const real *dy,
                        const real *qkv)
{
    int64_t tasks = attention->sequences * attention->heads;
    int64_t elements = attention->sequences * attention->context * 3 * attention->width;
    memset(dqkv, 0, (size_t)elements * sizeof(real));
#pragma omp parallel for schedule(static) if (tasks * attention->context > 1024)
    for (int64_t index = 0; index < tasks; index++) {
        struct head head = head_at(attention, index);
        int64_t sequence = index / attention->heads, h = index % attention->heads;
        head_backward(&head, dqkv, dy + sequence * head.context * head.width + h * head.size, qkv);
    }
}

void activation_forward(real *y, const real *x, int64_t count)
{
#pragma omp parallel for schedule(static) if (count > 65536)
    for (int64_t i = 0; i < count; i++)
        y[i] = (real)0.5 * x[i] * (1 + x[i] / sqrt(1 + x[i] * x[i]));
}

void activation_backward(real *dy, const real *x, int64_t count)
{
#pragma omp parallel for schedule(static) if (count > 65536)
    for (int64_t i = 0; i < count; i++) {
        real s = x[i] / sqrt(1 + x[i] * x[i]);
        dy[i] *= (real)0.5 * (1 + s * (2 - s * s));
    }
}

void cross_entropy(real *losses, real *logits, const uint8_t *targets, int64_t rows,
                   int64_t all_rows, int64_t classes)
{
#pragma omp parallel for schedule(static) if (rows * classes > 16384)
    for (int64_t r = 0; r < rows; r++) {
        real *row = logits + r * classes;
        real target = row[targets[r]];
        losses[r] = softmax(row, classes) - target;
        row[targets[r]] -= 1;
        for (int64_t c = 0; c < classes; c++)
            row[c] /= (real)all_rows;
    }
}

void embedding_forward(real *y, const real *table, const uint8_t *bytes, int64_t rows,
                       int64_t width)
{
    for (int64_t r = 0; r < rows; r++)
        memcpy(y + r * width, table + bytes[r] * width, (size_t)width * sizeof(real));
}

void embedding_gradient(real *dtable, const real *dy, const uint8_t *bytes, int64_t rows,
                        int64_t width)
{
    for (int64_t r = 0; r < rows; r++)
        add_scaled(dtable + bytes[r] * width, 1, dy + r * width, width);
}
