/* oracle_sums.c - sums far more accurate than binary64, and what may come of rounding near them. */
#include "oracle_sums.h"

#include <float.h>
#include <math.h>

#include "values/number_formats.h"

void accurate_sum_begin(struct accurate_sum *sum)
{
    *sum = (struct accurate_sum){.only_negative_zero = true};
}

/* high + value exactly, as the rounded sum and its error (Knuth). */
static inline double add_exactly(double high, double value, double *error)
{
    double rounded = high + value;
    double part = rounded - high;
    *error = (high - (rounded - part)) + (value - part);
    return rounded;
}

void accurate_sum_add(struct accurate_sum *sum, double value)
{
    sum->only_negative_zero = sum->only_negative_zero && value == 0 && signbit(value);
    sum->roundings += sum->terms > 0;
    sum->terms++;
    if (!isfinite(value)) {
        sum->special += value;
        return;
    }
    double error;
    sum->high = add_exactly(sum->high, value, &error);
    sum->low += error;
    sum->magnitude += fabs(value);
}

void accurate_sum_add_products(struct accurate_sum *sum, const double *a, const double *b,
                               int64_t count, bool exact_products)
{
    double high = sum->high, low = sum->low, magnitude = sum->magnitude;
    for (int64_t h = 0; h < count; h++) {
        double product = a[h] * b[h];
        if (!isfinite(product)) {
            sum->special += product;
            continue;
        }
        double error;
        high = add_exactly(high, product, &error);
        low += error;
        if (!exact_products)
            low += fma(a[h], b[h], -product);
        magnitude += fabs(product);
    }
    sum->high = high;
    sum->low = low;
    sum->magnitude = magnitude;
    sum->terms += count;
    sum->roundings += count;
    sum->only_negative_zero = false; /* the lanes of a dot product start at +0 */
}

/* The bound of docs/contract.md section 5, a hair wider than the rounding errors made in
 * `magnitude`; with products below the smallest binary64 number, half of that each. */
static double error_bound(const struct accurate_sum *sum, moetoken_type type)
{
    double bound = (double)sum->roundings * 0x1p-53 * sum->magnitude * (1.0 + 0x1p-30);
    return type == MOETOKEN_F64 ? bound + (double)sum->roundings * 0x1p-1074 : bound;
}

/* The middle between a value of a narrow type and its neighbour; exact in binary64. */
static double middle(moetoken_type type, double value, int direction)
{
    double next = next_value(type, value, direction);
    if (isinf(next))
        return value + direction * 0.5 * unit_in_last_place(type, value);
    if (isinf(value)) /* the threshold of overflow, from above */
        return next - direction * 0.5 * unit_in_last_place(type, next);
    return 0.5 * value + 0.5 * next;
}

static bool accepts_zero(const struct accurate_sum *sum, bool negative, double bound)
{
    double exact = sum->high + sum->low;
    if (exact == 0 && bound == 0)
        return negative == sum->only_negative_zero;
    return negative ? exact - bound < 0 : exact + bound >= 0;
}

static bool accepts_double(const struct accurate_sum *sum, double value, double bound)
{
    if (isinf(value)) /* |exact| + bound reaches the largest number */
        return !(fabs(sum->high + sum->low) + bound <= DBL_MAX);
    return fabs((value - sum->high) - sum->low) <= bound;
}

static bool accepts_narrow(const struct accurate_sum *sum, moetoken_type type, double value,
                           double bound)
{
    if (!(isinf(value) && value < 0)) {
        double below = middle(type, value, -1);
        if ((sum->high - below) + sum->low < -bound)
            return false;
    }
    if (!(isinf(value) && value > 0)) {
        double above = middle(type, value, 1);
        if ((above - sum->high) - sum->low < -bound)
            return false;
    }
    return true;
}

bool accurate_sum_accepts(const struct accurate_sum *sum, moetoken_type type, uint64_t bits)
{
    double value = bits_to_double(type, bits);
    if (sum->special != 0) /* NaN or infinity */
        return isnan(sum->special) ? isnan(value) : value == sum->special;
    double bound = error_bound(sum, type);
    if (isinf(sum->magnitude)) /* whether a partial sum overflows depends on the order */
        return true;
    if (isnan(value))
        return false;
    if (value == 0 && !accepts_zero(sum, signbit(value) != 0, bound))
        return false;
    return type == MOETOKEN_F64 ? accepts_double(sum, value, bound)
                                : accepts_narrow(sum, type, value, bound);
}
