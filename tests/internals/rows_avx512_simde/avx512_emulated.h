/* avx512_emulated.h - the intrinsics of rows_avx512.c on CPUs without AVX-512.
 *
 * SIMDe has most of them, in plain C. The few that version 0.7.4 lacks are made here from halves
 * that it has. Included in place of <immintrin.h>, so that the kernels under test are the ones that
 * ship, line by line. */
#ifndef MOETOKEN_TESTS_AVX512_EMULATED_H
#define MOETOKEN_TESTS_AVX512_EMULATED_H

#define SIMDE_ENABLE_NATIVE_ALIASES
#include <simde/x86/avx512.h>
#include <simde/x86/f16c.h>

static inline __m512d emulated_cvtps_pd(__m256 single)
{
    simde__m512d_private wide;
    simde__m256_private from = simde__m256_to_private(single);
    for (int i = 0; i < 8; i++)
        wide.f64[i] = (double)from.f32[i];
    return simde__m512d_from_private(wide);
}

static inline __m512 emulated_cvtph_ps(__m256i half)
{
    simde__m512_private single;
    simde__m256i_private from = simde__m256i_to_private(half);
    single.m256[0] = simde_mm256_cvtph_ps(from.m128i[0]);
    single.m256[1] = simde_mm256_cvtph_ps(from.m128i[1]);
    return simde__m512_from_private(single);
}

static inline __m256i emulated_cvtps_ph(__m512 single)
{
    simde__m512_private from = simde__m512_to_private(single);
    simde__m256i_private half;
    half.m128i[0] = simde_mm256_cvtps_ph(from.m256[0], SIMDE_MM_FROUND_TO_NEAREST_INT);
    half.m128i[1] = simde_mm256_cvtps_ph(from.m256[1], SIMDE_MM_FROUND_TO_NEAREST_INT);
    return simde__m256i_from_private(half);
}

static inline simde__mmask32 emulated_cmpeq_epi16_mask(__m512i a, __m512i b)
{
    simde__m512i_private x = simde__m512i_to_private(a), y = simde__m512i_to_private(b);
    uint32_t mask = 0;
    for (int i = 0; i < 32; i++)
        mask |= (uint32_t)(x.u16[i] == y.u16[i]) << i;
    return mask;
}

#define _mm512_cvtps_pd(single)           emulated_cvtps_pd(single)
#define _mm512_cvtph_ps(half)             emulated_cvtph_ps(half)
#define _mm512_cvtps_ph(single, rounding) emulated_cvtps_ph(single)
#define _mm512_cmpeq_epi16_mask(a, b)     emulated_cmpeq_epi16_mask(a, b)
#define _mm512_stream_si512(to, value)    simde_mm512_store_si512(to, value)

#endif
