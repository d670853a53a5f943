/* best_body.h - the best few of many values without a branch that depends on them: compiled once
 * for each instruction set, beside choice.c, which says what is computed and is taken where this is
 * not.
 *
 * Value i belongs to lane i modulo LANES. The least of the lanes' maxima is not above the LANES-th
 * best value, so that only values that reach it can be among the best LANES: a few more than those.
 * Each candidate's place is then the number of candidates that come before it. */
#ifndef MOETOKEN_ROUTER_BEST_BODY_H
#define MOETOKEN_ROUTER_BEST_BODY_H

#include "router/scores/scores_body.h"

#include <math.h>
#include <stdbool.h>
#include <stdint.h>

#define CANDIDATES_MOST 64 /* more are left to choice.c: many values are alike */
#define LANES           SUM_LANES

/* With room for LANES more, which are written and read with the last ones. */
struct candidates {
    int64_t count;
    int64_t index[CANDIDATES_MOST + LANES]; /* ascending */
    double value[CANDIDATES_MOST + LANES];
};

/* NaN reaches nothing. */
static double least_of_maxima(const double *values, int64_t count)
{
    double best[LANES], least = INFINITY;
    maxima_of_lanes(values, count, best);
    for (int l = 0; l < LANES; l++)
        least = best[l] < least ? best[l] : least;
    return least;
}

/* Quotients can be equal where the values are not: what comes so close to the least that it may
 * have its quotient reaches it, too. NaN, which nothing reaches, where that may be more than a few
 * units in the last place. */
static double least_to_divide(double least, double divisor)
{
    if (divisor == 1)
        return least;
    return divisor >= 1 && divisor < INFINITY && least > 0x1p-900 ? least - least * 0x1p-50 : NAN;
}

/* Bit l is set where values[l] reaches `least`, l < LANES. */
static inline uint64_t reached_lanes(const double *values, double least)
{
#if defined(__AVX512F__)
    return _mm512_cmp_pd_mask(_mm512_loadu_pd(values), _mm512_set1_pd(least), _CMP_GE_OQ);
#elif defined(__AVX2__)
    __m256d bound = _mm256_set1_pd(least), low = _mm256_loadu_pd(values);
    __m256d high = _mm256_loadu_pd(values + 4);
    return (uint64_t)_mm256_movemask_pd(_mm256_cmp_pd(low, bound, _CMP_GE_OQ)) |
           (uint64_t)_mm256_movemask_pd(_mm256_cmp_pd(high, bound, _CMP_GE_OQ)) << 4;
#else
    uint64_t reached = 0;
    for (int l = 0; l < LANES; l++)
        reached |= (uint64_t)(values[l] >= least) << l;
    return reached;
#endif
}

/* The values that reach `least`, as far as there is room. */
static void collect(const double *values, int64_t count, double least, struct candidates *found)
{
    found->count = 0;
    for (int64_t first = 0; first < count; first += 64) {
        int64_t length = count - first < 64 ? count - first : 64, i = 0;
        uint64_t reached = 0;
        for (; i + LANES <= length; i += LANES)
            reached |= reached_lanes(values + first + i, least) << i;
        for (; i < length; i++)
            reached |= (uint64_t)(values[first + i] >= least) << i;
        if (found->count + __builtin_popcountll(reached) > CANDIDATES_MOST) {
            found->count = CANDIDATES_MOST;
            return;
        }
        for (; reached; reached &= reached - 1) {
            int64_t index = first + __builtin_ctzll(reached);
            found->index[found->count] = index;
            found->value[found->count++] = values[index];
        }
    }
}

#if defined(__AVX512F__)
/* How many of eight values come before each of own: those that `compare` says. */
#define COUNT_BEFORE(before, eight, compare)                                                       \
    for (int l = 0; l < LANES; l++) {                                                              \
        __m512d other = _mm512_set1_pd((eight)[l]);                                                \
        (before) = _mm512_mask_add_epi64((before), (compare), (before), _mm512_set1_epi64(1));     \
    }
#endif

/* The places of the candidates: how many come before each. Of equal ones the lower number comes
 * before. */
static void find_places(const struct candidates *found, int64_t *place)
{
    const double *value = found->value;
#if defined(__AVX512F__)
    for (int64_t at = 0; at < found->count; at += LANES) {
        __m512d own = _mm512_loadu_pd(value + at);
        __m512i before = _mm512_setzero_si512();
        for (int64_t i = 0; i < at; i += LANES)
            COUNT_BEFORE(before, value + i, _mm512_cmp_pd_mask(other, own, _CMP_GE_OQ))
        COUNT_BEFORE(before, value + at,
                     _mm512_cmp_pd_mask(other, own, _CMP_GT_OQ) |
                         _mm512_mask_cmp_pd_mask((__mmask8)(0xfe << l), other, own, _CMP_EQ_OQ))
        for (int64_t i = at + LANES; i < found->count; i += LANES)
            COUNT_BEFORE(before, value + i, _mm512_cmp_pd_mask(other, own, _CMP_GT_OQ))
        _mm512_storeu_si512(place + at, before);
    }
#else
    const vector_of_double zero = {0}; /* less it, a number is itself, in every lane */
    for (int64_t at = 0; at < found->count; at += VECTOR_LANES) {
        vector_of_double own;
        vector_of_bits number = {0}, before = {0};
        memcpy(&own, value + at, sizeof own);
        for (int l = 0; l < VECTOR_LANES; l++)
            number[l] = at + l;
        /* a mask is -1; of equal ones the lower number comes before */
        for (int64_t i = 0; i < at; i++)
            before -= (value[i] - zero) >= own;
        for (int64_t i = at; i < at + VECTOR_LANES; i++) {
            vector_of_double other = (value[i] - zero);
            before -= (other > own) | ((other == own) & (i < number));
        }
        for (int64_t i = at + VECTOR_LANES; i < found->count; i++)
            before -= (value[i] - zero) > own;
        memcpy(place + at, &before, sizeof before);
    }
#endif
}

/* chosen[0, topk) = the best of values[0, count) / divisor, as moetoken_best_of has it; false: not
 * found. */
static bool best(const double *values, int64_t count, double divisor, int64_t topk, int64_t *chosen)
{
    struct candidates found;
    int64_t order[CANDIDATES_MOST + LANES], place[CANDIDATES_MOST + LANES];
    if (topk > LANES || count < 2 * LANES)
        return false;
    collect(values, count, least_to_divide(least_of_maxima(values, count), divisor), &found);
    if (found.count < topk || found.count >= CANDIDATES_MOST)
        return false;
    for (int l = 0; l < LANES; l++) /* come last */
        found.value[found.count + l] = -INFINITY;
    found.count = (found.count + LANES - 1) / LANES * LANES;
    if (divisor != 1)
        divide(found.value, found.count, divisor, 1);
    find_places(&found, place);
    for (int64_t i = 0; i < found.count; i++)
        order[place[i]] = found.index[i];
    for (int64_t k = 0; k < topk; k++)
        chosen[k] = order[k];
    return true;
}

/* The sum of the two best of the values, best first; NaN where that is left to choice.c. */
static double best_two(const double *values, int64_t count)
{
    double first = -INFINITY, second = -INFINITY;
    for (int64_t i = 0; i < count; i++) {
        double value = values[i], less = value > first ? first : value;
        first = value > first ? value : first;
        second = less > second ? less : second;
    }
    return second > -INFINITY ? first + second : NAN;
}

#endif
