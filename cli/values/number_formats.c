/* number_formats.c - the tool's own reading and writing of numbers: bits <-> binary64.
 * For generate and verify; shares nothing with the library's conversions. */
#include "number_formats.h"

#include <assert.h>
#include <math.h>
#include <string.h>

/* A binary floating-point format: 1 sign bit, then exponent and fraction bits. */
struct format {
    int exponent_bits, fraction_bits;
};

static const struct {
    moetoken_type type;
    DLDataType dtype;
    const char *name;
    struct format format; /* {0, 0}: no floating-point type */
} types[] = {
    {MOETOKEN_F32, {kDLFloat, 32, 1}, "float32", {8, 23}},
    {MOETOKEN_F16, {kDLFloat, 16, 1}, "float16", {5, 10}},
    {MOETOKEN_BF16, {kDLBfloat, 16, 1}, "bfloat16", {8, 7}},
    {MOETOKEN_F64, {kDLFloat, 64, 1}, "float64", {11, 52}},
    {MOETOKEN_I32, {kDLInt, 32, 1}, "int32", {0, 0}},
    {MOETOKEN_I64, {kDLInt, 64, 1}, "int64", {0, 0}},
    {MOETOKEN_BOOL, {6, 8, 1}, "bool", {0, 0}},
    {MOETOKEN_I8, {kDLInt, 8, 1}, "int8", {0, 0}},
    {MOETOKEN_U8, {kDLUInt, 8, 1}, "uint8", {0, 0}},
};
enum {
    TYPES_COUNT = sizeof types / sizeof types[0]
};

bool type_of_tensor(const DLTensor *tensor, moetoken_type *type)
{
    for (int i = 0; i < TYPES_COUNT; i++) {
        const DLDataType *dtype = &types[i].dtype;
        if (dtype->code == tensor->dtype.code && dtype->bits == tensor->dtype.bits &&
            dtype->lanes == tensor->dtype.lanes) {
            *type = types[i].type;
            return true;
        }
    }
    return false;
}

size_t type_size(moetoken_type type)
{
    return types[type].dtype.bits / 8u;
}

const char *type_name(moetoken_type type)
{
    return types[type].name;
}

bool type_is_float(moetoken_type type)
{
    return types[type].format.exponent_bits != 0;
}

uint64_t load_bits(const void *element, size_t size)
{
    uint8_t u8;
    uint16_t u16;
    uint32_t u32;
    uint64_t u64;
    switch (size) {
    case 1:
        memcpy(&u8, element, 1);
        return u8;
    case 2:
        memcpy(&u16, element, 2);
        return u16;
    case 4:
        memcpy(&u32, element, 4);
        return u32;
    default:
        memcpy(&u64, element, 8);
        return u64;
    }
}

void store_bits(void *element, size_t size, uint64_t bits)
{
    uint8_t u8 = (uint8_t)bits;
    uint16_t u16 = (uint16_t)bits;
    uint32_t u32 = (uint32_t)bits;
    switch (size) {
    case 1:
        memcpy(element, &u8, 1);
        break;
    case 2:
        memcpy(element, &u16, 2);
        break;
    case 4:
        memcpy(element, &u32, 4);
        break;
    default:
        memcpy(element, &bits, 8);
    }
}

