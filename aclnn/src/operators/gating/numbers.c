/* numbers.c - see numbers.h. */
#include "operators/gating/numbers.h"

#include "operators/routing/tensors.h"

#include <string.h>

double numbers_load(const struct operand *operand, int64_t row, int64_t column)
{
    const char *from = tensors_at(operand, row, column);
    float single;
    uint16_t half;
    if (operand->type == ACL_FLOAT) {
        memcpy(&single, from, sizeof single);
        return (double)single;
    }
    memcpy(&half, from, sizeof half);
    if (operand->type == ACL_FLOAT16)
        return (double)aclFloat16ToFloat(half);
    const uint32_t bits = (uint32_t)half << 16;
    memcpy(&single, &bits, sizeof single);
    return (double)single;
}

/* float32 in between two roundings: cut towards zero, with the last bit set when anything was cut
 * off. Both 16-bit types have so few bits that the second rounding then goes where one would. */
static float round_to_odd(double value)
{
    float single = (float)value;
    uint32_t bits;
    if ((double)single == value || value != value)
        return single;
    memcpy(&bits, &single, sizeof bits);
    const double magnitude = value < 0 ? -value : value;
    const double found = single < 0 ? -(double)single : (double)single;
    bits = (found > magnitude ? bits - 1 : bits) | 1;
    memcpy(&single, &bits, sizeof single);
    return single;
}

static uint16_t to_bfloat16(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if (value != value)
        return (uint16_t)(bits >> 16 | 0x40); /* quiet */
    return (uint16_t)((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

void numbers_store(const struct operand *operand, int64_t row, int64_t column, double value)
{
    const float single = operand->type == ACL_FLOAT ? (float)value : round_to_odd(value);
    const uint16_t half =
        operand->type == ACL_FLOAT16 ? aclFloatToFloat16(single) : to_bfloat16(single);
    const bool wide = operand->type == ACL_FLOAT;
    memcpy(tensors_at(operand, row, column), wide ? (const void *)&single : &half,
           wide ? sizeof single : sizeof half);
}
