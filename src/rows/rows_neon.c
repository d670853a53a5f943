/* rows_neon.c - row kernels for AArch64 Advanced SIMD.
 *
 * The block vocabulary of rows_blocks.h in 128-bit registers, then the kernels. */
#include "rows/rows_undecoded.h"
#include "rows/rows_vector.h"

#include <moetoken/moetoken.h>

#if defined(__aarch64__)

#include <arm_neon.h>
#include <math.h>
#include <string.h>

/* How far ahead of a sum its rows are prefetched. */
#define SUM_PREFETCH_BYTES 512

/* ---- loads, stores, conversions ------------------------------------------------------------- */

ROW_INLINE uint16x8_t load_16_bytes(const char *from)
{
    return vreinterpretq_u16_u8(vld1q_u8((const uint8_t *)from));
}

/* Two registers at a time: the store that need not stay in the caches exists for pairs. */
ROW_INLINE void store_32_bytes(char *to, uint16x8_t first, uint16x8_t second, int store)
{
    if (store == STORE_STREAMING) {
        __asm__ volatile("stnp %q1, %q2, [%0]" : : "r"(to), "w"(first), "w"(second) : "memory");
    } else {
        vst1q_u8((uint8_t *)to, vreinterpretq_u8_u16(first));
        vst1q_u8((uint8_t *)to + 16, vreinterpretq_u8_u16(second));
    }
}

ROW_INLINE int store_kind(const char *out, bool streaming)
{
    return streaming && (uintptr_t)out % 16 == 0 ? STORE_STREAMING : STORE_CACHED;
}

/* NaN as the positive quiet NaN without payload. */
ROW_INLINE float32x4_t canonical_single(float32x4_t value)
{
    return vbslq_f32(vceqq_f32(value, value), value, vdupq_n_f32(NAN));
}

ROW_INLINE float64x2_t canonical_wide(float64x2_t value)
{
    return vbslq_f64(vceqq_f64(value, value), value, vdupq_n_f64(NAN));
}

/* Rounds float32 to the bfloat16 at the even and odd places of a register, to nearest even.
 *
 * The upper halves of all values stand in one register, the lower halves in another. A value goes
 * up when its lower half is above 0x8000, or equal to it and the upper half odd; where the upper
 * half is even, 1 is taken from the lower half first, and then its highest bit decides. A carry
 * into infinity is right as it is. No NaN may come here. */
ROW_INLINE uint16x8_t round_to_bf16(float32x4_t even, float32x4_t odd)
{
    uint16x8_t e = vreinterpretq_u16_f32(even), o = vreinterpretq_u16_f32(odd);
    uint16x8_t upper = vtrn2q_u16(e, o), lower = vtrn1q_u16(e, o);
    lower = vqsubq_u16(lower, vbicq_u16(vdupq_n_u16(1), upper));
    return vsraq_n_u16(upper, lower, 15);
}

/* Rounds two eighths, as eighth_single makes them, to a quarter of a block of 16-bit elements. */
ROW_INLINE uint16x8_t round_to_16_bit(int type, float32x4_t first, float32x4_t second)
{
    if (type == MOETOKEN_BF16)
        return round_to_bf16(first, second);
    return vreinterpretq_u16_f16(vcvt_high_f16_f32(vcvt_f16_f32(first), second));
}

/* ---- a token's block ------------------------------------------------------------------------ */

/* An eighth of a block of 16- or 32-bit elements as float32: 4 neighbours; with bfloat16 the even
 * elements of 8 neighbours, then the odd ones. */
ROW_INLINE float32x4_t eighth_single(int type, const char *block, int eighth)
{
    switch (type) {
    case MOETOKEN_BF16: {
        uint32x4_t eight = vreinterpretq_u32_u16(load_16_bytes(block + eighth / 2 * 16));
        eight = eighth % 2 ? vandq_u32(eight, vdupq_n_u32(0xffff0000u)) : vshlq_n_u32(eight, 16);
        return vreinterpretq_f32_u32(eight);
    }
    case MOETOKEN_F16: {
        uint8x8_t four = vld1_u8((const uint8_t *)block + 8 * eighth);
        return vcvt_f32_f16(vreinterpret_f16_u8(four));
    }
    default:
        return vreinterpretq_f32_u16(load_16_bytes(block + 16 * eighth));
    }
}

