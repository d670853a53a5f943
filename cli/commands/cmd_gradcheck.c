/* cmd_gradcheck.c - `moetoken gradcheck`: every gradient against central differences.
 * A case on file, or the built-in modes at a shape -> a table; exit 0 iff all are below 1e-6. */
#include <inttypes.h>
#include <string.h>

#include "cases/case_options.h"
#include "cases/models.h"
#include "commands.h"
#include "gradcheck/gradcheck.h"
#include "gradcheck/gradcheck_router.h"

static const double largest_error_allowed = 1e-6;

struct gradcheck_settings {
    struct case_options shape;
    int64_t samples; /* -1: not given */
    bool quiet;
};

struct gradcheck_run {
    const struct gradcheck_settings *settings;
    bool failed;
    double worst;
};

static void print_results(struct gradcheck_run *run, const char *mode,
                          const struct gradient_result *results, int count)
{
    for (int i = 0; i < count; i++) {
        const struct gradient_result *result = &results[i];
        bool good = result->worst <= largest_error_allowed; /* NaN is not */
        if (!run->settings->quiet)
            printf("%-42s %-10s %-21s %8" PRId64 " %10.2e%s\n", mode, result->operator_name,
                   result->gradient, result->checked, result->worst, good ? "" : "  WRONG");
        if (!good)
            fprintf(stderr,
                    "moetoken: gradcheck: %s of %s, %s: relative error %.3g, expected at most "
                    "%.0e\n",
                    result->gradient, result->operator_name, mode, result->worst,
                    largest_error_allowed);
        run->failed = run->failed || !good;
        if (!(result->worst <= run->worst))
            run->worst = result->worst;
    }
}

static bool check_problem(struct gradcheck_run *run, const char *mode, bool unpermute, bool permute,
                          struct gradient_problem *problem, char *error)
{
    struct gradient_result results[GRADIENT_RESULTS];
    int count;
    if (unpermute) {
        if (!check_unpermute_gradients(problem, results, &count, error))
            return false;
        print_results(run, mode, results, count);
    }
    if (permute) {
        if (!check_permute_gradients(problem, results, &count, error))
            return false;
        print_results(run, mode, results, count);
    }
    return true;
}

static int finish(const struct gradcheck_run *run)
{
    if (!run->settings->quiet)
        printf("worst relative error %.2e: %s\n", run->worst,
               run->failed ? "WRONG" : "all gradients agree");
    return run->failed ? EXIT_INPUT : EXIT_DONE;
}

static void print_heading(const struct gradcheck_run *run)
{
    if (!run->settings->quiet)
        printf("%-42s %-10s %-21s %8s %10s\n", "mode", "forward", "gradient", "elements", "worst");
}

static bool check_router_problem(struct gradcheck_run *run, const char *mode,
                                 struct router_problem *problem, char *error)
{
    struct gradient_result result;
    if (!check_router_gradient(problem, &result, error))
        return false;
    print_results(run, mode, &result, 1);
    return true;
}

static bool check_router_modes(struct gradcheck_run *run, const struct case_settings *shape,
                               char *error)
{
    bool good = true;
    for (int m = 0; m < router_modes_count && good; m++) {
        struct router_problem problem;
        good = make_router_problem(&router_modes[m], shape, &problem, error);
        problem.samples = run->settings->samples < 0 ? 0 : run->settings->samples;
        if (run->settings->samples < 0 && shape->tokens * shape->experts > 4096)
            problem.samples = 16;
        good = good && check_router_problem(run, router_modes[m].name, &problem, error);
        free_router_problem(&problem);
    }
    return good;
}

static int check_modes(struct gradcheck_run *run, const struct case_settings *shape)
{
    print_heading(run);
    struct progress progress = {0};
    progress_begin(&progress, "gradcheck", gradient_modes_count);
    bool good = true;
    char error[TENSOR_FILE_ERROR_SIZE];
    for (int m = 0; m < gradient_modes_count && good; m++) {
        const struct gradient_mode *mode = &gradient_modes[m];
        struct gradient_problem problem;
        good = make_mode_problem(mode, shape, &problem, error);
        problem.samples = run->settings->samples < 0 ? 0 : run->settings->samples;
        if (good && run->settings->samples < 0 && shape->tokens * shape->hidden > 4096)
            problem.samples = 16;
        good = good && check_problem(run, mode->name, true, !mode->unpermute_only, &problem, error);
        free_problem(&problem);
        progress_add(&progress, 1);
    }
    good = good && check_router_modes(run, shape, error);
    progress_end(&progress);
    return good ? finish(run) : report_error(error);
}

static int check_router_case(struct gradcheck_run *run, const struct case_files *files)
{
    struct router_problem problem;
    char error[TENSOR_FILE_ERROR_SIZE];
    int status = EXIT_INPUT;
    if (load_router_problem(files, (uint64_t)run->settings->shape.seed, &problem)) {
        problem.samples = run->settings->samples < 0 ? 16 : run->settings->samples;
        print_heading(run);
        if (check_router_problem(run, files->paths[0], &problem, error))
            status = finish(run);
        else
            report_input(files, error);
    }
    free_router_problem(&problem);
    return status;
}

