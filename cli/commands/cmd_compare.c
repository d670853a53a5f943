/* cmd_compare.c - `moetoken compare`: any two sets of tensors, judged by published standards.
 * Files -> pairs by name -> judge (compare/) -> figures beside limits, a verdict. */
#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "cases/case_files.h"
#include "commands.h"
#include "compare/judge.h"
#include "compare/judge_report.h"
#include "terminal/json.h"
#include "values/number_formats.h"

struct compare_settings {
    const char *standards, *third_party, *tensors, *shape;
    int type; /* -1: not given */
    bool json, quiet;
};

enum {
    ACTUAL,
    GOLDEN,
    THIRD_PARTY,
    SIDES
};

struct compare_run {
    const struct compare_settings *settings;
    struct standard standards[STANDARDS_MOST];
    int standards_count;
    const char *paths[SIDES];
    struct tensor_file *files[SIDES]; /* the third may be NULL */
    int ndim;                         /* of raw files */
    int64_t shape[TENSOR_FILE_MAX_NDIM];
    int compared, failed; /* tensors */
    char fault[768];      /* the first that failed */
};

#define TYPE_CHOICES "f32|f16|bf16|f64|i32|i64|bool|i8|u8"
static const moetoken_type types[] = {MOETOKEN_F32,  MOETOKEN_F16, MOETOKEN_BF16,
                                      MOETOKEN_F64,  MOETOKEN_I32, MOETOKEN_I64,
                                      MOETOKEN_BOOL, MOETOKEN_I8,  MOETOKEN_U8};

/* ---- files ---------------------------------------------------------------------------------- */

static bool ends_with(const char *text, const char *suffix)
{
    size_t length = strlen(text), end = strlen(suffix);
    return length >= end && strcmp(text + length - end, suffix) == 0;
}

/* "4,8" */
static bool parse_shape(const char *text, struct compare_run *run)
{
    for (run->ndim = 0; run->ndim < TENSOR_FILE_MAX_NDIM;) {
        char *end;
        errno = 0;
        if (!isdigit((unsigned char)*text))
            return false;
        long long size = strtoll(text, &end, 10);
        if (errno != 0)
            return false;
        run->shape[run->ndim++] = size;
        if (*end == '\0')
            return true;
        if (*end != ',')
            return false;
        text = end + 1;
    }
    return false;
}

static int check_raw_options(struct compare_run *run)
{
    const struct compare_settings *settings = run->settings;
    bool given = settings->type >= 0 && settings->shape != NULL;
    if (settings->shape != NULL && !parse_shape(settings->shape, run))
        return usage_error(&command_compare, "--shape %.60s: expected up to %d sizes, 4,8",
                           settings->shape, TENSOR_FILE_MAX_NDIM);
    for (int side = 0; side < SIDES; side++)
        if (run->paths[side] != NULL && ends_with(run->paths[side], ".bin") && !given)
            return usage_error(&command_compare, "%s: a raw file needs --dtype and --shape",
                               run->paths[side]);
    return EXIT_DONE;
}

static struct tensor_file *open_side(const struct compare_run *run, const char *path, char *error)
{
    if (ends_with(path, ".bin"))
        return tensor_file_open_raw(path, types[run->settings->type], run->ndim, run->shape, error);
    return tensor_file_open(path, error);
}

static bool open_files(struct compare_run *run)
{
    char error[TENSOR_FILE_ERROR_SIZE];
    for (int side = 0; side < SIDES; side++) {
        if (run->paths[side] == NULL)
            continue;
        run->files[side] = open_side(run, run->paths[side], error);
        if (run->files[side] == NULL) {
            report_error(error);
            return false;
        }
    }
    return true;
}

static void close_files(struct compare_run *run)
{
    for (int side = 0; side < SIDES; side++)
        tensor_file_close(run->files[side]);
}

/* ---- pairs ---------------------------------------------------------------------------------- */

