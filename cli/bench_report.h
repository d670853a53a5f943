/* bench_report.h - what `moetoken bench` prints: a table, or one JSON object. */
#ifndef MOETOKEN_CLI_BENCH_REPORT_H
#define MOETOKEN_CLI_BENCH_REPORT_H

#include "bench_measure.h"

struct bench_report {
    bool json, scaling;
    int count;
    double log_sum; /* of the percents at 4096 tokens */
    int log_count;
};

void bench_report_begin(struct bench_report *report, bool json, const moetoken_options *options);
void bench_report_case(struct bench_report *report, const struct bench_case *bench,
                       const char *name, bool huge_pages, const struct measures *measures);
/* The cases that follow are one, with growing numbers of threads; they do not count for the mean.
 */
void bench_report_scaling(struct bench_report *report);
void bench_report_end(struct bench_report *report);

#endif
