/* cmd_limits.c - `moetoken limits`: which products take a case of unpermute_grad, or one by expert
 * ids (limits_by_ids.c), without running it. The case's shapes and types -> the same formulas as
 * phase one of the aclnn layer -> a line a product. */
#include <string.h>

#include "cases/case_files.h"
#include "commands.h"
#include "limits/limits_by_ids.h"
#include "limits/product_verdict.h"
#include "products/limits.h"

struct limits_settings {
    const char *soc;
    int drop_and_pad; /* -1: not given */
};

/* The tensors that decide; shapes are checked with an output of the shape that they give. */
struct limits_case {
    struct case_files files;
    moetoken_unpermute_grad_args args;
    DLTensor rows_grad;
    int64_t rows_shape[2];
};

static bool find_tensors(struct limits_case *limits_case)
{
    const struct case_files *files = &limits_case->files;
    moetoken_unpermute_grad_args *args = &limits_case->args;
    return case_tensor(files, "unpermuted_tokens_grad", true, &args->unpermuted_tokens_grad) &&
           case_tensor(files, "out_index", true, &args->out_index) &&
           case_tensor(files, "permute_token_id", args->drop_and_pad, &args->permute_token_id) &&
           case_tensor(files, "routing_map", false, &args->routing_map) &&
           case_tensor(files, "permuted_tokens", false, &args->permuted_tokens) &&
           case_tensor(files, "probs", false, &args->probs);
}

/* Padded with probs, C > T is a case that every product refuses, not a mistake in the file. */
static bool capacity_is_above_tokens(const moetoken_unpermute_grad_args *args)
{
    int64_t experts = tensor_dimension(args->probs, 1);
    return args->drop_and_pad && experts > 0 &&
           tensor_dimension(args->out_index, 0) / experts >
               tensor_dimension(args->unpermuted_tokens_grad, 0);
}

/* The same tensor with `tokens` in place of the T that the case has; other sizes are kept. */
static const DLTensor *stretch(const DLTensor *tensor, int64_t had, int64_t tokens, DLTensor *copy,
                               int64_t shape[2])
{
    if (tensor == NULL || tensor->ndim != 2 || tensor->shape[0] != had)
        return tensor;
    shape[0] = tokens;
    shape[1] = tensor->shape[1];
    *copy = *tensor;
    copy->data = NULL;
    copy->shape = shape;
    return copy;
}

/* All that the library checks but C <= T: with as many tokens as the capacity. */
static moetoken_status check_stretched(const moetoken_unpermute_grad_args *args,
                                       const moetoken_options *options)
{
    moetoken_unpermute_grad_args stretched = *args;
    DLTensor copies[3];
    int64_t shapes[3][2];
    int64_t had = tensor_dimension(args->unpermuted_tokens_grad, 0);
    int64_t tokens = tensor_dimension(args->out_index, 0) / tensor_dimension(args->probs, 1);
    stretched.unpermuted_tokens_grad =
        stretch(args->unpermuted_tokens_grad, had, tokens, &copies[0], shapes[0]);
    stretched.routing_map = stretch(args->routing_map, had, tokens, &copies[1], shapes[1]);
    stretched.probs = stretch(args->probs, had, tokens, &copies[2], shapes[2]);
    return moetoken_unpermute_grad_check(&stretched, options);
}

/* Dropless, the interface takes token ids of any value, so they are not checked here. */
static int check_case(struct limits_case *limits_case)
{
    moetoken_unpermute_grad_args *args = &limits_case->args;
    moetoken_options options = {.flags = MOETOKEN_TOLERATE_ROUTING_MISMATCH};
    if (!args->drop_and_pad)
        args->permute_token_id = NULL;
    limits_case->rows_shape[0] =
        tensor_dimension(args->permuted_tokens ? args->permuted_tokens : args->out_index, 0);
    limits_case->rows_shape[1] = tensor_dimension(args->unpermuted_tokens_grad, 1);
    limits_case->rows_grad = *args->unpermuted_tokens_grad;
    limits_case->rows_grad.data = NULL;
    limits_case->rows_grad.ndim = 2;
    limits_case->rows_grad.shape = limits_case->rows_shape;
    limits_case->rows_grad.strides = NULL;
    args->permuted_tokens_grad = &limits_case->rows_grad;
    moetoken_status status = capacity_is_above_tokens(args)
                                 ? check_stretched(args, &options)
                                 : moetoken_unpermute_grad_check(args, &options);
    if (status == MOETOKEN_OK)
        return EXIT_DONE;
    return report_input(&limits_case->files, moetoken_last_error());
}

