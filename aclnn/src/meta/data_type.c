/* data_type.c - sizes of CANN's element types, and float16 numbers. Leaf: depends on nothing. */
#include "../../include/acl/acl_base.h"

#include <string.h>

size_t aclDataTypeSize(aclDataType dataType)
{
    switch (dataType) {
    case ACL_INT8:
    case ACL_UINT8:
    case ACL_BOOL:
    case ACL_HIFLOAT8:
    case ACL_FLOAT8_E5M2:
    case ACL_FLOAT8_E4M3FN:
    case ACL_FLOAT8_E8M0:
        return 1;
    case ACL_FLOAT16:
    case ACL_BF16:
    case ACL_INT16:
    case ACL_UINT16:
        return 2;
    case ACL_FLOAT:
    case ACL_INT32:
    case ACL_UINT32:
    case ACL_COMPLEX32:
        return 4;
    case ACL_INT64:
    case ACL_UINT64:
    case ACL_DOUBLE:
    case ACL_COMPLEX64:
        return 8;
    case ACL_COMPLEX128:
        return 16;
    case ACL_DT_UNDEFINED:
    case ACL_STRING:
    case ACL_INT4:
    case ACL_UINT1:
    case ACL_FLOAT6_E3M2:
    case ACL_FLOAT6_E2M3:
    case ACL_FLOAT4_E2M1:
    case ACL_FLOAT4_E1M2:
    case ACL_HIFLOAT4:
        break;
    }
    return 0;
}

static float float_of_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

float aclFloat16ToFloat(aclFloat16 value)
{
    uint32_t sign = (uint32_t)(value & 0x8000) << 16;
    uint32_t exponent = value >> 10 & 0x1F, fraction = value & 0x3FF;
    if (exponent == 0x1F) /* infinity and NaN */
        return float_of_bits(sign | 0x7F800000 | fraction << 13);
    if (exponent != 0)
        return float_of_bits(sign | (exponent + 112) << 23 | fraction << 13);
    float magnitude = (float)fraction * 0x1p-24f; /* zero and subnormals, exactly */
    return sign ? -magnitude : magnitude;
}

/* value / 2^shift, to nearest even; 0 < shift < 32. */
static uint32_t round_shift(uint32_t value, unsigned shift)
{
    uint32_t half = 1u << (shift - 1), rest = value & ((1u << shift) - 1);
    uint32_t quotient = value >> shift;
    return quotient + (rest > half || (rest == half && (quotient & 1)));
}

aclFloat16 aclFloatToFloat16(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    uint32_t sign = bits >> 16 & 0x8000, magnitude = bits & 0x7FFFFFFF;
    if (magnitude > 0x7F800000) /* NaN: quiet, the payload's upper bits kept */
        return (aclFloat16)(sign | 0x7E00 | (magnitude >> 13 & 0x3FF));
    if (magnitude >= 0x47800000) /* 2^16 and above */
        return (aclFloat16)(sign | 0x7C00);
    if (magnitude >= 0x38800000) /* normal: a carry of the rounding goes into the exponent */
        return (aclFloat16)(sign | (round_shift(magnitude, 13) - (112u << 10)));
    if (magnitude < 0x33000000) /* below 2^-25: zero */
        return (aclFloat16)sign;
    unsigned shift = 126 - (magnitude >> 23);
    return (aclFloat16)(sign | round_shift((magnitude & 0x7FFFFF) | 0x800000, shift));
}
