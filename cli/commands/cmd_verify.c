/* cmd_verify.c - `moetoken verify`: recomputes what OUT holds and says how far off it is.
 * Files -> oracle_case -> reports -> one line per output; the first mismatch on standard error. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "commands.h"
#include "dump/dump_folder.h"
#include "dump/verify_dump.h"
#include "oracle/oracle.h"
#include "oracle/oracle_report.h"
#include "oracle/oracle_router.h"
#include "values/number_formats.h"
#include "verify_standard.h"

#define FAULT_SIZE    256 /* a line about one element */
#define DUMP_STANDARD "ecosystem-2026-07"

struct verify_settings {
    struct oracle_options options;
    struct router_options router;
    const char *outputs, *standards;
    bool quiet;
    struct standard by[STANDARDS_MOST]; /* what `standards` names */
    int by_count;
};

static const char *text_of_bool(bool value)
{
    return value ? "true" : "false";
}

static bool is_good(const struct output_report *report)
{
    return report->wrong == 0 && report->problem[0] == '\0';
}

static void print_report(const struct output_report *report)
{
    if (report->problem[0] != '\0') {
        printf("%-22s %s\n", report->name, report->problem);
        return;
    }
    printf("%-22s %12" PRId64 " elements checked, worst error %.4g ulp, ", report->name,
           report->checked, report->worst_ulp);
    if (report->wrong == 0) {
        printf("all right\n");
        return;
    }
    char fault[FAULT_SIZE];
    report_describe(report, fault, sizeof fault);
    printf("%" PRId64 " wrong, the first is %s\n", report->wrong, fault);
}

static void print_fault(const char *path, const struct output_report *report)
{
    fflush(stdout);
    fprintf(stderr, "moetoken: %s: ", path);
    if (report->problem[0] != '\0') {
        fprintf(stderr, "%s %s\n", report->name, report->problem);
        return;
    }
    char fault[FAULT_SIZE];
    report_describe(report, fault, sizeof fault);
    fprintf(stderr, "%s\n", fault);
}

static int print_reports(const struct output_report *reports, const char *path, bool quiet)
{
    const struct output_report *fault = NULL;
    for (int i = 0; i < OUTPUTS_MOST; i++) {
        if (reports[i].name == NULL)
            continue;
        if (!quiet)
            print_report(&reports[i]);
        if (fault == NULL && !is_good(&reports[i]))
            fault = &reports[i];
    }
    if (fault != NULL)
        print_fault(path, fault);
    return fault == NULL ? EXIT_DONE : EXIT_INPUT;
}

