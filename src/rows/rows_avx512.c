/* rows_avx512.c - row kernels for AVX-512 F, BW, DQ and VL.
 *
 * The block vocabulary of rows_blocks.h in 512-bit registers, then the kernels. The file is built
 * a second time by tests/rows_avx512_simde, with an emulation in place of the intrinsics, so that
 * it is tested on CPUs without AVX-512. The conversions of AVX512_BF16 are of no use here: they
 * flush subnormals. */
#include "rows/formats.h"
#include "rows/rows_vector.h"

#include <moetoken/moetoken.h>

#if defined(__x86_64__) || defined(MOETOKEN_SIMD_HEADER)

#ifdef MOETOKEN_SIMD_HEADER
#include MOETOKEN_SIMD_HEADER
#else
#include <immintrin.h>
#endif
#include <math.h>
#include <string.h>

/* How far ahead of a sum its rows are prefetched. */
#define SUM_PREFETCH_BYTES 512

/* ---- loads, stores, conversions ------------------------------------------------------------- */

ROW_INLINE __m512i load_64_bytes(const void *from)
{
    return _mm512_loadu_si512(from);
}

ROW_INLINE void store_64_bytes(char *to, __m512i value, int store)
{
    __m128i *quarters = (__m128i *)(void *)to;
    if (store == STORE_STREAMING) {
        _mm512_stream_si512((void *)to, value);
    } else if (store == STORE_STREAMING_16) {
        _mm_stream_si128(quarters, _mm512_extracti32x4_epi32(value, 0));
        _mm_stream_si128(quarters + 1, _mm512_extracti32x4_epi32(value, 1));
        _mm_stream_si128(quarters + 2, _mm512_extracti32x4_epi32(value, 2));
        _mm_stream_si128(quarters + 3, _mm512_extracti32x4_epi32(value, 3));
    } else {
        _mm512_storeu_si512((void *)to, value);
    }
}

ROW_INLINE int store_kind(const char *out, bool streaming)
{
    if (!streaming || (uintptr_t)out % 16 != 0)
        return STORE_CACHED;
    return (uintptr_t)out % 64 == 0 ? STORE_STREAMING : STORE_STREAMING_16;
}

/* NaN as the positive quiet NaN without payload. */
ROW_INLINE __m512 canonical_single(__m512 value)
{
    const __m512 nan = _mm512_castsi512_ps(_mm512_set1_epi32(0x7fc00000));
    return _mm512_mask_mov_ps(value, _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q), nan);
}

ROW_INLINE __m512d canonical_wide(__m512d value)
{
    const __m512d nan = _mm512_castsi512_pd(_mm512_set1_epi64(0x7ff8000000000000));
    return _mm512_mask_mov_pd(value, _mm512_cmp_pd_mask(value, value, _CMP_UNORD_Q), nan);
}

/* Rounds float32 to the bfloat16 at the even and odd places of a register, to nearest even.
 *
 * The upper halves of all values are in one register, the lower halves in another. A value goes up
 * when its lower half is above 0x8000, or equal to it and the upper half odd; where the upper half
 * is even, 1 is taken from the lower half first, and then its highest bit decides. A carry into
 * infinity is the right result. Values must not be NaN. */
ROW_INLINE __m512i round_to_bf16(__m512 even, __m512 odd)
{
    const uint32_t odd_places = 0xaaaaaaaau;
    __m512i e = _mm512_castps_si512(even), o = _mm512_castps_si512(odd);
    __m512i upper = _mm512_mask_blend_epi16(odd_places, _mm512_srli_epi32(e, 16), o);
    __m512i lower = _mm512_mask_blend_epi16(odd_places, e, _mm512_slli_epi32(o, 16));
    lower = _mm512_subs_epu16(lower, _mm512_andnot_si512(upper, _mm512_set1_epi16(1)));
    return _mm512_add_epi16(upper, _mm512_srli_epi16(lower, 15));
}

