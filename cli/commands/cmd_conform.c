/* cmd_conform.c - `moetoken conform`: gives a command generated cases and judges what it writes.
 * Options -> suite and trial settings -> conform_run -> table, shrunk cases. */
#include <inttypes.h>
#include <signal.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "cases/case_files.h"
#include "commands.h"
#include "conform/conform.h"
#include "values/number_formats.h"

struct conform_settings {
    const char *run, *standard, *keep, *outputs, *modes, *types, *index_types, *map_types;
    int64_t cases, seed, jobs, repeats, shrink_tries;
    double seconds;
    int operator_kind, format;
    bool list;
};

/* ---- lists of words -------------------------------------------------------------------------- */

/* The place of each word of "a,b" in "a|b|c"; -1 after a word that is not there. */
static int parse_words(const char *words, const char *choices, int *places, int most)
{
    int count = 0;
    for (;;) {
        size_t length = strcspn(words, ",");
        int place = 0;
        const char *choice = choices;
        while (strcspn(choice, "|") != length || strncmp(choice, words, length) != 0) {
            choice += strcspn(choice, "|");
            if (*choice++ == '\0')
                return -1;
            place++;
        }
        if (count == most)
            return -1;
        places[count++] = place;
        if (words[length] == '\0')
            return count;
        words += length + 1;
    }
}

static bool choose_modes(const char *words, struct suite *suite)
{
    int places[SUITE_CHOICES_MOST];
    int count = parse_words(words, "dropless|padded|ids", places, SUITE_CHOICES_MOST);
    for (int i = 0; i < count; i++)
        suite->modes[i] = (enum routing_mode)places[i];
    suite->modes_count = count;
    return count > 0;
}

static bool choose_types(const char *words, const char *choices, const moetoken_type *types,
                         moetoken_type chosen[SUITE_CHOICES_MOST], int *chosen_count)
{
    int places[SUITE_CHOICES_MOST];
    int count = parse_words(words, choices, places, SUITE_CHOICES_MOST);
    for (int i = 0; i < count; i++)
        chosen[i] = types[places[i]];
    *chosen_count = count;
    return count > 0;
}

/* ---- settings -------------------------------------------------------------------------------- */

static int make_suite(const struct conform_settings *settings, struct suite *suite)
{
    static const moetoken_type types[] = {MOETOKEN_F32, MOETOKEN_F16, MOETOKEN_BF16, MOETOKEN_F64};
    static const moetoken_type index_types[] = {MOETOKEN_I32, MOETOKEN_I64};
    static const moetoken_type map_types[] = {MOETOKEN_BOOL, MOETOKEN_I8, MOETOKEN_U8};
    suite->operator_kind = (enum operator_kind)settings->operator_kind;
    suite->cases = settings->cases;
    suite->seed = settings->seed >= 0 ? (uint64_t)settings->seed
                                      : ((uint64_t)time(NULL) * 1000003 + (uint64_t)getpid()) %
                                            UINT64_C(1000000000);
    if (!choose_modes(settings->modes, suite))
        return usage_error(&command_conform, "--modes %s: expected some of dropless,padded,ids",
                           settings->modes);
    if (!choose_types(settings->types, "f32|f16|bf16|f64", types, suite->token_types,
                      &suite->token_types_count))
        return usage_error(&command_conform, "--dtypes %s: expected some of f32,f16,bf16,f64",
                           settings->types);
    if (!choose_types(settings->index_types, "i32|i64", index_types, suite->index_types,
                      &suite->index_types_count))
        return usage_error(&command_conform, "--index-dtypes %s: expected some of i32,i64",
                           settings->index_types);
    if (!choose_types(settings->map_types, "bool|i8|u8", map_types, suite->map_types,
                      &suite->map_types_count))
        return usage_error(&command_conform, "--map-dtypes %s: expected some of bool,i8,u8",
                           settings->map_types);
    return PARSED_RUN;
}

/* --outputs: only these; else all. */
static bool choose_outputs(const char *names, enum operator_kind kind, bool wanted[OUTPUTS_MOST])
{
    for (int i = 0; i < OUTPUTS_MOST; i++)
        wanted[i] = names == NULL;
    while (names != NULL) {
        size_t span = strcspn(names, ",");
        bool found = false;
        for (int i = 0; i < OUTPUTS_MOST; i++) {
            const char *name = operator_outputs[kind].outputs[i];
            if (name != NULL && strlen(name) == span && strncmp(name, names, span) == 0)
                found = wanted[i] = true;
        }
        if (!found)
            return false;
        names = names[span] == ',' ? names + span + 1 : NULL;
    }
    return true;
}

