/* oracle_sums_test.c - verify's own arithmetic against literals: conversions of narrow types, sums
 * that cancel, and which results lie within the bound. */
#include <math.h>
#include <stdint.h>
#include <stdio.h>

#include "oracle/oracle_sums.h"
#include "values/number_formats.h"

static int failures;

static void check(bool right, int line)
{
    if (!right)
        printf("%s:%d: wrong\n", __FILE__, line);
    failures += !right;
}

#define assert_true(condition)        check((condition), __LINE__)
#define assert_false(condition)       check(!(condition), __LINE__)
#define assert_int_equal(left, right) check((left) == (right), __LINE__)

static void narrow_types_read_and_write_literals(void)
{
    static const struct {
        moetoken_type type;
        uint64_t bits;
        double value;
    } pairs[] = {
        {MOETOKEN_F16, 0x3c00, 1.0},
        {MOETOKEN_F16, 0xc000, -2.0},
        {MOETOKEN_F16, 0x0001, 0x1p-24},
        {MOETOKEN_F16, 0x03ff, 1023 * 0x1p-24},
        {MOETOKEN_F16, 0x7bff, 65504.0},
        {MOETOKEN_F16, 0x7c00, INFINITY},
        {MOETOKEN_F16, 0x8000, -0.0},
        {MOETOKEN_BF16, 0x3f80, 1.0},
        {MOETOKEN_BF16, 0x0001, 0x1p-133},
        {MOETOKEN_BF16, 0xff7f, -0x1.fep127},
        {MOETOKEN_BF16, 0x4049, 3.140625},
        {MOETOKEN_F32, 0x3dcccccd, 0x1.99999ap-4},
        {MOETOKEN_F32, 0x00000001, 0x1p-149},
        {MOETOKEN_F32, 0x7f7fffff, 0x1.fffffep127},
        {MOETOKEN_F64, 0x3fb999999999999a, 0.1},
    };
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++) {
        double value = bits_to_double(pairs[i].type, pairs[i].bits);
        assert_true(value == pairs[i].value);
        assert_int_equal(signbit(value) != 0, signbit(pairs[i].value) != 0);
        assert_int_equal(double_to_bits(pairs[i].type, pairs[i].value), pairs[i].bits);
    }
}