/* Infinity and NaN are the elements with all exponent bits set. */
ROW_INLINE bool block_is_finite(int type, const char *token)
{
    if (type == MOETOKEN_F32) {
        const uint32x4_t exponent = vdupq_n_u32(0x7f800000u);
        uint32x4_t largest = vdupq_n_u32(0);
        for (int at = 0; at < 128; at += 16) {
            uint32x4_t bits = vreinterpretq_u32_u16(load_16_bytes(token + at));
            largest = vmaxq_u32(largest, vandq_u32(bits, exponent));
        }
        return vmaxvq_u32(largest) != 0x7f800000u;
    }
    const uint16_t exponent = type == MOETOKEN_BF16 ? 0x7f80 : 0x7c00;
    uint16x8_t largest = vdupq_n_u16(0);
    for (int at = 0; at < 64; at += 16)
        largest = vmaxq_u16(largest, vandq_u16(load_16_bytes(token + at), vdupq_n_u16(exponent)));
    return vmaxvq_u16(largest) != exponent;
}

/* ---- dot products --------------------------------------------------------------------------- */

/* sum[2k] and sum[2k+1] belong to the low and the high half of eighth_single(k). Arrays of
 * registers are indexed by constants only. */
struct lanes {
    float64x2_t sum[16];
};

ROW_INLINE struct lanes lanes_zero(void)
{
    const float64x2_t zero = vdupq_n_f64(0);
    return (struct lanes){{zero, zero, zero, zero, zero, zero, zero, zero, zero, zero, zero, zero,
                           zero, zero, zero, zero}};
}

ROW_INLINE struct lanes lanes_load(const double *from)
{
    return (struct lanes){
        {vld1q_f64(from + 0), vld1q_f64(from + 2), vld1q_f64(from + 4), vld1q_f64(from + 6),
         vld1q_f64(from + 8), vld1q_f64(from + 10), vld1q_f64(from + 12), vld1q_f64(from + 14),
         vld1q_f64(from + 16), vld1q_f64(from + 18), vld1q_f64(from + 20), vld1q_f64(from + 22),
         vld1q_f64(from + 24), vld1q_f64(from + 26), vld1q_f64(from + 28), vld1q_f64(from + 30)}};
}

ROW_INLINE void lanes_store(double *to, struct lanes lanes)
{
    vst1q_f64(to + 0, lanes.sum[0]);
    vst1q_f64(to + 2, lanes.sum[1]);
    vst1q_f64(to + 4, lanes.sum[2]);
    vst1q_f64(to + 6, lanes.sum[3]);
    vst1q_f64(to + 8, lanes.sum[4]);
    vst1q_f64(to + 10, lanes.sum[5]);
    vst1q_f64(to + 12, lanes.sum[6]);
    vst1q_f64(to + 14, lanes.sum[7]);
    vst1q_f64(to + 16, lanes.sum[8]);
    vst1q_f64(to + 18, lanes.sum[9]);
    vst1q_f64(to + 20, lanes.sum[10]);
    vst1q_f64(to + 22, lanes.sum[11]);
    vst1q_f64(to + 24, lanes.sum[12]);
    vst1q_f64(to + 26, lanes.sum[13]);
    vst1q_f64(to + 28, lanes.sum[14]);
    vst1q_f64(to + 30, lanes.sum[15]);
}

/* Lane j += lane j+16, then j+8, j+4, j+2, j+1. After the first two steps 8 lanes are left: with
 * bfloat16 {0,2} {4,6} {1,3} {5,7}, else {0,1} {2,3} {4,5} {6,7}. */
