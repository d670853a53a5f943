/* numbers.c - the tests' own number formats, written with integers from the definition of the
 * IEEE 754 interchange formats (bfloat16: the upper half of binary32). */
#include "numbers.h"

#include <math.h>
#include <string.h>

struct format {
    int exponent_bits, fraction_bits;
};

static struct format format_of(moetoken_type type)
{
    switch (type) {
    case MOETOKEN_F32:
        return (struct format){8, 23};
    case MOETOKEN_F16:
        return (struct format){5, 10};
    case MOETOKEN_BF16:
        return (struct format){8, 7};
    default:
        return (struct format){11, 52};
    }
}

static bool is_floating(moetoken_type type)
{
    return type == MOETOKEN_F32 || type == MOETOKEN_F16 || type == MOETOKEN_BF16 ||
           type == MOETOKEN_F64;
}

size_t number_size(moetoken_type type)
{
    switch (type) {
    case MOETOKEN_F32:
    case MOETOKEN_I32:
        return 4;
    case MOETOKEN_F16:
    case MOETOKEN_BF16:
        return 2;
    case MOETOKEN_F64:
    case MOETOKEN_I64:
        return 8;
    default:
        return 1;
    }
}

static uint64_t bits_of_double(double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

uint64_t number_infinity(moetoken_type type)
{
    struct format f = format_of(type);
    return (((uint64_t)1 << f.exponent_bits) - 1) << f.fraction_bits;
}

uint64_t number_quiet_nan(moetoken_type type)
{
    return number_infinity(type) | (uint64_t)1 << (format_of(type).fraction_bits - 1);
}

uint64_t number_sign_bit(moetoken_type type)
{
    struct format f = format_of(type);
    return (uint64_t)1 << (f.exponent_bits + f.fraction_bits);
}

bool number_is_nan(uint64_t bits, moetoken_type type)
{
    return (bits & ~number_sign_bit(type)) > number_infinity(type);
}

static double decode_floating(uint64_t bits, moetoken_type type)
{
    struct format f = format_of(type);
    if (number_is_nan(bits, type)) {
        return (double)NAN;
    }
    double sign = bits & number_sign_bit(type) ? -1.0 : 1.0;
    bits &= ~number_sign_bit(type);
    if (bits == number_infinity(type)) {
        return sign * HUGE_VAL;
    }
    uint64_t fraction = bits & (((uint64_t)1 << f.fraction_bits) - 1);
    int exponent = (int)(bits >> f.fraction_bits);
    int bias = (1 << (f.exponent_bits - 1)) - 1;
    if (exponent == 0) {
        return sign * ldexp((double)fraction, 1 - bias - f.fraction_bits);
    }
    fraction |= (uint64_t)1 << f.fraction_bits;
    return sign * ldexp((double)fraction, exponent - bias - f.fraction_bits);
}

double number_decode(uint64_t bits, moetoken_type type)
{
    switch (type) {
    case MOETOKEN_I32:
        return (double)(int32_t)(uint32_t)bits;
    case MOETOKEN_I64:
        return (double)(int64_t)bits;
    case MOETOKEN_I8:
        return (double)(int8_t)(uint8_t)bits;
    case MOETOKEN_BOOL:
    case MOETOKEN_U8:
        return (double)(uint8_t)bits;
    default:
        return decode_floating(bits, type);
    }
}

/* significand / 2^shift, to nearest even. */
static uint64_t round_shift(uint64_t significand, int shift)
{
    if (shift <= 0) {
        return significand << -shift;
    }
    if (shift > 54) {
        return 0; /* a significand has at most 53 bits: less than half a unit */
    }
    uint64_t half = (uint64_t)1 << (shift - 1);
    uint64_t rest = significand & (2 * half - 1);
    uint64_t kept = significand >> shift;
    return kept + (rest > half || (rest == half && (kept & 1) != 0));
}

/* A finite magnitude, significand * 2^power with significand > 0. */
static uint64_t encode_magnitude(uint64_t significand, int power, moetoken_type type)
{
    struct format f = format_of(type);
    int bias = (1 << (f.exponent_bits - 1)) - 1;
    int exponent = power;
    for (uint64_t rest = significand; rest > 1; rest >>= 1) {
        exponent++;
    }
    int clamped = exponent < 1 - bias ? 1 - bias : exponent;
    uint64_t kept = round_shift(significand, clamped - f.fraction_bits - power);
    /* The implicit bit of `kept` carries into the exponent, and so does a rounding up. */
    uint64_t bits = kept + ((uint64_t)(clamped + bias - 1) << f.fraction_bits);
    if (exponent > bias || bits > number_infinity(type)) {
        return number_infinity(type);
    }
    return bits;
}

static uint64_t encode_floating(double value, moetoken_type type)
{
    uint64_t bits = bits_of_double(value);
    uint64_t sign = bits >> 63 ? number_sign_bit(type) : 0;
    uint64_t fraction = bits & (((uint64_t)1 << 52) - 1);
    int exponent = (int)(bits >> 52 & 0x7ff);
    if (exponent == 0x7ff) {
        return fraction != 0 ? number_quiet_nan(type) : sign | number_infinity(type);
    }
    if (type == MOETOKEN_F64 || (exponent == 0 && fraction == 0)) {
        return type == MOETOKEN_F64 ? bits : sign;
    }
    if (exponent == 0) {
        return sign | encode_magnitude(fraction, -1074, type);
    }
    return sign | encode_magnitude(fraction | (uint64_t)1 << 52, exponent - 1075, type);
}

uint64_t number_encode(double value, moetoken_type type)
{
    if (is_floating(type)) {
        return encode_floating(value, type);
    }
    uint64_t bits = (uint64_t)(int64_t)value;
    size_t size = number_size(type);
    return size == 8 ? bits : bits & (((uint64_t)1 << 8 * size) - 1);
}

double number_round(double value, moetoken_type type)
{
    return number_decode(number_encode(value, type), type);
}

uint64_t number_load_bits(const void *at, moetoken_type type)
{
    uint8_t u8;
    uint16_t u16;
    uint32_t u32;
    uint64_t u64;
    switch (number_size(type)) {
    case 1:
        memcpy(&u8, at, 1);
        return u8;
    case 2:
        memcpy(&u16, at, 2);
        return u16;
    case 4:
        memcpy(&u32, at, 4);
        return u32;
    default:
        memcpy(&u64, at, 8);
        return u64;
    }
}

void number_store_bits(void *at, moetoken_type type, uint64_t bits)
{
    uint8_t u8 = (uint8_t)bits;
    uint16_t u16 = (uint16_t)bits;
    uint32_t u32 = (uint32_t)bits;
    switch (number_size(type)) {
    case 1:
        memcpy(at, &u8, 1);
        break;
    case 2:
        memcpy(at, &u16, 2);
        break;
    case 4:
        memcpy(at, &u32, 4);
        break;
    default:
        memcpy(at, &bits, 8);
        break;
    }
}

double number_load(const void *at, moetoken_type type)
{
    return number_decode(number_load_bits(at, type), type);
}

void number_store(void *at, moetoken_type type, double value)
{
    number_store_bits(at, type, number_encode(value, type));
}

const char *number_type_name(moetoken_type type)
{
    static const char *const names[] = {"f32", "f16",  "bf16", "f64", "i32",
                                        "i64", "bool", "i8",   "u8"};
    return names[type];
}
