/* cmd_generate.c - `moetoken generate`: writes a case with the routing of a real layer.
 * Options -> plan_case -> the file's tensors, filled in place. */
#include <inttypes.h>
#include <string.h>

#include "cases/case_files.h"
#include "cases/case_options.h"
#include "cases/models.h"
#include "commands.h"
#include "values/number_formats.h"

struct generate_settings {
    const char *output;
    struct case_options shape;
    bool list_models, quiet;
};

static bool write_case(const struct generated_case *plan, const char *path)
{
    char error[TENSOR_FILE_ERROR_SIZE];
    struct tensor_writer *writer =
        tensor_writer_open(path, plan->specs, plan->count, plan->metadata, error);
    if (writer == NULL) {
        report_error(error);
        return false;
    }
    struct progress progress = {0};
    progress_begin(&progress, "generate", case_bytes(plan));
    for (size_t i = 0; i < plan->count; i++)
        fill_case_tensor(plan, i, tensor_writer_tensor(writer, i), &progress);
    progress_end(&progress);
    bool good = tensor_writer_commit(writer, error);
    if (!good)
        report_error(error);
    return good;
}

static void print_summary(const struct generated_case *plan, double seconds)
{
    const struct case_settings *settings = &plan->settings;
    printf("generate: %s T=%" PRId64 " H=%" PRId64 " E=%" PRId64 " %s=%" PRId64 " N=%" PRId64
           " R=%" PRId64 " %s, %" PRId64 " bytes in %.3g s\n",
           operator_outputs[settings->operator_kind].name, settings->tokens, settings->hidden,
           settings->experts, settings->drop_and_pad ? "C" : "K",
           settings->drop_and_pad ? settings->capacity : settings->topk, plan->slots, plan->rows,
           type_name(settings->token_type), case_bytes(plan), seconds);
}

static int generate(const struct generate_settings *settings)
{
    char error[TENSOR_FILE_ERROR_SIZE];
    struct case_settings shape;
    if (!case_options_resolve(&settings->shape, &shape, error, sizeof error))
        return usage_error(&command_generate, "%s", error);
    double began = seconds_now();
    struct generated_case plan;
    if (!plan_case(&plan, &shape, error, sizeof error))
        return report_error(error);
    bool written = write_case(&plan, settings->output);
    if (written && !settings->quiet)
        print_summary(&plan, seconds_now() - began);
    free_case(&plan);
    return written ? EXIT_DONE : EXIT_INPUT;
}

static int run(int argc, char **argv)
{
    struct generate_settings settings = {.shape = case_options_default()};
    int count;
    int status = parse_options(&command_generate, argc, argv, &settings, NULL, &count);
    if (status != PARSED_RUN)
        return status;
    const char *model = settings.shape.model;
    if (settings.list_models || (model != NULL && strcmp(model, "list") == 0)) {
        print_model_shapes();
        return EXIT_DONE;
    }
    if (settings.output == NULL)
        return usage_error(&command_generate, "-o CASE is missing");
    return generate(&settings);
}

#define SHAPE(field) CASE_OFFSET(struct generate_settings, shape, field)