ROW_INLINE double lanes_total(int type, struct lanes lanes)
{
    const float64x2_t *sum = lanes.sum;
    float64x2_t a = vaddq_f64(vaddq_f64(sum[0], sum[8]), vaddq_f64(sum[4], sum[12]));
    float64x2_t b = vaddq_f64(vaddq_f64(sum[1], sum[9]), vaddq_f64(sum[5], sum[13]));
    float64x2_t c = vaddq_f64(vaddq_f64(sum[2], sum[10]), vaddq_f64(sum[6], sum[14]));
    float64x2_t d = vaddq_f64(vaddq_f64(sum[3], sum[11]), vaddq_f64(sum[7], sum[15]));
    if (type == MOETOKEN_BF16)
        return vpaddd_f64(vaddq_f64(a, b)) + vpaddd_f64(vaddq_f64(c, d));
    return vpaddd_f64(vaddq_f64(vaddq_f64(a, c), vaddq_f64(b, d)));
}

/* Products of two float16 are exact in float32, all others of 16- or 32-bit elements in binary64:
 * fused or not makes no difference to those. */
ROW_INLINE void add_products(int type, float32x4_t x, float32x4_t g, float64x2_t *sum)
{
    if (type == MOETOKEN_F16) {
        float32x4_t product = vmulq_f32(x, g);
        sum[0] = vaddq_f64(sum[0], vcvt_f64_f32(vget_low_f32(product)));
        sum[1] = vaddq_f64(sum[1], vcvt_high_f64_f32(product));
    } else {
        sum[0] = vfmaq_f64(sum[0], vcvt_f64_f32(vget_low_f32(x)), vcvt_f64_f32(vget_low_f32(g)));
        sum[1] = vfmaq_f64(sum[1], vcvt_high_f64_f32(x), vcvt_high_f64_f32(g));
    }
}

/* ---- a block of one slot -------------------------------------------------------------------- */

ROW_INLINE float32x4_t scaled_single(float32x4_t single, float32x4_t weight, int care)
{
    float32x4_t product = vmulq_f32(weight, single);
    return care == WITH_CARE ? canonical_single(product) : product;
}

/* Two eighths of a block, and their product with the weight in first and second. */
ROW_INLINE void row_quarter(int type, int verbs, int care, int quarter, const char *in,
                            const char *token, double weight, float64x2_t *sum, float32x4_t *first,
                            float32x4_t *second)
{
    const float32x4_t w = vdupq_n_f32((float)weight);
    *first = eighth_single(type, token, 2 * quarter);
    *second = eighth_single(type, token, 2 * quarter + 1);
    if (verbs & VERB_DOT) {
        add_products(type, eighth_single(type, in, 2 * quarter), *first, sum);
        add_products(type, eighth_single(type, in, 2 * quarter + 1), *second, sum + 2);
    }
    *first = scaled_single(*first, w, care);
    *second = scaled_single(*second, w, care);
}

/* Half a block of 16-bit or 32-bit elements. */
ROW_INLINE void row_half(int type, int verbs, int care, int store, int half, const char *in,
                         const char *token, double weight, char *out, float64x2_t *sum)
{
    float32x4_t a, b, c, d;
    row_quarter(type, verbs, care, 2 * half, in, token, weight, sum, &a, &b);
    row_quarter(type, verbs, care, 2 * half + 1, in, token, weight, sum + 4, &c, &d);
    if (!(verbs & VERB_SCALE))
        return;
    if (is_16_bit(type)) {
        store_32_bytes(out + 32 * half, round_to_16_bit(type, a, b), round_to_16_bit(type, c, d),
                       store);
    } else {
        store_32_bytes(out + 64 * half, vreinterpretq_u16_f32(a), vreinterpretq_u16_f32(b), store);
        store_32_bytes(out + 64 * half + 32, vreinterpretq_u16_f32(c), vreinterpretq_u16_f32(d),
                       store);
    }
}

