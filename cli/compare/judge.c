/* judge.c - from what was measured to the figures of a standard. See judge.h. */
#include "judge.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#include "judge_limits.h"
#include "values/number_formats.h"

/* ---- comparing ------------------------------------------------------------------------------ */

static void describe_shape(const DLTensor *tensor, char text[64])
{
    size_t length = (size_t)snprintf(text, 64, "[");
    for (int d = 0; d < tensor->ndim && length < 48; d++)
        length += (size_t)snprintf(text + length, 64 - length, "%s%" PRId64, d == 0 ? "" : ",",
                                   tensor->shape[d]);
    snprintf(text + length, 64 - length, "]");
}

static bool same_shape(const DLTensor *a, const DLTensor *b)
{
    bool same = a->ndim == b->ndim;
    for (int d = 0; same && d < a->ndim; d++)
        same = a->shape[d] == b->shape[d];
    return same;
}

/* Whether `other` can be compared with `tensor`; else the problem says why. */
static bool comparable(const DLTensor *tensor, const DLTensor *other, const char *name,
                       struct comparison *comparison)
{
    const size_t size = sizeof comparison->problem;
    moetoken_type type, other_type;
    char shape[64], other_shape[64];
    if (!type_of_tensor(tensor, &type) || !type_of_tensor(other, &other_type)) {
        snprintf(comparison->problem, size, "has a type that cannot be compared");
        return false;
    }
    if (type_is_float(type) != type_is_float(other_type)) {
        snprintf(comparison->problem, size, "has type %s, which cannot be compared with %s of %s",
                 type_name(type), type_name(other_type), name);
        return false;
    }
    if (!same_shape(tensor, other)) {
        describe_shape(tensor, shape);
        describe_shape(other, other_shape);
        snprintf(comparison->problem, size, "has shape %s, expected %s as in %s", shape,
                 other_shape, name);
        return false;
    }
    return true;
}

void judge_compare(const DLTensor *actual, const DLTensor *golden, const DLTensor *third_party,
                   struct comparison *comparison)
{
    *comparison =
        (struct comparison){.actual = actual, .golden = golden, .third_party = third_party};
    if (!comparable(actual, golden, "the golden result", comparison) ||
        (third_party != NULL && !comparable(actual, third_party, "the third party", comparison)))
        return;
    type_of_tensor(actual, &comparison->type);
    comparison->limits = judge_limits(comparison->type)->measure;
    bool measured = measure_tensor(actual, golden, &comparison->limits, &comparison->measure);
    if (measured && third_party != NULL)
        measured = measure_tensor(third_party, golden, &comparison->limits, &comparison->third);
    if (!measured)
        snprintf(comparison->problem, sizeof comparison->problem, "no memory to compare it");
}

/* ---- figures -------------------------------------------------------------------------------- */

static void add_figure(struct judgement *judgement, const char *name, double value,
                       enum figure_relation relation, double limit)
{
    struct figure *figure = &judgement->figures[judgement->figures_count++];
    bool passed = relation == FIGURE_AT_MOST    ? value <= limit
                  : relation == FIGURE_BELOW    ? value < limit
                  : relation == FIGURE_AT_LEAST ? value >= limit
                                                : true;
    *figure = (struct figure){name, value, limit, relation, passed};
    judgement->passed = judgement->passed && passed;
}

static double ratio(double error, double other)
{
    return error == 0 && other == 0 ? 0 : error / other;
}

static double mean(double sum, int64_t count)
{
    return count == 0 ? 0 : sum / (double)count;
}

static double root_mean_square(const struct error_sums *sums)
{
    return sums->count == 0 ? 0 : (double)sqrtl(sums->squares / (long double)sums->count);
}

/* Nothing of this kind is allowed by any standard. */
static void add_misplaced(struct judgement *judgement, const struct measure *measure)
{
    add_figure(judgement, "misplaced NaN or Inf", (double)measure->misplaced, FIGURE_AT_MOST, 0);
    if (measure->misplaced > 0)
        judgement->worst = measure->first_misplaced;
}

static void set_worst(struct judgement *judgement, const struct peak *peak)
{
    if (judgement->worst < 0)
        judgement->worst = peak->element;
}

/* Errors against those of the third party; `add` keeps the denominators from 0 (1e-7 more), or
 * `least` does (they count as no less). */
static void add_relative_ratios(const struct standard *standard, const struct error_sums *ours,
                                const struct error_sums *theirs, double add, double least,
                                struct judgement *judgement)
{
    add_figure(judgement, "MARE ratio",
               ratio(ours->relative.size, fmax(theirs->relative.size + add, least)), FIGURE_AT_MOST,
               standard->maximum_ratio);
    add_figure(judgement, "MERE ratio",
               ratio(mean(ours->relative_sum, ours->count),
                     fmax(mean(theirs->relative_sum, theirs->count) + add, least)),
               FIGURE_AT_MOST, standard->mean_ratio);
}