/* --outputs: only these; else all. false when a name is not one of the operator's. */
static bool find_wanted(const char *names, enum operator_kind kind, bool wanted[OUTPUTS_MOST])
{
    for (int i = 0; i < OUTPUTS_MOST; i++)
        wanted[i] = names == NULL && operator_outputs[kind].outputs[i] != NULL;
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

static int64_t rows_to_check(const struct oracle_case *oracle, const bool *wanted)
{
    int64_t rows = 0;
    for (int i = 0; i < OUTPUTS_MOST; i++)
        if (wanted[i])
            rows += tensor_dimension(oracle->output[i], 0);
    return rows;
}

static int unknown_outputs(const char *names, enum operator_kind kind)
{
    return usage_error(&command_verify, "--outputs %s: %s writes no such tensor", names,
                       operator_outputs[kind].name);
}

static int verify_router(const struct verify_settings *settings, enum operator_kind kind,
                         const struct case_files *inputs, const struct case_files *output,
                         const struct case_files *attributes)
{
    bool wanted[OUTPUTS_MOST];
    if (settings->standards != NULL)
        return usage_error(&command_verify,
                           "--standard with %s: standards are for permute, unpermute and their "
                           "gradients; compare judges any two files",
                           operator_outputs[kind].name);
    if (!find_wanted(settings->outputs, kind, wanted))
        return unknown_outputs(settings->outputs, kind);
    struct output_report reports[OUTPUTS_MOST];
    double began = seconds_now();
    if (!oracle_router_verify(kind, &settings->router, inputs, output, attributes, wanted, reports))
        return EXIT_INPUT;
    int status = print_reports(reports, output->paths[0], settings->quiet);
    if (!settings->quiet)
        printf("verify %s: %s, %.3g s\n", operator_outputs[kind].name,
               status == EXIT_DONE ? "good" : "BAD", seconds_now() - began);
    return status;
}

static int verify(const struct verify_settings *settings, const struct case_files *inputs,
                  const struct case_files *output, const struct case_files *attributes)
{
    char error[TENSOR_FILE_ERROR_SIZE];
    struct oracle_case oracle = {.error = error};
    enum operator_kind kind;
    if (!oracle_find_kind(output, settings->options.operator_kind, &kind))
        return EXIT_INPUT;
    if (is_router(kind) && settings->standards != NULL)
        return usage_error(&command_verify, "--standard: the router's outputs are judged by the "
                                            "bounds of docs/router.md alone");
    if (is_router(kind))
        return verify_router(settings, kind, inputs, output, attributes);
    if (!oracle_case_load(inputs, output, attributes, &settings->options, &oracle))
        return EXIT_INPUT;
    bool wanted[OUTPUTS_MOST];
    if (!find_wanted(settings->outputs, oracle.operator_kind, wanted))
        return unknown_outputs(settings->outputs, kind);
    if (settings->standards != NULL)
        return verify_by_standards(&oracle, wanted, settings->by, settings->by_count,
                                   settings->quiet, output->paths[0]);
    struct output_report reports[OUTPUTS_MOST];
    struct progress progress = {0};
    progress_begin(&progress, "verify", rows_to_check(&oracle, wanted));
    bool compared = oracle_verify(&oracle, wanted, reports, &progress);
    double seconds = progress_end(&progress);
    if (!compared)
        return report_input(inputs, error);
    int status = print_reports(reports, output->paths[0], settings->quiet);
    if (!settings->quiet)
        printf("verify %s: %s, drop_and_pad=%s, %.3g s\n",
               operator_outputs[oracle.operator_kind].name, status == EXIT_DONE ? "good" : "BAD",
               text_of_bool(oracle.drop_and_pad), seconds);
    return status;
}

static int open_and_verify(const struct verify_settings *settings, const char *const *paths,
                           int count)
{
    struct case_files inputs, output, attributes;
    if (!case_files_open(&inputs, paths, count - 1))
        return EXIT_INPUT;
    if (!case_files_open(&output, paths + count - 1, 1)) {
        case_files_close(&inputs);
        return EXIT_INPUT;
    }
    attributes = output; /* what OUT says of itself goes before what the case says */
    for (int i = 0; i < inputs.count && attributes.count < CASE_FILES_MOST; i++) {
        attributes.files[attributes.count] = inputs.files[i];
        attributes.paths[attributes.count++] = inputs.paths[i];
    }
    int status = verify(settings, &inputs, &output, &attributes);
    case_files_close(&inputs);
    case_files_close(&output);
    return status;
}

static int run(int argc, char **argv)
{
    struct verify_settings settings = {.options = {.operator_kind = -1,
                                                   .drop_and_pad = -1,
                                                   .mask_fill_slots = -1,
                                                   .tolerate_routing_mismatch = -1,
                                                   .tokens_num = -1,
                                                   .experts_num = -1,
                                                   .num_out_tokens = -1,
                                                   .expert_begin = -1,
                                                   .expert_end = -1,
                                                   .capacity = -1},
                                       .router = router_options_default()};
    const char *paths[CASE_FILES_MOST];
    char error[STANDARDS_ERROR_SIZE];
    int count;
    int status = parse_options(&command_verify, argc, argv, &settings, paths, &count);
    if (status != PARSED_RUN)
        return status;
    if (settings.standards != NULL && strcmp(settings.standards, "list") == 0) {
        standards_print();
        return EXIT_DONE;
    }
    bool folder = count == 1 && is_folder(paths[0]);
    if (count < 2 && !folder)
        return usage_error(&command_verify, "an argument is missing");
    if (folder && settings.standards == NULL)
        settings.standards = DUMP_STANDARD;
    if (settings.standards != NULL &&
        !standards_parse(settings.standards, settings.by, &settings.by_count, error))
        return usage_error(&command_verify, "--standard: %s", error);
    return folder ? verify_dump(paths[0], settings.by, settings.by_count, settings.quiet)
                  : open_and_verify(&settings, paths, count);
}

#define OPTION(field)                                                                              \
    (offsetof(struct verify_settings, options) + offsetof(struct oracle_options, field))

static const struct option_spec options[] = {
    {.name = "operator",
     .kind = OPTION_CHOICE,
     .value = OPERATORS_CHOICES,
     .offset = OPTION(operator_kind),
     .help = "what wrote OUT (default: its metadata or its tensors tell)"},
    {.name = "outputs",
     .kind = OPTION_TEXT,
     .value = "NAME,...",
     .offset = offsetof(struct verify_settings, outputs),
     .help = "check only these output tensors; the others may be missing"},
    {.name = "standard",
     .letter = 's',
     .kind = OPTION_TEXT,
     .value = "NAME,...",
     .offset = offsetof(struct verify_settings, standards),
     .help = "judge by these standards (list: what there is) instead of the\nexact result; golden "
             "and third "
             "party are computed here"},
    {.name = "drop-and-pad",
     .kind = OPTION_SWITCH,
     .value = "true|false",
     .offset = OPTION(drop_and_pad),
     .help = "padded mode; wins over the files' metadata"},
    {.name = "mask-fill-slots",
     .kind = OPTION_SWITCH,
     .value = "true|false",
     .offset = OPTION(mask_fill_slots),
     .help = "as for the operator; wins over the files' metadata"},
    {.name = "tolerate-routing-mismatch",
     .kind = OPTION_SWITCH,
     .value = "true|false",
     .offset = OPTION(tolerate_routing_mismatch),
     .help = "as for the operator; wins over the files' metadata"},
    {.name = "restore-shape",
     .kind = OPTION_TEXT,
     .value = "T,H",
     .offset = OPTION(restore_shape),
     .help = "unpermute: the shape of its output, when nothing else tells"},
    {.name = "tokens-num",
     .kind = OPTION_INTEGER,
     .value = "T",
     .offset = OPTION(tokens_num),
     .most = INT64_MAX,
     .help = "the number of tokens, when nothing else tells"},
    {.name = "experts-num",
     .kind = OPTION_INTEGER,
     .value = "E",
     .offset = OPTION(experts_num),
     .most = INT64_MAX,
     .help = "the number of experts, when nothing else tells"},
    {.name = "num-out-tokens",
     .kind = OPTION_INTEGER,
     .value = "N",
     .offset = OPTION(num_out_tokens),
     .most = INT64_MAX,
     .help = "permute: the number of slots, when nothing else tells"},
    {.name = "expert-begin",
     .kind = OPTION_INTEGER,
     .value = "E",
     .offset = OPTION(expert_begin),
     .most = INT64_MAX,
     .help = "permute by expert ids: as there, when nothing else tells"},
    {.name = "expert-end",
     .kind = OPTION_INTEGER,
     .value = "E",
     .offset = OPTION(expert_end),
     .most = INT64_MAX,
     .help = "permute by expert ids: as there, when nothing else tells"},
    {.name = "capacity",
     .kind = OPTION_INTEGER,
     .value = "C",
     .offset = OPTION(capacity),
     .most = INT64_MAX,
     .help = "permute by expert ids: as there, when nothing else tells"},
    ROUTER_RECIPE_OPTION(struct verify_settings, router),
    ROUTER_CHOICE_OPTIONS(struct verify_settings, router),
    ROUTER_WEIGHT_OPTIONS(struct verify_settings, router),
    {.name = "quiet",
     .letter = 'q',
     .kind = OPTION_FLAG,
     .offset = offsetof(struct verify_settings, quiet),
     .help = "only the exit status and, on standard error, the first fault"},
};

const struct command command_verify = {
    .name = "verify",
    .operands = "CASE... OUT | DUMP",
    .summary = "recomputes OUT with an independent oracle and compares",
    .description =
        "Recomputes what an operator wrote to OUT from CASE, with arithmetic of its own, and\n"
        "prints for each output the elements checked, the worst error in units in the last\n"
        "place (against the value before its last rounding) and the first mismatch.\n"
        "\n"
        "Copies, products, forward sums and indices must have the exact bits. A dot product of\n"
        "H terms may be any rounding of a number within H * 2^-53 * sum |x*g| of the exact sum.\n"
        "Entries that no slot reaches must be +0. NaN must be NaN. The router's weights and\n"
        "scores, and its gradient, may be any rounding of a number within the error that\n"
        "docs/router.md states for binary64, and two experts whose choice values lie nearer than\n"
        "that may stand in either order.\n"
        "Exit status 0 only if everything holds and no output is missing.\n"
        "\n"
        "With --standard outputs are judged as compare does it; golden result and third party\n"
        "are computed here, and the worst element is told with token, slot, expert and row.\n"
        "\n"
        "DUMP is a folder that msprobe wrote (step*/rank*/dump.json and its tensors): every call\n"
        "of torch_npu's functions for these operators is recomputed, forward and backward, and\n"
        "judged by --standard (default " DUMP_STANDARD ").",
    .options = options,
    .options_count = sizeof options / sizeof options[0],
    .operands_least = 0,
    .operands_most = CASE_FILES_MOST,
    .run = run,
};
