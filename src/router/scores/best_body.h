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

/* NaN reaches nothing. */
static double least_of_maxima(const double *values, int64_t count)
{
    double best[LANES], least = INFINITY;
    maxima_of_lanes(values, count, best);
    for (int l = 0; l < LANES; l++)
        least = best[l] < least ? best[l] : least;
    return least;
}

/* The indices of the values that reach `least`, ascending; how many, as far as there is room. */
static int64_t collect(const double *values, int64_t count, double least, int64_t *index)
{
    int64_t found = 0;
    for (int64_t i = 0; i < count && found < CANDIDATES_MOST; i++) {
        index[found] = i;
        found += values[i] >= least;
    }
    return found;
}

/* The places of a vector of candidates, from number `first` on, among all `found`: how many come
 * before each. */
static inline void find_places(const double *reached, int64_t found, int64_t first, int64_t *place)
{
    const vector_of_double zero = {0}; /* less it, a number is itself, in every lane */
    vector_of_double own;
    vector_of_bits number = {0}, before = {0};
    memcpy(&own, reached + first, sizeof own);
    for (int l = 0; l < VECTOR_LANES; l++)
        number[l] = first + l;
    /* a mask is -1; of equal ones the lower number comes before */
    for (int64_t i = 0; i < first; i++)
        before -= (reached[i] - zero) >= own;
    for (int64_t i = first; i < first + VECTOR_LANES; i++) {
        vector_of_double other = (reached[i] - zero);
        before -= (other > own) | ((other == own) & (i < number));
    }
    for (int64_t i = first + VECTOR_LANES; i < found; i++)
        before -= (reached[i] - zero) > own;
    memcpy(place, &before, sizeof before);
}

/* chosen[0, topk) = the best of values[0, count), as moetoken_best_of has it; false: not found. */
static bool best(const double *values, int64_t count, int64_t topk, int64_t *chosen)
{
    double reached[CANDIDATES_MOST + LANES];
    int64_t index[CANDIDATES_MOST + LANES], order[CANDIDATES_MOST + LANES];
    int64_t place[CANDIDATES_MOST + LANES];
    if (topk > LANES || count < 2 * LANES)
        return false;
    int64_t found = collect(values, count, least_of_maxima(values, count), index);
    if (found < topk || found == CANDIDATES_MOST)
        return false;
    for (int64_t i = 0; i < found; i++)
        reached[i] = values[index[i]];
    for (int64_t i = found; i < found + LANES; i++)
        reached[i] = NAN; /* of no account, but read */
    for (int64_t i = 0; i < found; i += VECTOR_LANES)
        find_places(reached, found, i, place + i);
    for (int64_t i = 0; i < found; i++)
        order[place[i]] = index[i];
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
