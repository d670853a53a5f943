/* rows_avx2.c - row kernels for AVX2, FMA and F16C.
 *
 * The block vocabulary of rows_blocks.h on the registers of rows_avx2.h, then the kernels. */
#include "rows/formats.h"
#include "rows/rows_vector.h"

#include <moetoken/moetoken.h>

#if defined(__x86_64__)

#include "rows/rows_avx2.h"

#include <math.h>
#include <string.h>

/* How far ahead of a sum its rows are prefetched. */
#define SUM_PREFETCH_BYTES 512

/* ---- dot products --------------------------------------------------------------------------- */

/* sum[2q] and sum[2q+1] belong to the low and the high half of quarter_single(q), or are in order.
 * Arrays of registers are indexed by constants only. */
struct lanes {
    __m256d sum[8];
};

ROW_INLINE struct lanes lanes_zero(void)
{
    const __m256d zero = _mm256_setzero_pd();
    return (struct lanes){{zero, zero, zero, zero, zero, zero, zero, zero}};
}

/* The sum of two elements that are 2 apart, and then 1. */
ROW_INLINE __m128d add_halves(__m256d sum)
{
    return _mm_add_pd(_mm256_castpd256_pd128(sum), _mm256_extractf128_pd(sum, 1));
}

ROW_INLINE __m128d add_pair(__m128d sum)
{
    return _mm_add_sd(sum, _mm_unpackhi_pd(sum, sum));
}

/* Lane j += lane j+16, then j+8, j+4, j+2, j+1. */
ROW_INLINE double lanes_total(int type, struct lanes lanes)
{
    __m256d a = _mm256_add_pd(lanes.sum[0], lanes.sum[4]);
    __m256d b = _mm256_add_pd(lanes.sum[1], lanes.sum[5]);
    __m256d c = _mm256_add_pd(lanes.sum[2], lanes.sum[6]);
    __m256d d = _mm256_add_pd(lanes.sum[3], lanes.sum[7]);
    if (type == MOETOKEN_BF16) { /* a, b: lanes 0, 2, ... 14; c, d: lanes 1, 3, ... 15 */
        a = _mm256_add_pd(a, b);
        c = _mm256_add_pd(c, d);
        return _mm_cvtsd_f64(_mm_add_sd(add_pair(add_halves(a)), add_pair(add_halves(c))));
    }
    a = _mm256_add_pd(_mm256_add_pd(a, c), _mm256_add_pd(b, d));
    return _mm_cvtsd_f64(add_pair(add_halves(a)));
}

/* The CPU's exception flags record overflow, and underflow that loses bits, until they are cleared.
 * No product may be moved across either function. */
ROW_INLINE void exact_begin(void)
{
    _mm_setcsr(_mm_getcsr() & ~(unsigned)_MM_EXCEPT_MASK);
    __asm__ volatile("" : : : "memory");
}

ROW_INLINE bool exact_end(void)
{
    __asm__ volatile("" : : : "memory");
    return (_mm_getcsr() & (_MM_EXCEPT_OVERFLOW | _MM_EXCEPT_UNDERFLOW)) == 0;
}

/* Products to be widened are stored first: loaded from memory, 4 float32 become 4 binary64 without
 * the shuffle that splitting a register takes, of which CPUs do one a cycle. */
ROW_INLINE __m256d widen(const float *from)
{
    return _mm256_cvtps_pd(_mm_loadu_ps(from));
}

/* Keeps the compiler from splitting the registers after all. */
ROW_INLINE void through_memory(float single[BLOCK])
{
    __asm__ volatile("" : "+m"(*(float(*)[BLOCK])single));
}

ROW_INLINE void add_single_products(const float product[BLOCK], __m256d sum[8])
{
    sum[0] = _mm256_add_pd(sum[0], widen(product));
    sum[1] = _mm256_add_pd(sum[1], widen(product + 4));
    sum[2] = _mm256_add_pd(sum[2], widen(product + 8));
    sum[3] = _mm256_add_pd(sum[3], widen(product + 12));
    sum[4] = _mm256_add_pd(sum[4], widen(product + 16));
    sum[5] = _mm256_add_pd(sum[5], widen(product + 20));
    sum[6] = _mm256_add_pd(sum[6], widen(product + 24));
    sum[7] = _mm256_add_pd(sum[7], widen(product + 28));
}

