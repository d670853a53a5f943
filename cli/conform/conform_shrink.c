/* conform_shrink.c - sorts failures into kinds, shrinks one of each and keeps it in a folder. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "conform.h"
#include "shrink.h"
#include "trial_judge.h"

/* ---- kinds ----------------------------------------------------------------------------------- */

static bool is_failure(const struct result *result)
{
    return result->tried && result->finding.kind > FINDING_SKIPPED &&
           result->finding.kind != FINDING_INTERNAL;
}

static enum routing_mode mode_of(const struct result *result)
{
    /* The first properties are the modes. */
    return result->properties & 1 ? MODE_DROPLESS : result->properties & 2 ? MODE_PADDED : MODE_IDS;
}

static struct failure_kind *find_kind(struct conform *conform, const struct result *result)
{
    for (int i = 0; i < conform->kinds_count; i++) {
        struct failure_kind *kind = &conform->kinds[i];
        if (kind->kind == result->finding.kind && kind->output == result->finding.output &&
            kind->mode == mode_of(result))
            return kind;
    }
    return NULL;
}

static void sort_failures(struct conform *conform)
{
    for (int64_t i = 0; i < conform->suite.cases; i++) {
        const struct result *result = &conform->results[i];
        if (!is_failure(result))
            continue;
        struct failure_kind *kind = find_kind(conform, result);
        if (kind == NULL && conform->kinds_count < KINDS_MOST) {
            kind = &conform->kinds[conform->kinds_count++];
            *kind = (struct failure_kind){.kind = result->finding.kind,
                                          .output = result->finding.output,
                                          .mode = mode_of(result),
                                          .first = i,
                                          .smallest = i};
        }
        if (kind == NULL) {
            conform->more_kinds++;
            continue;
        }
        kind->count++;
        if (result->size < conform->results[kind->smallest].size)
            kind->smallest = i;
    }
}

/* ---- shrinking ------------------------------------------------------------------------------- */

struct attempts {
    struct conform *conform;
    struct failure_kind *kind;
    struct trial_settings settings;
    struct progress *progress;
    char folder[PATH_SIZE];
};

/* Runs the trial to its end. */
static void finish_trial(struct attempts *attempts, struct trial *trial)
{
    struct child *const child = &trial->child;
    while (trial->going) {
        attempts->conform->interrupted = children_wait(&child, 1);
        if (attempts->conform->interrupted != 0)
            return;
        attempts->kind->tries++;
        progress_add(attempts->progress, 1);
        trial_advance(trial);
    }
}

static enum shrink_answer attempt(void *context, const struct problem *problem)
{
    struct attempts *attempts = context;
    struct trial trial;
    if (attempts->conform->interrupted != 0 ||
        attempts->kind->tries >= attempts->conform->shrink_tries)
        return SHRINK_STOP;
    trial_begin(&trial, &attempts->settings, problem, attempts->folder);
    finish_trial(attempts, &trial);
    struct finding found = trial.finding;
    trial_free(&trial);
    if (attempts->conform->interrupted != 0)
        return SHRINK_STOP;
    return found.kind == attempts->kind->kind && found.output == attempts->kind->output
               ? SHRINK_FAILS
               : SHRINK_PASSES;
}

/* ---- keeping --------------------------------------------------------------------------------- */

/* "3-wrong-values-probs_grad-dropless" */
static void name_folder(const struct conform *conform, int number, char *name, size_t size)
{
    static const char *const modes[] = {"dropless", "padded", "ids"};
    const struct failure_kind *kind = &conform->kinds[number];
    const char *output = kind->output < 0
                             ? ""
                             : operator_outputs[conform->suite.operator_kind].outputs[kind->output];
    snprintf(name, size, "%s/%d-%s%s%s-%s", conform->keep, number + 1,
             finding_kind_name(kind->kind), output[0] ? "-" : "", output, modes[kind->mode]);
    for (char *c = name + strlen(conform->keep); *c != '\0'; c++)
        if (*c == ' ')
            *c = '-';
}

static bool make_folders(const char *path)
{
    char part[PATH_SIZE];
    for (size_t i = 1; i <= strlen(path) && i < sizeof part; i++) {
        if (path[i] != '/' && path[i] != '\0')
            continue;
        snprintf(part, sizeof part, "%.*s", (int)i, path);
        if (mkdir(part, 0777) != 0 && errno != EEXIST)
            return false;
    }
    return true;
}

/* What judges the command's outputs again. */
static void print_judge(const struct conform *conform, const struct failure_kind *kind,
                        const char *input, const char *out, FILE *script)
{
    const char *name = operator_outputs[conform->suite.operator_kind].name;
    char golden[PATH_SIZE + 32], quoted[4 * PATH_SIZE];
    snprintf(golden, sizeof golden, "%s/golden.%s", kind->folder, conform->trial.suffix);
    shell_quote(golden, quoted, sizeof quoted);
    if (conform->trial.contract)
        fprintf(script, "exec moetoken verify --operator %s %s %s\n", name, input, out);
    else if (conform->trial.standard.needs_third_party)
        fprintf(script, "exec moetoken verify --operator %s --standard %s %s %s\n", name,
                conform->standard_name, input, out);
    else
        fprintf(script, "exec moetoken compare --standard %s %s %s\n", conform->standard_name, out,
                quoted);
}