static void add_rms_ratio(const struct standard *standard, const struct comparison *comparison,
                          double add, double least, struct judgement *judgement)
{
    double ours = root_mean_square(&comparison->measure.all);
    double theirs = root_mean_square(&comparison->third.all);
    add_figure(judgement, "RMSE ratio", ratio(ours, fmax(theirs + add, least)), FIGURE_AT_MOST,
               standard->rms_ratio);
}

static void add_small_errors(const struct comparison *comparison, struct judgement *judgement)
{
    double theirs = fmax((double)comparison->third.small_errors, 1);
    add_figure(judgement, "small-value errors ratio",
               (double)comparison->measure.small_errors / theirs, FIGURE_AT_MOST, 2);
}

static void judge_commercial(const struct standard *standard, const struct comparison *comparison,
                             struct judgement *judgement)
{
    const struct measure *measure = &comparison->measure;
    /* Relative errors where the golden value is not small. The root mean square, which has no
     * trouble with small values, over all: else two of them could be as wrong as they like. */
    add_relative_ratios(standard, &measure->normal, &comparison->third.normal, 1e-7, 0, judgement);
    bool normal_passed = judgement->passed;
    add_rms_ratio(standard, comparison, 1e-7, 0, judgement);
    add_small_errors(comparison, judgement);
    add_figure(judgement, "MARE", measure->normal.relative.size, FIGURE_INFORMS, 0);
    add_figure(judgement, "MARE of third party", comparison->third.normal.relative.size,
               FIGURE_INFORMS, 0);
    add_figure(judgement, "NaN or Inf misplaced by third party",
               (double)comparison->third.misplaced, FIGURE_INFORMS, 0);
    if (normal_passed)
        set_worst(judgement, &measure->small_error);
    set_worst(judgement, &measure->normal.relative);
}

static void judge_ecosystem_2026_04(const struct comparison *comparison,
                                    struct judgement *judgement)
{
    const struct error_sums *all = &comparison->measure.all;
    double threshold = judge_limits(comparison->type)->relative_threshold;
    add_figure(judgement, "MERE", mean(all->relative_sum, all->count), FIGURE_BELOW, threshold);
    add_figure(judgement, "MARE", all->relative.size, FIGURE_BELOW, 10 * threshold);
    set_worst(judgement, &all->relative);
}

static void judge_ecosystem_2026_07(const struct comparison *comparison,
                                    struct judgement *judgement)
{
    const struct measure *measure = &comparison->measure;
    double matched = measure->finite == 0 ? 1
                                          : (double)(measure->finite - measure->intolerant) /
                                                (double)measure->finite;
    double limit = judge_limits(comparison->type)->absolute_limit;
    double ulps = 32 * unit_in_last_place(comparison->type, measure->golden_at_absolute);
    add_figure(judgement, "matched ratio", matched, FIGURE_AT_LEAST, 0.99);
    add_figure(judgement, "largest absolute error", measure->absolute.size, FIGURE_AT_MOST,
               fmax(limit, ulps));
    add_figure(judgement, "elements outside tolerance", (double)measure->intolerant, FIGURE_INFORMS,
               0);
    if (measure->absolute.size > fmax(limit, ulps))
        set_worst(judgement, &measure->absolute);
    set_worst(judgement, &measure->intolerance);
    set_worst(judgement, &measure->absolute);
}

static void judge_atk_double(const struct standard *standard, const struct comparison *comparison,
                             struct judgement *judgement)
{
    const struct measure *measure = &comparison->measure;
    const struct judge_limits *limits = judge_limits(comparison->type);
    add_relative_ratios(standard, &measure->all, &comparison->third.all, 0, limits->least_error,
                        judgement);
    add_rms_ratio(standard, comparison, 0, limits->least_error, judgement);
    add_figure(judgement, "error balance", fabs(mean(measure->balance, measure->finite)),
               FIGURE_AT_MOST, limits->balance);
    add_small_errors(comparison, judgement);
    add_figure(judgement, "MARE", measure->all.relative.size, FIGURE_INFORMS, 0);
    add_figure(judgement, "MARE of third party", comparison->third.all.relative.size,
               FIGURE_INFORMS, 0);
    add_figure(judgement, "NaN or Inf misplaced by third party",
               (double)comparison->third.misplaced, FIGURE_INFORMS, 0);
    set_worst(judgement, &measure->all.relative);
}

