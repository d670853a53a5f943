/* rows_avx2.c - row kernels for AVX2, FMA and F16C.
 *
 * The block vocabulary of rows_blocks.h on the registers of rows_avx2.h, then the kernels. */
#include "rows/formats.h"
#include "rows/rows_vector.h"

#include <moetoken/moetoken.h>

#if defined(__x86_64__)

#include "rows/rows_avx2.h"

#include <float.h>
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

ROW_INLINE bool always_exact(int type)
{
    return type != MOETOKEN_BF16;
}

/* The CPU notes overflow, and underflow that loses bits, until the notes are erased. */
ROW_INLINE void exact_begin(int type)
{
    if (!always_exact(type)) {
        _mm_setcsr(_mm_getcsr() & ~(unsigned)_MM_EXCEPT_MASK);
        __asm__ volatile("" : : : "memory"); /* nor may one be moved before this */
    }
}

ROW_INLINE bool exact_end(int type, const void *sums)
{
    if (always_exact(type))
        return true;
    /* No product may be moved behind the reading of the notes. */
    __asm__ volatile("" : : "r"(sums) : "memory");
    return (_mm_getcsr() & (_MM_EXCEPT_OVERFLOW | _MM_EXCEPT_UNDERFLOW)) == 0;
}

/* ---- a token, decoded ----------------------------------------------------------------------- */

/* Conversions are what AVX2 is slowest at: a token with many slots is decoded to what the products
 * are formed in. */
ROW_INLINE int64_t decode_slots(int type, int verbs)
{
    if (type == MOETOKEN_BF16)
        return 2;
    return type == MOETOKEN_F16 || (type == MOETOKEN_F32 && (verbs & VERB_DOT)) ? 3 : 0;
}

ROW_INLINE int64_t decoded_size(int type)
{
    return type == MOETOKEN_F32 ? 8 : 4;
}

ROW_INLINE void decode_block(int type, const char *token, char *decoded)
{
    if (type == MOETOKEN_F32) {
        for (int quarter = 0; quarter < 4; quarter++) {
            double *wide = (double *)(void *)decoded + 8 * quarter;
            _mm256_store_pd(wide, _mm256_cvtps_pd(eighth_single(type, token, quarter, 0)));
            _mm256_store_pd(wide + 4, _mm256_cvtps_pd(eighth_single(type, token, quarter, 1)));
        }
    } else {
        float *single = (float *)(void *)decoded;
        _mm256_store_ps(single, quarter_single(type, token, 0));
        _mm256_store_ps(single + 8, quarter_single(type, token, 1));
        _mm256_store_ps(single + 16, quarter_single(type, token, 2));
        _mm256_store_ps(single + 24, quarter_single(type, token, 3));
    }
}

ROW_INLINE bool looks_for_ties(int type)
{
    return type == MOETOKEN_BF16;
}

/* A tie is a matter of the significands alone: an element's has 8 bits, so there are 128 products,
 * and all of them are formed. */
ROW_INLINE bool has_no_ties(int type, double weight)
{
    if (!looks_for_ties(type) || !(fabs(weight) >= FLT_MIN && fabs(weight) <= FLT_MAX))
        return false;
    const __m256i half = _mm256_set1_epi32(0x8000);
    const __m256i fraction = _mm256_set1_epi32(0x007fffff), one = _mm256_set1_epi32(0x3f800000);
    __m256i w = _mm256_castps_si256(_mm256_set1_ps((float)weight));
    w = _mm256_or_si256(_mm256_and_si256(w, fraction), one);
    __m256 significand = _mm256_setr_ps(128, 129, 130, 131, 132, 133, 134, 135);
    __m256i lower = _mm256_set1_epi32(-1); /* its lower halves are 0 where there was a tie */
    for (int eight = 0; eight < 16; eight++) {
        __m256 product = _mm256_mul_ps(_mm256_castsi256_ps(w), significand);
        lower = _mm256_min_epu16(lower, _mm256_add_epi32(_mm256_castps_si256(product), half));
        significand = _mm256_add_ps(significand, _mm256_set1_ps(8));
    }
    lower = _mm256_or_si256(lower, _mm256_set1_epi32((int)0xffff0000u));
    lower = _mm256_cmpeq_epi16(lower, _mm256_setzero_si256());
    return _mm256_testz_si256(lower, lower);
}

