/* elementary_test.c - the library's exp and log against long double: a sample of the float32
 * numbers, or all 2^32 of them with MOETOKEN_ROUTER_EXHAUSTIVE in the environment. */
#include "router/scores/elementary.h"
#include "router/scores/sums.h"
#include "support/check.h"
#include "support/random.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>

/* The bounds that elementary.h and docs/router.md promise, relative. */
#define EXP_BOUND (0.6L * 0x1p-52L)
#define LOG_BOUND 0x1p-52L

static double worst_exp, worst_log, worst_log_one;

static void see(double got, long double wanted, long double bound, double *worst, double x)
{
    long double error = fabsl((long double)got - wanted);
    if (wanted != 0)
        error /= wanted;
    check(error <= bound, "at %a: %a instead of %La", x, got, wanted);
    if (error > *worst)
        *worst = (double)error;
}

static void try_exp(double x)
{
    double got = exp_of_sum(x, 0);
    long double wanted = expl((long double)x);
    if (wanted > (long double)DBL_MAX * (1 + 0x1p-54L)) {
        check(isinf(got) && got > 0, "exp(%a) = %a instead of inf", x, got);
    } else if (wanted < 0x1p-1022L) { /* subnormal: one more rounding, of half the smallest step */
        check(fabsl(got - wanted) <= 0x1p-1075L + EXP_BOUND * wanted, "exp(%a) = %a, not %La", x,
              got, wanted);
    } else {
        see(got, wanted, EXP_BOUND, &worst_exp, x);
    }
}

static void try_number(uint32_t bits)
{
    float single;
    memcpy(&single, &bits, sizeof single);
    double x = (double)single;
    if (isnan(x)) {
        check(isnan(exp_of_sum(x, 0)), "exp of NaN 0x%08x is a number", (unsigned)bits);
        return;
    }
    try_exp(x);
    if (x >= 1 && !isinf(x))
        see(log_of_sum(x, 0), logl((long double)x), x == 1 ? 0 : LOG_BOUND, &worst_log, x);
    if (x >= 0 && x <= 1)
        see(log_of_one_plus(x), log1pl((long double)x), LOG_BOUND, &worst_log_one, x);
}

static void float32_numbers(void **state)
{
    (void)state;
    if (getenv("MOETOKEN_ROUTER_EXHAUSTIVE")) {
        for (uint64_t bits = 0; bits <= UINT32_MAX; bits++)
            try_number((uint32_t)bits);
    } else {
        for (int i = 0; i < 1000000; i++)
            try_number((uint32_t)random_bits());
        for (int i = 0; i < 1000000; i++) { /* where exp is neither 0 nor 1 nor infinite */
            float x = (float)(random_bits() % 2000000) * 0x1p-10f - 1000;
            uint32_t bits;
            memcpy(&bits, &x, sizeof bits);
            try_number(bits);
        }
    }
    print_message("worst errors in units of 2^-52: exp %.3f, log %.3f, log(1 + u) %.3f\n",
                  worst_exp * 0x1p52, worst_log * 0x1p52, worst_log_one * 0x1p52);
}

/* Arguments with full mantissas, and the edges of every reduction. */
static void binary64_numbers(void **state)
{
    (void)state;
    for (int i = 0; i < 1000000; i++) {
        double unit = (double)(random_bits() >> 11) * 0x1p-53;
        double large = ldexp(1 + unit, (int)random_below(1000));
        try_exp(unit * 1460 - 750);
        see(log_of_sum(large, 0), logl((long double)large), LOG_BOUND, &worst_log, large);
        see(log_of_one_plus(unit), log1pl((long double)unit), LOG_BOUND, &worst_log_one, unit);
    }
    for (int n = -1080; n <= 1030; n++)
        for (int side = -3; side <= 3; side++) {
            double edge = (n + 0.5) * log(2.0);
            try_exp(edge + side * 0x1p-52 * fabs(edge));
        }
}

static void low_parts_count(void **state)
{
    (void)state;
    for (int i = 0; i < 100000; i++) {
        double x = (double)(random_bits() >> 11) * 0x1p-53 * 1400 - 700, low;
        double y = (double)(random_bits() >> 11) * 0x1p-53 * 0x1p-3;
        double high = difference(x, y, &low);
        long double wanted = expl((long double)x - (long double)y);
        see(exp_of_sum(high, low), wanted, EXP_BOUND + 0x1p-53L, &worst_exp, x);
    }
}

/* However many numbers: what each addition rounds away is kept. */
static void long_sums(void **state)
{
    (void)state;
    static double values[1 << 20];
    const int64_t count = sizeof values / sizeof values[0] - 3;
    long double wanted = 0, products = 0;
    for (int64_t i = 0; i < count; i++) {
        values[i] = (double)(random_bits() >> 11) * 0x1p-53;
        wanted += (long double)values[i];
        products += (long double)(values[i] * values[i]);
    }
    double sum = sum_of(values, count), of_products = sum_of_products(values, values, count);
    check(fabsl(sum - wanted) <= 0x1p-52L * wanted, "%.17g instead of %.17Lg", sum, wanted);
    check(fabsl(of_products - products) <= 0x1p-52L * products, "%.17g instead of %.17Lg",
          of_products, products);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(float32_numbers),
        cmocka_unit_test(binary64_numbers),
        cmocka_unit_test(low_parts_count),
        cmocka_unit_test(long_sums),
    };
    random_start("elementary_test");
    return cmocka_run_group_tests(tests, NULL, NULL);
}