static const struct option_spec options[] = {
    {.name = "output",
     .letter = 'o',
     .kind = OPTION_TEXT,
     .value = "CASE",
     .offset = offsetof(struct generate_settings, output),
     .help = "the file to write: .npz when it ends so, else safetensors"},
    CASE_SHAPE_OPTIONS(struct generate_settings, shape),
    {.name = "capacity",
     .kind = OPTION_INTEGER,
     .value = "C",
     .offset = SHAPE(capacity),
     .least = 1,
     .most = INT64_MAX,
     .help = "rows of each expert, sets --drop-and-pad\n(default: T * K / E, rounded up)"},
    {.name = "logits",
     .kind = OPTION_FLAG,
     .offset = SHAPE(logits),
     .help = "a case of the router: logits [T,E], and tokens [T,H] to go on with"},
    {.name = "recipe",
     .kind = OPTION_TEXT,
     .value = "NAME",
     .offset = SHAPE(recipe),
     .help = "the router's settings by the name of a model, see\nmoetoken help router (default: "
             "--model's)"},
    {.name = "operator",
     .kind = OPTION_CHOICE,
     .value = OPERATORS_CHOICES,
     .offset = SHAPE(operator_kind),
     .help = "the operator the case is for (default unpermute-grad)"},
    {.name = "dtype",
     .kind = OPTION_CHOICE,
     .value = FLOAT_CHOICES,
     .offset = SHAPE(token_type),
     .help = "type of the tokens (default f32)"},
    {.name = "probs-dtype",
     .kind = OPTION_CHOICE,
     .value = FLOAT_CHOICES,
     .offset = SHAPE(probs_type),
     .help = "type of probs, weights and logits: that of the tokens, or f32\n(the default) with "
             "f32, f16, bf16"},
    {.name = "index-dtype",
     .kind = OPTION_CHOICE,
     .value = "i32|i64",
     .offset = SHAPE(index_type),
     .help = "type of index tensors (default i32)"},
    {.name = "map-dtype",
     .kind = OPTION_CHOICE,
     .value = "bool|i8|u8",
     .offset = SHAPE(map_type),
     .help = "type of routing_map (default bool)"},
    {.name = "no-probs",
     .kind = OPTION_FLAG,
     .offset = SHAPE(no_probs),
     .help = "all weights are 1; no permuted_tokens and probs"},
    {.name = "drop-and-pad",
     .kind = OPTION_FLAG,
     .offset = SHAPE(drop_and_pad),
     .help = "padded mode: C rows for each expert"},
    {.name = "ids",
     .kind = OPTION_FLAG,
     .offset = SHAPE(ids),
     .help = "expert_ids and weights [T,K] instead of routing_map and\nprobs [T,E]"},
    {.name = "holes",
     .kind = OPTION_FLAG,
     .offset = SHAPE(holes),
     .help = "0 to K experts a token; dropless, one slot in 16 is dropped\n"
             "(index -1) besides; router: a token_mask without one in 16"},
    {.name = "shuffle",
     .kind = OPTION_FLAG,
     .offset = SHAPE(shuffle),
     .help = "rows and slots in random order"},
    {.name = "random-fill",
     .kind = OPTION_FLAG,
     .offset = SHAPE(random_fill),
     .help = "padded: fill slots hold any tokens, repeated pairs included,\n"
             "not the expert's lowest free ones"},
    {.name = "spare-rows",
     .kind = OPTION_INTEGER,
     .value = "N",
     .offset = SHAPE(spare_rows),
     .most = INT64_MAX,
     .help = "dropless: up to N rows that no slot names, where holes leave room"},
    {.name = "skew",
     .kind = OPTION_DECIMAL,
     .value = "S",
     .offset = SHAPE(skew),
     .most = 8,
     .help = "expert number k by popularity has weight k^-S, S in 64ths\n(default 0.5; 0: all "
             "experts alike)"},
    {.name = "extremes",
     .kind = OPTION_INTEGER,
     .value = "N",
     .offset = SHAPE(extremes),
     .most = INT64_MAX,
     .help = "one element in N is subnormal, tiny, huge or zero\n(default 16384; 0: none)"},
    {.name = "list-models",
     .kind = OPTION_FLAG,
     .offset = offsetof(struct generate_settings, list_models),
     .help = "print the table of models"},
    {.name = "quiet",
     .letter = 'q',
     .kind = OPTION_FLAG,
     .offset = offsetof(struct generate_settings, quiet),
     .help = "no summary line"},
};

const struct command command_generate = {
    .name = "generate",
    .operands = "-o CASE",
    .summary = "makes a case with realistic, skewed routing",
    .description =
        "Writes the inputs of an operator, with full-mantissa values of both signs and a few\n"
        "subnormal, tiny and huge ones.\n"
        "\n"
        "Routing: expert popularity follows a power law (--skew; which expert is how popular is\n"
        "drawn from the seed). For each token every expert draws a uniform number in (0, 1],\n"
        "divided by its popularity; the K smallest win. probs are 1 over that number, divided by\n"
        "their sum over all experts. Padded, each expert keeps the first C of its tokens, and an\n"
        "expert with fewer is filled up.\n"
        "\n"
        "--logits makes the inputs of a router and of a permute behind it: logits [T,E],\n"
        "tokens [T,H] and, where the recipe works with one, bias [E].",
    .options = options,
    .options_count = sizeof options / sizeof options[0],
    .run = run,
};
