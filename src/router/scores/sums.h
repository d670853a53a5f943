/* sums.h - sums in binary64 in one fixed order, with what each addition rounds away kept.
 *
 * Element i goes to lane i modulo SUM_LANES; the lanes are then added in order, and the rests last.
 * The relative error of a sum of positive numbers is 2^-53 and a little, however many there are. */
#ifndef MOETOKEN_ROUTER_SUMS_H
#define MOETOKEN_ROUTER_SUMS_H

#include <stdint.h>

#define SUM_LANES 8

struct lanes {
    double sum[SUM_LANES], rest[SUM_LANES];
};

/* sum + value, and what that rounds away added to *rest. */
static inline double add_keeping_rest(double sum, double value, double *rest)
{
    double total = sum + value;
    double added = total - sum;
    *rest += (sum - (total - added)) + (value - added);
    return total;
}

static inline double lanes_total(const struct lanes *lanes)
{
    double total = lanes->sum[0], rest = lanes->rest[0];
    for (int l = 1; l < SUM_LANES; l++) {
        rest += lanes->rest[l];
        total = add_keeping_rest(total, lanes->sum[l], &rest);
    }
    return rest == rest ? total + rest : total; /* infinities have no rest */
}

static inline double sum_of(const double *values, int64_t count)
{
    struct lanes lanes = {{0}, {0}};
    int64_t i = 0;
    for (; i + SUM_LANES <= count; i += SUM_LANES)
        for (int l = 0; l < SUM_LANES; l++)
            lanes.sum[l] = add_keeping_rest(lanes.sum[l], values[i + l], &lanes.rest[l]);
    for (int l = 0; i + l < count; l++)
        lanes.sum[l] = add_keeping_rest(lanes.sum[l], values[i + l], &lanes.rest[l]);
    return lanes_total(&lanes);
}

/* The sum of a[i] * b[i], each product rounded to binary64. */
static inline double sum_of_products(const double *a, const double *b, int64_t count)
{
    struct lanes lanes = {{0}, {0}};
    int64_t i = 0;
    for (; i + SUM_LANES <= count; i += SUM_LANES)
        for (int l = 0; l < SUM_LANES; l++)
            lanes.sum[l] = add_keeping_rest(lanes.sum[l], a[i + l] * b[i + l], &lanes.rest[l]);
    for (int l = 0; i + l < count; l++)
        lanes.sum[l] = add_keeping_rest(lanes.sum[l], a[i + l] * b[i + l], &lanes.rest[l]);
    return lanes_total(&lanes);
}

#endif
