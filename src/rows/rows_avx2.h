/* rows_avx2.h - registers of elements for rows_avx2.c: loading and storing, converting and
 * rounding.
 *
 * A block of 32 bfloat16 is split into its even and odd elements, which takes a shift and a mask
 * where widening in order takes shuffles; everything decoded from such a block keeps that order. */
#ifndef MOETOKEN_ROWS_AVX2_H
#define MOETOKEN_ROWS_AVX2_H

#include "rows/rows_vector.h"

#include <immintrin.h>

/* ---- loads, stores, conversions ------------------------------------------------------------- */

ROW_INLINE __m256i load_32_bytes(const void *from)
{
    return _mm256_loadu_si256(from);
}

/* Two registers at a time share the choice of the instruction. */
ROW_INLINE void store_64_bytes(char *to, __m256i first, __m256i second, int store)
{
    __m256i *halves = (__m256i *)(void *)to;
    __m128i *quarters = (__m128i *)(void *)to;
    if (store == STORE_STREAMING) {
        _mm256_stream_si256(halves, first);
        _mm256_stream_si256(halves + 1, second);
    } else if (store == STORE_STREAMING_16) {
        _mm_stream_si128(quarters, _mm256_castsi256_si128(first));
        _mm_stream_si128(quarters + 1, _mm256_extracti128_si256(first, 1));
        _mm_stream_si128(quarters + 2, _mm256_castsi256_si128(second));
        _mm_stream_si128(quarters + 3, _mm256_extracti128_si256(second, 1));
    } else {
        _mm256_storeu_si256(halves, first);
        _mm256_storeu_si256(halves + 1, second);
    }
}

ROW_INLINE int store_kind(const char *out, bool streaming)
{
    if (!streaming || (uintptr_t)out % 16 != 0)
        return STORE_CACHED;
    return (uintptr_t)out % 32 == 0 ? STORE_STREAMING : STORE_STREAMING_16;
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
 * The upper halves of all values are in one register, the lower halves in another. A value goes up
 * when its lower half is above 0x8000, or equal to it and the upper half odd; where the upper half
 * is even, 1 is taken from the lower half first, and then its highest bit decides. A carry into
 * infinity is the right result. Values must not be NaN. */
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
    if (type == MOETOKEN_BF16)
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
    case MOETOKEN_BF16: {
        __m256i half = load_32_bytes(block + quarter / 2 * 32);
        return quarter % 2 ? odd_bf16(half) : even_bf16(half);
    }
    case MOETOKEN_F16:
        return _mm256_cvtph_ps(_mm_loadu_si128((const void *)(block + 16 * quarter)));
    default:
        return _mm256_loadu_ps((const float *)(const void *)block + 8 * quarter);
    }
}

/* Four quarters, as quarter_single makes them, to a block of 16- or 32-bit elements. */
ROW_INLINE void store_singles(int type, __m256 a, __m256 b, __m256 c, __m256 d, char *out,
                              int store)
{
    if (is_16_bit(type)) {
        store_64_bytes(out, round_to_16_bit(type, a, b), round_to_16_bit(type, c, d), store);
    } else {
        store_64_bytes(out, _mm256_castps_si256(a), _mm256_castps_si256(b), store);
        store_64_bytes(out + 64, _mm256_castps_si256(c), _mm256_castps_si256(d), store);
    }
}

/* Infinity and NaN are the elements with all exponent bits set. */
ROW_INLINE bool block_is_finite(int type, const char *token)
{
    const __m256i exponent = _mm256_set1_epi16(type == MOETOKEN_F16 ? 0x7c00 : 0x7f80);
    __m256i full = _mm256_setzero_si256();
    if (type == MOETOKEN_F32) {
        const __m256i exponent_32 = _mm256_set1_epi32(0x7f800000);
        for (int at = 0; at < 128; at += 32) {
            __m256i bits = _mm256_and_si256(load_32_bytes(token + at), exponent_32);
            full = _mm256_or_si256(full, _mm256_cmpeq_epi32(bits, exponent_32));
        }
    } else {
        for (int at = 0; at < 64; at += 32) {
            __m256i bits = _mm256_and_si256(load_32_bytes(token + at), exponent);
            full = _mm256_or_si256(full, _mm256_cmpeq_epi16(bits, exponent));
        }
    }
    return _mm256_testz_si256(full, full);
}

#endif
