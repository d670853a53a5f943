/* cmd_permute_grad.c - `moetoken permute-grad`: the gradient of permute, on files. */
#include "commands.h"
#include "operator_command.h"

static bool find_inputs(struct operator_job *job, moetoken_permute_grad_args *args)
{
    return job_input(job, "permuted_tokens_grad", true, &args->permuted_tokens_grad) &&
           job_input(job, "permuted_probs_grad", false, &args->permuted_probs_grad) &&
           job_input(job, "sorted_indices", true, &args->sorted_indices) &&
           job_input(job, "routing_map", false, &args->routing_map);
}

/* Without a map, the gradient of the weights is one for each slot. */
static bool is_by_ids(const struct operator_job *job, const moetoken_permute_grad_args *args)
{
    return args->permuted_probs_grad != NULL && args->routing_map == NULL && !job->drop_and_pad;
}

/* An attribute that the map's shape tells too. */
static bool find_size(struct operator_job *job, const char *key, int64_t given, const DLTensor *map,
                      int dimension, bool required, int64_t *value)
{
    *value = map != NULL ? tensor_dimension(map, dimension) : -1;
    if (!case_integer(&job->files, key, given, value))
        return false;
    if (*value < 0 && required)
        fprintf(stderr,
                "moetoken: %s: %s is not known: give it in the metadata, on the command "
                "line, or as routing_map\n",
                job->files.paths[0], key);
    return *value >= 0 || !required;
}

static bool prepare(struct operator_job *job, void *arguments)
{
    moetoken_permute_grad_args *args = arguments;
    if (!find_inputs(job, args))
        return false;
    bool by_ids = is_by_ids(job, args), probs = args->permuted_probs_grad != NULL && !by_ids;
    const struct operator_settings *settings = job->settings;
    if (!find_size(job, "tokens_num", settings->tokens_num, args->routing_map, 0, true,
                   &job->tokens_num) ||
        !find_size(job, "experts_num", settings->experts_num, args->routing_map, 1, probs,
                   &job->experts_num))
        return false;
    args->tokens_num = job->tokens_num;
    args->experts_num = job->experts_num < 0 ? 0 : job->experts_num;
    args->drop_and_pad = job->drop_and_pad;
    job->token_type = tensor_type(args->permuted_tokens_grad);
    job->hidden_size = tensor_dimension(args->permuted_tokens_grad, 1);
    job->slots_num = tensor_dimension(args->sorted_indices, 0);
    job->rows_num = tensor_dimension(args->permuted_tokens_grad, 0);
    job_output(job, OPERATOR_PERMUTE_GRAD, 0, job->token_type, 2, job->tokens_num,
               job->hidden_size);
    if (probs)
        job_output(job, OPERATOR_PERMUTE_GRAD, 1, tensor_type(args->permuted_probs_grad), 2,
                   job->tokens_num, job->experts_num);
    if (by_ids)
        job_output(job, OPERATOR_PERMUTE_GRAD, 2, tensor_type(args->permuted_probs_grad), 2,
                   job->tokens_num, job->tokens_num > 0 ? job->slots_num / job->tokens_num : 0);
    return true;
}

static moetoken_status call(const struct operator_job *job, void *arguments, bool check_only)
{
    moetoken_permute_grad_args *args = arguments;
    args->tokens_grad = job->outputs[0];
    args->probs_grad = job->outputs[1];
    args->weights_grad = job->outputs[2];
    return check_only ? moetoken_permute_grad_check(args, &job->options)
                      : moetoken_permute_grad(args, &job->options);
}

static int run(int argc, char **argv)
{
    static const struct operator_calls calls = {OPERATOR_PERMUTE_GRAD, prepare, call};
    moetoken_permute_grad_args args = {0};
    return run_operator_command(&command_permute_grad, &calls, &args, argc, argv);
}

static const struct option_spec options[] = {
    OPERATOR_OPTIONS,
    MISMATCH_OPTION,
    {.name = "tokens-num",
     .kind = OPTION_INTEGER,
     .value = "T",
     .offset = SETTING(tokens_num),
     .most = INT64_MAX,
     .help = "the number of tokens (default: metadata, routing_map)"},
    {.name = "experts-num",
     .kind = OPTION_INTEGER,
     .value = "E",
     .offset = SETTING(experts_num),
     .most = INT64_MAX,
     .help = "the number of experts (default: metadata, routing_map)"},
};

const struct command command_permute_grad = {
    .name = "permute-grad",
    .operands = "CASE... -o OUT",
    .summary = "gradient of permute",
    .description = "Reads   permuted_tokens_grad [R,H], permuted_probs_grad [R] (optional),\n"
                   "        sorted_indices [N], routing_map [T,E] (for probs_grad when dropless)\n"
                   "Writes  tokens_grad [T,H] and, with permuted_probs_grad, probs_grad [T,E] or,\n"
                   "        when dropless without routing_map (by expert ids), weights_grad [T,K]\n"
                   "\n"
                   "Of several files the first that holds a tensor or an attribute gives it.",
    .options = options,
    .options_count = sizeof options / sizeof options[0],
    .operands_least = 1,
    .operands_most = CASE_FILES_MOST,
    .run = run,
};
