/* vectors.h - exp of elementary.h for a vector of numbers: the same operations in the same order.
 *
 * GCC's and clang's vectors; what they cannot say, or say badly, is an instruction's own name. */
#ifndef MOETOKEN_ROUTER_VECTORS_H
#define MOETOKEN_ROUTER_VECTORS_H

#include "router/scores/elementary.h"
#include "router/scores/sums.h"

#if defined(__AVX2__)
#include <immintrin.h>
#endif

/* a * b + c, rounded once. */
static inline vector_of_double multiply_add_vectors(vector_of_double a, vector_of_double b,
                                                    vector_of_double c)
{
#if defined(__AVX512F__)
    return _mm512_fmadd_pd(a, b, c);
#elif defined(__AVX2__)
    return _mm256_fmadd_pd(a, b, c);
#else
    for (int l = 0; l < VECTOR_LANES; l++)
        a[l] = multiply_add(a[l], b[l], c[l]);
    return a;
#endif
}

static inline vector_of_double in_every_lane(double value)
{
    return (vector_of_double){0} + value;
}

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

/* Vectors whose steps are taken in turns: while one waits for its last step another has its next.
 * As many as the registers hold. */
#if defined(__AVX512F__)
#define IN_TURNS 4
#else
#define IN_TURNS 2
#endif
#define EACH_IN_TURN for (int v = 0; v < IN_TURNS; v++)

/* to = exp(a - b) for IN_TURNS vectors a of differences not above 0, or NaN: exp_of_sum of each
 * difference in two parts. */
static inline void exps_of_differences(const double *a, double b, double *to)
{
    typedef vector_of_double several[IN_TURNS];
    const vector_of_double zero = {0};
    several x, tail, shifted, whole, q;
    EACH_IN_TURN
    {
        vector_of_double from, part, low;
        memcpy(&from, a + v * VECTOR_LANES, sizeof from);
        x[v] = from - b;
        part = x[v] - from;
        low = (from - (x[v] - part)) - (b + part);
        tail[v] = choose_below(x[v], -746.0, zero, low); /* NaN, too, of infinities */
        x[v] = choose_below(x[v], -746.0, zero - 746.0, x[v]);
    }
    EACH_IN_TURN shifted[v] = multiply_add_vectors(x[v], in_every_lane(0x1.71547652b82fep0),
                                                   in_every_lane(ROUNDING_SHIFT));
    EACH_IN_TURN
    {
        vector_of_double n = shifted[v] - ROUNDING_SHIFT;
        vector_of_double r = multiply_add_vectors(n, in_every_lane(-LN2_HIGH), x[v]);
        tail[v] = multiply_add_vectors(n, in_every_lane(-LN2_LOW), tail[v]);
        whole[v] = r + tail[v];
        tail[v] = (r - whole[v]) + tail[v];
    }
    EACH_IN_TURN q[v] = in_every_lane(EXP_FIRST);
#define STEP(factor)                                                                               \
    EACH_IN_TURN q[v] = multiply_add_vectors(q[v], whole[v], in_every_lane(factor));
    EXP_STEPS(STEP)
#undef STEP
    EACH_IN_TURN
    {
        vector_of_double r2 = whole[v] * whole[v], high = 1.0 + whole[v];
        vector_of_double rest = whole[v] - (high - 1.0);
        vector_of_double value =
            high + (rest + (tail[v] + multiply_add_vectors(whole[v], tail[v], r2 * q[v])));
        value = scale_by_power(value, shifted[v]);
        memcpy(to + v * VECTOR_LANES, &value, sizeof value);
    }
}

#endif