/* 4 elements of float64. */
ROW_INLINE void row_eighth_f64(int verbs, int store, int eighth, const char *in, const char *token,
                               double weight, char *out, float64x2_t *sum)
{
    const float64x2_t w = vdupq_n_f64(weight);
    const int at = 32 * eighth;
    float64x2_t low = vreinterpretq_f64_u16(load_16_bytes(token + at));
    float64x2_t high = vreinterpretq_f64_u16(load_16_bytes(token + at + 16));
    if (verbs & VERB_DOT) {
        float64x2_t x_low = vreinterpretq_f64_u16(load_16_bytes(in + at));
        float64x2_t x_high = vreinterpretq_f64_u16(load_16_bytes(in + at + 16));
        sum[0] = vaddq_f64(sum[0], vmulq_f64(x_low, low));
        sum[1] = vaddq_f64(sum[1], vmulq_f64(x_high, high));
    }
    if (verbs & VERB_SCALE)
        store_32_bytes(out + at, vreinterpretq_u16_f64(canonical_wide(vmulq_f64(w, low))),
                       vreinterpretq_u16_f64(canonical_wide(vmulq_f64(w, high))), store);
}

ROW_INLINE void row_block(int type, int verbs, int care, int store, bool decoded,
                          struct block block, struct lanes *lanes)
{
    const char *in = block.in, *token = block.token;
    const double weight = block.weight;
    char *out = block.out;
    (void)decoded;
    float64x2_t *sum = lanes->sum;
    if (type != MOETOKEN_F64) {
        row_half(type, verbs, care, store, 0, in, token, weight, out, &sum[0]);
        row_half(type, verbs, care, store, 1, in, token, weight, out, &sum[8]);
        return;
    }
    row_eighth_f64(verbs, store, 0, in, token, weight, out, &sum[0]);
    row_eighth_f64(verbs, store, 1, in, token, weight, out, &sum[2]);
    row_eighth_f64(verbs, store, 2, in, token, weight, out, &sum[4]);
    row_eighth_f64(verbs, store, 3, in, token, weight, out, &sum[6]);
    row_eighth_f64(verbs, store, 4, in, token, weight, out, &sum[8]);
    row_eighth_f64(verbs, store, 5, in, token, weight, out, &sum[10]);
    row_eighth_f64(verbs, store, 6, in, token, weight, out, &sum[12]);
    row_eighth_f64(verbs, store, 7, in, token, weight, out, &sum[14]);
}

/* ---- sums ----------------------------------------------------------------------------------- */

/* 32 sums: float32 in single[], eighth by eighth, or binary64 in wide[]. */
struct sums {
    float32x4_t single[8];
    float64x2_t wide[16];
};

ROW_INLINE struct sums sums_zero(void)
{
    const float32x4_t zero = vdupq_n_f32(0);
    return (struct sums){{zero, zero, zero, zero, zero, zero, zero, zero}, {vdupq_n_f64(0)}};
}

/* Unrounded, register by register. */
ROW_INLINE struct sums sums_load(int type, const char *from)
{
    struct sums sums = sums_zero();
    if (type == MOETOKEN_F64)
        for (int pair = 0; pair < 16; pair++)
            sums.wide[pair] = vld1q_f64((const double *)(const void *)from + 2 * pair);
    else
        for (int eighth = 0; eighth < 8; eighth++)
            sums.single[eighth] = vld1q_f32((const float *)(const void *)from + 4 * eighth);
    return sums;
}

ROW_INLINE void sums_save(int type, struct sums sums, char *to)
{
    if (type == MOETOKEN_F64)
        for (int pair = 0; pair < 16; pair++)
            vst1q_f64((double *)(void *)to + 2 * pair, sums.wide[pair]);
    else
        for (int eighth = 0; eighth < 8; eighth++)
            vst1q_f32((float *)(void *)to + 4 * eighth, sums.single[eighth]);
}

