/* cmd_unpermute.c - `moetoken unpermute`: the weighted combine of the experts' rows, on files. */
#include "commands.h"
#include "operator_command.h"
#include "values/number_formats.h"

static bool find_inputs(struct operator_job *job, moetoken_unpermute_args *args)
{
    return job_input(job, "permuted_tokens", true, &args->permuted_tokens) &&
           job_input(job, "sorted_indices", true, &args->sorted_indices) &&
           job_input(job, "probs", false, &args->probs) &&
           job_input(job, "routing_map", args->probs != NULL, &args->routing_map) &&
           job_input(job, "weights", false, &args->weights) &&
           job_input(job, "residual", false, &args->residual) &&
           job_input(job, "residual2", false, &args->residual2) &&
           job_input(job, "expert_bias", false, &args->expert_bias) &&
           job_input(job, "expert_ids", args->expert_bias != NULL, &args->expert_ids);
}

/* A tensor that has a row for each token, or NULL. */
static const DLTensor *find_token_rows(const moetoken_unpermute_args *args)
{
    const DLTensor *const rows[] = {args->routing_map, args->weights, args->expert_ids,
                                    args->residual};
    size_t i = 0;
    while (i < sizeof rows / sizeof rows[0] - 1 && rows[i] == NULL)
        i++;
    return rows[i];
}

/* T from restore_shape, else from a tensor with a row for each token, else from tokens_num. */
static bool find_tokens_num(struct operator_job *job, const DLTensor *map)
{
    if (job->has_restore_shape) {
        job->tokens_num = job->restore_shape[0];
        return true;
    }
    int64_t tokens = -1;
    if (map != NULL)
        tokens = tensor_dimension(map, 0);
    else if (!case_integer(&job->files, "tokens_num", job->settings->tokens_num, &tokens))
        return false;
    if (tokens < 0)
        report_input(&job->files, "the number of tokens is not known: give routing_map in the "
                                  "file or --restore-shape T,H");
    job->tokens_num = tokens;
    return tokens >= 0;
}

static bool prepare(struct operator_job *job, void *arguments)
{
    moetoken_unpermute_args *args = arguments;
    if (!find_inputs(job, args) || !find_tokens_num(job, find_token_rows(args)))
        return false;
    args->drop_and_pad = job->drop_and_pad;
    job->token_type = tensor_type(args->permuted_tokens);
    job->hidden_size = tensor_dimension(args->permuted_tokens, 1);
    args->restore_shape = job->has_restore_shape ? job->restore_shape : NULL;
    job->slots_num = tensor_dimension(args->sorted_indices, 0);
    job->rows_num = tensor_dimension(args->permuted_tokens, 0);
    if (args->routing_map != NULL)
        job->experts_num = tensor_dimension(args->routing_map, 1);
    moetoken_type index_type = job->settings->index_type < 0    ? tensor_type(args->sorted_indices)
                               : job->settings->index_type == 0 ? MOETOKEN_I32
                                                                : MOETOKEN_I64;
    const DLTensor *weights = args->probs != NULL ? args->probs : args->weights;
    moetoken_type probs_type = weights != NULL ? tensor_type(weights) : job->token_type;
    const enum operator_kind kind = OPERATOR_UNPERMUTE;
    job_output(job, kind, 0, job->token_type, 2, job->tokens_num, job->hidden_size);
    job_output(job, kind, 1, index_type, 1, job->slots_num, 0);
    job_output(job, kind, 2, index_type, 1, job->slots_num, 0);
    job_output(job, kind, 3, probs_type, 1, job->slots_num, 0);
    return true;
}

static moetoken_status call(const struct operator_job *job, void *arguments, bool check_only)
{
    moetoken_unpermute_args *args = arguments;
    args->unpermuted_tokens = job->outputs[0];
    args->out_index = job->outputs[1];
    args->permute_token_id = job->outputs[2];
    args->permuted_probs = job->outputs[3];
    return check_only ? moetoken_unpermute_check(args, &job->options)
                      : moetoken_unpermute(args, &job->options);
}

static int run(int argc, char **argv)
{
    static const struct operator_calls calls = {OPERATOR_UNPERMUTE, prepare, call};
    moetoken_unpermute_args args = {0};
    return run_operator_command(&command_unpermute, &calls, &args, argc, argv);
}

static const struct option_spec options[] = {
    OPERATOR_OPTIONS,
    MASK_OPTION,
    MISMATCH_OPTION,
    SHAPE_OPTION,
    {.name = "tokens-num",
     .kind = OPTION_INTEGER,
     .value = "T",
     .offset = SETTING(tokens_num),
     .most = INT64_MAX,
     .help = "the number of tokens, when no routing_map tells"},
    INDEX_OPTION,
};

const struct command command_unpermute = {
    .name = "unpermute",
    .operands = "CASE... -o OUT",
    .summary = "weighted combine of the experts' rows",
    .description =
        "Reads   permuted_tokens [R,H], sorted_indices [N], and with probs [T,E] also\n"
        "        routing_map [T,E]; or, of a routing by expert ids, weights [T,K] (optional) and,\n"
        "        with expert_bias [E,H], expert_ids [T,K]; residual [T,H] and residual2 [T,H]\n"
        "        (optional) are added first\n"
        "Writes  unpermuted_tokens [T,H], out_index [N], permute_token_id [N],\n"
        "        permuted_probs [N]\n"
        "\n"
        "T comes from restore_shape (option or metadata), else from a tensor with a row for each\n"
        "token, else from tokens_num. out_index and permute_token_id are what unpermute-grad "
        "takes. Of several\n"
        "files the first that holds a tensor or an attribute gives it.",
    .options = options,
    .options_count = sizeof options / sizeof options[0],
    .operands_least = 1,
    .operands_most = CASE_FILES_MOST,
    .run = run,
};
