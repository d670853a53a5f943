/* oracle_judge.c - every output beside its golden result, by each standard. See oracle_judge.h. */
#include "oracle_judge.h"

#include <stdio.h>

#include "oracle_golden.h"

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
