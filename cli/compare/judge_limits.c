/* judge_limits.c - the standards' numbers for each floating-point type, as published. */
#include "judge_limits.h"

static const struct judge_limits float16_limits = {
    .measure = {.small_value = 0x1p-11, .small_error = 0x1p-16, .rtol = 0x1p-9, .atol = 0x1p-9},
    .relative_threshold = 0x1p-10,
    .absolute_limit = 0.1,
    .least_error = 0x1p-11,
    .balance = 0x1p-10,
};

static const struct judge_limits bfloat16_limits = {
    .measure = {.small_value = 0x1p-8, .small_error = 0x1p-16, .rtol = 0x1p-6, .atol = 0x1p-6},
    .relative_threshold = 0x1p-7,
    .absolute_limit = 1,
    .least_error = 0x1p-8,
    .balance = 0x1p-7,
};

static const struct judge_limits float32_limits = {
    .measure = {.small_value = 0x1p-14, .small_error = 0x1p-30, .rtol = 0x1p-10, .atol = 0x1p-16},
    .relative_threshold = 0x1p-13,
    .absolute_limit = 0.01,
    .least_error = 0x1p-14,
    .balance = 0x1p-14,
};

const struct judge_limits *judge_limits(moetoken_type type)
{
    if (type == MOETOKEN_F16)
        return &float16_limits;
    return type == MOETOKEN_BF16 ? &bfloat16_limits : &float32_limits;
}