static bool has_logits(const struct case_files *files)
{
    for (int i = 0; i < files->count; i++)
        if (tensor_file_has(files->files[i], "logits"))
            return true;
    return false;
}

static int check_case(struct gradcheck_run *run, const char *const *paths, int count)
{
    struct case_files files;
    if (!case_files_open(&files, paths, count))
        return EXIT_INPUT;
    if (has_logits(&files)) {
        int found = check_router_case(run, &files);
        case_files_close(&files);
        return found;
    }
    struct gradient_problem problem;
    char error[TENSOR_FILE_ERROR_SIZE];
    int status = EXIT_INPUT;
    const DLTensor *x = NULL, *sorted = NULL, *out_index = NULL;
    if (load_problem(&files, (uint64_t)run->settings->shape.seed, &problem) &&
        case_tensor(&files, "permuted_tokens", false, &x) &&
        case_tensor(&files, "sorted_indices", false, &sorted) &&
        case_tensor(&files, "out_index", false, &out_index)) {
        problem.samples = run->settings->samples < 0 ? 16 : run->settings->samples;
        bool unpermute = x != NULL && (sorted != NULL || out_index != NULL);
        print_heading(run);
        if (check_problem(run, paths[0], unpermute, !unpermute, &problem, error))
            status = finish(run);
        else
            report_input(&files, error);
    }
    free_problem(&problem);
    case_files_close(&files);
    return status;
}

/* Without a shape on the command line: one small enough to check every element. */
static void default_shape(struct case_options *shape)
{
    if (shape->model != NULL)
        return;
    shape->hidden = shape->hidden < 0 ? 5 : shape->hidden;
    shape->experts = shape->experts < 0 ? 6 : shape->experts;
    shape->topk = shape->topk < 0 ? (shape->experts < 3 ? shape->experts : 3) : shape->topk;
}

static int run_gradcheck(int argc, char **argv)
{
    struct gradcheck_settings settings = {.shape = case_options_default(), .samples = -1};
    settings.shape.tokens = 11;
    const char *paths[CASE_FILES_MOST];
    int count;
    int status = parse_options(&command_gradcheck, argc, argv, &settings, paths, &count);
    if (status != PARSED_RUN)
        return status;
    struct gradcheck_run run = {.settings = &settings};
    if (count > 0)
        return check_case(&run, paths, count);
    if (settings.shape.model != NULL && strcmp(settings.shape.model, "list") == 0) {
        print_model_shapes();
        return EXIT_DONE;
    }
    char error[TENSOR_FILE_ERROR_SIZE];
    struct case_settings shape;
    default_shape(&settings.shape);
    if (!case_options_resolve(&settings.shape, &shape, error, sizeof error))
        return usage_error(&command_gradcheck, "%s", error);
    return check_modes(&run, &shape);
}

static const struct option_spec options[] = {
    CASE_SHAPE_OPTIONS(struct gradcheck_settings, shape),
    {.name = "samples",
     .kind = OPTION_INTEGER,
     .value = "N",
     .offset = offsetof(struct gradcheck_settings, samples),
     .most = INT64_MAX,
     .help = "elements of each input to look at, 0: all\n"
             "(default: all of small shapes, else 16)"},
    {.name = "quiet",
     .letter = 'q',
     .kind = OPTION_FLAG,
     .offset = offsetof(struct gradcheck_settings, quiet),
     .help = "no table"},
};

const struct command command_gradcheck = {
    .name = "gradcheck",
    .operands = "[CASE...]",
    .summary = "gradients against central differences of the forward operators",
    .description =
        "Compares every gradient (of unpermute and of permute, for tokens and for probs, and of\n"
        "the router, for its logits) with\n"
        "central differences of the forward operator in float64, and prints the worst relative\n"
        "error: |difference - gradient| over the larger of the two, or over a thousandth of the\n"
        "largest gradient where both are smaller. Exit status 0 if and only if all are below\n"
        "1e-6.\n"
        "\n"
        "With CASE its routing and values are taken, as float64. Without, all modes are gone\n"
        "through, with a small shape (11 tokens, 6 experts) or that of --model: dropless, holes,\n"
        "padded with fill slots, masked, without probs, probs of 0 and negative ones, experts\n"
        "and tokens with nothing; and by expert ids, with residuals and biases, a range of\n"
        "experts and a capacity; and the router's scores, groups, bias and masks. A CASE with\n"
        "logits is one of the router. Its differences are those of an oracle in long double, at\n"
        "the library's choice.",
    .options = options,
    .options_count = sizeof options / sizeof options[0],
    .operands_most = CASE_FILES_MOST,
    .run = run_gradcheck,
};
