/* scores_body.h - the router's kernels, compiled once for each instruction set: included by
 * scores_scalar.c, the specification, and by its variants. */
#ifndef MOETOKEN_ROUTER_SCORES_BODY_H
#define MOETOKEN_ROUTER_SCORES_BODY_H

#include "router/scores/elementary.h"
#include "router/scores/scores.h"
#include "router/scores/sums.h"
#include "router/scores/vectors.h"

#include "rows/formats.h"

#include <math.h>

static void load(moetoken_type type, const char *from, int64_t stride, int64_t count, double *to)
{
    float single;
    if (type == MOETOKEN_F32 && stride == (int64_t)sizeof single) {
        for (int64_t i = 0; i < count; i++) {
            memcpy(&single, from + i * (int64_t)sizeof single, sizeof single);
            to[i] = (double)single;
        }
        return;
    }
    for (int64_t i = 0; i < count; i++)
        to[i] = element_load((int)type, from + i * stride);
}

static void store(moetoken_type type, const double *from, int64_t count, char *to, int64_t stride)
{
    if (type == MOETOKEN_F32 && stride == (int64_t)sizeof(float)) {
        for (int64_t i = 0; i < count; i++) {
            float single = (float)from[i];
            uint32_t bits;
            memcpy(&bits, &single, sizeof bits);
            bits = single == single ? bits : 0x7fc00000u;
            memcpy(to + i * (int64_t)sizeof bits, &bits, sizeof bits);
        }
        return;
    }
    for (int64_t i = 0; i < count; i++)
        element_store((int)type, to + i * stride, from[i]);
}

/* best[l] = the largest of the values i with i modulo SUM_LANES = l, in whole rows; NaN is passed
 * over. Returns how many values these are. */
static int64_t maxima_of_lanes(const double *values, int64_t count, double best[SUM_LANES])
{
    int64_t i = 0;
#ifdef MOETOKEN_PLAIN_LANES
    for (int l = 0; l < SUM_LANES; l++)
        best[l] = -INFINITY;
    for (; i + SUM_LANES <= count; i += SUM_LANES)
        for (int l = 0; l < SUM_LANES; l++)
            best[l] = values[i + l] > best[l] ? values[i + l] : best[l];
#else
    vector_of_double most[VECTORS];
    for (int v = 0; v < VECTORS; v++)
        most[v] = (vector_of_double){0} - INFINITY;
    for (; i + SUM_LANES <= count; i += SUM_LANES)
        for (int v = 0; v < VECTORS; v++) {
            vector_of_double value;
            memcpy(&value, values + i + v * VECTOR_LANES, sizeof value);
            vector_of_bits larger = value > most[v];
            most[v] = (vector_of_double)(((vector_of_bits)value & larger) |
                                         ((vector_of_bits)most[v] & ~larger));
        }
    memcpy(best, most, sizeof most);
#endif
    return i;
}

/* NaN is passed over; -inf when there is nothing else. */
static double maximum(const double *values, int64_t count)
{
    double best[SUM_LANES], all = -INFINITY;
    for (int64_t i = maxima_of_lanes(values, count, best); i < count; i++)
        all = values[i] > all ? values[i] : all;
    for (int l = 0; l < SUM_LANES; l++)
        all = best[l] > all ? best[l] : all;
    return all;
}

/* scores = exp(logits - most); returns their sum. */
static double exps_below(const double *logits, int64_t count, double most, double *scores)
{
    int64_t i = 0;
#ifndef MOETOKEN_PLAIN_LANES
    for (; i + IN_TURNS * VECTOR_LANES <= count; i += IN_TURNS * VECTOR_LANES)
        exps_of_differences(logits + i, most, scores + i);
#endif
    for (; i < count; i++) {
        double low, high = difference(logits[i], most, &low);
        scores[i] = exp_of_sum(high, low);
    }
    return sum_of(scores, count);
}

static double exps(const double *logits, int64_t count, double *scores)
{
    return exps_below(logits, count, maximum(logits, count), scores);
}

static void divide(double *values, int64_t count, double divisor, double scale)
{
    for (int64_t i = 0; i < count; i++)
        values[i] = values[i] / divisor * scale;
}

static void scale(double *values, int64_t count, double factor)
{
    for (int64_t i = 0; i < count; i++)
        values[i] = values[i] * factor;
}

static void softmax(const double *logits, int64_t count, double *scores, double *log_sum)
{
    double most = maximum(logits, count), sum = exps_below(logits, count, most, scores);
    divide(scores, count, sum, 1);
    if (log_sum) /* NaN stays; -inf of no logits */
        *log_sum = sum >= 1 ? most + log_of_sum(sum, 0) : most + sum;
}

/* Three loops, for compilers to make vectors of; between them scores hold exp(-|logit|). */
static void sigmoid(const double *logits, int64_t count, double *scores, double *rests)
{
    for (int64_t i = 0; i < count; i++) {
        double x = logits[i];
        scores[i] = exp_of_sum(x < 0 ? x : -x, 0);
    }
    for (int64_t i = 0; i < count && rests; i++)
        rests[i] = (logits[i] < 0 ? 1.0 : scores[i]) / (1.0 + scores[i]);
    for (int64_t i = 0; i < count; i++)
        scores[i] = (logits[i] < 0 ? scores[i] : 1.0) / (1.0 + scores[i]);
}

static void sqrtsoftplus(const double *logits, int64_t count, double *scores)
{
    for (int64_t i = 0; i < count; i++) {
        double x = logits[i];
        double softplus = log_of_one_plus(exp_of_sum(x < 0 ? x : -x, 0));
        softplus = x > 0 ? x + softplus : softplus;
        scores[i] = sqrt(softplus);
    }
}

static void softmax_grad(const double *scores, int64_t count, double *grads)
{
    double mean = sum_of_products(scores, grads, count);
    for (int64_t i = 0; i < count; i++)
        grads[i] = scores[i] * (grads[i] - mean);
}

#endif