/* Products of two 16- or 32-bit elements are exact in binary64: fused is the same. */
ROW_INLINE void add_wide_products(const float *x, const float *g, __m256d sum[8])
{
    sum[0] = _mm256_fmadd_pd(widen(x), widen(g), sum[0]);
    sum[1] = _mm256_fmadd_pd(widen(x + 4), widen(g + 4), sum[1]);
    sum[2] = _mm256_fmadd_pd(widen(x + 8), widen(g + 8), sum[2]);
    sum[3] = _mm256_fmadd_pd(widen(x + 12), widen(g + 12), sum[3]);
    sum[4] = _mm256_fmadd_pd(widen(x + 16), widen(g + 16), sum[4]);
    sum[5] = _mm256_fmadd_pd(widen(x + 20), widen(g + 20), sum[5]);
    sum[6] = _mm256_fmadd_pd(widen(x + 24), widen(g + 24), sum[6]);
    sum[7] = _mm256_fmadd_pd(widen(x + 28), widen(g + 28), sum[7]);
}

/* Products of 16-bit elements, or their factors where float32 does not hold the products. */
struct products {
    _Alignas(32) float x[BLOCK], g[BLOCK];
};

/* The factors of a quarter's products, or the products themselves. */
ROW_INLINE void spread_quarter(int type, bool wide, const char *in, const char *token, int quarter,
                               struct products *products)
{
    __m256 x_quarter = quarter_single(type, in, quarter);
    __m256 g_quarter = quarter_single(type, token, quarter);
    _mm256_store_ps(products->x + 8 * quarter,
                    wide ? x_quarter : _mm256_mul_ps(x_quarter, g_quarter));
    if (wide)
        _mm256_store_ps(products->g + 8 * quarter, g_quarter);
}

/* Two roundings, whatever the compiler may fuse elsewhere: -ffp-contract=off is part of the build.
 */
ROW_INLINE __m256d add_product_f64(const double *x, const double *g, __m256d sum)
{
    return _mm256_add_pd(sum, _mm256_mul_pd(_mm256_loadu_pd(x), _mm256_loadu_pd(g)));
}

ROW_INLINE void dot_f64(const double *in, const double *token, __m256d sum[8])
{
    sum[0] = add_product_f64(in, token, sum[0]);
    sum[1] = add_product_f64(in + 4, token + 4, sum[1]);
    sum[2] = add_product_f64(in + 8, token + 8, sum[2]);
    sum[3] = add_product_f64(in + 12, token + 12, sum[3]);
    sum[4] = add_product_f64(in + 16, token + 16, sum[4]);
    sum[5] = add_product_f64(in + 20, token + 20, sum[5]);
    sum[6] = add_product_f64(in + 24, token + 24, sum[6]);
    sum[7] = add_product_f64(in + 28, token + 28, sum[7]);
}

/* A product of two float16 fits into float32; one of two bfloat16 as long as their exponents do. */
ROW_INLINE bool needs_wide(int type, bool care)
{
    return care && !always_exact(type);
}

ROW_INLINE void form_products(int type, bool care, const char *in, const char *token,
                              struct products *products, struct lanes *lanes)
{
    const bool wide = needs_wide(type, care);
    if (type == MOETOKEN_F64) {
        dot_f64((const double *)(const void *)in, (const double *)(const void *)token, lanes->sum);
    } else if (type == MOETOKEN_F32) {
        add_wide_products((const float *)(const void *)in, (const float *)(const void *)token,
                          lanes->sum);
    } else {
        spread_quarter(type, wide, in, token, 0, products);
        spread_quarter(type, wide, in, token, 1, products);
        spread_quarter(type, wide, in, token, 2, products);
        spread_quarter(type, wide, in, token, 3, products);
    }
}

ROW_INLINE void add_products(int type, bool care, struct products *products, struct lanes *lanes)
{
    if (!is_16_bit(type))
        return;
    through_memory(products->x);
    if (needs_wide(type, care))
        add_wide_products(products->x, products->g, lanes->sum);
    else
        add_single_products(products->x, lanes->sum);
}

/* ---- scaled rows ---------------------------------------------------------------------------- */

ROW_INLINE __m256 scaled_quarter(int type, bool care, const char *token, __m256 weight, int quarter)
{
    __m256 product = _mm256_mul_ps(weight, quarter_single(type, token, quarter));
    return care ? canonical_single(product) : product;
}

ROW_INLINE __m256i scaled_f64(const char *token, __m256d weight)
{
    __m256d product = _mm256_mul_pd(weight, _mm256_loadu_pd((const void *)token));
    return _mm256_castpd_si256(canonical_wide(product));
}

ROW_INLINE void scale_f64(const char *token, __m256d w, char *out, int store)
{
    store_64_bytes(out, scaled_f64(token, w), scaled_f64(token + 32, w), store);
    store_64_bytes(out + 64, scaled_f64(token + 64, w), scaled_f64(token + 96, w), store);
    store_64_bytes(out + 128, scaled_f64(token + 128, w), scaled_f64(token + 160, w), store);
    store_64_bytes(out + 192, scaled_f64(token + 192, w), scaled_f64(token + 224, w), store);
}

