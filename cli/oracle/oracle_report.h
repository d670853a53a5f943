/* oracle_report.h - comparing one element: right or wrong, and how far off in units in the last
 * place. Threads have a report each; they are added up at the end. */
#ifndef MOETOKEN_CLI_ORACLE_REPORT_H
#define MOETOKEN_CLI_ORACLE_REPORT_H

#include "oracle.h"
#include "oracle_sums.h"

/* Same bits wanted. */
void report_bits(struct output_report *report, int64_t place, uint64_t got, uint64_t want);
/* `want` rounded once to the type; NaN for NaN. */
void report_rounded(struct output_report *report, int64_t place, uint64_t got, double want);
/* Any rounding of a number within the bound around an accurate sum. */
void report_sum(struct output_report *report, int64_t place, uint64_t got,
                const struct accurate_sum *sum);
/* "name[2,17] = got, expected want", of the first element that is wrong. */
void report_describe(const struct output_report *report, char *text, size_t size);
/* Adds a thread's report to the whole. */
void report_merge(struct output_report *whole, const struct output_report *part);

#endif
