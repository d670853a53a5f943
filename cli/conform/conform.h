/* conform.h - a suite of cases given to a command, several at a time: what each of them came to,
 * which kinds of failure there are, and the smallest case of each kind.
 *
 * Suite -> trials -> results -> kinds -> shrunk cases in a folder; conform_report.c prints it. */
#ifndef MOETOKEN_CLI_CONFORM_CONFORM_H
#define MOETOKEN_CLI_CONFORM_CONFORM_H

#include "suite.h"
#include "trial.h"

#define KINDS_MOST 12 /* kinds of failure that are shrunk; further ones are counted */

struct result {
    bool tried;
    struct finding finding;
    uint64_t properties;
    int64_t size; /* elements of a token-like tensor: to begin with the smallest */
};

/* Failures alike: the same finding about the same output in the same mode. */
struct failure_kind {
    enum finding_kind kind;
    int output;
    enum routing_mode mode;
    int64_t count, first, smallest; /* numbers of cases */
    struct finding finding;         /* of the shrunk case */
    char smallest_case[256];        /* in words */
    char folder[PATH_SIZE];         /* where it is kept, or "" */
    int64_t tries;
};

struct conform {
    struct suite suite;
    struct trial_settings trial;
    int jobs;
    int64_t shrink_tries; /* commands run for each kind of failure */
    const char *keep;     /* where shrunk cases go */
    const char *standard_name;

    char folder[PATH_SIZE - 64]; /* temporary */
    struct result *results;      /* [cases] */
    struct failure_kind kinds[KINDS_MOST];
    int kinds_count;
    int64_t more_kinds; /* cases that failed in none of these ways */
    int interrupted;    /* the signal, or 0 */
    char problem[512];  /* why the suite could not be run, or "" */
};

/* Runs all cases. false: `problem` or `interrupted` says why not. */
bool conform_run(struct conform *conform);
/* Shrinks and keeps the smallest case of each kind. */
bool conform_shrink(struct conform *conform);
/* Removes the temporary folder; frees. */
void conform_end(struct conform *conform);

/* One line for each case. */
void conform_list(const struct suite *suite);
/* The table and the kinds. */
void conform_print(const struct conform *conform, double seconds);

#endif
