/* bench_report.h - what `moetoken bench` prints: a table, or one JSON object. */
#ifndef MOETOKEN_CLI_BENCH_REPORT_H
#define MOETOKEN_CLI_BENCH_REPORT_H

#include "bench_measure.h"
#include "bench_verify.h"

/* Percents whose geometric mean is wanted. */
struct percent_group {
    int count;
    double log_sum, row_copy_log_sum, least;
    char least_name[64];
};

struct bench_report {
    bool json, scaling, details; /* details: a second line for each case of the table */
    int count;
    struct percent_group all;             /* of 4096 tokens */
    struct percent_group groups[4][2][2]; /* of them, by moetoken_type, probs, drop_and_pad */
    struct measure one_thread;            /* scaling: what more threads are compared with */
};

/* Everything known about a case when it is reported. */
struct bench_result {
    const struct bench_case *bench;
    const char *name;
    bool huge_pages;
    struct measures measures;
    struct first_call first;
};

void bench_report_begin(struct bench_report *report, bool json, bool details,
                        const moetoken_options *options);
void bench_report_case(struct bench_report *report, const struct bench_result *result);
/* The cases that follow are one, with one thread and then more; they do not count for the means. */
void bench_report_scaling(struct bench_report *report);
void bench_report_end(struct bench_report *report);

#endif