/* Twice the magnitude's bits, less 1: zeros come out largest. */
struct least {
    __m256i bits;
};

ROW_INLINE struct least least_begin(void)
{
    return (struct least){_mm256_set1_epi16(-1)};
}

ROW_INLINE void least_add(int type, const char *token, struct least *least)
{
    (void)type;
    for (int at = 0; at < 64; at += 32) {
        __m256i bits = load_32_bytes(token + at);
        bits = _mm256_sub_epi16(_mm256_add_epi16(bits, bits), _mm256_set1_epi16(1));
        least->bits = _mm256_min_epu16(least->bits, bits);
    }
}

ROW_INLINE double least_end(int type, struct least least)
{
    (void)type;
    __m128i halves =
        _mm_min_epu16(_mm256_castsi256_si128(least.bits), _mm256_extracti128_si256(least.bits, 1));
    int bits = _mm_extract_epi16(_mm_minpos_epu16(halves), 0);
    return bits == 0xffff ? 0 : double_from_bfloat16((uint16_t)((bits + 1) / 2));
}

/* ---- a block of one slot -------------------------------------------------------------------- */

ROW_INLINE __m256 scaled_single(__m256 single, __m256 weight, int care)
{
    __m256 product = _mm256_mul_ps(weight, single);
    return care == WITH_CARE ? canonical_single(product) : product;
}

/* part 0: the low half, 1: the high half. */
ROW_INLINE __m128 half_of(__m256 quarter, int part)
{
    return part ? _mm256_extractf128_ps(quarter, 1) : _mm256_castps256_ps128(quarter);
}

/* Half a quarter's products; g is the token's quarter.
 *
 * A product of two 16-bit elements fits into float32: exactly with float16, with bfloat16 as long
 * as their exponents do. With care it is formed in binary64; fused would be the same bits, but
 * AMD's first Zen cores convert and fuse on one pipe. */
ROW_INLINE __m256d eighth_product(int type, int care, bool decoded, int quarter, int part,
                                  struct block block, __m256 g)
{
    if (type == MOETOKEN_F16) {
        __m256 single = _mm256_mul_ps(quarter_single(type, block.in, quarter), g);
        return _mm256_cvtps_pd(half_of(single, part));
    }
    __m128 x = eighth_single(type, block.in, quarter, part);
    __m128 g_part =
        decoded ? eighth_single(MOETOKEN_F32, block.decoded, quarter, part) : half_of(g, part);
    if (care == WITH_CARE)
        return _mm256_mul_pd(_mm256_cvtps_pd(x), _mm256_cvtps_pd(g_part));
    return _mm256_cvtps_pd(_mm_mul_ps(x, g_part));
}

/* Half a block's products, added when all of them are on their way: CPUs with few ports for
 * conversions and additions keep both busy then. */
ROW_INLINE void add_half(int type, int care, bool decoded, int half, struct block block,
                         __m256 first, __m256 second, __m256d *sum)
{
    const int quarter = 2 * half;
    __m256d a = eighth_product(type, care, decoded, quarter, 0, block, first);
    __m256d b = eighth_product(type, care, decoded, quarter, 1, block, first);
    __m256d c = eighth_product(type, care, decoded, quarter + 1, 0, block, second);
    __m256d d = eighth_product(type, care, decoded, quarter + 1, 1, block, second);
    sum[0] = _mm256_add_pd(sum[0], a);
    sum[1] = _mm256_add_pd(sum[1], b);
    sum[2] = _mm256_add_pd(sum[2], c);
    sum[3] = _mm256_add_pd(sum[3], d);
}

ROW_INLINE void row_half_16_bit(int type, int verbs, int care, int store, bool decoded, int half,
                                struct block block, __m256d *sum)
{
    const int quarter = 2 * half;
    const int token_type = decoded ? MOETOKEN_F32 : type;
    const char *token = decoded ? block.decoded : block.token;
    __m256 first = quarter_single(token_type, token, quarter);
    __m256 second = quarter_single(token_type, token, quarter + 1);
    if (verbs & VERB_DOT)
        add_half(type, care, decoded, half, block, first, second, sum);
    if (verbs & VERB_SCALE) {
        const __m256 w = _mm256_set1_ps((float)block.weight);
        first = scaled_single(first, w, care);
        second = scaled_single(second, w, care);
        store_32_bytes(block.out + 32 * half, round_to_16_bit(type, care, first, second), store);
    }
}

