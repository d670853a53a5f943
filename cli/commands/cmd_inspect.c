/* cmd_inspect.c - `moetoken inspect`: one page about a case and what an operator made of it.
 * Files -> oracle_case -> JSON, section by section -> page. What cannot be read is said on the
 * page, which is written in any case. */
#include <inttypes.h>
#include <string.h>

#include "commands.h"
#include "inspect/inspect.h"
#include "limits/product_verdict.h"
#include "values/number_formats.h"

struct inspect_settings {
    const char *page;
    struct oracle_options options;
};

/* The files as they were given: the last one is OUT when it holds an output of the operator. */
struct inspect_files {
    struct case_files all, inputs, outputs;
};

/* ---- which operator, which files ------------------------------------------------------------- */

static bool holds_output(struct tensor_file *file, enum operator_kind kind)
{
    for (int i = 0; i < OUTPUTS_MOST; i++)
        if (operator_outputs[kind].outputs[i] != NULL &&
            tensor_file_has(file, operator_outputs[kind].outputs[i]))
            return true;
    return false;
}

/* From the command line, the metadata of the last file, or of another; else from the tensors that
 * each operator alone takes. */
static bool find_kind(const struct inspect_files *files, const struct oracle_options *options,
                      enum operator_kind *kind)
{
    static const char *const typical[OPERATORS_COUNT] = {
        [OPERATOR_UNPERMUTE_GRAD] = "unpermuted_tokens_grad",
        [OPERATOR_UNPERMUTE] = "permuted_tokens",
        [OPERATOR_PERMUTE] = "tokens",
        [OPERATOR_PERMUTE_GRAD] = "permuted_tokens_grad"};
    if (options->operator_kind >= 0) {
        *kind = (enum operator_kind)options->operator_kind;
        return true;
    }
    for (int i = files->all.count - 1; i >= 0; i--) {
        const char *name = tensor_file_metadata(files->all.files[i], "operator");
        if (name != NULL && find_operator(name, kind) && !is_router(*kind))
            return true;
    }
    for (int k = 0; k < OPERATORS_COUNT; k++) {
        if (typical[k] != NULL && tensor_file_has(files->all.files[0], typical[k])) {
            *kind = (enum operator_kind)k;
            return true;
        }
    }
    return false;
}

static void part_files(struct inspect_files *files, enum operator_kind kind)
{
    files->inputs = files->all;
    files->outputs.count = 0;
    int last = files->all.count - 1;
    if (last == 0 || !holds_output(files->all.files[last], kind))
        return;
    files->inputs.count = last;
    files->outputs.count = 1;
    files->outputs.files[0] = files->all.files[last];
    files->outputs.paths[0] = files->all.paths[last];
}

/* ---- the page's head ------------------------------------------------------------------------- */

static void add_files(const struct inspect_files *files, cJSON *page)
{
    cJSON *list = cJSON_AddArrayToObject(page, "files");
    for (int i = 0; i < files->all.count; i++) {
        cJSON *item = cJSON_CreateObject();
        inspect_add_text(item, "path", files->all.paths[i]);
        cJSON_AddNumberToObject(item, "bytes", (double)tensor_file_size(files->all.files[i]));
        cJSON_AddItemToArray(list, item);
    }
}

static void add_pair(cJSON *list, const char *key, const char *value)
{
    cJSON *pair = cJSON_CreateArray();
    cJSON_AddItemToArray(pair, cJSON_CreateString(key));
    cJSON_AddItemToArray(pair, cJSON_CreateString(value));
    cJSON_AddItemToArray(list, pair);
}

static void add_size(cJSON *list, const char *key, int64_t size)
{
    char text[32];
    snprintf(text, sizeof text, "%" PRId64, size);
    if (size >= 0)
        add_pair(list, key, text);
}

