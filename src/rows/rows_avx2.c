/* rows_avx2.c - row kernels for AVX2, FMA and F16C.
 *
 * The block vocabulary of rows_blocks.h in 256-bit registers, then the kernels. A block of 32
 * bfloat16 is split into its even and odd elements, which takes a shift and a mask where widening
 * in order takes shuffles; everything decoded from such a block keeps that order. */
#include "rows/rows_vector.h"

#include <moetoken/moetoken.h>

#if defined(__x86_64__)

#include <immintrin.h>
#include <math.h>
#include <string.h>

/* How far ahead of a sum its rows are prefetched. */
#define SUM_PREFETCH_BYTES 512

/* ---- loads, stores, conversions ------------------------------------------------------------- */

ROW_INLINE __m256i load_32_bytes(const void *from)
{
    return _mm256_loadu_si256(from);
}

ROW_INLINE void store_32_bytes(char *to, __m256i value, int store)
{
    if (store == STORE_STREAMING)
        _mm256_stream_si256((__m256i *)(void *)to, value);
    else
        _mm256_storeu_si256((__m256i *)(void *)to, value);
}

ROW_INLINE int store_kind(const char *out, bool streaming)
{
    return streaming && (uintptr_t)out % 32 == 0 ? STORE_STREAMING : STORE_CACHED;
}

/* The bfloat16 at the even and the odd places of a register, as float32. */
ROW_INLINE __m256 even_bf16(__m256i block)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(block, 16));
}

ROW_INLINE __m256 odd_bf16(__m256i block)
{
    return _mm256_castsi256_ps(_mm256_and_si256(block, _mm256_set1_epi32((int)0xffff0000u)));
}

/* NaN as the positive quiet NaN without payload. */
ROW_INLINE __m256 canonical_single(__m256 value)
{
    const __m256 nan = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fc00000));
    return _mm256_blendv_ps(value, nan, _mm256_cmp_ps(value, value, _CMP_UNORD_Q));
}

ROW_INLINE __m256d canonical_wide(__m256d value)
{
    const __m256d nan = _mm256_castsi256_pd(_mm256_set1_epi64x(0x7ff8000000000000));
    return _mm256_blendv_pd(value, nan, _mm256_cmp_pd(value, value, _CMP_UNORD_Q));
}

/* Rounds float32 to the bfloat16 at the even and odd places of a register, to nearest even.
 *
 * The upper halves of all values stand in one register, the lower halves in another. A value goes
 * up when its lower half is above 0x8000, or equal to it and the upper half odd; where the upper
 * half is even, 1 is taken from the lower half first, and then its highest bit decides. A carry
 * into infinity is right as it is. No NaN may come here. */
ROW_INLINE __m256i round_to_bf16(__m256 even, __m256 odd)
{
    __m256i e = _mm256_castps_si256(even), o = _mm256_castps_si256(odd);
    __m256i upper = _mm256_blend_epi16(_mm256_bsrli_epi128(e, 2), o, 0xaa);
    __m256i lower = _mm256_blend_epi16(e, _mm256_bslli_epi128(o, 2), 0xaa);
    lower = _mm256_subs_epu16(lower, _mm256_andnot_si256(upper, _mm256_set1_epi16(1)));
    return _mm256_sub_epi16(upper, _mm256_cmpgt_epi16(_mm256_setzero_si256(), lower));
}

/* Rounds two quarters, as quarter_single makes them, to half a block of 16-bit elements. */
ROW_INLINE __m256i round_to_16_bit(int type, __m256 first, __m256 second)
{
    if (type == MOETOKEN_TOKEN_BF16)
        return round_to_bf16(first, second);
    return _mm256_set_m128i(_mm256_cvtps_ph(second, _MM_FROUND_TO_NEAREST_INT),
                            _mm256_cvtps_ph(first, _MM_FROUND_TO_NEAREST_INT));
}

/* ---- a token's block ------------------------------------------------------------------------ */

/* A quarter of a block of 16- or 32-bit elements as float32: 8 neighbours; with bfloat16 the even
 * elements of the first half, its odd ones, and the same of the second half. */
ROW_INLINE __m256 quarter_single(int type, const char *block, int quarter)
{
    switch (type) {
    case MOETOKEN_TOKEN_BF16: {
        __m256i half = load_32_bytes(block + quarter / 2 * 32);
        return quarter % 2 ? odd_bf16(half) : even_bf16(half);
    }
    case MOETOKEN_TOKEN_F16:
        return _mm256_cvtph_ps(_mm_loadu_si128((const void *)(block + 16 * quarter)));
    default:
        return _mm256_loadu_ps((const float *)(const void *)block + 8 * quarter);
    }
}

