/* judge_cases.h - what the two tests of the judge share: tensors out of numbers, a figure by its
 * name, a check that says where it failed. */
#ifndef MOETOKEN_TESTS_JUDGE_CASES_H
#define MOETOKEN_TESTS_JUDGE_CASES_H

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "compare/judge.h"
#include "values/number_formats.h"

static int failures;

static inline void check(bool right, const char *what, const char *file, int line)
{
    if (!right)
        printf("%s:%d: wrong: %s\n", file, line, what);
    failures += !right;
}
#define assert_true(condition) check((condition), #condition, __FILE__, __LINE__)

#define ELEMENTS_MOST 256

struct numbers {
    unsigned char bytes[ELEMENTS_MOST * 8];
    int64_t shape[1];
    DLTensor tensor;
};

/* A tensor of one dimension; each value has to be one of the type's, exactly. */
static inline void set_numbers(struct numbers *numbers, moetoken_type type, int64_t count,
                               const double *values)
{
    numbers->shape[0] = count;
    numbers->tensor = moetoken_tensor(numbers->bytes, type, 1, numbers->shape);
    for (int64_t i = 0; i < count; i++) {
        uint64_t bits = double_to_bits(type, values[i]);
        double back = bits_to_double(type, bits);
        if (back != values[i] && !isnan(values[i]))
            check(false, "a test's number is not of its type", __FILE__, __LINE__);
        store_bits(numbers->bytes + (size_t)i * type_size(type), type_size(type), bits);
    }
}

static inline struct judgement judge_by(const char *name, const DLTensor *actual,
                                        const DLTensor *golden, const DLTensor *third_party)
{
    struct standard standard;
    struct judgement judgement = {0};
    if (!standard_find(name, strlen(name), &standard))
        check(false, name, __FILE__, __LINE__);
    else
        judge(&standard, actual, golden, third_party, &judgement);
    return judgement;
}

/* The figure of that name; the test fails when there is none. */
static inline struct figure figure_of(const struct judgement *judgement, const char *name)
{
    for (int i = 0; i < judgement->figures_count; i++)
        if (strcmp(judgement->figures[i].name, name) == 0)
            return judgement->figures[i];
    check(false, name, __FILE__, __LINE__);
    return (struct figure){0};
}

static inline bool near(double value, double expected)
{
    return fabs(value - expected) <= 1e-9 * fabs(expected);
}

#endif
