/* formats.h - number formats: what an element's bytes mean, and the one rounding back to bytes.
 *
 * Used by the scalar kernels and by operators for single elements (weights, probs). Values travel
 * as double, which holds every float32, float16 and bfloat16 exactly. All functions want rounding
 * to nearest even, which float_mode.h provides. */
#ifndef MOETOKEN_ROWS_FORMATS_H
#define MOETOKEN_ROWS_FORMATS_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "rows/rows.h"

/* Bytes of an element of a token-like type. */
static inline size_t token_size(int type)
{
    static const unsigned char size[MOETOKEN_TOKEN_TYPES] = {4, 2, 2, 8};
    return size[type];
}

static inline double double_from_float_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return (double)value;
}

/* float16: 1 sign, 5 exponent (bias 15), 10 fraction bits. */
static inline double double_from_float16(uint16_t bits)
{
    uint32_t sign = (uint32_t)(bits & 0x8000u) << 16;
    uint32_t exponent = (bits >> 10) & 0x1fu;
    uint32_t fraction = bits & 0x3ffu;
    if (exponent == 0x1f) /* Inf, NaN */
        return double_from_float_bits(sign | 0x7f800000u | fraction << 13);
    if (exponent == 0) /* zero and subnormals: multiples of 2^-24 */
        return (sign ? -1.0 : 1.0) * (double)fraction * 0x1p-24;
    return double_from_float_bits(sign | (exponent + 112) << 23 | fraction << 13);
}

/* bfloat16 is the upper half of a float32. */
static inline double double_from_bfloat16(uint16_t bits)
{
    return double_from_float_bits((uint32_t)bits << 16);
}

/* Rounds once, to nearest even, to a 16-bit format with `fraction_bits` fraction bits, whose
 * smallest normal number is 2^min_exponent. NaN becomes the positive quiet NaN. */
static inline uint16_t round_to_16_bits(double value, int fraction_bits, int min_exponent)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    uint16_t sign = (uint16_t)(bits >> 48 & 0x8000u);
    uint16_t infinity = (uint16_t)(0x7fffu >> fraction_bits << fraction_bits);
    if (value != value)
        return (uint16_t)(infinity | 1u << (fraction_bits - 1));
    bits &= UINT64_MAX >> 1;

    double magnitude = fabs(value);
    if (magnitude < ldexp(1.0, min_exponent)) {
        /* Subnormal: adding a power of two whose ulp is the format's smallest step makes the sum
         * round there; the steps are then the low bits of the sum. */
        double shifted = magnitude + ldexp(1.0, min_exponent - fraction_bits + 52);
        memcpy(&bits, &shifted, sizeof bits);
        return (uint16_t)(sign | (bits & 0xffffu));
    }
    int dropped = 52 - fraction_bits;
    uint64_t half = (1ull << (dropped - 1)) - 1 + (bits >> dropped & 1);
    uint64_t rounded = (bits + half) >> dropped;
    uint64_t rebias = (uint64_t)(1023 + min_exponent - 1) << fraction_bits;
    if (rounded - rebias >= infinity)
        return sign | infinity;
    return (uint16_t)(sign | (rounded - rebias));
}

static inline uint16_t round_to_float16(double value)
{
    return round_to_16_bits(value, 10, -14);
}

static inline uint16_t round_to_bfloat16(double value)
{
    return round_to_16_bits(value, 7, -126);
}

/* The exact value of the element at `from`, which may have any alignment. */
static inline double element_load(int type, const char *from)
{
    uint16_t half;
    float single;
    double value;
    switch (type) {
    case MOETOKEN_F32:
        memcpy(&single, from, sizeof single);
        return (double)single;
    case MOETOKEN_F64:
        memcpy(&value, from, sizeof value);
        return value;
    default:
        memcpy(&half, from, sizeof half);
        return type == MOETOKEN_F16 ? double_from_float16(half) : double_from_bfloat16(half);
    }
}

/* Rounds `value` once, to nearest even, to the element at `to`. A NaN is stored as the positive
 * quiet NaN without payload, so that results do not depend on how a CPU propagates NaNs. */
static inline void element_store(int type, char *to, double value)
{
    const uint32_t nan_single = 0x7fc00000u;
    const uint64_t nan_double = 0x7ff8000000000000u;
    float single = (float)value;
    uint16_t half;
    switch (type) {
    case MOETOKEN_F32:
        memcpy(to, value != value ? (const void *)&nan_single : &single, sizeof single);
        break;
    case MOETOKEN_F64:
        memcpy(to, value != value ? (const void *)&nan_double : &value, sizeof value);
        break;
    default:
        half = type == MOETOKEN_F16 ? round_to_float16(value) : round_to_bfloat16(value);
        memcpy(to, &half, sizeof half);
        break;
    }
}

/* A product in the arithmetic of the type: float32, or binary64 for float64. */
static inline double element_product(int type, double a, double b)
{
    if (type == MOETOKEN_F64)
        return a * b;
    return (double)((float)a * (float)b);
}

/* A sum in the arithmetic of the type. */
static inline double element_sum(int type, double a, double b)
{
    if (type == MOETOKEN_F64)
        return a + b;
    return (double)((float)a + (float)b);
}

#endif