static void add_case(const struct oracle_case *oracle, cJSON *page)
{
    cJSON *list = cJSON_AddArrayToObject(page, "case");
    add_pair(list, "mode",
             oracle->by_ids         ? "by expert ids"
             : oracle->drop_and_pad ? "drop_and_pad"
                                    : "dropless");
    add_size(list, "T", oracle->tokens);
    add_size(list, "H", oracle->hidden);
    add_size(list, "E", oracle->experts);
    if (oracle->drop_and_pad && oracle->experts > 0)
        add_size(list, "C", oracle->slots / oracle->experts);
    else if (oracle->tokens > 0)
        add_size(list, "K", oracle->slots / oracle->tokens);
    add_size(list, "N", oracle->slots);
    add_size(list, "R", oracle->rows);
    if (oracle->mask_fill_slots)
        add_pair(list, "mask_fill_slots", "true");
    if (oracle->tolerate_routing_mismatch)
        add_pair(list, "tolerate_routing_mismatch", "true");
}

/* ---- products -------------------------------------------------------------------------------- */

static void add_products(const struct oracle_case *oracle, cJSON *page)
{
    if (oracle->operator_kind != OPERATOR_UNPERMUTE_GRAD || oracle->by_ids) {
        cJSON_AddStringToObject(page, "products_note",
                                "The products' limits are known of unpermute-grad by "
                                "routing_map alone.");
        return;
    }
    moetoken_unpermute_grad_args args = {.unpermuted_tokens_grad = oracle->unpermuted_tokens_grad,
                                         .out_index = oracle->out_index,
                                         .permute_token_id = oracle->permute_token_id,
                                         .routing_map = oracle->routing_map,
                                         .permuted_tokens = oracle->permuted_tokens,
                                         .probs = oracle->probs,
                                         .drop_and_pad = oracle->drop_and_pad};
    cJSON *list = cJSON_AddArrayToObject(page, "products");
    for (size_t i = 0; limits_product(i) != NULL; i++) {
        const struct product *product = limits_product(i);
        struct product_verdict verdict;
        product_judge(product, &args, &verdict);
        cJSON *item = cJSON_CreateObject();
        cJSON_AddStringToObject(item, "name", product->name);
        cJSON_AddStringToObject(item, "sold_as", product->sold_as ? product->sold_as : "");
        cJSON_AddStringToObject(item, "word", verdict.word);
        cJSON_AddStringToObject(item, "reason", verdict.reason);
        cJSON_AddStringToObject(item, "note", verdict.note);
        cJSON_AddItemToArray(list, item);
    }
}

/* ---- all of it ------------------------------------------------------------------------------- */

static void add_problem(cJSON *page, const struct oracle_case *oracle, const char *otherwise)
{
    inspect_add_text(page, "problem", oracle->error[0] != '\0' ? oracle->error : otherwise);
    cJSON_AddStringToObject(page, "products_note", "Not known, as the case could not be read.");
}

/* Everything but the tensors. */
static void describe_call(struct inspect_files *files, const struct oracle_options *options,
                          enum operator_kind kind, cJSON *page)
{
    char error[TENSOR_FILE_ERROR_SIZE] = "";
    struct oracle_case oracle = {.error = error};
    struct oracle_options known = *options;
    struct case_files attributes = files->outputs;
    known.operator_kind = (int)kind;
    for (int i = 0; i < files->inputs.count; i++) {
        attributes.files[attributes.count] = files->inputs.files[i];
        attributes.paths[attributes.count++] = files->inputs.paths[i];
    }
    if (!oracle_case_load(&files->inputs, &files->outputs, &attributes, &known, &oracle)) {
        add_problem(page, &oracle,
                    "This is no complete case of the operator; standard error said why.");
        return;
    }
    add_case(&oracle, page);
    struct inspect_routing routing;
    struct progress progress = {0};
    if (!inspect_routing_build(&oracle, &routing)) {
        add_problem(page, &oracle, "The slots could not be read.");
        inspect_routing_free(&routing);
        return;
    }
    add_products(&oracle, page);
    inspect_routing_describe(&routing, page);
    if (files->outputs.count > 0) {
        progress_begin(&progress, "inspect", 0);
        if (!inspect_errors(&routing, &progress, page))
            inspect_add_text(page, "problem", error[0] ? error : "no memory for the errors");
        progress_end(&progress);
    }
    inspect_routing_free(&routing);
}