/* Half a quarter's products of float32, in binary64; decoded, the token's elements are that. */
ROW_INLINE void add_eighth_f32(bool decoded, int quarter, int part, struct block block,
                               __m256d *sum)
{
    const int type = MOETOKEN_F32, eighth = 2 * quarter + part;
    __m128 x = eighth_single(type, block.in, quarter, part);
    __m256d g = decoded ? _mm256_load_pd((const double *)(const void *)block.decoded + 4 * eighth)
                        : _mm256_cvtps_pd(eighth_single(type, block.token, quarter, part));
    *sum = _mm256_add_pd(*sum, _mm256_mul_pd(_mm256_cvtps_pd(x), g));
}

ROW_INLINE void row_quarter_f32(int verbs, int care, int store, bool decoded, int quarter,
                                struct block block, __m256d *sum)
{
    if (verbs & VERB_DOT) {
        add_eighth_f32(decoded, quarter, 0, block, &sum[0]);
        add_eighth_f32(decoded, quarter, 1, block, &sum[1]);
    }
    if (verbs & VERB_SCALE) {
        const __m256 w = _mm256_set1_ps((float)block.weight);
        __m256 g = quarter_single(MOETOKEN_F32, block.token, quarter);
        store_32_bytes(block.out + 32 * quarter, _mm256_castps_si256(scaled_single(g, w, care)),
                       store);
    }
}

ROW_INLINE void row_eighth_f64(int verbs, int store, int eighth, struct block block, __m256d *sum)
{
    __m256d g = _mm256_loadu_pd((const double *)(const void *)block.token + 4 * eighth);
    if (verbs & VERB_DOT) {
        __m256d x = _mm256_loadu_pd((const double *)(const void *)block.in + 4 * eighth);
        *sum = _mm256_add_pd(*sum, _mm256_mul_pd(x, g));
    }
    if (verbs & VERB_SCALE) {
        __m256d product = canonical_wide(_mm256_mul_pd(_mm256_set1_pd(block.weight), g));
        store_32_bytes(block.out + 32 * eighth, _mm256_castpd_si256(product), store);
    }
}

