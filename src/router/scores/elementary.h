/* elementary.h - exp and log in binary64 by a fixed sequence of IEEE 754 operations.
 *
 * Additions, multiplications, divisions and fused multiply-adds round the same everywhere, so these
 * give the same bits on every machine, in a loop of any vector width. x86-64 before AVX2 has no
 * instruction for the last: there the C library's fma() is as right, and slow. Nothing branches, so
 * that compilers can turn loops over them into vector code. */
#ifndef MOETOKEN_ROUTER_ELEMENTARY_H
#define MOETOKEN_ROUTER_ELEMENTARY_H

#include <stdint.h>
#include <string.h>

/* Adding it moves the integer nearest to a number below 2^51 into the low bits of the sum. */
#define ROUNDING_SHIFT 0x1.8p52

/* ln 2 in two parts. The high one has 21 zero bits at its end: its multiples up to 2^20 are exact.
 */
#define LN2_HIGH 0x1.62e42feep-1
#define LN2_LOW  0x1.a39ef35793c76p-33

static inline uint64_t bits_of(double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline double from_bits(uint64_t bits)
{
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* a * b + c, rounded once. */
static inline double multiply_add(double a, double b, double c)
{
    return __builtin_fma(a, b, c);
}

/* high + low = a - b, without error for finite numbers that do not overflow. */
static inline double difference(double a, double b, double *low)
{
    double high = a - b;
    double part = high - a;
    double rest = (a - (high - part)) - (b + part);
    *low = rest == rest ? rest : 0; /* of infinities */
    return high;
}

/* exp(r) = 1 + r + r^2 * (1/2! + r/3! + ... + r^11/13!): the first factor, highest power first, and
 * a step for each further one. Straight code, as compilers make vectors of no loop within a loop.
 */
#define EXP_FIRST (1.0 / 6227020800.0)
#define EXP_STEPS(STEP)                                                                            \
    STEP(1.0 / 479001600.0)                                                                        \
    STEP(1.0 / 39916800.0)                                                                         \
    STEP(1.0 / 3628800.0)                                                                          \
    STEP(1.0 / 362880.0)                                                                           \
    STEP(1.0 / 40320.0)                                                                            \
    STEP(1.0 / 5040.0)                                                                             \
    STEP(1.0 / 720.0)                                                                              \
    STEP(1.0 / 120.0)                                                                              \
    STEP(1.0 / 24.0)                                                                               \
    STEP(1.0 / 6.0)                                                                                \
    STEP(1.0 / 2.0)

/* exp(x + low) for a `low` of at most half an ulp of x; relative error below 0.6 * 2^-52 where the
 * result is normal. exp(-inf) = 0, exp(inf) = inf, NaN stays NaN. */
static inline double exp_of_sum(double x, double low)
{
    low = x < -746.0 ? 0 : low; /* of a large x half an ulp may be any number */
    x = x > 710.0 ? 710.0 : x;
    x = x < -746.0 ? -746.0 : x;
    double shifted = multiply_add(x, 0x1.71547652b82fep0, ROUNDING_SHIFT); /* x / ln 2 */
    double n = shifted - ROUNDING_SHIFT;
    double r = multiply_add(n, -LN2_HIGH, x);
    double tail = multiply_add(n, -LN2_LOW, low);
    double whole = r + tail; /* |whole| <= ln 2 / 2 */
    tail = (r - whole) + tail;

    double r2 = whole * whole;
    double q = EXP_FIRST;
#define STEP(factor) q = multiply_add(q, whole, factor);
    EXP_STEPS(STEP)
#undef STEP

    double high = 1.0 + whole;
    double rest = whole - (high - 1.0);
    double value = high + (rest + (tail + multiply_add(whole, tail, r2 * q)));

    /* Times 2^n in two steps, the first of which is exact: one rounding into the subnormals. */
    uint64_t power = bits_of(shifted) - bits_of(ROUNDING_SHIFT); /* n, modulo 2^64 */
    uint64_t half = ((power + 2048) >> 1) - 1024;
    double first = from_bits((half + 1023) << 52);
    double second = from_bits((power - half + 1023) << 52);
    return value * first * second;
}

/* log(x + low) for a normal x > 0 and a `low` of at most half an ulp of it; relative error below
 * 2^-52 for x >= 1 and x + low not 1. */
static inline double log_of_sum(double x, double low)
{
    /* x = m * 2^k, m in [sqrt(1/2), sqrt(2)). */
    uint64_t bits = bits_of(x);
    uint64_t above = bits - bits_of(0x1.6a09e667f3bcdp-1);         /* sqrt(1/2) */
    uint64_t biased = (above + ((uint64_t)2048 << 52 >> 1)) >> 52; /* k + 1024 */
    uint64_t k = biased - 1024;
    double m = from_bits(bits - (k << 52));
    double exponent = from_bits(bits_of(ROUNDING_SHIFT) + k) - ROUNDING_SHIFT;

    /* With f = m - 1 and s = f / (2 + f): log(1 + f) = f - (f^2/2 - s * (f^2/2 + R(s^2))),
     * R = 2/3 s^2 + 2/5 s^4 + ... */
    double f = m - 1.0;
    double s = f / (2.0 + f);
    double z = s * s;
    double series = 2.0 / 25.0;
    series = multiply_add(series, z, 2.0 / 23.0);
    series = multiply_add(series, z, 2.0 / 21.0);
    series = multiply_add(series, z, 2.0 / 19.0);
    series = multiply_add(series, z, 2.0 / 17.0);
    series = multiply_add(series, z, 2.0 / 15.0);
    series = multiply_add(series, z, 2.0 / 13.0);
    series = multiply_add(series, z, 2.0 / 11.0);
    series = multiply_add(series, z, 2.0 / 9.0);
    series = multiply_add(series, z, 2.0 / 7.0);
    series = multiply_add(series, z, 2.0 / 5.0);
    series = multiply_add(series, z, 2.0 / 3.0);
    series = series * z;
    double half_square = 0.5 * f * f;
    double small = multiply_add(s, half_square + series, multiply_add(exponent, LN2_LOW, low / x));
    return exponent * LN2_HIGH - ((half_square - small) - f);
}

/* log(1 + u) for u in [0, 1]. */
static inline double log_of_one_plus(double u)
{
    double sum = 1.0 + u;
    return log_of_sum(sum, u - (sum - 1.0));
}

#endif
