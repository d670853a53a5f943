/* judge.h - judges a tensor by a standard: every figure beside its limit, the verdict, the worst
 * element.
 *
 *     struct standard standard;
 *     struct judgement judgement;
 *     standard_find("ecosystem-2026-07", 17, &standard);
 *     judge(&standard, &actual, &golden, NULL, &judgement);
 *     if (!judgement.passed) ...
 *
 * To judge one tensor by several standards, compare it once (judge_compare) and judge that.
 *
 * What holds for every standard, whatever its published tool does:
 *   - the limits are those of the type of ACTUAL (float64: of float32); golden and third party may
 *     have other types: values are compared, not skipped;
 *   - NaN or infinity where the golden result, rounded to the type of ACTUAL, has something else is
 *     a difference at each such element, and none is allowed; at the same places they agree;
 *   - a figure that is NaN fails, so does a ratio with a denominator of 0 (0 / 0: nothing is wrong,
 *     is 0);
 *   - integers and bools must be equal;
 *   - tensors of other shapes, or an integer beside a floating-point number, fail with the reason
 *     in `problem`. */
#ifndef MOETOKEN_CLI_JUDGE_H
#define MOETOKEN_CLI_JUDGE_H

#include "measure.h"
#include "standards.h"

enum figure_relation {
    FIGURE_AT_MOST,
    FIGURE_BELOW,
    FIGURE_AT_LEAST,
    FIGURE_INFORMS /* has no limit */
};

struct figure {
    const char *name; /* "MARE ratio" */
    double value, limit;
    enum figure_relation relation;
    bool passed;
};

#define FIGURES_MOST 12

struct judgement {
    bool passed;
    char problem[256]; /* why nothing could be compared, or "" */
    int64_t elements;
    struct figure figures[FIGURES_MOST];
    int figures_count;
    int64_t worst; /* the element that the standard minds most, counted in C order; -1: none */
};

/* A tensor measured against its golden result, and so the third party's, if there is one. */
struct comparison {
    const DLTensor *actual, *golden, *third_party;
    moetoken_type type; /* of ACTUAL */
    struct measure_limits limits;
    struct measure measure, third;
    char problem[256];
};

/* Fills `comparison`. The tensors are contiguous, on the CPU and of types that moetoken_type has;
 * third_party may be NULL. */
void judge_compare(const DLTensor *actual, const DLTensor *golden, const DLTensor *third_party,
                   struct comparison *comparison);
void judge_comparison(const struct standard *standard, const struct comparison *comparison,
                      struct judgement *judgement);
/* Both in one. */
void judge(const struct standard *standard, const DLTensor *actual, const DLTensor *golden,
           const DLTensor *third_party, struct judgement *judgement);

/* "<=", "<", ">=", or "" where there is no limit. */
const char *figure_relation_sign(enum figure_relation relation);

#endif