/* Whether --tensors asks for it, or is not given. */
static bool is_wanted(const struct compare_run *run, const char *name)
{
    const char *names = run->settings->tensors;
    size_t length = strlen(name);
    if (names == NULL)
        return true;
    for (;;) {
        size_t span = strcspn(names, ",");
        if (span == length && strncmp(names, name, span) == 0)
            return true;
        if (names[span] == '\0')
            return false;
        names += span + 1;
    }
}

/* Two files of one tensor each hold the same one, whatever they call it. */
static bool is_alone(const struct compare_run *run, int side)
{
    return tensor_file_count(run->files[ACTUAL]) == 1 && tensor_file_count(run->files[side]) == 1;
}

/* The tensor of a file that belongs to tensor i of ACTUAL; NULL: there is none. */
static const struct named_tensor *partner(const struct compare_run *run, int side, size_t i)
{
    if (is_alone(run, side))
        return tensor_file_at(run->files[side], 0);
    return tensor_file_named(run->files[side], tensor_file_name(run->files[ACTUAL], i));
}

/* Fills `comparison`, of which only the problem counts when there is one. */
static void compare_tensor(const struct compare_run *run, const struct named_tensor *const *sides,
                           struct comparison *comparison)
{
    static const char *const names[] = {"ACTUAL", "GOLDEN", "the third party"};
    for (int side = 0; side < SIDES; side++) {
        if (run->files[side] == NULL)
            continue;
        const char *problem = sides[side] == NULL ? NULL : sides[side]->problem;
        if (sides[side] != NULL && problem == NULL)
            continue;
        *comparison = (struct comparison){0};
        if (problem != NULL)
            snprintf(comparison->problem, sizeof comparison->problem, "%s", problem);
        else
            snprintf(comparison->problem, sizeof comparison->problem, "is not in %s (%s)",
                     names[side], run->paths[side]);
        return;
    }
    judge_compare(&sides[ACTUAL]->tensor, &sides[GOLDEN]->tensor,
                  sides[THIRD_PARTY] == NULL ? NULL : &sides[THIRD_PARTY]->tensor, comparison);
}

/* ---- printing ------------------------------------------------------------------------------- */

static void print_printable(const char *name)
{
    for (; *name != '\0'; name++)
        putchar((unsigned char)*name < 0x20 || *name == 0x7f ? '?' : *name);
}

static void print_heading(const struct named_tensor *const *sides)
{
    char actual[ELEMENT_TEXT_SIZE], golden[ELEMENT_TEXT_SIZE];
    const struct named_tensor *named = sides[ACTUAL] != NULL ? sides[ACTUAL] : sides[GOLDEN];
    print_printable(named->name);
    if (sides[ACTUAL] != NULL && sides[GOLDEN] != NULL && sides[ACTUAL]->problem == NULL &&
        sides[GOLDEN]->problem == NULL) {
        describe_tensor(&sides[ACTUAL]->tensor, actual, sizeof actual);
        describe_tensor(&sides[GOLDEN]->tensor, golden, sizeof golden);
        printf(": %s against %s", actual, golden);
    }
    printf("\n");
}

static void begin_json(const struct compare_run *run, const struct named_tensor *const *sides)
{
    const struct named_tensor *named = sides[ACTUAL] != NULL ? sides[ACTUAL] : sides[GOLDEN];
    char text[ELEMENT_TEXT_SIZE];
    printf("%s{\"name\": ", run->compared == 0 ? "" : ", ");
    json_text(stdout, named->name);
    for (int side = 0; side < SIDES; side++) {
        static const char *const keys[] = {"actual", "golden", "third_party"};
        if (sides[side] == NULL || sides[side]->problem != NULL)
            continue;
        describe_tensor(&sides[side]->tensor, text, sizeof text);
        printf(", \"%s\": ", keys[side]);
        json_text(stdout, text);
    }
    printf(", \"judgements\": [");
}