/* Rounds two halves, as half_single makes them, to a block of 16-bit elements. */
ROW_INLINE __m512i round_to_16_bit(int type, __m512 first, __m512 second)
{
    if (type == MOETOKEN_BF16)
        return round_to_bf16(first, second);
    __m256i low = _mm512_cvtps_ph(first, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m256i high = _mm512_cvtps_ph(second, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    return _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
}

/* ---- a token's block ------------------------------------------------------------------------ */

/* Half a block of 16- or 32-bit elements as float32: 16 neighbours; with bfloat16 the even elements
 * of the block, then the odd ones. */
ROW_INLINE __m512 half_single(int type, const char *block, int half)
{
    switch (type) {
    case MOETOKEN_BF16: {
        __m512i all = load_64_bytes(block);
        all = half ? _mm512_and_si512(all, _mm512_set1_epi32((int)0xffff0000u))
                   : _mm512_slli_epi32(all, 16);
        return _mm512_castsi512_ps(all);
    }
    case MOETOKEN_F16:
        return _mm512_cvtph_ps(_mm256_loadu_si256((const void *)(block + 32 * half)));
    default:
        return _mm512_loadu_ps(block + 64 * half);
    }
}

/* Two halves, as half_single makes them, to a block of 16- or 32-bit elements. */
ROW_INLINE void store_singles(int type, __m512 first, __m512 second, char *out, int store)
{
    if (is_16_bit(type)) {
        store_64_bytes(out, round_to_16_bit(type, first, second), store);
    } else {
        store_64_bytes(out, _mm512_castps_si512(first), store);
        store_64_bytes(out + 64, _mm512_castps_si512(second), store);
    }
}

/* Infinity and NaN are the elements with all exponent bits set. */
ROW_INLINE bool block_is_finite(int type, const char *token)
{
    if (type == MOETOKEN_F32) {
        const __m512i exponent = _mm512_set1_epi32(0x7f800000);
        __m512i first = _mm512_and_si512(load_64_bytes(token), exponent);
        __m512i second = _mm512_and_si512(load_64_bytes(token + 64), exponent);
        return (_mm512_cmpeq_epi32_mask(first, exponent) |
                _mm512_cmpeq_epi32_mask(second, exponent)) == 0;
    }
    const __m512i exponent = _mm512_set1_epi16(type == MOETOKEN_BF16 ? 0x7f80 : 0x7c00);
    return _mm512_cmpeq_epi16_mask(_mm512_and_si512(load_64_bytes(token), exponent), exponent) == 0;
}

/* ---- dot products --------------------------------------------------------------------------- */

/* sum[2k] and sum[2k+1] belong to the halves of half_single(k). Arrays of registers are indexed by
 * constants only. */
struct lanes {
    __m512d sum[4];
};

ROW_INLINE struct lanes lanes_zero(void)
{
    const __m512d zero = _mm512_setzero_pd();
    return (struct lanes){{zero, zero, zero, zero}};
}

/* The sum of a register's elements: those 4 apart first, then 2, then 1. */
ROW_INLINE double add_elements(__m512d sum)
{
    __m256d four = _mm256_add_pd(_mm512_castpd512_pd256(sum), _mm512_extractf64x4_pd(sum, 1));
    __m128d two = _mm_add_pd(_mm256_castpd256_pd128(four), _mm256_extractf128_pd(four, 1));
    return _mm_cvtsd_f64(_mm_add_sd(two, _mm_unpackhi_pd(two, two)));
}

/* Lane j += lane j+16, then j+8, j+4, j+2, j+1. */
ROW_INLINE double lanes_total(int type, struct lanes lanes)
{
    if (type == MOETOKEN_BF16) /* lanes 0, 2, ... 30, and 1, 3, ... 31 */
        return add_elements(_mm512_add_pd(lanes.sum[0], lanes.sum[1])) +
               add_elements(_mm512_add_pd(lanes.sum[2], lanes.sum[3]));
    __m512d a = _mm512_add_pd(lanes.sum[0], lanes.sum[2]);
    __m512d b = _mm512_add_pd(lanes.sum[1], lanes.sum[3]);
    return add_elements(_mm512_add_pd(a, b));
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

/* Products to be widened are stored first: loaded from memory, 8 float32 become 8 binary64 without
 * the shuffle that splitting a register takes, of which CPUs do one a cycle. */
ROW_INLINE __m512d widen(const float *from)
{
    return _mm512_cvtps_pd(_mm256_loadu_ps(from));
}

/* Keeps the compiler from splitting the registers after all. */
ROW_INLINE void through_memory(float single[BLOCK])
{
    __asm__ volatile("" : "+m"(*(float(*)[BLOCK])single));
}

ROW_INLINE void add_single_products(const float product[BLOCK], __m512d sum[4])
{
    sum[0] = _mm512_add_pd(sum[0], widen(product));
    sum[1] = _mm512_add_pd(sum[1], widen(product + 8));
    sum[2] = _mm512_add_pd(sum[2], widen(product + 16));
    sum[3] = _mm512_add_pd(sum[3], widen(product + 24));
}

/* Products of two 16- or 32-bit elements are exact in binary64: fused is the same. */
ROW_INLINE void add_wide_products(const float *x, const float *g, __m512d sum[4])
{
    sum[0] = _mm512_fmadd_pd(widen(x), widen(g), sum[0]);
    sum[1] = _mm512_fmadd_pd(widen(x + 8), widen(g + 8), sum[1]);
    sum[2] = _mm512_fmadd_pd(widen(x + 16), widen(g + 16), sum[2]);
    sum[3] = _mm512_fmadd_pd(widen(x + 24), widen(g + 24), sum[3]);
}

/* Products of 16-bit elements, or their factors where float32 does not hold the products. */
struct products {
    _Alignas(64) float x[BLOCK], g[BLOCK];
};

/* The factors of half a block's products, or the products themselves. */
ROW_INLINE void spread_half(int type, bool wide, const char *in, const char *token, int half,
                            struct products *products)
{
    __m512 x_half = half_single(type, in, half), g_half = half_single(type, token, half);
    _mm512_store_ps(products->x + 16 * half, wide ? x_half : _mm512_mul_ps(x_half, g_half));
    if (wide)
        _mm512_store_ps(products->g + 16 * half, g_half);
}

/* Two roundings: -ffp-contract=off is part of the build. */
ROW_INLINE __m512d add_product_f64(const char *x, const char *g, __m512d sum)
{
    return _mm512_add_pd(sum, _mm512_mul_pd(_mm512_loadu_pd(x), _mm512_loadu_pd(g)));
}

ROW_INLINE void dot_f64(const char *in, const char *token, __m512d sum[4])
{
    sum[0] = add_product_f64(in, token, sum[0]);
    sum[1] = add_product_f64(in + 64, token + 64, sum[1]);
    sum[2] = add_product_f64(in + 128, token + 128, sum[2]);
    sum[3] = add_product_f64(in + 192, token + 192, sum[3]);
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
        dot_f64(in, token, lanes->sum);
    } else if (type == MOETOKEN_F32) {
        add_wide_products((const float *)(const void *)in, (const float *)(const void *)token,
                          lanes->sum);
    } else {
        spread_half(type, wide, in, token, 0, products);
        spread_half(type, wide, in, token, 1, products);
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

ROW_INLINE __m512 scaled_half(int type, bool care, const char *token, __m512 weight, int half)
{
    __m512 product = _mm512_mul_ps(weight, half_single(type, token, half));
    return care ? canonical_single(product) : product;
}

ROW_INLINE void scale_quarter_f64(const char *token, __m512d weight, char *out, int store)
{
    __m512d product = canonical_wide(_mm512_mul_pd(weight, _mm512_loadu_pd(token)));
    store_64_bytes(out, _mm512_castpd_si512(product), store);
}

ROW_INLINE void scale_f64(const char *token, __m512d weight, char *out, int store)
{
    scale_quarter_f64(token, weight, out, store);
    scale_quarter_f64(token + 64, weight, out + 64, store);
    scale_quarter_f64(token + 128, weight, out + 128, store);
    scale_quarter_f64(token + 192, weight, out + 192, store);
}

ROW_INLINE void scale_block(int type, bool care, const char *token, double weight, char *out,
                            int store)
{
    if (type == MOETOKEN_F64) {
        scale_f64(token, _mm512_set1_pd(weight), out, store);
        return;
    }
    const __m512 w = _mm512_set1_ps((float)weight);
    store_singles(type, scaled_half(type, care, token, w, 0), scaled_half(type, care, token, w, 1),
                  out, store);
}

/* ---- sums ----------------------------------------------------------------------------------- */

/* 32 sums: float32 in single[], half by half, or binary64 in wide[]. */
struct sums {
    __m512 single[2];
    __m512d wide[4];
};

ROW_INLINE struct sums sums_zero(void)
{
    const __m512 zero = _mm512_setzero_ps();
    const __m512d wide_zero = _mm512_setzero_pd();
    return (struct sums){{zero, zero}, {wide_zero, wide_zero, wide_zero, wide_zero}};
}

/* Unrounded, register by register. */
ROW_INLINE struct sums sums_load(int type, const char *from)
{
    if (type == MOETOKEN_F64)
        return (struct sums){.wide = {_mm512_load_pd(from), _mm512_load_pd(from + 64),
                                      _mm512_load_pd(from + 128), _mm512_load_pd(from + 192)}};
    return (struct sums){.single = {_mm512_load_ps(from), _mm512_load_ps(from + 64)}};
}

ROW_INLINE void sums_save(int type, struct sums sums, char *to)
{
    if (type == MOETOKEN_F64) {
        _mm512_store_pd(to + 0, sums.wide[0]);
        _mm512_store_pd(to + 64, sums.wide[1]);
        _mm512_store_pd(to + 128, sums.wide[2]);
        _mm512_store_pd(to + 192, sums.wide[3]);
    } else {
        _mm512_store_ps(to + 0, sums.single[0]);
        _mm512_store_ps(to + 64, sums.single[1]);
    }
}

ROW_INLINE void sums_add_half(int type, bool weighted, const char *in, double weight, int half,
                              struct sums *sums)
{
    if (type == MOETOKEN_F64) {
        const __m512d w = _mm512_set1_pd(weight);
        __m512d *sum = &sums->wide[2 * half];
        sum[0] = _mm512_add_pd(sum[0], _mm512_mul_pd(w, _mm512_loadu_pd(in + 128 * half)));
        sum[1] = _mm512_add_pd(sum[1], _mm512_mul_pd(w, _mm512_loadu_pd(in + 128 * half + 64)));
    } else {
        __m512 single = half_single(type, in, half);
        if (weighted)
            single = _mm512_mul_ps(_mm512_set1_ps((float)weight), single);
        sums->single[half] = _mm512_add_ps(sums->single[half], single);
    }
}

ROW_INLINE void sums_add(int type, bool weighted, const char *in, double weight, struct sums *sums)
{
    sums_add_half(type, weighted, in, weight, 0, sums);
    sums_add_half(type, weighted, in, weight, 1, sums);
}

ROW_INLINE void sums_store(int type, struct sums sums, char *out, int store)
{
    if (type == MOETOKEN_F64) {
        for (int quarter = 0; quarter < 4; quarter++) {
            __m512d sum = canonical_wide(sums.wide[quarter]);
            store_64_bytes(out + 64 * quarter, _mm512_castpd_si512(sum), store);
        }
        return;
    }
    store_singles(type, canonical_single(sums.single[0]), canonical_single(sums.single[1]), out,
                  store);
}

/* ---- copies --------------------------------------------------------------------------------- */

ROW_INLINE void copy_bytes(const char *from, char *to, int64_t bytes, bool streaming)
{
    int64_t head = streaming ? -(int64_t)(uintptr_t)to & 63 : bytes;
    if (head > bytes)
        head = bytes;
    memcpy(to, from, (size_t)head);
    int64_t at = head;
    for (; at + 64 <= bytes; at += 64)
        store_64_bytes(to + at, load_64_bytes(from + at), STORE_STREAMING);
    memcpy(to + at, from + at, (size_t)(bytes - at));
}

#include "rows/rows_blocks.h"

/* ---- the kernels ---------------------------------------------------------------------------- */

MOETOKEN_ROW_KERNEL(copy_rows_2_avx512, copy_slots, 2)
MOETOKEN_ROW_KERNEL(copy_rows_4_avx512, copy_slots, 4)
MOETOKEN_ROW_KERNEL(copy_rows_8_avx512, copy_slots, 8)
MOETOKEN_ROW_KERNEL(scale_rows_f32_avx512, scale_slots, MOETOKEN_F32)
MOETOKEN_ROW_KERNEL(scale_rows_f16_avx512, scale_slots, MOETOKEN_F16)
MOETOKEN_ROW_KERNEL(scale_rows_bf16_avx512, scale_slots, MOETOKEN_BF16)
MOETOKEN_ROW_KERNEL(scale_rows_f64_avx512, scale_slots, MOETOKEN_F64)
MOETOKEN_ROW_KERNEL(dot_rows_f32_avx512, dot_slots, MOETOKEN_F32)
MOETOKEN_ROW_KERNEL(dot_rows_f16_avx512, dot_slots, MOETOKEN_F16)
MOETOKEN_ROW_KERNEL(dot_rows_bf16_avx512, dot_slots, MOETOKEN_BF16)
MOETOKEN_ROW_KERNEL(dot_rows_f64_avx512, dot_slots, MOETOKEN_F64)
MOETOKEN_ROW_KERNEL(scale_dot_rows_f32_avx512, scale_dot_slots, MOETOKEN_F32)
MOETOKEN_ROW_KERNEL(scale_dot_rows_f16_avx512, scale_dot_slots, MOETOKEN_F16)
MOETOKEN_ROW_KERNEL(scale_dot_rows_bf16_avx512, scale_dot_slots, MOETOKEN_BF16)
MOETOKEN_ROW_KERNEL(scale_dot_rows_f64_avx512, scale_dot_slots, MOETOKEN_F64)
MOETOKEN_ROW_KERNEL(sum_rows_f32_avx512, sum_rows, MOETOKEN_F32)
MOETOKEN_ROW_KERNEL(sum_rows_f16_avx512, sum_rows, MOETOKEN_F16)
MOETOKEN_ROW_KERNEL(sum_rows_bf16_avx512, sum_rows, MOETOKEN_BF16)
MOETOKEN_ROW_KERNEL(sum_rows_f64_avx512, sum_rows, MOETOKEN_F64)

/* Streaming stores are weakly ordered: this orders them before whatever is stored next. */
static void fence_avx512(void)
{
    _mm_sfence();
}

void moetoken_row_kernels_avx512(struct moetoken_row_kernels *kernels)
{
    *kernels = (struct moetoken_row_kernels){
        .isa = MOETOKEN_ISA_AVX512,
        .copy_2 = copy_rows_2_avx512,
        .copy_4 = copy_rows_4_avx512,
        .copy_8 = copy_rows_8_avx512,
        .scale = {scale_rows_f32_avx512, scale_rows_f16_avx512, scale_rows_bf16_avx512,
                  scale_rows_f64_avx512},
        .dot = {dot_rows_f32_avx512, dot_rows_f16_avx512, dot_rows_bf16_avx512,
                dot_rows_f64_avx512},
        .scale_dot = {scale_dot_rows_f32_avx512, scale_dot_rows_f16_avx512,
                      scale_dot_rows_bf16_avx512, scale_dot_rows_f64_avx512},
        .sum = {sum_rows_f32_avx512, sum_rows_f16_avx512, sum_rows_bf16_avx512,
                sum_rows_f64_avx512},
        .fence = fence_avx512,
    };
}
#else
typedef int moetoken_rows_avx512_is_empty; /* an ISO C file holds at least one declaration */
#endif
