/* oracle.c - see oracle.h. */
#include "oracle.h"

#include <math.h>

/* ---- scores and choice ---------------------------------------------------------------------- */

void gate_scores(const struct gate_problem *problem, const double *logits, long double *scores)
{
    long double sum = 0;
    for (int64_t e = 0; e < problem->experts; e++) {
        const long double power = expl((long double)logits[e]); /* logits are small here */
        sum += power;
        scores[e] = problem->norm == GATE_SOFTMAX   ? power
                    : problem->norm == GATE_SIGMOID ? power / (1 + power)
                                                    : sqrtl(log1pl(power));
    }
    for (int64_t e = 0; e < problem->experts && problem->norm == GATE_SOFTMAX; e++)
        scores[e] /= sum;
}

/* How many of `count` values stand before number i: the larger ones, and equal ones of a lower
 * number. */
static int64_t rank_of(const long double *values, int64_t count, int64_t i)
{
    int64_t rank = 0;
    for (int64_t j = 0; j < count; j++)
        rank += values[j] > values[i] || (values[j] == values[i] && j < i);
    return rank;
}

static long double group_value(const struct gate_problem *problem, const long double *values)
{
    const int64_t size = problem->experts / problem->groups;
    long double best = 0, second = 0;
    for (int64_t e = 0; e < size; e++) {
        best = rank_of(values, size, e) == 0 ? values[e] : best;
        second = rank_of(values, size, e) == 1 ? values[e] : second;
    }
    return problem->best_two ? best + second : best;
}

void gate_choose(const struct gate_problem *problem, const double *logits, const double *bias,
                 int64_t *chosen)
{
    long double values[GATE_EXPERTS_MAX], groups[GATE_EXPERTS_MAX];
    const int64_t size = problem->experts / problem->groups;
    gate_scores(problem, logits, values);
    for (int64_t e = 0; e < problem->experts; e++) {
        values[e] = problem->softmax_after ? (long double)logits[e] : values[e];
        values[e] += bias ? (long double)bias[e] : 0;
    }
    for (int64_t g = 0; g < problem->groups; g++)
        groups[g] = group_value(problem, &values[g * size]);
    for (int64_t e = 0; e < problem->experts && problem->groups > 1; e++)
        if (rank_of(groups, problem->groups, e / size) >= problem->groups_top)
            values[e] = -INFINITY;
    for (int64_t e = 0; e < problem->experts; e++)
        if (rank_of(values, problem->experts, e) < problem->topk)
            chosen[rank_of(values, problem->experts, e)] = e;
}

void gate_weights(const struct gate_problem *problem, const double *logits, const int64_t *chosen,
                  long double *weights)
{
    long double scores[GATE_EXPERTS_MAX], sum = 0;
    gate_scores(problem, logits, scores);
    for (int64_t k = 0; k < problem->topk; k++) {
        weights[k] =
            problem->softmax_after ? expl((long double)logits[chosen[k]]) : scores[chosen[k]];
        sum += weights[k];
    }
    for (int64_t k = 0; k < problem->topk; k++) {
        if (problem->divide || problem->softmax_after)
            weights[k] /= sum + (problem->divide ? (long double)problem->eps : 0);
        weights[k] *= (long double)problem->factor;
    }
}

/* ---- comparison ----------------------------------------------------------------------------- */

/* Bits of the significand, and the exponent of the least subnormal. */
static void type_bits(aclDataType type, int *bits, int *least)
{
    *bits = type == ACL_FLOAT ? 24 : type == ACL_FLOAT16 ? 11 : 8;
    *least = type == ACL_FLOAT ? -149 : type == ACL_FLOAT16 ? -24 : -133;
}

void expect_rounded(aclDataType type, double found, long double exact, const char *what,
                    int64_t place)
{
    int bits, least, exponent;
    type_bits(type, &bits, &least);
    frexpl(exact, &exponent); /* |exact| is in [2^(exponent - 1), 2^exponent) */
    const int unit = exponent - bits > least ? exponent - bits : least;
    const long double allowed = ldexpl(0.5L, unit) + fabsl(exact) * 0x1p-45L;
    if (!(fabsl((long double)found - exact) <= allowed))
        fail_msg("%s: element %lld of type %d is %.17g, expected %.20Lg", what, (long long)place,
                 (int)type, found, exact);
}
