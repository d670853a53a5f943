/* trial.h - one case given to the command, as often as its bits are to be compared, and judged.
 *
 * A problem -> case file; output file filled beforehand -> command -> outputs -> a finding, if
 * there is one. */
#ifndef MOETOKEN_CLI_CONFORM_TRIAL_H
#define MOETOKEN_CLI_CONFORM_TRIAL_H

#include "child.h"
#include "compare/judge.h"
#include "oracle/oracle.h"
#include "problem.h"

#define PATH_SIZE 1024

enum finding_kind {
    FINDING_NONE,
    FINDING_SKIPPED, /* the command said so */
    FINDING_STATUS,
    FINDING_SIGNAL,
    FINDING_TIME,
    FINDING_FILE,      /* no file of tensors */
    FINDING_MISSING,   /* an output that is not there, */
    FINDING_FORM,      /* or has another type or shape */
    FINDING_UNWRITTEN, /* elements that hold what was there before */
    FINDING_VALUES,
    FINDING_REPEAT,  /* other bits the second time */
    FINDING_INTERNAL /* the tool itself failed: no disk, no memory */
};

struct finding {
    enum finding_kind kind;
    int output; /* whose, or -1 */
    char text[1024];
};

/* The exit status by which a command says that it does not take a case. */
#define STATUS_SKIPPED 77

struct trial_settings {
    const char *command; /* with {case} and {out} */
    double seconds;
    int repeats;   /* at least 1 */
    bool contract; /* judge by docs/contract.md, to the bit, or by: */
    struct standard standard;
    bool wanted[OUTPUTS_MOST];
    const char *suffix; /* of files: "safetensors" or "npz" */
};

struct trial {
    const struct trial_settings *settings;
    const struct problem *problem;
    struct layout layout;
    char folder[PATH_SIZE];
    int run; /* number of the run that goes on */
    struct child child;
    struct finding finding;
    bool going;
};

/* Files of the trial's folder: "case", "out0", "golden". */
void trial_path(const struct trial *trial, const char *name, char path[PATH_SIZE + 32]);
/* In single quotes, as the shell reads text; `quoted` has room for four times as much. */
void shell_quote(const char *text, char *quoted, size_t size);
/* The command with the paths in it. false when it is too long. */
bool trial_command(const struct trial_settings *settings, const char *case_path,
                   const char *out_path, char *text, size_t size);

/* Writes the case and starts the command. When `going` is false afterwards, the finding says why.
 * trial_free in any case. */
void trial_begin(struct trial *trial, const struct trial_settings *settings,
                 const struct problem *problem, const char *folder);
/* After its child has ended: judges, and starts the next run or ends the trial (going is false). */
void trial_advance(struct trial *trial);
void trial_free(struct trial *trial);

/* Writes the golden results beside the case. */
bool trial_write_golden(const struct trial *trial, char error[TENSOR_FILE_ERROR_SIZE]);

/* "wrong values in", "no answer in time", ... */
const char *finding_kind_name(enum finding_kind kind);

#endif