static int inspect(const struct inspect_settings *settings, struct inspect_files *files)
{
    enum operator_kind kind;
    cJSON *page = cJSON_CreateObject();
    bool known = find_kind(files, &settings->options, &kind);
    cJSON_AddStringToObject(page, "version", moetoken_version());
    cJSON_AddStringToObject(page, "title", known ? operator_outputs[kind].name : "tensors");
    add_files(files, page);
    inspect_tensors(&files->all, page);
    if (known) {
        part_files(files, kind);
        describe_call(files, &settings->options, kind, page);
    } else {
        cJSON_AddStringToObject(page, "problem",
                                "Which operator this is for is not known: give --operator.");
        cJSON_AddStringToObject(page, "products_note", "Not known without an operator.");
    }
    bool good = inspect_write_page(settings->page, page);
    cJSON_Delete(page);
    return good ? EXIT_DONE : EXIT_INPUT;
}

static int run(int argc, char **argv)
{
    struct inspect_settings settings = {.options = {.operator_kind = -1,
                                                    .drop_and_pad = -1,
                                                    .mask_fill_slots = -1,
                                                    .tolerate_routing_mismatch = -1,
                                                    .tokens_num = -1,
                                                    .experts_num = -1,
                                                    .num_out_tokens = -1,
                                                    .expert_begin = -1,
                                                    .expert_end = -1,
                                                    .capacity = -1}};
    const char *paths[CASE_FILES_MOST];
    struct inspect_files files;
    int count;
    int status = parse_options(&command_inspect, argc, argv, &settings, paths, &count);
    if (status != PARSED_RUN)
        return status;
    if (settings.page == NULL)
        return usage_error(&command_inspect, "-o PAGE is missing");
    if (!case_files_open(&files.all, paths, count))
        return EXIT_INPUT;
    if (case_files_hold(&files.all, settings.page))
        status =
            usage_error(&command_inspect,
                        "-o %s: is an input of this command and would be replaced", settings.page);
    else
        status = inspect(&settings, &files);
    case_files_close(&files.all);
    return status;
}

#define OPTION(field)                                                                              \
    (offsetof(struct inspect_settings, options) + offsetof(struct oracle_options, field))

static const struct option_spec options[] = {
    {.name = "output",
     .letter = 'o',
     .kind = OPTION_TEXT,
     .value = "PAGE",
     .offset = offsetof(struct inspect_settings, page),
     .help = "the HTML file to write"},
    {.name = "operator",
     .kind = OPTION_CHOICE,
     .value = ROW_OPERATORS_CHOICES,
     .offset = OPTION(operator_kind),
     .help = "whose case it is (default: metadata or tensors tell)"},
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
};

const struct command command_inspect = {
    .name = "inspect",
    .operands = "CASE... [OUT] -o PAGE",
    .summary = "a page about a case and its outputs: routing, errors, limits",
    .description =
        "Writes one HTML file that needs nothing else and fetches nothing: types, shapes and\n"
        "numbers of each tensor, rows of each expert, slots of each token, which Ascend\n"
        "products take the case and, when the last file holds outputs of the operator, how far\n"
        "off each of them is: as a histogram in units in the last place, as a map of tokens by\n"
        "experts, and the worst elements one by one.\n"
        "\n"
        "Exit status 0 when the page was written, whatever it says; verify is what fails.",
    .options = options,
    .options_count = sizeof options / sizeof options[0],
    .operands_least = 1,
    .operands_most = CASE_FILES_MOST,
    .run = run,
};