static int make_trial(const struct conform_settings *settings, struct trial_settings *trial)
{
    static const char *const suffixes[] = {"safetensors", "npz"};
    trial->command = settings->run;
    trial->seconds = settings->seconds;
    trial->repeats = (int)settings->repeats;
    trial->suffix = suffixes[settings->format];
    trial->contract = strcmp(settings->standard, "contract") == 0;
    if (!trial->contract &&
        !standard_find(settings->standard, strlen(settings->standard), &trial->standard))
        return usage_error(&command_conform,
                           "--standard %s: expected contract or one of --standard list",
                           settings->standard);
    if (!choose_outputs(settings->outputs, (enum operator_kind)settings->operator_kind,
                        trial->wanted))
        return usage_error(&command_conform, "--outputs %s: %s writes no such tensor",
                           settings->outputs, operator_outputs[settings->operator_kind].name);
    if (settings->run == NULL)
        return usage_error(&command_conform, "--run 'COMMAND {case} {out}' is missing");
    if (strstr(settings->run, "{case}") == NULL || strstr(settings->run, "{out}") == NULL)
        return usage_error(&command_conform, "--run %s: expected {case} and {out} in it",
                           settings->run);
    return PARSED_RUN;
}

/* ---- running --------------------------------------------------------------------------------- */

static int64_t failures(const struct conform *conform)
{
    int64_t count = 0, passed = 0;
    for (int64_t i = 0; i < conform->suite.cases; i++) {
        count += conform->results[i].finding.kind > FINDING_SKIPPED;
        passed += conform->results[i].tried && conform->results[i].finding.kind == FINDING_NONE;
    }
    return passed == 0 && conform->suite.cases > 0 ? count + 1 : count;
}

static int run_suite(struct conform *conform)
{
    double began = seconds_now();
    printf("conform %s: %" PRId64 " cases, seed %" PRIu64 ", by %s\n",
           operator_outputs[conform->suite.operator_kind].name, conform->suite.cases,
           conform->suite.seed, conform->standard_name);
    fflush(stdout);
    children_begin();
    bool good = conform_run(conform) && conform_shrink(conform);
    int status = EXIT_INPUT;
    if (good) {
        conform_print(conform, seconds_now() - began);
        status = failures(conform) == 0 ? EXIT_DONE : EXIT_INPUT;
    } else if (conform->problem[0] != '\0') {
        report_error(conform->problem);
    }
    conform_end(conform);
    int interrupted = conform->interrupted;
    children_end();
    if (interrupted != 0) {
        signal(interrupted, SIG_DFL);
        raise(interrupted);
    }
    return status;
}

static int run(int argc, char **argv)
{
    struct conform_settings settings = {.standard = "ecosystem-2026-07",
                                        .keep = "moetoken-conform",
                                        .modes = "dropless,padded,ids",
                                        .types = "f32,f16,bf16",
                                        .index_types = "i32,i32,i64",
                                        .map_types = "bool,bool,i8,u8",
                                        .cases = 270,
                                        .seed = -1,
                                        .repeats = 2,
                                        .shrink_tries = 400,
                                        .seconds = 60,
                                        .operator_kind = -1};
    const char *operands[1];
    static struct conform conform;
    int count;
    int status = parse_options(&command_conform, argc, argv, &settings, operands, &count);
    if (status != PARSED_RUN)
        return status;
    if (strcmp(settings.standard, "list") == 0) {
        printf("contract\n    docs/contract.md, to the bit, as verify does without --standard\n");
        standards_print();
        return EXIT_DONE;
    }
    if (settings.operator_kind < 0)
        return usage_error(&command_conform, "--operator NAME is missing");
    status = make_suite(&settings, &conform.suite);
    if (status == PARSED_RUN && settings.list) {
        conform_list(&conform.suite);
        return EXIT_DONE;
    }
    if (status == PARSED_RUN)
        status = make_trial(&settings, &conform.trial);
    if (status != PARSED_RUN)
        return status;
    conform.jobs = (int)(settings.jobs > 0 ? settings.jobs : moetoken_threads_chosen(0));
    conform.shrink_tries = settings.shrink_tries;
    conform.keep = settings.keep;
    conform.standard_name = settings.standard;
    return run_suite(&conform);
}

#define SETTING(member) offsetof(struct conform_settings, member)