/* Two roundings: -ffp-contract=off is part of the build. */
ROW_INLINE void sums_add_eighth(int type, bool weighted, const char *in, double weight, int eighth,
                                struct sums *sums)
{
    if (type == MOETOKEN_F64) {
        const float64x2_t w = vdupq_n_f64(weight);
        float64x2_t low = vreinterpretq_f64_u16(load_16_bytes(in + 32 * eighth));
        float64x2_t high = vreinterpretq_f64_u16(load_16_bytes(in + 32 * eighth + 16));
        float64x2_t *sum = &sums->wide[2 * eighth];
        sum[0] = vaddq_f64(sum[0], vmulq_f64(w, low));
        sum[1] = vaddq_f64(sum[1], vmulq_f64(w, high));
    } else {
        float32x4_t single = eighth_single(type, in, eighth);
        if (weighted)
            single = vmulq_f32(vdupq_n_f32((float)weight), single);
        sums->single[eighth] = vaddq_f32(sums->single[eighth], single);
    }
}

ROW_INLINE void sums_add(int type, bool weighted, const char *in, double weight, struct sums *sums)
{
    sums_add_eighth(type, weighted, in, weight, 0, sums);
    sums_add_eighth(type, weighted, in, weight, 1, sums);
    sums_add_eighth(type, weighted, in, weight, 2, sums);
    sums_add_eighth(type, weighted, in, weight, 3, sums);
    sums_add_eighth(type, weighted, in, weight, 4, sums);
    sums_add_eighth(type, weighted, in, weight, 5, sums);
    sums_add_eighth(type, weighted, in, weight, 6, sums);
    sums_add_eighth(type, weighted, in, weight, 7, sums);
}

/* Four eighths of the result. */
ROW_INLINE void sums_store_half(int type, const struct sums *sums, int half, char *out, int store)
{
    if (type == MOETOKEN_F64) {
        const float64x2_t *sum = &sums->wide[8 * half];
        for (int pair = 0; pair < 4; pair++)
            store_32_bytes(out + 128 * half + 32 * pair,
                           vreinterpretq_u16_f64(canonical_wide(sum[2 * pair])),
                           vreinterpretq_u16_f64(canonical_wide(sum[2 * pair + 1])), store);
        return;
    }
    const float32x4_t *sum = &sums->single[4 * half];
    float32x4_t a = canonical_single(sum[0]), b = canonical_single(sum[1]);
    float32x4_t c = canonical_single(sum[2]), d = canonical_single(sum[3]);
    if (is_16_bit(type)) {
        store_32_bytes(out + 32 * half, round_to_16_bit(type, a, b), round_to_16_bit(type, c, d),
                       store);
    } else {
        store_32_bytes(out + 64 * half, vreinterpretq_u16_f32(a), vreinterpretq_u16_f32(b), store);
        store_32_bytes(out + 64 * half + 32, vreinterpretq_u16_f32(c), vreinterpretq_u16_f32(d),
                       store);
    }
}

ROW_INLINE void sums_store(int type, struct sums sums, char *out, int store)
{
    sums_store_half(type, &sums, 0, out, store);
    sums_store_half(type, &sums, 1, out, store);
}

/* ---- copies --------------------------------------------------------------------------------- */

ROW_INLINE void copy_bytes(const char *from, char *to, int64_t bytes, bool streaming)
{
    int64_t at = streaming && (uintptr_t)to % 16 == 0 ? 0 : bytes;
    memcpy(to, from, (size_t)at);
    for (; at + 32 <= bytes; at += 32)
        store_32_bytes(to + at, load_16_bytes(from + at), load_16_bytes(from + at + 16),
                       STORE_STREAMING);
    memcpy(to + at, from + at, (size_t)(bytes - at));
}

#include "rows/rows_blocks.h"

/* ---- the kernels ---------------------------------------------------------------------------- */

static void copy_rows_2_neon(const struct moetoken_rows *rows)
{
    copy_to_slots(rows, 2);
}

static void copy_rows_4_neon(const struct moetoken_rows *rows)
{
    copy_to_slots(rows, 4);
}