ROW_INLINE void row_block(int type, int verbs, int care, int store, bool decoded,
                          struct block block, struct lanes *lanes)
{
    __m256d *sum = lanes->sum;
    switch (type) {
    case MOETOKEN_F32:
        row_quarter_f32(verbs, care, store, decoded, 0, block, &sum[0]);
        row_quarter_f32(verbs, care, store, decoded, 1, block, &sum[2]);
        row_quarter_f32(verbs, care, store, decoded, 2, block, &sum[4]);
        row_quarter_f32(verbs, care, store, decoded, 3, block, &sum[6]);
        break;
    case MOETOKEN_F64:
        row_eighth_f64(verbs, store, 0, block, &sum[0]);
        row_eighth_f64(verbs, store, 1, block, &sum[1]);
        row_eighth_f64(verbs, store, 2, block, &sum[2]);
        row_eighth_f64(verbs, store, 3, block, &sum[3]);
        row_eighth_f64(verbs, store, 4, block, &sum[4]);
        row_eighth_f64(verbs, store, 5, block, &sum[5]);
        row_eighth_f64(verbs, store, 6, block, &sum[6]);
        row_eighth_f64(verbs, store, 7, block, &sum[7]);
        break;
    default:
        row_half_16_bit(type, verbs, care, store, decoded, 0, block, &sum[0]);
        row_half_16_bit(type, verbs, care, store, decoded, 1, block, &sum[4]);
        break;
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

/* Unrounded, register by register. */
ROW_INLINE struct sums sums_load(int type, const char *from)
{
    struct sums sums = sums_zero();
    if (type == MOETOKEN_F64)
        for (int part = 0; part < 8; part++)
            sums.wide[part] = _mm256_load_pd((const double *)(const void *)from + 4 * part);
    else
        for (int quarter = 0; quarter < 4; quarter++)
            sums.single[quarter] = _mm256_load_ps((const float *)(const void *)from + 8 * quarter);
    return sums;
}

ROW_INLINE void sums_save(int type, struct sums sums, char *to)
{
    if (type == MOETOKEN_F64)
        for (int part = 0; part < 8; part++)
            _mm256_store_pd((double *)(void *)to + 4 * part, sums.wide[part]);
    else
        for (int quarter = 0; quarter < 4; quarter++)
            _mm256_store_ps((float *)(void *)to + 8 * quarter, sums.single[quarter]);
}

/* Two roundings, whatever the compiler may fuse elsewhere: -ffp-contract=off is part of the build.
 */
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
        for (int part = 0; part < 8; part++)
            store_32_bytes(out + 32 * part, _mm256_castpd_si256(canonical_wide(sums.wide[part])),
                           store);
        return;
    }
    __m256 a = canonical_single(sums.single[0]), b = canonical_single(sums.single[1]);
    __m256 c = canonical_single(sums.single[2]), d = canonical_single(sums.single[3]);
    if (is_16_bit(type)) {
        store_32_bytes(out, round_to_16_bit(type, WITH_CARE, a, b), store);
        store_32_bytes(out + 32, round_to_16_bit(type, WITH_CARE, c, d), store);
    } else {
        store_32_bytes(out, _mm256_castps_si256(a), store);
        store_32_bytes(out + 32, _mm256_castps_si256(b), store);
        store_32_bytes(out + 64, _mm256_castps_si256(c), store);
        store_32_bytes(out + 96, _mm256_castps_si256(d), store);
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
    token_to_slots(rows, MOETOKEN_F32, VERB_SCALE);
}

static void scale_rows_f16_avx2(const struct moetoken_rows *rows)
{
    token_to_slots(rows, MOETOKEN_F16, VERB_SCALE);
}

static void scale_rows_bf16_avx2(const struct moetoken_rows *rows)
{
    token_to_slots(rows, MOETOKEN_BF16, VERB_SCALE);
}

static void scale_rows_f64_avx2(const struct moetoken_rows *rows)
{
    token_to_slots(rows, MOETOKEN_F64, VERB_SCALE);
}

static void dot_rows_f32_avx2(const struct moetoken_rows *rows)
{
    token_to_slots(rows, MOETOKEN_F32, VERB_DOT);
}

static void dot_rows_f16_avx2(const struct moetoken_rows *rows)
{
    token_to_slots(rows, MOETOKEN_F16, VERB_DOT);
}

static void dot_rows_bf16_avx2(const struct moetoken_rows *rows)
{
    token_to_slots(rows, MOETOKEN_BF16, VERB_DOT);
}

static void dot_rows_f64_avx2(const struct moetoken_rows *rows)
{
    token_to_slots(rows, MOETOKEN_F64, VERB_DOT);
}

static void scale_dot_rows_f32_avx2(const struct moetoken_rows *rows)
{
    token_to_slots(rows, MOETOKEN_F32, VERB_SCALE | VERB_DOT);
}

static void scale_dot_rows_f16_avx2(const struct moetoken_rows *rows)
{
    token_to_slots(rows, MOETOKEN_F16, VERB_SCALE | VERB_DOT);
}

static void scale_dot_rows_bf16_avx2(const struct moetoken_rows *rows)
{
    token_to_slots(rows, MOETOKEN_BF16, VERB_SCALE | VERB_DOT);
}

static void scale_dot_rows_f64_avx2(const struct moetoken_rows *rows)
{
    token_to_slots(rows, MOETOKEN_F64, VERB_SCALE | VERB_DOT);
}

static void sum_rows_f32_avx2(const struct moetoken_rows *rows)
{
    slots_to_token(rows, MOETOKEN_F32);
}

static void sum_rows_f16_avx2(const struct moetoken_rows *rows)
{
    slots_to_token(rows, MOETOKEN_F16);
}

static void sum_rows_bf16_avx2(const struct moetoken_rows *rows)
{
    slots_to_token(rows, MOETOKEN_BF16);
}

static void sum_rows_f64_avx2(const struct moetoken_rows *rows)
{
    slots_to_token(rows, MOETOKEN_F64);
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