static bool write_script(const struct conform *conform, const struct failure_kind *kind,
                         const struct trial *trial)
{
    char path[PATH_SIZE + 32], here[PATH_SIZE], out[PATH_SIZE + 32], input[PATH_SIZE + 32];
    char command[16384], quoted_here[4 * PATH_SIZE], quoted_out[4 * PATH_SIZE],
        quoted_input[4 * PATH_SIZE], quoted_blank[4 * PATH_SIZE], blank[PATH_SIZE + 32],
        error[TENSOR_FILE_ERROR_SIZE];
    snprintf(path, sizeof path, "%s/reproduce.sh", kind->folder);
    trial_path(trial, "case", input);
    trial_path(trial, "out", out);
    trial_path(trial, "blank", blank);
    if (!trial_write_blank(trial, blank, 0, error))
        return false;
    if (getcwd(here, sizeof here) == NULL ||
        !trial_command(trial->settings, input, out, command, sizeof command))
        return false;
    FILE *script = fopen(path, "w");
    if (script == NULL)
        return false;
    shell_quote(here, quoted_here, sizeof quoted_here);
    shell_quote(blank, quoted_blank, sizeof quoted_blank);
    shell_quote(out, quoted_out, sizeof quoted_out);
    shell_quote(input, quoted_input, sizeof quoted_input);
    fprintf(script, "#!/bin/sh\n# %s, in %lld cases; seed %llu, case %lld.\n",
            finding_kind_name(kind->kind), (long long)kind->count,
            (unsigned long long)conform->suite.seed, (long long)kind->smallest);
    fprintf(script, "cp %s %s && cd %s || exit\n%s || exit\n", quoted_blank, quoted_out,
            quoted_here, command);
    print_judge(conform, kind, quoted_input, quoted_out, script);
    return fclose(script) == 0;
}

/* The shrunk case once more, in the folder where it stays. */
static bool keep_case(struct attempts *attempts, int number, const struct problem *problem)
{
    struct conform *conform = attempts->conform;
    struct failure_kind *kind = attempts->kind;
    char error[TENSOR_FILE_ERROR_SIZE], path[PATH_SIZE], absolute[PATH_SIZE];
    struct trial trial;
    name_folder(conform, number, path, sizeof path);
    if (!make_folders(path) || realpath(path, absolute) == NULL) {
        snprintf(conform->problem, sizeof conform->problem, "%.400s: cannot be made: %s", path,
                 strerror(errno));
        return false;
    }
    snprintf(kind->folder, sizeof kind->folder, "%s", absolute);
    trial_begin(&trial, &attempts->settings, problem, kind->folder);
    finish_trial(attempts, &trial);
    if (trial.finding.kind != FINDING_NONE)
        kind->finding = trial.finding;
    problem_describe(problem, &trial.layout, kind->smallest_case, sizeof kind->smallest_case);
    bool good = trial_write_golden(&trial, error) && write_script(conform, kind, &trial);
    if (!good)
        snprintf(conform->problem, sizeof conform->problem, "%.400s: could not be written", path);
    trial_free(&trial);
    return good;
}

static bool shrink_kind(struct conform *conform, int number, struct progress *progress)
{
    struct failure_kind *kind = &conform->kinds[number];
    struct attempts attempts = {
        .conform = conform, .kind = kind, .settings = conform->trial, .progress = progress};
    struct problem problem;
    if (kind->kind != FINDING_REPEAT)
        attempts.settings.repeats = 1;
    else if (attempts.settings.repeats < 2)
        attempts.settings.repeats = 2;
    snprintf(attempts.folder, sizeof attempts.folder, "%s/0", conform->folder);
    if (!suite_problem(&conform->suite, kind->smallest, &problem)) {
        snprintf(conform->problem, sizeof conform->problem, "no memory for a case");
        return false;
    }
    kind->finding = conform->results[kind->smallest].finding;
    shrink(&problem, attempt, &attempts);
    bool good = conform->interrupted == 0 && keep_case(&attempts, number, &problem);
    problem_free(&problem);
    return good && conform->interrupted == 0;
}

bool conform_shrink(struct conform *conform)
{
    struct progress progress = {0};
    bool good = true;
    sort_failures(conform);
    if (conform->kinds_count == 0)
        return true;
    progress_begin(&progress, "conform: shrinking", 0);
    for (int i = 0; good && i < conform->kinds_count; i++)
        good = shrink_kind(conform, i, &progress);
    progress_end(&progress);
    return good;
}
