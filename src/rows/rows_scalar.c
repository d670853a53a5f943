/* rows_scalar.c - the scalar kernels: the specification of every other kernel.
 *
 * Plain loops over elements of any stride, compiled without a vectoriser. What they compute is
 * what all variants must compute, to the bit. One body a verb; `type` is a constant wherever a
 * body is used, so that each kernel below is a loop over one type. */
#include "rows/formats.h"
#include "rows/rows.h"

#include <moetoken/moetoken.h>

/* ---- the bodies ----------------------------------------------------------------------------- */

static inline void copy_rows(const struct moetoken_rows *rows, size_t size)
{
    for (int64_t s = 0; s < rows->count; s++) {
        const char *token = rows->token_in;
        char *out = rows->out + rows->row[s] * rows->out_row_stride;
        for (int64_t h = 0; h < rows->length; h++)
            memcpy(out + h * rows->out_stride, token + h * rows->token_stride, size);
    }
}

static inline void scale_rows(const struct moetoken_rows *rows, int type)
{
    for (int64_t s = 0; s < rows->count; s++) {
        char *out = rows->out + rows->row[s] * rows->out_row_stride;
        for (int64_t h = 0; h < rows->length; h++) {
            double g = element_load(type, rows->token_in + h * rows->token_stride);
            double scaled = element_product(type, rows->weight[s], g);
            element_store(type, out + h * rows->out_stride, scaled);
        }
    }
}

/* Adds the lanes in halves, see MOETOKEN_DOT_LANES. */
static inline double add_lanes(double lane[MOETOKEN_DOT_LANES])
{
    for (int half = MOETOKEN_DOT_LANES / 2; half > 0; half /= 2)
        for (int j = 0; j < half; j++)
            lane[j] += lane[j + half];
    return lane[0] != lane[0] ? NAN : lane[0]; /* without sign or payload, which are the CPU's */
}

static inline void dot_rows(const struct moetoken_rows *rows, int type)
{
    for (int64_t s = 0; s < rows->count; s++) {
        const char *in = rows->in + rows->row[s] * rows->in_row_stride;
        double lane[MOETOKEN_DOT_LANES] = {0};
        for (int64_t h = 0; h < rows->length; h++) {
            double x = element_load(type, in + h * rows->in_stride);
            double g = element_load(type, rows->token_in + h * rows->token_stride);
            lane[h % MOETOKEN_DOT_LANES] += x * g;
        }
        rows->dot[s] = add_lanes(lane);
    }
}

/* `in` is read before `out` is written, element by element: they may be one buffer. */
static inline void scale_dot_rows(const struct moetoken_rows *rows, int type)
{
    for (int64_t s = 0; s < rows->count; s++) {
        const char *in = rows->in + rows->row[s] * rows->in_row_stride;
        char *out = rows->out + rows->row[s] * rows->out_row_stride;
        double lane[MOETOKEN_DOT_LANES] = {0};
        for (int64_t h = 0; h < rows->length; h++) {
            double x = element_load(type, in + h * rows->in_stride);
            double g = element_load(type, rows->token_in + h * rows->token_stride);
            lane[h % MOETOKEN_DOT_LANES] += x * g;
            double scaled = element_product(type, rows->weight[s], g);
            element_store(type, out + h * rows->out_stride, scaled);
        }
        rows->dot[s] = add_lanes(lane);
    }
}

/* The partial sums of the scalar kernels are in order. */
static inline double partial_load(int type, const void *partial, int64_t h)
{
    if (partial == NULL)
        return 0;
    return type == MOETOKEN_F64 ? ((const double *)partial)[h]
                                : (double)((const float *)partial)[h];
}

static inline void partial_store(int type, void *partial, int64_t h, double sum)
{
    if (type == MOETOKEN_F64)
        ((double *)partial)[h] = sum;
    else
        ((float *)partial)[h] = (float)sum;
}

