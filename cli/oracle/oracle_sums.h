/* oracle_sums.h - sums far more accurate than binary64, and what may come of rounding near them. */
#ifndef MOETOKEN_CLI_ORACLE_SUMS_H
#define MOETOKEN_CLI_ORACLE_SUMS_H

#include <moetoken/moetoken.h>
#include <stdbool.h>
#include <stdint.h>

/* The sum of `terms` numbers or products as high + low, with the error of each addition kept. */
struct accurate_sum {
    double high, low;
    double magnitude; /* the sum of the absolute values */
    double special;   /* the sum of terms that are not finite, else 0 */
    int64_t terms;
    int64_t roundings;       /* what the bound counts: H a dot product, n - 1 for n numbers */
    bool only_negative_zero; /* all terms are -0, and a plain sum of them is */
};

void accurate_sum_begin(struct accurate_sum *sum);
/* Adds the number. */
void accurate_sum_add(struct accurate_sum *sum, double value);
/* Adds the products a[h] * b[h]. exact_products: they fit in binary64. */
void accurate_sum_add_products(struct accurate_sum *sum, const double *a, const double *b,
                               int64_t count, bool exact_products);

/* Whether `bits` can come of rounding a number to the type that lies within
 * roundings * 2^-53 * magnitude of the sum. */
bool accurate_sum_accepts(const struct accurate_sum *sum, moetoken_type type, uint64_t bits);

#endif
