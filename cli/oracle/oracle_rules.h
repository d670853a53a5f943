/* oracle_rules.h - what each output of an operator looks like: for what compares it with OUT
 * (oracle.c) and what computes it (oracle_golden.c). */
#ifndef MOETOKEN_CLI_ORACLE_RULES_H
#define MOETOKEN_CLI_ORACLE_RULES_H

#include "oracle.h"

struct job;
typedef void check_row_fn(struct job *job, int64_t row);

struct output_rule {
    const DLTensor *like; /* has its type */
    int ndim;
    int64_t shape[2];
    check_row_fn *check_row;
};

/* The rule of output i; false when the operator does not write it in this case. */
bool oracle_find_rule(const struct oracle_case *oracle, int i, struct output_rule *rule);
/* Whether the output can be what the rule says; else `problem` says what is wrong with it. */
bool oracle_check_output(const struct output_rule *rule, const DLTensor *output, char *problem,
                         size_t size);

#endif