static inline void sum_rows(const struct moetoken_rows *rows, int type)
{
    for (int64_t h = 0; h < rows->length; h++) {
        double sum = partial_load(type, rows->partial_in, h);
        for (int64_t s = 0; s < rows->count; s++) {
            double weight = rows->weight ? rows->weight[s] : 1;
            double x = element_load(type, rows->in_row[s] + h * rows->in_stride);
            sum = element_sum(type, sum, element_product(type, weight, x));
        }
        if (rows->partial_out)
            partial_store(type, rows->partial_out, h, sum);
        else
            element_store(type, rows->token_out + h * rows->token_stride, sum);
    }
}

/* ---- the kernels ---------------------------------------------------------------------------- */

MOETOKEN_ROW_KERNEL(copy_rows_2_scalar, copy_rows, 2)
MOETOKEN_ROW_KERNEL(copy_rows_4_scalar, copy_rows, 4)
MOETOKEN_ROW_KERNEL(copy_rows_8_scalar, copy_rows, 8)
MOETOKEN_ROW_KERNEL(scale_rows_f32_scalar, scale_rows, MOETOKEN_F32)
MOETOKEN_ROW_KERNEL(scale_rows_f16_scalar, scale_rows, MOETOKEN_F16)
MOETOKEN_ROW_KERNEL(scale_rows_bf16_scalar, scale_rows, MOETOKEN_BF16)
MOETOKEN_ROW_KERNEL(scale_rows_f64_scalar, scale_rows, MOETOKEN_F64)
MOETOKEN_ROW_KERNEL(dot_rows_f32_scalar, dot_rows, MOETOKEN_F32)
MOETOKEN_ROW_KERNEL(dot_rows_f16_scalar, dot_rows, MOETOKEN_F16)
MOETOKEN_ROW_KERNEL(dot_rows_bf16_scalar, dot_rows, MOETOKEN_BF16)
MOETOKEN_ROW_KERNEL(dot_rows_f64_scalar, dot_rows, MOETOKEN_F64)
MOETOKEN_ROW_KERNEL(scale_dot_rows_f32_scalar, scale_dot_rows, MOETOKEN_F32)
MOETOKEN_ROW_KERNEL(scale_dot_rows_f16_scalar, scale_dot_rows, MOETOKEN_F16)
MOETOKEN_ROW_KERNEL(scale_dot_rows_bf16_scalar, scale_dot_rows, MOETOKEN_BF16)
MOETOKEN_ROW_KERNEL(scale_dot_rows_f64_scalar, scale_dot_rows, MOETOKEN_F64)
MOETOKEN_ROW_KERNEL(sum_rows_f32_scalar, sum_rows, MOETOKEN_F32)
MOETOKEN_ROW_KERNEL(sum_rows_f16_scalar, sum_rows, MOETOKEN_F16)
MOETOKEN_ROW_KERNEL(sum_rows_bf16_scalar, sum_rows, MOETOKEN_BF16)
MOETOKEN_ROW_KERNEL(sum_rows_f64_scalar, sum_rows, MOETOKEN_F64)

/* The scalar kernels store through the caches: nothing to wait for. */
static void fence_scalar(void)
{
}

void moetoken_row_kernels_scalar(struct moetoken_row_kernels *kernels)
{
    *kernels = (struct moetoken_row_kernels){
        .isa = MOETOKEN_ISA_SCALAR,
        .copy_2 = copy_rows_2_scalar,
        .copy_4 = copy_rows_4_scalar,
        .copy_8 = copy_rows_8_scalar,
        .scale = {scale_rows_f32_scalar, scale_rows_f16_scalar, scale_rows_bf16_scalar,
                  scale_rows_f64_scalar},
        .dot = {dot_rows_f32_scalar, dot_rows_f16_scalar, dot_rows_bf16_scalar,
                dot_rows_f64_scalar},
        .scale_dot = {scale_dot_rows_f32_scalar, scale_dot_rows_f16_scalar,
                      scale_dot_rows_bf16_scalar, scale_dot_rows_f64_scalar},
        .sum = {sum_rows_f32_scalar, sum_rows_f16_scalar, sum_rows_bf16_scalar,
                sum_rows_f64_scalar},
        .fence = fence_scalar,
    };
}
