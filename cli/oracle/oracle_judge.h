/* oracle_judge.h - the outputs of an operator, judged by published standards: golden result and
 * third party are computed here (oracle_golden.h), so that nobody needs to have them. */
#ifndef MOETOKEN_CLI_ORACLE_JUDGE_H
#define MOETOKEN_CLI_ORACLE_JUDGE_H

#include "compare/judge.h"
#include "oracle.h"

/* What is done with a judged output. comparison is NULL where judgement.problem says why. */
struct judged {
    const char *output; /* the operator's name of it */
    const struct standard *standard;
    const struct comparison *comparison;
    const struct judgement *judgement;
    const char *where; /* token, slot, expert and row of the worst element, or "" */
};
typedef void report_judged_fn(void *context, const struct judged *judged);

/* Judges every wanted output that the operator writes, by each standard. false with a reason in
 * oracle->error when it could not be done; else *passed says whether all passed. */
bool judge_outputs(const struct oracle_case *oracle, const bool wanted[OUTPUTS_MOST],
                   const struct standard *standards, int count, report_judged_fn *report,
                   void *context, bool *passed);

#endif