ROW_INLINE void decode_single(int type, const char *token, float *single)
{
    for (int quarter = 0; quarter < 4; quarter++)
        _mm256_store_ps(single + 8 * quarter, quarter_single(type, token, quarter));
}

/* An eighth of a block of 16- or 32-bit elements as binary64: 4 neighbours; with bfloat16 the even
 * elements of 8 neighbours, then the odd ones. */
ROW_INLINE __m256d eighth_wide(int type, const char *block, int eighth)
{
    switch (type) {
    case MOETOKEN_TOKEN_BF16: {
        __m128i eight = _mm_loadu_si128((const void *)(block + eighth / 2 * 16));
        eight = eighth % 2 ? _mm_and_si128(eight, _mm_set1_epi32((int)0xffff0000u))
                           : _mm_slli_epi32(eight, 16);
        return _mm256_cvtps_pd(_mm_castsi128_ps(eight));
    }
    case MOETOKEN_TOKEN_F16: {
        __m128i four = _mm_loadl_epi64((const void *)(block + 8 * eighth));
        return _mm256_cvtps_pd(_mm_cvtph_ps(four));
    }
    default:
        return _mm256_cvtps_pd(_mm_loadu_ps((const float *)(const void *)block + 4 * eighth));
    }
}

ROW_INLINE void decode_wide(int type, const char *token, double *wide)
{
    for (int eighth = 0; eighth < 8; eighth++)
        _mm256_store_pd(wide + 4 * eighth, eighth_wide(type, token, eighth));
}

/* Infinity and NaN are the elements with all exponent bits set. */
ROW_INLINE bool block_is_finite(int type, const char *token)
{
    const __m256i exponent = _mm256_set1_epi16(type == MOETOKEN_TOKEN_BF16 ? 0x7f80 : 0x7c00);
    __m256i a = _mm256_and_si256(load_32_bytes(token), exponent);
    __m256i b = _mm256_and_si256(load_32_bytes(token + 32), exponent);
    __m256i full =
        _mm256_or_si256(_mm256_cmpeq_epi16(a, exponent), _mm256_cmpeq_epi16(b, exponent));
    return _mm256_testz_si256(full, full);
}

/* ---- dot products --------------------------------------------------------------------------- */

/* sum[k] belongs to eighth_wide(k). Arrays of registers are indexed by constants only. */
struct lanes {
    __m256d sum[8];
};

ROW_INLINE struct lanes lanes_zero(void)
{
    const __m256d zero = _mm256_setzero_pd();
    return (struct lanes){{zero, zero, zero, zero, zero, zero, zero, zero}};
}

ROW_INLINE struct lanes lanes_load(const double *from)
{
    return (struct lanes){{_mm256_load_pd(from), _mm256_load_pd(from + 4), _mm256_load_pd(from + 8),
                           _mm256_load_pd(from + 12), _mm256_load_pd(from + 16),
                           _mm256_load_pd(from + 20), _mm256_load_pd(from + 24),
                           _mm256_load_pd(from + 28)}};
}

ROW_INLINE void lanes_store(double *to, struct lanes lanes)
{
    _mm256_store_pd(to, lanes.sum[0]);
    _mm256_store_pd(to + 4, lanes.sum[1]);
    _mm256_store_pd(to + 8, lanes.sum[2]);
    _mm256_store_pd(to + 12, lanes.sum[3]);
    _mm256_store_pd(to + 16, lanes.sum[4]);
    _mm256_store_pd(to + 20, lanes.sum[5]);
    _mm256_store_pd(to + 24, lanes.sum[6]);
    _mm256_store_pd(to + 28, lanes.sum[7]);
}

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
    a = _mm256_add_pd(a, c);
    b = _mm256_add_pd(b, d);
    if (type == MOETOKEN_TOKEN_BF16) /* a: lanes 0, 2, 4, 6; b: lanes 1, 3, 5, 7 */
        return _mm_cvtsd_f64(_mm_add_sd(add_pair(add_halves(a)), add_pair(add_halves(b))));
    return _mm_cvtsd_f64(add_pair(add_halves(_mm256_add_pd(a, b))));
}

/* Products of two 16- or 32-bit elements are exact in binary64: fused or not makes no difference
 * to them. */
ROW_INLINE void dot_eighth(int type, const char *in, const double *wide, int eighth, __m256d *sum)
{
    if (type == MOETOKEN_TOKEN_F64) {
        __m256d x = _mm256_loadu_pd((const double *)(const void *)in + 4 * eighth);
        __m256d product = _mm256_mul_pd(x, _mm256_loadu_pd(wide + 4 * eighth));
        *sum = _mm256_add_pd(*sum, product);
    } else {
        __m256d x = eighth_wide(type, in, eighth);
        *sum = _mm256_fmadd_pd(x, _mm256_load_pd(wide + 4 * eighth), *sum);
    }
}