ROW_INLINE void scale_block(int type, bool care, const char *token, double weight, char *out,
                            int store)
{
    if (type == MOETOKEN_F64) {
        scale_f64(token, _mm256_set1_pd(weight), out, store);
        return;
    }
    const __m256 w = _mm256_set1_ps((float)weight);
    __m256 a = scaled_quarter(type, care, token, w, 0), b = scaled_quarter(type, care, token, w, 1);
    __m256 c = scaled_quarter(type, care, token, w, 2), d = scaled_quarter(type, care, token, w, 3);
    store_singles(type, a, b, c, d, out, store);
}

/* ---- sums ----------------------------------------------------------------------------------- */

/* 32 sums: float32 in single[], quarter by quarter, or binary64 in wide[]. */
struct sums {
    __m256 single[4];
    __m256d wide[8];
};

ROW_INLINE struct sums sums_zero(void)
{
    const __m256 zero = _mm256_setzero_ps();
    return (struct sums){{zero, zero, zero, zero}, {_mm256_setzero_pd()}};
}

/* Unrounded, register by register. */
ROW_INLINE struct sums sums_load(int type, const char *from)
{
    const float *single = (const void *)from;
    const double *wide = (const void *)from;
    if (type == MOETOKEN_F64)
        return (struct sums){.wide = {_mm256_load_pd(wide), _mm256_load_pd(wide + 4),
                                      _mm256_load_pd(wide + 8), _mm256_load_pd(wide + 12),
                                      _mm256_load_pd(wide + 16), _mm256_load_pd(wide + 20),
                                      _mm256_load_pd(wide + 24), _mm256_load_pd(wide + 28)}};
    return (struct sums){.single = {_mm256_load_ps(single), _mm256_load_ps(single + 8),
                                    _mm256_load_ps(single + 16), _mm256_load_ps(single + 24)}};
}

ROW_INLINE void sums_save(int type, struct sums sums, char *to)
{
    float *single = (void *)to;
    double *wide = (void *)to;
    if (type == MOETOKEN_F64) {
        _mm256_store_pd(wide + 0, sums.wide[0]);
        _mm256_store_pd(wide + 4, sums.wide[1]);
        _mm256_store_pd(wide + 8, sums.wide[2]);
        _mm256_store_pd(wide + 12, sums.wide[3]);
        _mm256_store_pd(wide + 16, sums.wide[4]);
        _mm256_store_pd(wide + 20, sums.wide[5]);
        _mm256_store_pd(wide + 24, sums.wide[6]);
        _mm256_store_pd(wide + 28, sums.wide[7]);
    } else {
        _mm256_store_ps(single + 0, sums.single[0]);
        _mm256_store_ps(single + 8, sums.single[1]);
        _mm256_store_ps(single + 16, sums.single[2]);
        _mm256_store_ps(single + 24, sums.single[3]);
    }
}

ROW_INLINE void sums_add_quarter(int type, bool weighted, const char *in, double weight,
                                 int quarter, struct sums *sums)
{
    if (type == MOETOKEN_F64) {
        const double *doubles = (const double *)(const void *)in + 8 * quarter;
        const __m256d w = _mm256_set1_pd(weight);
        __m256d *sum = &sums->wide[2 * quarter];
        sum[0] = _mm256_add_pd(sum[0], _mm256_mul_pd(w, _mm256_loadu_pd(doubles)));
        sum[1] = _mm256_add_pd(sum[1], _mm256_mul_pd(w, _mm256_loadu_pd(doubles + 4)));
    } else {
        __m256 single = quarter_single(type, in, quarter);
        if (weighted)
            single = _mm256_mul_ps(_mm256_set1_ps((float)weight), single);
        sums->single[quarter] = _mm256_add_ps(sums->single[quarter], single);
    }
}

ROW_INLINE void sums_add(int type, bool weighted, const char *in, double weight, struct sums *sums)
{
    sums_add_quarter(type, weighted, in, weight, 0, sums);
    sums_add_quarter(type, weighted, in, weight, 1, sums);
    sums_add_quarter(type, weighted, in, weight, 2, sums);
    sums_add_quarter(type, weighted, in, weight, 3, sums);
}

ROW_INLINE void sums_store(int type, struct sums sums, char *out, int store)
{
    if (type == MOETOKEN_F64) {
        for (int part = 0; part < 8; part += 2)
            store_64_bytes(out + 32 * part, _mm256_castpd_si256(canonical_wide(sums.wide[part])),
                           _mm256_castpd_si256(canonical_wide(sums.wide[part + 1])), store);
        return;
    }
    store_singles(type, canonical_single(sums.single[0]), canonical_single(sums.single[1]),
                  canonical_single(sums.single[2]), canonical_single(sums.single[3]), out, store);
}

