/* standards.h - the published rules by which a result is judged, by name: "ecosystem-2026-07".
 *
 * A name says which rule and, where it was published with a date, which edition: editions
 * contradict each other, so there is no name without one for them. */
#ifndef MOETOKEN_CLI_STANDARDS_H
#define MOETOKEN_CLI_STANDARDS_H

#include <stdbool.h>
#include <stddef.h>

enum standard_rule {
    RULE_COMMERCIAL,        /* errors against those of a third party */
    RULE_ECOSYSTEM_2026_04, /* relative errors */
    RULE_ECOSYSTEM_2026_07, /* mixed tolerance */
    RULE_ATK_DOUBLE,        /* errors against those of a third party, and their balance */
    RULE_MSPROBE,           /* cosine and absolute error */
    RULE_BITS,              /* the very bits */
    RULE_ULP                /* units in the last place */
};

struct standard {
    char name[32];
    enum standard_rule rule;
    bool needs_third_party;
    double maximum_ratio, mean_ratio, rms_ratio; /* RULE_COMMERCIAL, RULE_ATK_DOUBLE */
    double ulps;                                 /* RULE_ULP */
    const char *source;                          /* where and when it was published */
    const char *explanation;                     /* lines for --standard list */
};

#define STANDARDS_MOST       16
#define STANDARDS_ERROR_SIZE 160

/* One standard by its name. false when there is none of that name. */
bool standard_find(const char *name, size_t length, struct standard *standard);
/* A list of names, "bits,ulp:2". false with the reason in error[STANDARDS_ERROR_SIZE]. */
bool standards_parse(const char *names, struct standard standards[STANDARDS_MOST], int *count,
                     char *error);
/* All of them with their explanations, on standard output. */
void standards_print(void);

#endif
