/* vectors.h - exp of elementary.h for a vector of numbers: the same operations in the same order.
 *
 * GCC's and clang's vectors; what they cannot say, or say badly, is an instruction's own name. */
#ifndef MOETOKEN_ROUTER_VECTORS_H
#define MOETOKEN_ROUTER_VECTORS_H

#include "router/scores/elementary.h"
#include "router/scores/sums.h"

#if defined(__AVX512F__)
#include <immintrin.h>
#endif

/* below where x < bound, else otherwise; NaN is not below. */
static inline vector_of_double choose_below(vector_of_double x, double bound,
                                            vector_of_double below, vector_of_double otherwise)
{
#if defined(__AVX512F__)
    __mmask8 is_below = _mm512_cmp_pd_mask(x, _mm512_set1_pd(bound), _CMP_LT_OQ);
    return _mm512_mask_blend_pd(is_below, otherwise, below);
#else
    vector_of_bits is_below = x < bound;
    return (vector_of_double)(((vector_of_bits)below & is_below) |
                              ((vector_of_bits)otherwise & ~is_below));
#endif
}

/* value * 2^n, rounded once, for |n| <= 1080. shifted is n + ROUNDING_SHIFT. */
static inline vector_of_double scale_by_power(vector_of_double value, vector_of_double shifted)
{
#if defined(__AVX512F__)
    return _mm512_scalef_pd(value, shifted - ROUNDING_SHIFT);
#else
    typedef uint64_t unsigned_bits __attribute__((vector_size(VECTOR_BYTES)));
    unsigned_bits power = (unsigned_bits)shifted - bits_of(ROUNDING_SHIFT);
    unsigned_bits half = ((power + 2048) >> 1) - 1024;
    vector_of_double first = (vector_of_double)((half + 1023) << 52);
    vector_of_double second = (vector_of_double)((power - half + 1023) << 52);
    return value * first * second;
#endif
}

/* exp(x - most) where x - most is not above 0, or NaN: exp_of_sum of their difference in two parts.
 */
static inline vector_of_double exp_of_difference(vector_of_double a, double b)
{
    const vector_of_double zero = {0};
    vector_of_double x = a - b;
    vector_of_double part = x - a;
    vector_of_double low = (a - (x - part)) - (b + part);
    low = choose_below(x, -746.0, zero, low); /* NaN, too, of infinities */
    x = choose_below(x, -746.0, zero - 746.0, x);
    vector_of_double shifted = x * 0x1.71547652b82fep0 + ROUNDING_SHIFT;
    vector_of_double n = shifted - ROUNDING_SHIFT;
    vector_of_double r = x - n * LN2_HIGH;
    vector_of_double tail = low - n * LN2_LOW;
    vector_of_double whole = r + tail;
    tail = (r - whole) + tail;

    vector_of_double r2 = whole * whole;
    vector_of_double q = whole * (1.0 / 6227020800.0) + 1.0 / 479001600.0;
    q = q * whole + 1.0 / 39916800.0;
    q = q * whole + 1.0 / 3628800.0;
    q = q * whole + 1.0 / 362880.0;
    q = q * whole + 1.0 / 40320.0;
    q = q * whole + 1.0 / 5040.0;
    q = q * whole + 1.0 / 720.0;
    q = q * whole + 1.0 / 120.0;
    q = q * whole + 1.0 / 24.0;
    q = q * whole + 1.0 / 6.0;
    q = q * whole + 0.5;

    vector_of_double high = 1.0 + whole;
    vector_of_double rest = whole - (high - 1.0);
    vector_of_double value = high + (rest + (tail + (whole * tail + r2 * q)));
    return scale_by_power(value, shifted);
}

#endif