static void copy_rows_8_neon(const struct moetoken_rows *rows)
{
    copy_to_slots(rows, 8);
}

static void scale_rows_f32_neon(const struct moetoken_rows *rows)
{
    token_to_slots(rows, MOETOKEN_F32, VERB_SCALE);
}

static void scale_rows_f16_neon(const struct moetoken_rows *rows)
{
    token_to_slots(rows, MOETOKEN_F16, VERB_SCALE);
}

static void scale_rows_bf16_neon(const struct moetoken_rows *rows)
{
    token_to_slots(rows, MOETOKEN_BF16, VERB_SCALE);
}

static void scale_rows_f64_neon(const struct moetoken_rows *rows)
{
    token_to_slots(rows, MOETOKEN_F64, VERB_SCALE);
}

static void dot_rows_f32_neon(const struct moetoken_rows *rows)
{
    token_to_slots(rows, MOETOKEN_F32, VERB_DOT);
}

static void dot_rows_f16_neon(const struct moetoken_rows *rows)
{
    token_to_slots(rows, MOETOKEN_F16, VERB_DOT);
}

static void dot_rows_bf16_neon(const struct moetoken_rows *rows)
{
    token_to_slots(rows, MOETOKEN_BF16, VERB_DOT);
}

static void dot_rows_f64_neon(const struct moetoken_rows *rows)
{
    token_to_slots(rows, MOETOKEN_F64, VERB_DOT);
}

static void scale_dot_rows_f32_neon(const struct moetoken_rows *rows)
{
    token_to_slots(rows, MOETOKEN_F32, VERB_SCALE | VERB_DOT);
}

static void scale_dot_rows_f16_neon(const struct moetoken_rows *rows)
{
    token_to_slots(rows, MOETOKEN_F16, VERB_SCALE | VERB_DOT);
}

static void scale_dot_rows_bf16_neon(const struct moetoken_rows *rows)
{
    token_to_slots(rows, MOETOKEN_BF16, VERB_SCALE | VERB_DOT);
}

static void scale_dot_rows_f64_neon(const struct moetoken_rows *rows)
{
    token_to_slots(rows, MOETOKEN_F64, VERB_SCALE | VERB_DOT);
}

static void sum_rows_f32_neon(const struct moetoken_rows *rows)
{
    slots_to_token(rows, MOETOKEN_F32);
}

static void sum_rows_f16_neon(const struct moetoken_rows *rows)
{
    slots_to_token(rows, MOETOKEN_F16);
}

static void sum_rows_bf16_neon(const struct moetoken_rows *rows)
{
    slots_to_token(rows, MOETOKEN_BF16);
}

static void sum_rows_f64_neon(const struct moetoken_rows *rows)
{
    slots_to_token(rows, MOETOKEN_F64);
}

/* Stores with the non-temporal hint are ordered like any other. */
static void fence_neon(void)
{
}

void moetoken_row_kernels_neon(struct moetoken_row_kernels *kernels)
{
    *kernels = (struct moetoken_row_kernels){
        .isa = MOETOKEN_ISA_NEON,
        .copy_2 = copy_rows_2_neon,
        .copy_4 = copy_rows_4_neon,
        .copy_8 = copy_rows_8_neon,
        .scale = {scale_rows_f32_neon, scale_rows_f16_neon, scale_rows_bf16_neon,
                  scale_rows_f64_neon},
        .dot = {dot_rows_f32_neon, dot_rows_f16_neon, dot_rows_bf16_neon, dot_rows_f64_neon},
        .scale_dot = {scale_dot_rows_f32_neon, scale_dot_rows_f16_neon, scale_dot_rows_bf16_neon,
                      scale_dot_rows_f64_neon},
        .sum = {sum_rows_f32_neon, sum_rows_f16_neon, sum_rows_bf16_neon, sum_rows_f64_neon},
        .fence = fence_neon,
    };
}
#else
typedef int moetoken_rows_neon_is_empty; /* an ISO C file holds at least one declaration */
#endif
