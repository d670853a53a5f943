/* cmd_bench.c - `moetoken bench`: how near the operators come to the speed of memory.
 *
 * Options -> list of cases (bench_list) -> each made (bench_case), called once and, if asked for,
 * verified (bench_verify), measured (bench_measure) and reported (bench_report). */
#include <stdlib.h>
#include <string.h>

#include "bench/bench_measure.h"
#include "bench/bench_report.h"
#include "bench/bench_router.h"
#include "cases/case_options.h"
#include "cases/models.h"
#include "commands.h"

struct bench_settings {
    struct case_options shape;
    int64_t tokens, threads, rounds; /* 0 or -1: not given */
    int token_type, isa, stores;     /* -1: not given */
    int64_t verify_rows;             /* 0: not verified */
    bool json, quick, no_scaling, in_place, verify;
};

/* ---- the list of cases ---------------------------------------------------------------------- */

#define CASES_MOST 1024

struct listed_case {
    const struct model_shape *model; /* NULL: as the settings say */
    int64_t tokens;
    moetoken_type type;
    bool without_probs, drop_and_pad;
};

struct bench_list {
    struct listed_case cases[CASES_MOST];
    int count;
};

/* Enough of the table for --quick: wide and narrow rows, one expert a token and many. */
static const char *const quick_models[] = {"mixtral-8x7b", "deepseek-v3", "qwen3-30b-a3b",
                                           "gpt-oss-120b", "llama-4-maverick"};

static bool is_quick_model(const char *name)
{
    for (size_t i = 0; i < sizeof quick_models / sizeof quick_models[0]; i++)
        if (strcmp(quick_models[i], name) == 0)
            return true;
    return false;
}

static void add_modes(struct bench_list *list, const struct bench_settings *settings,
                      struct listed_case listed)
{
    bool one_mode = settings->quick || settings->shape.model != NULL || settings->shape.hidden >= 0;
    for (int variant = 0; variant < 4 && list->count < CASES_MOST; variant++) {
        bool without_probs = (variant & 1) != 0, padded = (variant & 2) != 0;
        if ((settings->shape.no_probs && !without_probs) || (settings->in_place && without_probs) ||
            (settings->shape.drop_and_pad && !padded) || (settings->shape.ids && padded))
            continue;
        if (one_mode &&
            (without_probs != settings->shape.no_probs || padded != settings->shape.drop_and_pad))
            continue;
        listed.without_probs = without_probs;
        listed.drop_and_pad = padded;
        list->cases[list->count++] = listed;
    }
}

static void add_types(struct bench_list *list, const struct bench_settings *settings,
                      struct listed_case listed)
{
    static const moetoken_type types[] = {MOETOKEN_BF16, MOETOKEN_F16, MOETOKEN_F32};
    bool one_type = settings->quick || settings->shape.model != NULL || settings->shape.hidden >= 0;
    for (size_t i = 0; i < (one_type || settings->token_type >= 0 ? 1 : 3); i++) {
        listed.type = settings->token_type >= 0 ? (moetoken_type)settings->token_type : types[i];
        add_modes(list, settings, listed);
    }
}

static void add_tokens(struct bench_list *list, const struct bench_settings *settings,
                       const struct model_shape *model)
{
    static const int64_t tokens[] = {1, 64, 512, 4096};
    for (size_t i = 0; i < (settings->tokens >= 0 ? 1 : 4); i++) {
        if (settings->quick && settings->tokens < 0 && (i == 1 || i == 2))
            continue;
        add_types(
            list, settings,
            (struct listed_case){.model = model,
                                 .tokens = settings->tokens >= 0 ? settings->tokens : tokens[i]});
    }
}

static void list_cases(struct bench_list *list, const struct bench_settings *settings)
{
    list->count = 0;
    if (settings->shape.hidden >= 0) {
        add_tokens(list, settings, NULL);
        return;
    }
    for (size_t m = 0; m < MODEL_SHAPES_COUNT; m++) {
        const struct model_shape *model = &model_shapes[m];
        bool wanted = settings->shape.model != NULL
                          ? strcmp(settings->shape.model, model->name) == 0
                          : !settings->quick || is_quick_model(model->name);
        if (wanted)
            add_tokens(list, settings, model);
    }
}

/* ---- running -------------------------------------------------------------------------------- */