/* One line; whether the product takes the case. */
static bool print_product(const struct product *product, const moetoken_unpermute_grad_args *args)
{
    struct product_verdict verdict;
    product_judge(product, args, &verdict);
    printf("%-14s%s%s%s%s%s\n", product->name, verdict.word, verdict.reason[0] ? ": " : "",
           verdict.reason,
           verdict.note[0] == '\0' ? ""
           : verdict.reason[0]     ? "; but "
                                   : ": but ",
           verdict.note);
    return verdict.accepted;
}

static int print_products(const char *soc, const moetoken_unpermute_grad_args *args)
{
    if (soc != NULL)
        return print_product(limits_find_product(soc), args) ? EXIT_DONE : EXIT_INPUT;
    for (size_t i = 0; limits_product(i) != NULL; i++)
        print_product(limits_product(i), args);
    return EXIT_DONE;
}

static int run_case(const struct limits_settings *settings, struct limits_case *limits_case)
{
    if (limits_are_by_ids(&limits_case->files))
        return limits_by_ids(&limits_case->files, settings->soc);
    if (!case_switch(&limits_case->files, "drop_and_pad", settings->drop_and_pad,
                     &limits_case->args.drop_and_pad) ||
        !find_tensors(limits_case))
        return EXIT_INPUT;
    int status = check_case(limits_case);
    return status == EXIT_DONE ? print_products(settings->soc, &limits_case->args) : status;
}

static int run(int argc, char **argv)
{
    struct limits_settings settings = {.drop_and_pad = -1};
    struct limits_case limits_case = {.args = {0}};
    const char *paths[CASE_FILES_MOST];
    int count;
    int status = parse_options(&command_limits, argc, argv, &settings, paths, &count);
    if (status != PARSED_RUN)
        return status;
    if (settings.soc != NULL && limits_find_product(settings.soc) == NULL)
        return usage_error(&command_limits, "--soc %s: expected one of %s", settings.soc,
                           LIMITS_PRODUCT_NAMES);
    if (!case_files_open(&limits_case.files, paths, count))
        return EXIT_INPUT;
    status = run_case(&settings, &limits_case);
    case_files_close(&limits_case.files);
    return status;
}

static const struct option_spec options[] = {
    {.name = "soc",
     .kind = OPTION_TEXT,
     .value = "NAME",
     .offset = offsetof(struct limits_settings, soc),
     .help =
         "one product alone, as in MOETOKEN_SOC; exit status 1\nwhen it does not take the case"},
    {.name = "drop-and-pad",
     .kind = OPTION_SWITCH,
     .value = "true|false",
     .offset = offsetof(struct limits_settings, drop_and_pad),
     .help = "padded mode; wins over drop_and_pad in the file's metadata"},
};

const struct command command_limits = {
    .name = "limits",
    .operands = "CASE...",
    .summary = "which Ascend products take a case",
    .description =
        "Reads   unpermuted_tokens_grad [T,H], out_index [N] and, where they are there,\n"
        "        permute_token_id [N], routing_map [T,E], permuted_tokens [R,H], probs [T,E]\n"
        "        or, of a routing by expert ids, what permute, permute-grad, unpermute or\n"
        "        unpermute-grad reads\n"
        "\n"
        "Tells for each product whether its operator takes the case, refuses it - with formula\n"
        "and numbers - or does not exist there. Verdicts follow the vendor's document; where its\n"
        "own tiling code decides otherwise, the line says so. By expert ids there is a line for\n"
        "each of the interface's operators that does the step. Nothing is computed.",
    .options = options,
    .options_count = sizeof options / sizeof options[0],
    .operands_least = 1,
    .operands_most = CASE_FILES_MOST,
    .run = run,
};