static uint64_t double_bits(double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static double bits_double(uint64_t bits)
{
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static float bits_float(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* 2^exponent for exponents of normal binary64 numbers. */
static double power_of_two(int exponent)
{
    return bits_double((uint64_t)(exponent + 1023) << 52);
}

double bits_to_double(moetoken_type type, uint64_t bits)
{
    struct format format = types[type].format;
    if (type == MOETOKEN_F64)
        return bits_double(bits);
    if (type == MOETOKEN_F32)
        return bits_float((uint32_t)bits);
    if (type == MOETOKEN_BF16) /* the upper half of a float32 */
        return bits_float((uint32_t)bits << 16);
    uint64_t fraction_mask = (UINT64_C(1) << format.fraction_bits) - 1;
    int exponent_mask = (1 << format.exponent_bits) - 1;
    uint64_t fraction = bits & fraction_mask;
    int exponent = (int)(bits >> format.fraction_bits) & exponent_mask;
    uint64_t sign = bits >> (format.fraction_bits + format.exponent_bits) & 1;
    int bias = exponent_mask >> 1;
    if (exponent == 0) {
        double magnitude = (double)fraction * power_of_two(1 - bias - format.fraction_bits);
        return sign != 0 ? -magnitude : magnitude;
    }
    uint64_t wide = exponent == exponent_mask ? 2047 : (uint64_t)(exponent - bias + 1023);
    return bits_double(sign << 63 | wide << 52 | fraction << (52 - format.fraction_bits));
}

/* value / 2^shift, to the nearest integer, ties to even. shift >= 1. */
static uint64_t shift_right_rounded(uint64_t value, int shift)
{
    if (shift > 63)
        return 0;
    uint64_t quotient = value >> shift;
    uint64_t remainder = value & ((UINT64_C(1) << shift) - 1);
    uint64_t half = UINT64_C(1) << (shift - 1);
    return quotient + (remainder > half || (remainder == half && (quotient & 1) != 0));
}

uint64_t double_to_bits(moetoken_type type, double value)
{
    struct format format = types[type].format;
    int all_ones = (1 << format.exponent_bits) - 1, bias = all_ones >> 1;
    uint64_t infinity = (uint64_t)all_ones << format.fraction_bits;
    if (value != value)
        return infinity | UINT64_C(1) << (format.fraction_bits - 1);
    if (type == MOETOKEN_F64)
        return double_bits(value);
    if (type == MOETOKEN_F32) {
        float narrow = (float)value;
        return load_bits(&narrow, sizeof narrow);
    }
    uint64_t wide = double_bits(value);
    uint64_t sign = (wide >> 63) << (format.fraction_bits + format.exponent_bits);
    int exponent = (int)(wide >> 52 & 2047);
    if (exponent == 2047)
        return sign | infinity;
    if (exponent == 0) /* below every subnormal of the narrow formats */
        return sign;
    uint64_t significand = (wide & ((UINT64_C(1) << 52) - 1)) | UINT64_C(1) << 52;
    int narrow = exponent - 1023 + bias; /* the biased exponent if the result is normal */
    int shift = 52 - format.fraction_bits + (narrow < 1 ? 1 - narrow : 0);
    uint64_t rounded = shift_right_rounded(significand, shift);
    /* A normal result's leading 1 adds 1 to the exponent field, a carry from rounding another 1. */
    uint64_t bits =
        narrow < 1 ? rounded : ((uint64_t)(narrow - 1) << format.fraction_bits) + rounded;
    return sign | (bits > infinity ? infinity : bits);
}

static const char *element_of(const DLTensor *tensor, int64_t i, size_t size)
{
    return (const char *)tensor->data + tensor->byte_offset + (size_t)i * size;
}

uint64_t bits_at(const DLTensor *tensor, int64_t i)
{
    size_t size = tensor->dtype.bits / 8u;
    return load_bits(element_of(tensor, i, size), size);
}

double float_at(const DLTensor *tensor, int64_t i)
{
    moetoken_type type = MOETOKEN_F32;
    type_of_tensor(tensor, &type);
    return bits_to_double(type, bits_at(tensor, i));
}

int64_t integer_at(const DLTensor *tensor, int64_t i)
{
    uint64_t bits = bits_at(tensor, i);
    return tensor->dtype.bits == 32 ? (int64_t)(int32_t)(uint32_t)bits : (int64_t)bits;
}

bool set_at(const DLTensor *tensor, int64_t i)
{
    return bits_at(tensor, i) != 0;
}

void floats_at(const DLTensor *tensor, int64_t first, int64_t count, double *values)
{
    moetoken_type type = MOETOKEN_F32;
    type_of_tensor(tensor, &type);
    size_t size = type_size(type);
    const char *element = element_of(tensor, first, size);
    for (int64_t i = 0; i < count; i++, element += size) {
        values[i] = bits_to_double(type, load_bits(element, size));
    }
}

double next_value(moetoken_type type, double value, int direction)
{
    struct format format = types[type].format;
    uint64_t sign = UINT64_C(1) << (format.fraction_bits + format.exponent_bits);
    uint64_t bits = double_to_bits(type, value);
    if ((bits & ~sign) == 0)
        return bits_to_double(type, direction > 0 ? 1 : sign | 1);
    bool away_from_zero = (direction > 0) == ((bits & sign) == 0);
    return bits_to_double(type, away_from_zero ? bits + 1 : bits - 1);
}

double unit_in_last_place(moetoken_type type, double value)
{
    struct format format = types[type].format;
    int bias = (1 << (format.exponent_bits - 1)) - 1;
    /* |value| in [2^exponent, 2^(exponent+1)) */
    int exponent = (int)(double_bits(value) >> 52 & 2047) - 1023;
    if (exponent < 1 - bias)
        exponent = 1 - bias;
    if (exponent > bias)
        exponent = bias;
    exponent -= format.fraction_bits;
    return exponent >= -1022 ? power_of_two(exponent) : ldexp(1.0, exponent);
}