struct bench_run {
    const struct bench_settings *settings;
    struct arena arena;
    struct sweep sweep;
    struct bench_report report;
    moetoken_options options;
};

static moetoken_options make_options(const struct bench_settings *settings)
{
    static const uint32_t masks[] = {1, 3, 7, 9}; /* a level and all below it */
    static const uint32_t stores[] = {0, MOETOKEN_CACHED_STORES, MOETOKEN_STREAMING_STORES};
    return (moetoken_options){.flags = settings->stores < 0 ? 0 : stores[settings->stores],
                              .isa_mask = settings->isa < 0 ? 0 : masks[settings->isa],
                              .threads = (int32_t)settings->threads};
}

static bool measure_and_report(struct bench_run *run, struct bench_case *bench, const char *name)
{
    char error[TENSOR_FILE_ERROR_SIZE];
    struct bench_result result = {
        .bench = bench, .name = name, .huge_pages = run->arena.huge_pages};
    void *workspace = bench->options.workspace;
    size_t workspace_bytes = bench->options.workspace_bytes;
    bench->options = run->options;
    bench->options.workspace = workspace;
    bench->options.workspace_bytes = workspace_bytes;
    if (!bench_first_call(bench, run->settings->verify_rows, &result.first, error, sizeof error)) {
        report_error(error);
        return false;
    }
    if (!measure_case(bench, &run->arena, &run->sweep, (int)run->settings->rounds,
                      &result.measures)) {
        report_error("no memory to measure in");
        return false;
    }
    bench_report_case(&run->report, &result);
    return true;
}

static bool run_listed(struct bench_run *run, const struct listed_case *listed)
{
    char error[TENSOR_FILE_ERROR_SIZE];
    struct case_settings shape;
    struct case_options options = run->settings->shape;
    struct bench_case bench;
    options.tokens = listed->tokens;
    options.token_type = (int)listed->type;
    options.no_probs = listed->without_probs;
    options.drop_and_pad = listed->drop_and_pad;
    if (listed->model != NULL)
        options.model = listed->model->name;
    if (!case_options_resolve(&options, &shape, error, sizeof error) ||
        !bench_case_generate(&bench, &run->arena, &shape, run->settings->in_place, error,
                             sizeof error)) {
        report_error(error);
        return false;
    }
    return measure_and_report(run, &bench, listed->model != NULL ? listed->model->name : "custom");
}

static bool run_list(struct bench_run *run)
{
    static struct bench_list list;
    struct progress progress;
    bool good = true;
    list_cases(&list, run->settings);
    progress_begin(&progress, "bench", list.count);
    for (int i = 0; good && i < list.count; i++) {
        good = run_listed(run, &list.cases[i]);
        progress_add(&progress, 1);
    }
    progress_end(&progress);
    return good;
}

/* The same case with 1, 2, 4, ... threads, and with all. */
static bool run_scaling(struct bench_run *run)
{
    const struct listed_case listed = {.model = find_model_shape("deepseek-v3"),
                                       .tokens = run->settings->quick ? 1024 : 4096,
                                       .type = MOETOKEN_BF16};
    int most = moetoken_threads_chosen(run->options.threads);
    bench_report_scaling(&run->report);
    for (int threads = 1;; threads = 2 * threads < most ? 2 * threads : most) {
        run->options.threads = threads;
        if (!run_listed(run, &listed))
            return false;
        if (threads == most)
            return true;
    }
}

static bool run_file(struct bench_run *run, const char *path)
{
    char error[TENSOR_FILE_ERROR_SIZE];
    struct case_files files;
    struct bench_case bench;
    if (!case_files_open(&files, &path, 1))
        return false;
    bool good =
        bench_case_read(&bench, &run->arena, &files, run->settings->in_place, error, sizeof error);
    if (!good && error[0] != '\0')
        report_input(&files, error);
    case_files_close(&files);
    return good && measure_and_report(run, &bench, path);
}

/* ---- the router ----------------------------------------------------------------------------- */

