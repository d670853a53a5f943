/* measure.h - one pass over a tensor and its golden result: every sum, count and peak that some
 * standard asks for.
 *
 * The first half of judging; judge.h is the second, and the one to include. Elements where both
 * are finite are compared as numbers, in binary64; a NaN or an infinity counts as right where the
 * golden result, rounded to the type of the tensor, has the same. The sums are taken in blocks of a
 * fixed size, so that they are the same with any number of threads. */
#ifndef MOETOKEN_CLI_MEASURE_H
#define MOETOKEN_CLI_MEASURE_H

#include <moetoken/moetoken.h>
#include <stdbool.h>
#include <stdint.h>

/* The largest of something, and where it is first found. */
struct peak {
    double size;
    int64_t element; /* -1: nowhere above 0 */
};

/* Relative errors |x - g| / (|g| + 1e-7), and squares of the absolute ones. */
struct error_sums {
    int64_t count;
    struct peak relative;
    double relative_sum;
    long double squares; /* its range holds the squares of all binary64 numbers */
};

/* What the passes need to know beforehand, of the type of ACTUAL. */
struct measure_limits {
    double small_value; /* golden values below it are small, and */
    double small_error; /* errors above this count there */
    double rtol, atol;  /* mixed tolerance */
};

struct measure {
    int64_t elements;
    int64_t unequal; /* elements that are not the same bits (see RULE_BITS), and the first */
    struct peak unequal_ulps;
    int64_t first_unequal;

    /* Integers and bools: */
    int64_t wrong_integers;
    struct peak integer_error;

    /* Floating-point numbers: */
    int64_t finite;          /* compared as numbers */
    int64_t misplaced;       /* NaN or infinity on one side alone, or another one */
    int64_t first_misplaced; /* -1: none */
    struct error_sums all;
    struct error_sums normal; /* where |golden| >= small_value */
    int64_t small_errors;
    struct peak small_error;
    double balance;     /* the sum of (x - g) / max(|g|, 1) */
    int64_t intolerant; /* |x - g| > atol + rtol * |g|, and the worst of them */
    struct peak intolerance;
    struct peak absolute;
    double golden_at_absolute; /* the golden value, rounded to the type, at that peak */
    struct peak ulps;

    /* Against the golden result rounded to the type of the tensor: */
    long double dot, squares, golden_squares;
    struct peak rounded_absolute, rounded_relative;
    int64_t within_thousandth, within_five_thousandths;
};

/* Both contiguous, of the same shape, and both of floating-point types or neither. false: no
 * memory. */
bool measure_tensor(const DLTensor *tensor, const DLTensor *golden,
                    const struct measure_limits *limits, struct measure *measure);

/* The value of a whole number or bool, sign-extended; bools are 0 or 1. */
int64_t whole_number_at(const DLTensor *tensor, int64_t i);

#endif