static double cosine(const struct measure *measure)
{
    if (measure->squares == 0 && measure->golden_squares == 0)
        return 1; /* both are all zeros, or there is nothing */
    long double norms = sqrtl(measure->squares) * sqrtl(measure->golden_squares);
    return norms == 0 ? 0 : (double)(measure->dot / norms);
}

static void judge_msprobe(const struct comparison *comparison, struct judgement *judgement)
{
    const struct measure *measure = &comparison->measure;
    double largest = measure->rounded_absolute.size, finite = (double)measure->finite;
    double thousandth = finite == 0 ? 1 : (double)measure->within_thousandth / finite;
    double five = finite == 0 ? 1 : (double)measure->within_five_thousandths / finite;
    add_figure(judgement, "cosine", cosine(measure), FIGURE_AT_LEAST, largest > 0.001 ? 0.99 : 0.9);
    add_figure(judgement, "largest absolute error", largest, FIGURE_AT_MOST, 1);
    add_figure(judgement, "within one thousandth", thousandth, FIGURE_AT_LEAST, 0.6);
    add_figure(judgement, "within five thousandths", five, FIGURE_INFORMS, 0);
    add_figure(judgement, "largest relative error", measure->rounded_relative.size, FIGURE_INFORMS,
               0);
    set_worst(judgement, &measure->rounded_absolute);
}

static void judge_bits(const struct comparison *comparison, struct judgement *judgement)
{
    const struct measure *measure = &comparison->measure;
    add_figure(judgement, "elements with other bits", (double)measure->unequal, FIGURE_AT_MOST, 0);
    if (type_is_float(comparison->type))
        add_figure(judgement, "largest error in ulp", measure->unequal_ulps.size, FIGURE_INFORMS,
                   0);
    set_worst(judgement, &measure->unequal_ulps);
    if (judgement->worst < 0) /* -0 for 0 */
        judgement->worst = measure->first_unequal;
}

static void judge_ulps(const struct standard *standard, const struct comparison *comparison,
                       struct judgement *judgement)
{
    const struct measure *measure = &comparison->measure;
    add_figure(judgement, "largest error in ulp", measure->ulps.size, FIGURE_AT_MOST,
               standard->ulps);
    set_worst(judgement, &measure->ulps);
}

static void judge_integers(const struct measure *measure, struct judgement *judgement)
{
    add_figure(judgement, "elements that differ", (double)measure->wrong_integers, FIGURE_AT_MOST,
               0);
    add_figure(judgement, "largest difference", measure->integer_error.size, FIGURE_INFORMS, 0);
    set_worst(judgement, &measure->integer_error);
}

static void judge_floats(const struct standard *standard, const struct comparison *comparison,
                         struct judgement *judgement)
{
    add_misplaced(judgement, &comparison->measure);
    switch (standard->rule) {
    case RULE_COMMERCIAL:
        judge_commercial(standard, comparison, judgement);
        break;
    case RULE_ECOSYSTEM_2026_04:
        judge_ecosystem_2026_04(comparison, judgement);
        break;
    case RULE_ECOSYSTEM_2026_07:
        judge_ecosystem_2026_07(comparison, judgement);
        break;
    case RULE_ATK_DOUBLE:
        judge_atk_double(standard, comparison, judgement);
        break;
    case RULE_MSPROBE:
        judge_msprobe(comparison, judgement);
        break;
    case RULE_BITS:
        judge_bits(comparison, judgement);
        break;
    case RULE_ULP:
        judge_ulps(standard, comparison, judgement);
        break;
    }
}

void judge_comparison(const struct standard *standard, const struct comparison *comparison,
                      struct judgement *judgement)
{
    *judgement = (struct judgement){.worst = -1};
    snprintf(judgement->problem, sizeof judgement->problem, "%s", comparison->problem);
    if (judgement->problem[0] != '\0')
        return;
    bool floats = type_is_float(comparison->type);
    if (floats && standard->needs_third_party && comparison->third_party == NULL) {
        snprintf(judgement->problem, sizeof judgement->problem,
                 "cannot be judged by %s without a third party", standard->name);
        return;
    }
    judgement->passed = true;
    judgement->elements = comparison->measure.elements;
    if (floats)
        judge_floats(standard, comparison, judgement);
    else if (standard->rule == RULE_BITS)
        judge_bits(comparison, judgement);
    else
        judge_integers(&comparison->measure, judgement);
}

void judge(const struct standard *standard, const DLTensor *actual, const DLTensor *golden,
           const DLTensor *third_party, struct judgement *judgement)
{
    struct comparison comparison;
    judge_compare(actual, golden, third_party, &comparison);
    judge_comparison(standard, &comparison, judgement);
}

const char *figure_relation_sign(enum figure_relation relation)
{
    static const char *const signs[] = {"<=", "<", ">=", ""};
    return signs[relation];
}
