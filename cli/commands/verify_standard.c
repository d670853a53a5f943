/* verify_standard.c - the outputs of an operator, judged by published standards. */
#include "verify_standard.h"

#include <stdio.h>
#include <string.h>

#include "cases/case_files.h"
#include "compare/judge_report.h"
#include "oracle/oracle_golden.h"
#include "terminal/options.h"

#define PLACE_SIZE 512

static bool judge_output(const struct oracle_case *oracle, const struct oracle_slots *slots, int i,
                         const struct golden_output *output, const struct standard *standard,
                         report_judged_fn *report, void *context)
{
    struct comparison comparison = {0};
    struct judgement judgement;
    char where[PLACE_SIZE] = "";
    bool comparable = output->problem[0] == '\0';
    if (comparable)
        judge_compare(oracle->output[i], &output->golden, &output->benchmark, &comparison);
    else
        snprintf(comparison.problem, sizeof comparison.problem, "%s", output->problem);
    judge_comparison(standard, &comparison, &judgement);
    if (judgement.worst >= 0)
        golden_describe_place(oracle, slots, i, judgement.worst, where, sizeof where);
    struct judged judged = {.output = output->name,
                            .standard = standard,
                            .comparison = comparable ? &comparison : NULL,
                            .judgement = &judgement,
                            .where = where};
    report(context, &judged);
    return judgement.passed;
}

bool judge_outputs(const struct oracle_case *oracle, const bool wanted[OUTPUTS_MOST],
                   const struct standard *standards, int count, report_judged_fn *report,
                   void *context, bool *passed)
{
    struct oracle_slots slots;
    bool good = oracle_slots_build(oracle, &slots);
    *passed = good;
    for (int i = 0; good && i < OUTPUTS_MOST; i++) {
        struct golden_output output;
        if (!wanted[i])
            continue;
        good = golden_output_make(oracle, &slots, i, &output);
        for (int s = 0; good && output.written && s < count; s++)
            *passed =
                judge_output(oracle, &slots, i, &output, &standards[s], report, context) && *passed;
        golden_output_free(&output);
    }
    oracle_slots_free(&slots);
    return good;
}

/* ---- for verify ------------------------------------------------------------------------------ */

struct verify_report {
    bool quiet;
    const char *last; /* the output whose heading was printed */
    char fault[PLACE_SIZE];
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