/* ---- copies --------------------------------------------------------------------------------- */

ROW_INLINE void copy_bytes(const char *from, char *to, int64_t bytes, bool streaming)
{
    int64_t head = streaming ? -(int64_t)(uintptr_t)to & 31 : bytes;
    if (head > bytes)
        head = bytes;
    memcpy(to, from, (size_t)head);
    int64_t at = head;
    for (; at + 64 <= bytes; at += 64)
        store_64_bytes(to + at, load_32_bytes(from + at), load_32_bytes(from + at + 32),
                       STORE_STREAMING);
    memcpy(to + at, from + at, (size_t)(bytes - at));
}

#include "rows/rows_blocks.h"

/* ---- the kernels ---------------------------------------------------------------------------- */

MOETOKEN_ROW_KERNEL(copy_rows_2_avx2, copy_slots, 2)
MOETOKEN_ROW_KERNEL(copy_rows_4_avx2, copy_slots, 4)
MOETOKEN_ROW_KERNEL(copy_rows_8_avx2, copy_slots, 8)
MOETOKEN_ROW_KERNEL(scale_rows_f32_avx2, scale_slots, MOETOKEN_F32)
MOETOKEN_ROW_KERNEL(scale_rows_f16_avx2, scale_slots, MOETOKEN_F16)
MOETOKEN_ROW_KERNEL(scale_rows_bf16_avx2, scale_slots, MOETOKEN_BF16)
MOETOKEN_ROW_KERNEL(scale_rows_f64_avx2, scale_slots, MOETOKEN_F64)
MOETOKEN_ROW_KERNEL(dot_rows_f32_avx2, dot_slots, MOETOKEN_F32)
MOETOKEN_ROW_KERNEL(dot_rows_f16_avx2, dot_slots, MOETOKEN_F16)
MOETOKEN_ROW_KERNEL(dot_rows_bf16_avx2, dot_slots, MOETOKEN_BF16)
MOETOKEN_ROW_KERNEL(dot_rows_f64_avx2, dot_slots, MOETOKEN_F64)
MOETOKEN_ROW_KERNEL(scale_dot_rows_f32_avx2, scale_dot_slots, MOETOKEN_F32)
MOETOKEN_ROW_KERNEL(scale_dot_rows_f16_avx2, scale_dot_slots, MOETOKEN_F16)
MOETOKEN_ROW_KERNEL(scale_dot_rows_bf16_avx2, scale_dot_slots, MOETOKEN_BF16)
MOETOKEN_ROW_KERNEL(scale_dot_rows_f64_avx2, scale_dot_slots, MOETOKEN_F64)
MOETOKEN_ROW_KERNEL(sum_rows_f32_avx2, sum_rows, MOETOKEN_F32)
MOETOKEN_ROW_KERNEL(sum_rows_f16_avx2, sum_rows, MOETOKEN_F16)
MOETOKEN_ROW_KERNEL(sum_rows_bf16_avx2, sum_rows, MOETOKEN_BF16)
MOETOKEN_ROW_KERNEL(sum_rows_f64_avx2, sum_rows, MOETOKEN_F64)

/* Streaming stores are weakly ordered: this orders them before whatever is stored next. */
static void fence_avx2(void)
{
    _mm_sfence();
}

void moetoken_row_kernels_avx2(struct moetoken_row_kernels *kernels)
{
    *kernels = (struct moetoken_row_kernels){
        .isa = MOETOKEN_ISA_AVX2,
        .copy_2 = copy_rows_2_avx2,
        .copy_4 = copy_rows_4_avx2,
        .copy_8 = copy_rows_8_avx2,
        .scale = {scale_rows_f32_avx2, scale_rows_f16_avx2, scale_rows_bf16_avx2,
                  scale_rows_f64_avx2},
        .dot = {dot_rows_f32_avx2, dot_rows_f16_avx2, dot_rows_bf16_avx2, dot_rows_f64_avx2},
        .scale_dot = {scale_dot_rows_f32_avx2, scale_dot_rows_f16_avx2, scale_dot_rows_bf16_avx2,
                      scale_dot_rows_f64_avx2},
        .sum = {sum_rows_f32_avx2, sum_rows_f16_avx2, sum_rows_bf16_avx2, sum_rows_f64_avx2},
        .fence = fence_avx2,
    };
}
#else
typedef int moetoken_rows_avx2_is_empty; /* an ISO C file holds at least one declaration */
#endif
