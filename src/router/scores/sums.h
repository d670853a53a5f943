/* sums.h - sums in binary64 in one fixed order, with what each addition rounds away kept.
 *
 * Element i goes to lane i modulo SUM_LANES; the lanes are then added in order, and the rests last.
 * The relative error of a sum of positive numbers is 2^-53 and a little, however many there are.
 *
 * The lanes are vectors of GCC and clang, as wide as the instruction set's, for their compilers do
 * not find the vector form of a loop over lanes by themselves; with MOETOKEN_PLAIN_LANES, as in the
 * specification, they are numbers in a row. */
#ifndef MOETOKEN_ROUTER_SUMS_H
#define MOETOKEN_ROUTER_SUMS_H

#include <stdint.h>
#include <string.h>

#define SUM_LANES 8

#if defined(__AVX512F__)
#define VECTOR_BYTES 64
#elif defined(__AVX__)
#define VECTOR_BYTES 32
#else
#define VECTOR_BYTES 16
#endif
#define VECTOR_LANES (VECTOR_BYTES / 8)
#define VECTORS      (SUM_LANES / VECTOR_LANES)

typedef double vector_of_double __attribute__((vector_size(VECTOR_BYTES)));
typedef int64_t vector_of_bits __attribute__((vector_size(VECTOR_BYTES)));

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

/* Whole rows of lanes: values, or their products with factors. How many of the values they are. */
static inline int64_t add_rows(struct lanes *lanes, const double *values, const double *factors,
                               int64_t count)
{
    int64_t i = 0;
#ifdef MOETOKEN_PLAIN_LANES
    for (; i + SUM_LANES <= count; i += SUM_LANES)
        for (int l = 0; l < SUM_LANES; l++)
            lanes->sum[l] = add_keeping_rest(
                lanes->sum[l], factors ? values[i + l] * factors[i + l] : values[i + l],
                &lanes->rest[l]);
#else
    vector_of_double sum[VECTORS] = {{0}}, rest[VECTORS] = {{0}};
    for (; i + SUM_LANES <= count; i += SUM_LANES)
        for (int v = 0; v < VECTORS; v++) {
            vector_of_double value, factor;
            memcpy(&value, values + i + v * VECTOR_LANES, sizeof value);
            if (factors) {
                memcpy(&factor, factors + i + v * VECTOR_LANES, sizeof factor);
                value = value * factor;
            }
            vector_of_double total = sum[v] + value;
            vector_of_double added = total - sum[v];
            rest[v] += (sum[v] - (total - added)) + (value - added);
            sum[v] = total;
        }
    memcpy(lanes->sum, sum, sizeof sum);
    memcpy(lanes->rest, rest, sizeof rest);
#endif
    return i;
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

/* What the lanes make of up to SUM_LANES values, each in one of its own. */
static inline double sum_of_few(const double *values, const double *factors, int64_t count)
{
    double total = 0, rest = 0;
    for (int64_t i = 0; i < count; i++)
        total = add_keeping_rest(total, factors ? values[i] * factors[i] : values[i], &rest);
    return rest == rest ? total + rest : total;
}

static inline double sum_of(const double *values, int64_t count)
{
    if (count <= SUM_LANES)
        return sum_of_few(values, NULL, count);
    struct lanes lanes = {{0}, {0}};
    int64_t i = add_rows(&lanes, values, NULL, count);
    for (int l = 0; i + l < count; l++)
        lanes.sum[l] = add_keeping_rest(lanes.sum[l], values[i + l], &lanes.rest[l]);
    return lanes_total(&lanes);
}

/* The sum of a[i] * b[i], each product rounded to binary64. */
static inline double sum_of_products(const double *a, const double *b, int64_t count)
{
    if (count <= SUM_LANES)
        return sum_of_few(a, b, count);
    struct lanes lanes = {{0}, {0}};
    int64_t i = add_rows(&lanes, a, b, count);
    for (int l = 0; i + l < count; l++)
        lanes.sum[l] = add_keeping_rest(lanes.sum[l], a[i + l] * b[i + l], &lanes.rest[l]);
    return lanes_total(&lanes);
}

#endif
