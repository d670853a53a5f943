/* verify_standard.c - `verify --standard`: prints what oracle_judge.c finds. */
#include "verify_standard.h"

#include <stdio.h>
#include <string.h>

#include "compare/judge_report.h"
#include "terminal/options.h"

struct verify_report {
    bool quiet;
    const char *last; /* the output whose heading was printed */
    char fault[512];
};

static void report_judged(void *context, const struct judged *judged)
{
    struct verify_report *report = context;
    char text[ELEMENT_TEXT_SIZE] = "";
    if (!report->quiet && report->last != judged->output) {
        if (judged->comparison != NULL)
            describe_tensor(judged->comparison->actual, text, sizeof text);
        printf("%s: %s\n", judged->output, text);
        report->last = judged->output;
    }
    if (!report->quiet)
        judgement_print(judged->standard, judged->comparison, judged->judgement, judged->where);
    if (judged->judgement->passed || report->fault[0] != '\0')
        return;
    if (judged->comparison == NULL) {
        snprintf(report->fault, sizeof report->fault, "%s %s", judged->output,
                 judged->judgement->problem);
        return;
    }
    if (judged->judgement->worst >= 0)
        describe_index(judged->comparison->actual, judged->judgement->worst, text, sizeof text);
    snprintf(report->fault, sizeof report->fault, "%s%s fails by %s (%.200s)", judged->output, text,
             judged->standard->name, judged->where);
}

int verify_by_standards(const struct oracle_case *oracle, const bool wanted[OUTPUTS_MOST],
                        const struct standard *standards, int count, bool quiet, const char *path)
{
    struct verify_report report = {.quiet = quiet};
    bool passed;
    if (!quiet)
        for (int i = 0; i < count; i++)
            printf("%s: %s\n", standards[i].name, standards[i].source);
    if (!judge_outputs(oracle, wanted, standards, count, report_judged, &report, &passed)) {
        fprintf(stderr, "moetoken: %s: %s\n", path, oracle->error);
        return EXIT_INPUT;
    }
    if (!quiet)
        printf("verify %s: %s\n", operator_outputs[oracle->operator_kind].name,
               passed ? "passed" : "FAILED");
    fflush(stdout);
    if (!passed)
        fprintf(stderr, "moetoken: %s: %s\n", path, report.fault);
    return passed ? EXIT_DONE : EXIT_INPUT;
}