/* Without a shape: as many experts as the plain, then those of models with recipes of their own. */
static const struct bench_router_case router_cases[] = {
    {.name = "softmax", .experts = 64, .topk = 8},
    {.name = "softmax", .experts = 128, .topk = 8},
    {.name = "softmax", .experts = 256, .topk = 8},
    {.name = "mixtral", .recipe = "mixtral", .experts = 8, .topk = 2},
    {.name = "deepseek-v3", .recipe = "deepseek-v3", .experts = 256, .topk = 8},
    {.name = "kimi-k2", .recipe = "kimi-k2", .experts = 384, .topk = 8},
    {.name = "gpt-oss", .recipe = "gpt-oss", .experts = 128, .topk = 4},
};

static bool bench_router_tokens(const struct bench_settings *settings,
                                struct bench_router_case shape, const moetoken_options *options)
{
    static const int64_t tokens[] = {1, 64, 512, 4096};
    shape.kind = (enum operator_kind)settings->shape.operator_kind;
    bool one = settings->tokens >= 0;
    for (size_t i = !one && settings->quick ? 3 : 0; i < (one ? 1 : 4); i++) {
        shape.tokens = settings->tokens >= 0 ? settings->tokens : tokens[i];
        if (!bench_router_run(&shape, options, (int)settings->rounds, settings->json))
            return false;
    }
    return true;
}

static int bench_router(const struct bench_settings *settings)
{
    const struct model_shape *model =
        settings->shape.model != NULL ? find_model_shape(settings->shape.model) : NULL;
    const struct bench_router_case own = {.name = model != NULL ? model->name : "custom",
                                          .recipe = model != NULL ? model->recipe : NULL,
                                          .experts = settings->shape.experts > 0
                                                         ? settings->shape.experts
                                                     : model != NULL ? model->experts_num
                                                                     : 0,
                                          .topk = settings->shape.topk > 0 ? settings->shape.topk
                                                  : model != NULL          ? model->topk_num
                                                                           : 0};
    bool listed = model == NULL && settings->shape.experts < 0 && settings->shape.topk < 0;
    if (!listed && (own.experts == 0 || own.topk == 0))
        return usage_error(&command_bench, "give --model, or --experts and --topk");
    moetoken_options options = make_options(settings);
    bool good = true;
    bench_router_begin(&options, settings->json);
    for (size_t i = 0; listed && good && i < sizeof router_cases / sizeof router_cases[0]; i++)
        good = bench_router_tokens(settings, router_cases[i], &options);
    if (!listed)
        good = bench_router_tokens(settings, own, &options);
    bench_router_end(settings->json);
    return good ? EXIT_DONE : EXIT_INPUT;
}

static int bench(const struct bench_settings *settings, const char *path)
{
    struct bench_run run = {.settings = settings, .options = make_options(settings)};
    if (!sweep_make(&run.sweep))
        return report_error("no memory to empty the caches with");
    bench_report_begin(&run.report, settings->json, settings->in_place || settings->verify_rows > 0,
                       &run.options);
    bool good = path != NULL ? run_file(&run, path) : run_list(&run);
    bool whole_set = path == NULL && settings->shape.model == NULL && settings->shape.hidden < 0;
    if (good && whole_set && !settings->no_scaling)
        good = run_scaling(&run);
    if (good)
        bench_report_end(&run.report);
    sweep_free(&run.sweep);
    arena_free(&run.arena);
    return good ? EXIT_DONE : EXIT_INPUT;
}

/* What --in-place and --verify cannot be combined with; PARSED_RUN when all is well. */
static int check_combination(const struct bench_settings *settings)
{
    const char *name = operator_outputs[settings->shape.operator_kind].name;
    if (settings->shape.operator_kind != OPERATOR_UNPERMUTE_GRAD && settings->in_place)
        return usage_error(&command_bench,
                           "--in-place with --operator %s: only unpermute-grad has an output, "
                           "permuted_tokens_grad, that may replace an input",
                           name);
    if (settings->shape.ids && settings->shape.drop_and_pad)
        return usage_error(&command_bench, "--ids with --drop-and-pad: a routing by expert ids is "
                                           "dropless");
    if (settings->shape.ids && settings->verify_rows > 0)
        return usage_error(&command_bench,
                           "--verify with --ids: bench verifies a routing by map alone; for the "
                           "other there is 'moetoken verify'");
    if (settings->shape.no_probs && settings->in_place)
        return usage_error(&command_bench,
                           "--in-place with --no-probs: without probs there is no permuted_tokens "
                           "that the gradient could replace");
    if (settings->shape.operator_kind != OPERATOR_UNPERMUTE_GRAD && settings->verify_rows > 0)
        return usage_error(&command_bench,
                           "--verify with --operator %s: bench verifies unpermute-grad alone; for "
                           "the others there is 'moetoken verify'",
                           name);
    return PARSED_RUN;
}