ROW_INLINE void dot_block(int type, const char *in, const double *wide, struct lanes *lanes)
{
    dot_eighth(type, in, wide, 0, &lanes->sum[0]);
    dot_eighth(type, in, wide, 1, &lanes->sum[1]);
    dot_eighth(type, in, wide, 2, &lanes->sum[2]);
    dot_eighth(type, in, wide, 3, &lanes->sum[3]);
    dot_eighth(type, in, wide, 4, &lanes->sum[4]);
    dot_eighth(type, in, wide, 5, &lanes->sum[5]);
    dot_eighth(type, in, wide, 6, &lanes->sum[6]);
    dot_eighth(type, in, wide, 7, &lanes->sum[7]);
}

/* ---- scaled blocks -------------------------------------------------------------------------- */

ROW_INLINE __m256 scaled_single(const float *single, __m256 weight, bool finite)
{
    __m256 product = _mm256_mul_ps(weight, _mm256_loadu_ps(single));
    return finite ? product : canonical_single(product);
}

ROW_INLINE __m256i scaled_half(int type, const float *single, __m256 weight, bool finite)
{
    __m256 low = scaled_single(single, weight, finite);
    __m256 high = scaled_single(single + 8, weight, finite);
    return round_to_16_bit(type, low, high);
}

ROW_INLINE void scale_block(int type, const char *token, const float *single, double weight,
                            char *out, int store, bool finite)
{
    const __m256 w = _mm256_set1_ps((float)weight);
    if (is_16_bit(type)) {
        store_32_bytes(out, scaled_half(type, single, w, finite), store);
        store_32_bytes(out + 32, scaled_half(type, single + 16, w, finite), store);
    } else if (type == MOETOKEN_TOKEN_F32) {
        for (int part = 0; part < 4; part++) {
            __m256 product = scaled_single((const float *)(const void *)token + 8 * part, w, false);
            store_32_bytes(out + 32 * part, _mm256_castps_si256(product), store);
        }
    } else {
        for (int part = 0; part < 8; part++) {
            __m256d g = _mm256_loadu_pd((const double *)(const void *)token + 4 * part);
            __m256d product = canonical_wide(_mm256_mul_pd(_mm256_set1_pd(weight), g));
            store_32_bytes(out + 32 * part, _mm256_castpd_si256(product), store);
        }
    }
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

/* Two roundings, whatever the compiler may fuse elsewhere: -ffp-contract=off is part of the build.
 */
ROW_INLINE void sums_add_quarter(int type, const char *in, double weight, int quarter,
                                 struct sums *sums)
{
    if (type == MOETOKEN_TOKEN_F64) {
        const double *doubles = (const double *)(const void *)in + 8 * quarter;
        const __m256d w = _mm256_set1_pd(weight);
        __m256d *sum = &sums->wide[2 * quarter];
        sum[0] = _mm256_add_pd(sum[0], _mm256_mul_pd(w, _mm256_loadu_pd(doubles)));
        sum[1] = _mm256_add_pd(sum[1], _mm256_mul_pd(w, _mm256_loadu_pd(doubles + 4)));
    } else {
        const __m256 w = _mm256_set1_ps((float)weight);
        __m256 product = _mm256_mul_ps(w, quarter_single(type, in, quarter));
        sums->single[quarter] = _mm256_add_ps(sums->single[quarter], product);
    }
}

ROW_INLINE void sums_add(int type, const char *in, double weight, struct sums *sums)
{
    sums_add_quarter(type, in, weight, 0, sums);
    sums_add_quarter(type, in, weight, 1, sums);
    sums_add_quarter(type, in, weight, 2, sums);
    sums_add_quarter(type, in, weight, 3, sums);
}

ROW_INLINE void sums_store(int type, struct sums sums, char *out)
{
    if (type == MOETOKEN_TOKEN_F64) {
        for (int part = 0; part < 8; part++)
            _mm256_storeu_pd((double *)(void *)out + 4 * part, canonical_wide(sums.wide[part]));
        return;
    }
    __m256 a = canonical_single(sums.single[0]), b = canonical_single(sums.single[1]);
    __m256 c = canonical_single(sums.single[2]), d = canonical_single(sums.single[3]);
    if (is_16_bit(type)) {
        store_32_bytes(out, round_to_16_bit(type, a, b), STORE_CACHED);
        store_32_bytes(out + 32, round_to_16_bit(type, c, d), STORE_CACHED);
    } else {
        _mm256_storeu_ps((float *)(void *)out, a);
        _mm256_storeu_ps((float *)(void *)out + 8, b);
        _mm256_storeu_ps((float *)(void *)out + 16, c);
        _mm256_storeu_ps((float *)(void *)out + 24, d);
    }
}

/* ---- copies --------------------------------------------------------------------------------- */

ROW_INLINE void copy_bytes(const char *from, char *to, int64_t bytes, bool streaming)
{
    int64_t head = streaming ? -(int64_t)(uintptr_t)to & 31 : bytes;
    if (head > bytes)
        head = bytes;
    memcpy(to, from, (size_t)head);
    int64_t at = head;
    for (; at + 64 <= bytes; at += 64) {
        store_32_bytes(to + at, load_32_bytes(from + at), STORE_STREAMING);
        store_32_bytes(to + at + 32, load_32_bytes(from + at + 32), STORE_STREAMING);
    }
    memcpy(to + at, from + at, (size_t)(bytes - at));
}

#include "rows/rows_blocks.h"

/* ---- the kernels ---------------------------------------------------------------------------- */

static void copy_rows_2_avx2(const struct moetoken_rows *rows)
{
    copy_to_slots(rows, 2);
}

static void copy_rows_4_avx2(const struct moetoken_rows *rows)
{
    copy_to_slots(rows, 4);
}

static void copy_rows_8_avx2(const struct moetoken_rows *rows)
{
    copy_to_slots(rows, 8);
}

static void scale_rows_f32_avx2(const struct moetoken_rows *rows)
{
    token_to_slots(rows, MOETOKEN_TOKEN_F32, VERB_SCALE);
}

static void scale_rows_f16_avx2(const struct moetoken_rows *rows)
{
    token_to_slots(rows, MOETOKEN_TOKEN_F16, VERB_SCALE);
}

static void scale_rows_bf16_avx2(const struct moetoken_rows *rows)
{
    token_to_slots(rows, MOETOKEN_TOKEN_BF16, VERB_SCALE);
}

static void scale_rows_f64_avx2(const struct moetoken_rows *rows)
{
    token_to_slots(rows, MOETOKEN_TOKEN_F64, VERB_SCALE);
}

static void dot_rows_f32_avx2(const struct moetoken_rows *rows)
{
    token_to_slots(rows, MOETOKEN_TOKEN_F32, VERB_DOT);
}

static void dot_rows_f16_avx2(const struct moetoken_rows *rows)
{
    token_to_slots(rows, MOETOKEN_TOKEN_F16, VERB_DOT);
}

static void dot_rows_bf16_avx2(const struct moetoken_rows *rows)
{
    token_to_slots(rows, MOETOKEN_TOKEN_BF16, VERB_DOT);
}

static void dot_rows_f64_avx2(const struct moetoken_rows *rows)
{
    token_to_slots(rows, MOETOKEN_TOKEN_F64, VERB_DOT);
}

static void scale_dot_rows_f32_avx2(const struct moetoken_rows *rows)
{
    token_to_slots(rows, MOETOKEN_TOKEN_F32, VERB_SCALE | VERB_DOT);
}

static void scale_dot_rows_f16_avx2(const struct moetoken_rows *rows)
{
    token_to_slots(rows, MOETOKEN_TOKEN_F16, VERB_SCALE | VERB_DOT);
}

static void scale_dot_rows_bf16_avx2(const struct moetoken_rows *rows)
{
    token_to_slots(rows, MOETOKEN_TOKEN_BF16, VERB_SCALE | VERB_DOT);
}

static void scale_dot_rows_f64_avx2(const struct moetoken_rows *rows)
{
    token_to_slots(rows, MOETOKEN_TOKEN_F64, VERB_SCALE | VERB_DOT);
}

static void sum_rows_f32_avx2(const struct moetoken_rows *rows)
{
    slots_to_token(rows, MOETOKEN_TOKEN_F32);
}

static void sum_rows_f16_avx2(const struct moetoken_rows *rows)
{
    slots_to_token(rows, MOETOKEN_TOKEN_F16);
}

static void sum_rows_bf16_avx2(const struct moetoken_rows *rows)
{
    slots_to_token(rows, MOETOKEN_TOKEN_BF16);
}

static void sum_rows_f64_avx2(const struct moetoken_rows *rows)
{
    slots_to_token(rows, MOETOKEN_TOKEN_F64);
}

/* Streaming stores are weakly ordered: they become visible in order with what follows here. */
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
