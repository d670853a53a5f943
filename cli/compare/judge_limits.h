/* judge_limits.h - the standards' numbers for each floating-point type. */
#ifndef MOETOKEN_CLI_JUDGE_LIMITS_H
#define MOETOKEN_CLI_JUDGE_LIMITS_H

#include "measure.h"

struct judge_limits {
    struct measure_limits measure;
    double relative_threshold; /* ecosystem-2026-04: MERE below it, MARE below ten times it */
    double absolute_limit;     /* ecosystem-2026-07, or 32 ulp */
    double least_error;        /* atk-double: a third party's error counts as no less */
    double balance;            /* atk-double */
};

/* Of a type that is no floating-point type: those of float32, which nothing uses. */
const struct judge_limits *judge_limits(moetoken_type type);

#endif
