/* rows_neon.c - row kernels for AArch64 Advanced SIMD.
 *
 * The block vocabulary of rows_blocks.h in 128-bit registers, then the kernels. */
#include "rows/formats.h"
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

/* Two registers at a time: the non-temporal store exists for pairs only. */
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
 * The upper halves of all values are in one register, the lower halves in another. A value goes up
 * when its lower half is above 0x8000, or equal to it and the upper half odd; where the upper half
 * is even, 1 is taken from the lower half first, and then its highest bit decides. A carry into
 * infinity is the right result. Values must not be NaN. */
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

/* Four eighths, as eighth_single makes them, to half a block of 16- or 32-bit elements. */
ROW_INLINE void store_singles(int type, float32x4_t a, float32x4_t b, float32x4_t c, float32x4_t d,
                              char *out, int store)
{
    if (is_16_bit(type)) {
        store_32_bytes(out, round_to_16_bit(type, a, b), round_to_16_bit(type, c, d), store);
    } else {
        store_32_bytes(out, vreinterpretq_u16_f32(a), vreinterpretq_u16_f32(b), store);
        store_32_bytes(out + 32, vreinterpretq_u16_f32(c), vreinterpretq_u16_f32(d), store);
    }
}

ROW_INLINE int64_t half_block(int type)
{
    return (int64_t)(BLOCK / 2 * token_size(type));
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

/* The CPU's exception flags record overflow, and underflow that loses bits, until they are cleared.
 * No product may be moved across either function. */
#define FPSR_OVERFLOW  UINT64_C(4)
#define FPSR_UNDERFLOW UINT64_C(8)

ROW_INLINE void exact_begin(void)
{
    uint64_t notes;
    __asm__ volatile("mrs %0, fpsr" : "=r"(notes) : : "memory");
    notes &= ~(FPSR_OVERFLOW | FPSR_UNDERFLOW);
    __asm__ volatile("msr fpsr, %0" : : "r"(notes) : "memory");
}

ROW_INLINE bool exact_end(void)
{
    uint64_t notes;
    __asm__ volatile("mrs %0, fpsr" : "=r"(notes) : : "memory");
    return (notes & (FPSR_OVERFLOW | FPSR_UNDERFLOW)) == 0;
}

/* A product of two float16 fits into float32; one of two bfloat16 as long as their exponents do.
 * Those of 32-bit elements, and all with care, are exact in binary64: fused is the same. */
ROW_INLINE void dot_eighth(int type, bool wide, const char *in, const char *token, int eighth,
                           float64x2_t *sum)
{
    float32x4_t x = eighth_single(type, in, eighth), g = eighth_single(type, token, eighth);
    if (wide) {
        sum[0] = vfmaq_f64(sum[0], vcvt_f64_f32(vget_low_f32(x)), vcvt_f64_f32(vget_low_f32(g)));
        sum[1] = vfmaq_f64(sum[1], vcvt_high_f64_f32(x), vcvt_high_f64_f32(g));
    } else {
        float32x4_t product = vmulq_f32(x, g);
        sum[0] = vaddq_f64(sum[0], vcvt_f64_f32(vget_low_f32(product)));
        sum[1] = vaddq_f64(sum[1], vcvt_high_f64_f32(product));
    }
}

/* Two roundings: -ffp-contract=off is part of the build. */
ROW_INLINE void dot_eighth_f64(const char *in, const char *token, int eighth, float64x2_t *sum)
{
    const double *x = (const double *)(const void *)in + 4 * eighth;
    const double *g = (const double *)(const void *)token + 4 * eighth;
    sum[0] = vaddq_f64(sum[0], vmulq_f64(vld1q_f64(x), vld1q_f64(g)));
    sum[1] = vaddq_f64(sum[1], vmulq_f64(vld1q_f64(x + 2), vld1q_f64(g + 2)));
}

ROW_INLINE void dot_eighth_of(int type, bool care, const char *in, const char *token, int eighth,
                              struct lanes *lanes)
{
    const bool wide = type == MOETOKEN_F32 || (care && !always_exact(type));
    if (type == MOETOKEN_F64)
        dot_eighth_f64(in, token, eighth, &lanes->sum[2 * eighth]);
    else
        dot_eighth(type, wide, in, token, eighth, &lanes->sum[2 * eighth]);
}

/* Nothing is deferred: splitting registers costs as little as loading them again. */
struct products {
    char none;
};

ROW_INLINE void add_products(int type, bool care, const struct products *products,
                             struct lanes *lanes)
{
    (void)type;
    (void)care;
    (void)products;
    (void)lanes;
}

ROW_INLINE void form_products(int type, bool care, const char *in, const char *token,
                              struct products *products, struct lanes *lanes)
{
    (void)products;
    dot_eighth_of(type, care, in, token, 0, lanes);
    dot_eighth_of(type, care, in, token, 1, lanes);
    dot_eighth_of(type, care, in, token, 2, lanes);
    dot_eighth_of(type, care, in, token, 3, lanes);
    dot_eighth_of(type, care, in, token, 4, lanes);
    dot_eighth_of(type, care, in, token, 5, lanes);
    dot_eighth_of(type, care, in, token, 6, lanes);
    dot_eighth_of(type, care, in, token, 7, lanes);
}

/* ---- scaled rows ---------------------------------------------------------------------------- */

ROW_INLINE float32x4_t scaled_eighth(int type, bool care, const char *token, float32x4_t weight,
                                     int eighth)
{
    float32x4_t product = vmulq_f32(weight, eighth_single(type, token, eighth));
    return care ? canonical_single(product) : product;
}

ROW_INLINE void scale_eighth_f64(const char *token, float64x2_t weight, char *out, int store)
{
    const double *elements = (const double *)(const void *)token;
    float64x2_t low = vmulq_f64(weight, vld1q_f64(elements));
    float64x2_t high = vmulq_f64(weight, vld1q_f64(elements + 2));
    store_32_bytes(out, vreinterpretq_u16_f64(canonical_wide(low)),
                   vreinterpretq_u16_f64(canonical_wide(high)), store);
}

ROW_INLINE void scale_half(int type, bool care, const char *token, float32x4_t weight, int half,
                           char *out, int store)
{
    store_singles(type, scaled_eighth(type, care, token, weight, 4 * half),
                  scaled_eighth(type, care, token, weight, 4 * half + 1),
                  scaled_eighth(type, care, token, weight, 4 * half + 2),
                  scaled_eighth(type, care, token, weight, 4 * half + 3),
                  out + half * half_block(type), store);
}

ROW_INLINE void scale_block(int type, bool care, const char *token, double weight, char *out,
                            int store)
{
    if (type == MOETOKEN_F64) {
        const float64x2_t w = vdupq_n_f64(weight);
        scale_eighth_f64(token + 0, w, out + 0, store);
        scale_eighth_f64(token + 32, w, out + 32, store);
        scale_eighth_f64(token + 64, w, out + 64, store);
        scale_eighth_f64(token + 96, w, out + 96, store);
        scale_eighth_f64(token + 128, w, out + 128, store);
        scale_eighth_f64(token + 160, w, out + 160, store);
        scale_eighth_f64(token + 192, w, out + 192, store);
        scale_eighth_f64(token + 224, w, out + 224, store);
    } else {
        scale_half(type, care, token, vdupq_n_f32((float)weight), 0, out, store);
        scale_half(type, care, token, vdupq_n_f32((float)weight), 1, out, store);
    }
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
    const float *single = (const void *)from;
    const double *wide = (const void *)from;
    if (type == MOETOKEN_F64)
        return (struct sums){
            .wide = {vld1q_f64(wide + 0), vld1q_f64(wide + 2), vld1q_f64(wide + 4),
                     vld1q_f64(wide + 6), vld1q_f64(wide + 8), vld1q_f64(wide + 10),
                     vld1q_f64(wide + 12), vld1q_f64(wide + 14), vld1q_f64(wide + 16),
                     vld1q_f64(wide + 18), vld1q_f64(wide + 20), vld1q_f64(wide + 22),
                     vld1q_f64(wide + 24), vld1q_f64(wide + 26), vld1q_f64(wide + 28),
                     vld1q_f64(wide + 30)}};
    return (struct sums){.single = {vld1q_f32(single + 0), vld1q_f32(single + 4),
                                    vld1q_f32(single + 8), vld1q_f32(single + 12),
                                    vld1q_f32(single + 16), vld1q_f32(single + 20),
                                    vld1q_f32(single + 24), vld1q_f32(single + 28)}};
}

ROW_INLINE void sums_save(int type, struct sums sums, char *to)
{
    float *single = (void *)to;
    double *wide = (void *)to;
    if (type == MOETOKEN_F64) {
        vst1q_f64(wide + 0, sums.wide[0]);
        vst1q_f64(wide + 2, sums.wide[1]);
        vst1q_f64(wide + 4, sums.wide[2]);
        vst1q_f64(wide + 6, sums.wide[3]);
        vst1q_f64(wide + 8, sums.wide[4]);
        vst1q_f64(wide + 10, sums.wide[5]);
        vst1q_f64(wide + 12, sums.wide[6]);
        vst1q_f64(wide + 14, sums.wide[7]);
        vst1q_f64(wide + 16, sums.wide[8]);
        vst1q_f64(wide + 18, sums.wide[9]);
        vst1q_f64(wide + 20, sums.wide[10]);
        vst1q_f64(wide + 22, sums.wide[11]);
        vst1q_f64(wide + 24, sums.wide[12]);
        vst1q_f64(wide + 26, sums.wide[13]);
        vst1q_f64(wide + 28, sums.wide[14]);
        vst1q_f64(wide + 30, sums.wide[15]);
    } else {
        vst1q_f32(single + 0, sums.single[0]);
        vst1q_f32(single + 4, sums.single[1]);
        vst1q_f32(single + 8, sums.single[2]);
        vst1q_f32(single + 12, sums.single[3]);
        vst1q_f32(single + 16, sums.single[4]);
        vst1q_f32(single + 20, sums.single[5]);
        vst1q_f32(single + 24, sums.single[6]);
        vst1q_f32(single + 28, sums.single[7]);
    }
}

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
    store_singles(type, canonical_single(sum[0]), canonical_single(sum[1]),
                  canonical_single(sum[2]), canonical_single(sum[3]), out + half * half_block(type),
                  store);
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

MOETOKEN_ROW_KERNEL(copy_rows_2_neon, copy_slots, 2)
MOETOKEN_ROW_KERNEL(copy_rows_4_neon, copy_slots, 4)
MOETOKEN_ROW_KERNEL(copy_rows_8_neon, copy_slots, 8)
MOETOKEN_ROW_KERNEL(scale_rows_f32_neon, scale_slots, MOETOKEN_F32)
MOETOKEN_ROW_KERNEL(scale_rows_f16_neon, scale_slots, MOETOKEN_F16)
MOETOKEN_ROW_KERNEL(scale_rows_bf16_neon, scale_slots, MOETOKEN_BF16)
MOETOKEN_ROW_KERNEL(scale_rows_f64_neon, scale_slots, MOETOKEN_F64)
MOETOKEN_ROW_KERNEL(dot_rows_f32_neon, dot_slots, MOETOKEN_F32)
MOETOKEN_ROW_KERNEL(dot_rows_f16_neon, dot_slots, MOETOKEN_F16)
MOETOKEN_ROW_KERNEL(dot_rows_bf16_neon, dot_slots, MOETOKEN_BF16)
MOETOKEN_ROW_KERNEL(dot_rows_f64_neon, dot_slots, MOETOKEN_F64)
MOETOKEN_ROW_KERNEL(scale_dot_rows_f32_neon, scale_dot_slots, MOETOKEN_F32)
MOETOKEN_ROW_KERNEL(scale_dot_rows_f16_neon, scale_dot_slots, MOETOKEN_F16)
MOETOKEN_ROW_KERNEL(scale_dot_rows_bf16_neon, scale_dot_slots, MOETOKEN_BF16)
MOETOKEN_ROW_KERNEL(scale_dot_rows_f64_neon, scale_dot_slots, MOETOKEN_F64)
MOETOKEN_ROW_KERNEL(sum_rows_f32_neon, sum_rows, MOETOKEN_F32)
MOETOKEN_ROW_KERNEL(sum_rows_f16_neon, sum_rows, MOETOKEN_F16)
MOETOKEN_ROW_KERNEL(sum_rows_bf16_neon, sum_rows, MOETOKEN_BF16)
MOETOKEN_ROW_KERNEL(sum_rows_f64_neon, sum_rows, MOETOKEN_F64)

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