static void rounding_is_to_nearest_even_in_one_step(void)
{
    static const struct {
        moetoken_type type;
        double value;
        uint64_t bits;
    } cases[] = {
        {MOETOKEN_F16, 1 + 0x1p-11, 0x3c00},           /* tie, down to even */
        {MOETOKEN_F16, 1 + 3 * 0x1p-11, 0x3c02},       /* tie, up to even */
        {MOETOKEN_F16, 1 + 0x1p-11 + 0x1p-40, 0x3c01}, /* two roundings would give 0x3c00 */
        {MOETOKEN_F16, 65519.999, 0x7bff},
        {MOETOKEN_F16, 65520.0, 0x7c00}, /* the threshold of overflow */
        {MOETOKEN_F16, 0x1p-25, 0x0000}, /* tie with 0 */
        {MOETOKEN_F16, -0x1.8p-25, 0x8001},
        {MOETOKEN_F16, 0x1.ffbp-15, 0x03ff},
        {MOETOKEN_F16, 0x1.ffcp-15, 0x0400}, /* tie that becomes normal */
        {MOETOKEN_BF16, 1 + 0x1p-8, 0x3f80},
        {MOETOKEN_BF16, 1 + 0x1p-8 + 0x1p-45, 0x3f81},
        {MOETOKEN_BF16, 0x1.ffp127, 0x7f80},
        {MOETOKEN_BF16, 0x1p-134, 0x0000},
        {MOETOKEN_BF16, 0x1.8p-134, 0x0001},
        {MOETOKEN_F32, 1 + 0x1p-24, 0x3f800000},
        {MOETOKEN_F32, 1 + 0x1p-24 + 0x1p-52, 0x3f800001},
        {MOETOKEN_F32, 0x1p-1074, 0x00000000},
        {MOETOKEN_F32, -0x1.8p-150, 0x80000001},
        {MOETOKEN_F32, 0x1.ffffffp127, 0x7f800000},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        assert_int_equal(double_to_bits(cases[i].type, cases[i].value), cases[i].bits);
}

/* Every narrow value comes back as it was; neighbours are one apart. */
static void every_16_bit_value_comes_back(void)
{
    static const moetoken_type types[] = {MOETOKEN_F16, MOETOKEN_BF16};
    for (int k = 0; k < 2; k++) {
        for (uint64_t bits = 0; bits < 65536; bits++) {
            double value = bits_to_double(types[k], bits);
            if (isnan(value))
                continue;
            assert_int_equal(double_to_bits(types[k], value), bits);
            if (isinf(value) || value <= 0)
                continue;
            assert_int_equal(double_to_bits(types[k], next_value(types[k], value, 1)), bits + 1);
            assert_int_equal(double_to_bits(types[k], next_value(types[k], -value, 1)),
                             (bits - 1) | 0x8000);
        }
    }
}

static void sums_keep_what_binary64_loses(void)
{
    struct accurate_sum sum;
    accurate_sum_begin(&sum);
    accurate_sum_add(&sum, 1e16);
    accurate_sum_add(&sum, 1.0); /* 1e16 + 1 is no binary64 number */
    accurate_sum_add(&sum, -1e16);
    assert_true(sum.high + sum.low == 1.0);
    const double a[] = {1 + 0x1p-52, -1.0}, b[] = {1 + 0x1p-52, 1 + 0x1p-51};
    accurate_sum_begin(&sum);
    accurate_sum_add_products(&sum, a, b, 2, false);
    assert_true(sum.high + sum.low == 0x1p-104); /* (1 + u)^2 - (1 + 2u) = u^2 */
}

static struct accurate_sum one_product(double a, double b)
{
    struct accurate_sum sum;
    accurate_sum_begin(&sum);
    accurate_sum_add_products(&sum, &a, &b, 1, true);
    return sum;
}

static void only_correct_roundings_are_accepted(void)
{
    struct accurate_sum sum = one_product(3.0, 1.0);
    assert_true(accurate_sum_accepts(&sum, MOETOKEN_F32, 0x40400000));
    assert_false(accurate_sum_accepts(&sum, MOETOKEN_F32, 0x40400001));
    assert_false(accurate_sum_accepts(&sum, MOETOKEN_F32, 0x403fffff));
    assert_false(accurate_sum_accepts(&sum, MOETOKEN_F32, 0xc0400000));
    assert_false(accurate_sum_accepts(&sum, MOETOKEN_F32, 0x7fc00000));
    sum = one_product(1 + 0x1p-11, 1.0); /* a tie: both neighbours are within the bound */
    assert_true(accurate_sum_accepts(&sum, MOETOKEN_F16, 0x3c00));
    assert_true(accurate_sum_accepts(&sum, MOETOKEN_F16, 0x3c01));
    assert_false(accurate_sum_accepts(&sum, MOETOKEN_F16, 0x3bff));
    assert_false(accurate_sum_accepts(&sum, MOETOKEN_F16, 0x3c02));
    sum = one_product(1 + 0x1p-11 + 0x1p-45, 1.0); /* above the tie by more than the bound */
    assert_false(accurate_sum_accepts(&sum, MOETOKEN_F16, 0x3c00));
    assert_true(accurate_sum_accepts(&sum, MOETOKEN_F16, 0x3c01));
    sum = one_product(65520.0, 1.0);
    assert_true(accurate_sum_accepts(&sum, MOETOKEN_F16, 0x7c00));
    assert_true(accurate_sum_accepts(&sum, MOETOKEN_F16, 0x7bff));
    sum = one_product(65536.0, -1.0);
    assert_true(accurate_sum_accepts(&sum, MOETOKEN_F16, 0xfc00));
    assert_false(accurate_sum_accepts(&sum, MOETOKEN_F16, 0xfbff));
    assert_false(accurate_sum_accepts(&sum, MOETOKEN_F16, 0x7c00));
}

static void zeros_and_special_values(void)
{
    struct accurate_sum sum = one_product(-1.0, 0.0);
    assert_true(accurate_sum_accepts(&sum, MOETOKEN_F32, 0));
    assert_false(accurate_sum_accepts(&sum, MOETOKEN_F32, 0x80000000));
    assert_false(accurate_sum_accepts(&sum, MOETOKEN_F32, 1));
    sum = one_product(-0x1p-30, 1.0); /* rounds to -0 in float16 */
    assert_true(accurate_sum_accepts(&sum, MOETOKEN_F16, 0x8000));
    assert_false(accurate_sum_accepts(&sum, MOETOKEN_F16, 0));
    sum = one_product(INFINITY, -1.0);
    assert_true(accurate_sum_accepts(&sum, MOETOKEN_F32, 0xff800000));
    assert_false(accurate_sum_accepts(&sum, MOETOKEN_F32, 0x7f800000));
    sum = one_product(INFINITY, 0.0);
    assert_true(accurate_sum_accepts(&sum, MOETOKEN_BF16, 0x7fc0));
    assert_false(accurate_sum_accepts(&sum, MOETOKEN_BF16, 0x7f80));
    sum = one_product(0.1, 0.1); /* binary64: half a unit in the last place off at most */
    assert_true(accurate_sum_accepts(&sum, MOETOKEN_F64, double_to_bits(MOETOKEN_F64, 0.1 * 0.1)));
    assert_false(
        accurate_sum_accepts(&sum, MOETOKEN_F64, double_to_bits(MOETOKEN_F64, 0.1 * 0.1) + 2));
}

int main(void)
{
    narrow_types_read_and_write_literals();
    rounding_is_to_nearest_even_in_one_step();
    every_16_bit_value_comes_back();
    sums_keep_what_binary64_loses();
    only_correct_roundings_are_accepted();
    zeros_and_special_values();
    printf("%d failures\n", failures);
    return failures != 0;
}
