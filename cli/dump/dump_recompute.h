/* dump_recompute.h - a call of the family out of a dump, recomputed and judged.
 *
 * dump_calls.h gives arguments and results; here they get the names that the oracle knows
 * (dump_family.c), each result is computed again and judged by each standard. */
#ifndef MOETOKEN_CLI_DUMP_RECOMPUTE_H
#define MOETOKEN_CLI_DUMP_RECOMPUTE_H

#include "dump_calls.h"
#include "oracle/oracle_judge.h"

/* What is said of one result of a call. judged is NULL where it was not checked: `problem` says
 * why. */
struct dump_result {
    const char *call;  /* "NPU.npu_moe_token_unpermute.0.forward" */
    const char *which; /* "output.0" */
    const char *name;  /* the operator's name of it */
    const char *problem;
    const struct judged *judged;
};
typedef void dump_report_fn(void *context, const struct dump_result *result);

struct dump_judging {
    const struct standard *standards;
    int standards_count;
    dump_report_fn *report;
    void *context;
};

/* Whether the function is one of the family. */
bool dump_is_known(const struct dump_call *call);
/* Reports each result of the call that is in the dump. */
void dump_recompute(const struct dump *dump, const struct dump_call *call,
                    const struct dump_judging *judging);

#endif