static void describe_fault(struct compare_run *run, const struct named_tensor *const *sides,
                           const struct standard *standard, const struct judgement *judgement)
{
    const struct named_tensor *named = sides[ACTUAL] != NULL ? sides[ACTUAL] : sides[GOLDEN];
    char index[ELEMENT_TEXT_SIZE] = "";
    if (judgement->worst >= 0)
        describe_index(&named->tensor, judgement->worst, index, sizeof index);
    snprintf(run->fault, sizeof run->fault, "%.100s%s %s", named->name, index,
             judgement->problem[0] != '\0' ? judgement->problem : "fails by ");
    if (judgement->problem[0] == '\0') {
        size_t length = strlen(run->fault);
        snprintf(run->fault + length, sizeof run->fault - length, "%s", standard->name);
    }
    for (char *at = run->fault; *at != '\0'; at++)
        *at = (unsigned char)*at < 0x20 || *at == 0x7f ? '?' : *at;
}

/* One tensor by all standards. */
static void judge_tensor(struct compare_run *run, const struct named_tensor *const *sides)
{
    struct comparison comparison;
    bool passed = true, json = run->settings->json, quiet = run->settings->quiet;
    compare_tensor(run, sides, &comparison);
    if (json)
        begin_json(run, sides);
    else if (!quiet)
        print_heading(sides);
    for (int i = 0; i < run->standards_count; i++) {
        struct judgement judgement;
        judge_comparison(&run->standards[i], &comparison, &judgement);
        passed = passed && judgement.passed;
        if (!judgement.passed && run->fault[0] == '\0')
            describe_fault(run, sides, &run->standards[i], &judgement);
        if (json && i > 0)
            printf(", ");
        if (json)
            judgement_print_json(&run->standards[i], &comparison, &judgement, "");
        else if (!quiet)
            judgement_print(&run->standards[i], &comparison, &judgement, "");
    }
    if (json)
        printf("]}");
    run->compared++;
    run->failed += !passed;
}

static void judge_all(struct compare_run *run)
{
    struct tensor_file *actual = run->files[ACTUAL], *golden = run->files[GOLDEN];
    for (size_t i = 0; i < tensor_file_count(actual); i++) {
        const struct named_tensor *sides[SIDES] = {NULL};
        if (!is_wanted(run, tensor_file_name(actual, i)))
            continue;
        sides[ACTUAL] = tensor_file_at(actual, i);
        for (int side = GOLDEN; side < SIDES; side++)
            if (run->files[side] != NULL)
                sides[side] = partner(run, side, i);
        judge_tensor(run, sides);
    }
    for (size_t i = 0; i < tensor_file_count(golden) && !is_alone(run, GOLDEN); i++) {
        const char *name = tensor_file_name(golden, i);
        const struct named_tensor *sides[SIDES] = {NULL, tensor_file_at(golden, i)};
        if (is_wanted(run, name) && !tensor_file_has(actual, name))
            judge_tensor(run, sides);
    }
}

static void print_json_head(const struct compare_run *run)
{
    static const char *const keys[] = {"actual", "golden", "third_party"};
    printf("{");
    for (int side = 0; side < SIDES; side++) {
        if (run->paths[side] == NULL)
            continue;
        printf("\"%s\": ", keys[side]);
        json_text(stdout, run->paths[side]);
        printf(", ");
    }
    printf("\"standards\": [");
    for (int i = 0; i < run->standards_count; i++) {
        printf("%s{\"name\": ", i == 0 ? "" : ", ");
        json_text(stdout, run->standards[i].name);
        printf(", \"source\": ");
        json_text(stdout, run->standards[i].source);
        printf("}");
    }
    printf("], \"tensors\": [");
}

static int compare(struct compare_run *run)
{
    if (run->settings->json)
        print_json_head(run);
    else if (!run->settings->quiet)
        for (int i = 0; i < run->standards_count; i++)
            printf("%s: %s\n", run->standards[i].name, run->standards[i].source);
    judge_all(run);
    bool passed = run->failed == 0 && run->compared > 0;
    if (run->settings->json)
        printf("], \"passed\": %s}\n", passed ? "true" : "false");
    else if (!run->settings->quiet)
        printf("compare: %d of %d tensors passed\n", run->compared - run->failed, run->compared);
    fflush(stdout);
    if (run->failed > 0)
        fprintf(stderr, "moetoken: %s: %s\n", run->paths[ACTUAL], run->fault);
    if (run->compared == 0)
        fprintf(stderr, "moetoken: %s: there is no tensor to compare\n", run->paths[ACTUAL]);
    return passed ? EXIT_DONE : EXIT_INPUT;
}