static int run(int argc, char **argv)
{
    struct bench_settings settings = {.shape = case_options_default(),
                                      .tokens = -1,
                                      .rounds = 0,
                                      .token_type = -1,
                                      .isa = -1,
                                      .stores = -1};
    const char *path = NULL;
    int count;
    int status = parse_options(&command_bench, argc, argv, &settings, &path, &count);
    if (status != PARSED_RUN)
        return status;
    if (settings.shape.model != NULL && find_model_shape(settings.shape.model) == NULL)
        return usage_error(&command_bench, "--model %.100s: expected a name of generate's list",
                           settings.shape.model);
    if (settings.verify && settings.verify_rows == 0)
        settings.verify_rows = VERIFY_ROWS;
    status = check_combination(&settings);
    if (status != PARSED_RUN)
        return status;
    bool router = is_router((enum operator_kind)settings.shape.operator_kind);
    if (router && count > 0)
        return usage_error(&command_bench, "CASE with --operator router: it has cases of its own");
    if (settings.rounds == 0)
        settings.rounds = settings.quick ? 7 : 9;
    return router ? bench_router(&settings) : bench(&settings, count > 0 ? path : NULL);
}

#define SETTING(member) offsetof(struct bench_settings, member)

static const struct option_spec options[] = {
    {.name = "model",
     .letter = 'm',
     .kind = OPTION_TEXT,
     .value = "NAME",
     .offset = SETTING(shape.model),
     .help = "only this model of the set; then bf16 with probs, dropless,\nunless told otherwise"},
    {.name = "operator",
     .kind = OPTION_CHOICE,
     .value = OPERATORS_CHOICES,
     .offset = SETTING(shape.operator_kind),
     .help = "what is measured (default unpermute-grad)"},
    {.name = "tokens",
     .kind = OPTION_INTEGER,
     .value = "T",
     .offset = SETTING(tokens),
     .least = 1,
     .most = INT64_C(1) << 31,
     .help = "only this number of tokens (default 1, 64, 512, 4096)"},
    {.name = "dtype",
     .kind = OPTION_CHOICE,
     .value = FLOAT_CHOICES,
     .offset = SETTING(token_type),
     .help = "only this type of tokens (default bf16, f16, f32)"},
    {.name = "no-probs",
     .kind = OPTION_FLAG,
     .offset = SETTING(shape.no_probs),
     .help = "only without probs"},
    {.name = "drop-and-pad",
     .kind = OPTION_FLAG,
     .offset = SETTING(shape.drop_and_pad),
     .help = "only padded"},
    {.name = "ids",
     .kind = OPTION_FLAG,
     .offset = SETTING(shape.ids),
     .help =
         "a routing by expert ids, expert_ids and weights [T,K];\npermute: with the time of the "
         "routing alone"},
    {.name = "hidden",
     .kind = OPTION_INTEGER,
     .value = "H",
     .offset = SETTING(shape.hidden),
     .most = INT64_MAX,
     .help = "a shape of your own, with --experts and --topk"},
    {.name = "experts",
     .kind = OPTION_INTEGER,
     .value = "E",
     .offset = SETTING(shape.experts),
     .least = 1,
     .most = INT64_MAX,
     .help = "experts"},
    {.name = "topk",
     .kind = OPTION_INTEGER,
     .value = "K",
     .offset = SETTING(shape.topk),
     .least = 1,
     .most = INT64_MAX,
     .help = "experts of each token"},
    {.name = "threads",
     .letter = 't',
     .kind = OPTION_INTEGER,
     .value = "N",
     .offset = SETTING(threads),
     .least = 1,
     .most = 4096,
     .help = "at most N threads (default: OMP_NUM_THREADS, or one per\nprocessor)"},
    {.name = "isa",
     .kind = OPTION_CHOICE,
     .value = "scalar|avx2|avx512|neon",
     .offset = SETTING(isa),
     .help = "the highest instruction set to use"},
    {.name = "stores",
     .kind = OPTION_CHOICE,
     .value = "auto|cached|streaming",
     .offset = SETTING(stores),
     .help = "how the operator writes (default auto: by size)"},
    {.name = "in-place",
     .kind = OPTION_FLAG,
     .offset = SETTING(in_place),
     .help = "unpermute-grad with probs: permuted_tokens_grad replaces\npermuted_tokens, in one "
             "buffer"},
    {.name = "verify",
     .kind = OPTION_FLAG,
     .offset = SETTING(verify),
     .help = "unpermute-grad: compare 1000 rows of the first call with an\noracle in higher "
             "precision"},
    {.name = "verify-rows",
     .kind = OPTION_INTEGER,
     .value = "N",
     .offset = SETTING(verify_rows),
     .least = 1,
     .most = INT64_C(1) << 40,
     .help = "--verify with N rows instead"},
    {.name = "rounds",
     .kind = OPTION_INTEGER,
     .value = "N",
     .offset = SETTING(rounds),
     .least = 3,
     .most = ROUNDS_MOST,
     .help = "rounds of operator and ceiling in turn (default 9, quick 7)"},
    {.name = "quick",
     .kind = OPTION_FLAG,
     .offset = SETTING(quick),
     .help = "five models, bf16, 1 and 4096 tokens: under a minute"},
    {.name = "no-scaling",
     .kind = OPTION_FLAG,
     .offset = SETTING(no_scaling),
     .help = "not the part that compares numbers of threads"},
    {.name = "json",
     .kind = OPTION_FLAG,
     .offset = SETTING(json),
     .help = "one JSON object instead of a table"},
};