static const struct option_spec options[] = {
    {.name = "operator",
     .kind = OPTION_CHOICE,
     .value = ROW_OPERATORS_CHOICES,
     .offset = SETTING(operator_kind),
     .help = "what the command computes"},
    {.name = "run",
     .kind = OPTION_TEXT,
     .value = "COMMAND",
     .offset = SETTING(run),
     .help = "for the shell; {case} and {out} stand for the two files"},
    {.name = "standard",
     .kind = OPTION_TEXT,
     .value = "NAME",
     .offset = SETTING(standard),
     .help = "judge by this standard (default ecosystem-2026-07); contract:\n"
             "docs/contract.md to the bit; list: explain them"},
    {.name = "cases",
     .kind = OPTION_INTEGER,
     .value = "N",
     .offset = SETTING(cases),
     .least = 1,
     .most = 10000000,
     .help = "so many cases (default 270, ten of each theme)"},
    {.name = "seed",
     .kind = OPTION_INTEGER,
     .value = "S",
     .offset = SETTING(seed),
     .most = INT64_MAX,
     .help = "the same seed gives the same cases (default: another each\n"
             "time, which is printed)"},
    {.name = "list",
     .kind = OPTION_FLAG,
     .offset = SETTING(list),
     .help = "print the cases and run nothing"},
    {.name = "outputs",
     .kind = OPTION_TEXT,
     .value = "NAME,...",
     .offset = SETTING(outputs),
     .help = "judge only these outputs; the others may be missing"},
    {.name = "modes",
     .kind = OPTION_TEXT,
     .value = "NAME,...",
     .offset = SETTING(modes),
     .help = "of dropless, padded and ids (default all)"},
    {.name = "dtypes",
     .kind = OPTION_TEXT,
     .value = "NAME,...",
     .offset = SETTING(types),
     .help = "types of tokens, of f32, f16, bf16 and f64 (default all\nbut f64)"},
    {.name = "index-dtypes",
     .kind = OPTION_TEXT,
     .value = "NAME,...",
     .offset = SETTING(index_types),
     .help = "types of indices, of i32 and i64 (default both)"},
    {.name = "map-dtypes",
     .kind = OPTION_TEXT,
     .value = "NAME,...",
     .offset = SETTING(map_types),
     .help = "types of routing_map, of bool, i8 and u8 (default all)"},
    {.name = "format",
     .kind = OPTION_CHOICE,
     .value = "safetensors|npz",
     .offset = SETTING(format),
     .help = "of the case files, and of OUT as it lies there before"},
    {.name = "seconds",
     .kind = OPTION_DECIMAL,
     .value = "S",
     .offset = SETTING(seconds),
     .least = 0,
     .most = 86400,
     .help = "a run that takes longer has failed (default 60)"},
    {.name = "repeats",
     .kind = OPTION_INTEGER,
     .value = "N",
     .offset = SETTING(repeats),
     .least = 1,
     .most = 1000,
     .help = "runs of each case, which must give the same bits (default 2)"},
    {.name = "jobs",
     .letter = 'j',
     .kind = OPTION_INTEGER,
     .value = "N",
     .offset = SETTING(jobs),
     .least = 1,
     .most = 1024,
     .help = "cases at a time (default: as many as processors)"},
    {.name = "keep",
     .kind = OPTION_TEXT,
     .value = "FOLDER",
     .offset = SETTING(keep),
     .help = "where shrunk cases go (default moetoken-conform)"},
    {.name = "shrink",
     .kind = OPTION_INTEGER,
     .value = "N",
     .offset = SETTING(shrink_tries),
     .most = 1000000,
     .help = "at most so many runs for each kind of failure (default 400)"},
};

const struct command command_conform = {
    .name = "conform",
    .operands = "--operator NAME --run 'COMMAND {case} {out}'",
    .summary = "generated cases for anybody's kernel, judged and shrunk",
    .description =
        "Makes cases from a seed - types, shapes, modes, routings by map and by expert ids, the\n"
        "distributions of the standards, and the corners of the field -, has COMMAND read each\n"
        "from {case} and write the operator's outputs to {out}, and judges what it wrote. {out}\n"
        "is there beforehand, with tensors of the right types and shapes full of NaN: fill it\n"
        "or replace it. A crash, a hang, an exit status or a file that cannot be read is a\n"
        "finding like a wrong number; exit status 77 says that the case is not taken.\n"
        "\n"
        "Ends with a table by properties of the cases and with the kinds of failure. Of each\n"
        "kind the smallest case that still fails goes to a folder, with golden results and\n"
        "reproduce.sh. Exit status 0 only if no case fails and at least one passes.",
    .options = options,
    .options_count = sizeof options / sizeof options[0],
    .operands_least = 0,
    .operands_most = 0,
    .run = run,
};