static int run(int argc, char **argv)
{
    struct compare_settings settings = {.type = -1};
    struct compare_run run = {.settings = &settings};
    char error[STANDARDS_ERROR_SIZE];
    int count, status = parse_options(&command_compare, argc, argv, &settings, run.paths, &count);
    if (status != PARSED_RUN)
        return status;
    if (settings.standards != NULL && strcmp(settings.standards, "list") == 0) {
        standards_print();
        return EXIT_DONE;
    }
    if (count < 2)
        return usage_error(&command_compare, "an argument is missing");
    if (settings.standards == NULL)
        return usage_error(&command_compare, "--standard NAME is missing");
    if (!standards_parse(settings.standards, run.standards, &run.standards_count, error))
        return usage_error(&command_compare, "--standard: %s", error);
    run.paths[THIRD_PARTY] = settings.third_party;
    for (int i = 0; i < run.standards_count; i++)
        if (run.standards[i].needs_third_party && settings.third_party == NULL)
            return usage_error(&command_compare, "--standard %s needs --third-party FILE",
                               run.standards[i].name);
    status = check_raw_options(&run);
    if (status == EXIT_DONE)
        status = open_files(&run) ? compare(&run) : EXIT_INPUT;
    close_files(&run);
    return status;
}

#define SETTING(member) offsetof(struct compare_settings, member)

static const struct option_spec options[] = {
    {.name = "standard",
     .letter = 's',
     .kind = OPTION_TEXT,
     .value = "NAME,...",
     .offset = SETTING(standards),
     .help = "what to judge by; --standard list explains each"},
    {.name = "third-party",
     .kind = OPTION_TEXT,
     .value = "FILE",
     .offset = SETTING(third_party),
     .help = "the same tensors from an implementation whose errors are\nthe measure, for standards "
             "that compare errors"},
    {.name = "tensors",
     .kind = OPTION_TEXT,
     .value = "NAME,...",
     .offset = SETTING(tensors),
     .help = "compare only these"},
    {.name = "dtype",
     .kind = OPTION_CHOICE,
     .value = TYPE_CHOICES,
     .offset = SETTING(type),
     .help = "the type of raw files, which end in .bin"},
    {.name = "shape",
     .kind = OPTION_TEXT,
     .value = "N,...",
     .offset = SETTING(shape),
     .help = "the shape of raw files"},
    {.name = "quiet",
     .letter = 'q',
     .kind = OPTION_FLAG,
     .offset = SETTING(quiet),
     .help = "only the exit status and, on standard error, the first fault"},
    {.name = "json",
     .kind = OPTION_FLAG,
     .offset = SETTING(json),
     .help = "all of it as one JSON object"},
};

const struct command command_compare = {
    .name = "compare",
    .operands = "ACTUAL GOLDEN --standard NAME",
    .summary = "judges tensors against golden ones by published standards",
    .description =
        "Compares the tensors of ACTUAL with those of GOLDEN, by name, and prints for each the\n"
        "figures of each standard beside their limits, the verdict and the worst element. Two\n"
        "files of one tensor each are compared whatever the names are.\n"
        "\n"
        "The limits are those of ACTUAL's type; GOLDEN may have a wider one. NaN or infinity at\n"
        "other places than in GOLDEN is a difference at each of them. Integers must be equal.\n"
        "\n"
        "Files: safetensors, .npz, .npy, PyTorch's .pt (nothing in it is executed), raw .bin.\n"
        "Exit status: 0 all passed, 1 one did not, or is not in both files, or cannot be\n"
        "compared; 2 usage.",
    .options = options,
    .options_count = sizeof options / sizeof options[0],
    .operands_least = 0,
    .operands_most = 2,
    .run = run,
};