const struct command command_bench = {
    .name = "bench",
    .operands = "[CASE]",
    .summary = "time, and percent of the speed of memory",
    .description =
        "Measures an operator on a case file, on one model's shape, or on the built-in set: 14\n"
        "models at 1, 64, 512 and 4096 tokens, in bf16, f16 and f32, with and without probs, in\n"
        "both modes. All buffers lie in huge pages where the system gives them.\n"
        "\n"
        "Every time stands beside its ceiling: the best plain loop that reads and writes as many\n"
        "bytes in the same buffers, with as many threads (small ones also on one, if that is\n"
        "faster) and no arithmetic, through the caches or past them, whichever is faster. Both\n"
        "run in turn. Printed are medians, and the percent of the ceiling with its least and\n"
        "largest round; once with the caches warm and once with them emptied before each call.\n"
        "The last column is the percent of a row copy: the same rows in the operator's own order,\n"
        "without arithmetic. Where it is near 100 and the other is not, the order of the rows is\n"
        "what costs. [draws]: how fast memory is depends on which pages a process gets, so the\n"
        "buffers are put into other pages twice; the least and the largest median of the three.\n"
        "\n"
        "At the end stand the geometric mean and the least of the percent (cold caches) over the\n"
        "cases of 4096 tokens, for each type, with and without probs, and mode, and the mean of\n"
        "all. For the set there is also one model with growing numbers of threads: how much\n"
        "faster than with one, operator and ceiling.\n"
        "\n"
        "The router (--operator router, router-grad) is arithmetic: beside it stands no ceiling "
        "but\n"
        "the loop that one writes by hand, float32 with expf and K passes for the largest. Its "
        "set:\n"
        "64, 128 and 256 experts with softmax, and models with recipes.\n"
        "\n"
        "In place every call replaces what it reads. From the second on that is the gradient,\n"
        "which no longer changes. The ceiling rewrites the buffer with its own contents.\n"
        "\n"
        "--verify tells what must come out before the first call, and looks afterwards: at random\n"
        "rows of permuted_tokens_grad and their probs_grad, always the first row, the last, and\n"
        "those around the offsets 2^31 and 2^32, in elements and in bytes; and at every entry of\n"
        "probs_grad that must be zero. A wrong element is named, and the exit status is 1.\n"
        "\n"
        "With --in-place or --verify, and as JSON, the memory is told: the bytes of the tensors,\n"
        "the workspace (16 bytes per slot and token), and by how much the process grew\n"
        "in the first call, where memory that the operator takes from the system shows. A case of\n"
        "more than 2^31 elements (4.9 GB):\n"
        "  moetoken bench --model deepseek-v3 --tokens 37500 --in-place --verify",
    .options = options,
    .options_count = sizeof options / sizeof options[0],
    .operands_most = 1,
    .run = run,
};
