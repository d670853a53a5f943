/* cmd_unpermute_grad.c - `moetoken unpermute-grad`: the gradient of the weighted combine, on files.
 */
#include "commands.h"
#include "operator_command.h"

static bool find_inputs(struct operator_job *job, moetoken_unpermute_grad_args *args)
{
    return job_input(job, "unpermuted_tokens_grad", true, &args->unpermuted_tokens_grad) &&
           job_input(job, "out_index", true, &args->out_index) &&
           job_input(job, "permute_token_id", job->drop_and_pad, &args->permute_token_id) &&
           job_input(job, "probs", false, &args->probs) &&
           job_input(job, "routing_map", args->probs != NULL, &args->routing_map) &&
           job_input(job, "weights", false, &args->weights) &&
           job_input(job, "expert_bias", false, &args->expert_bias) &&
           job_input(job, "expert_ids", args->expert_bias != NULL, &args->expert_ids) &&
           job_input(job, "permuted_tokens", args->probs != NULL || args->weights != NULL,
                     &args->permuted_tokens);
}

static bool prepare(struct operator_job *job, void *arguments)
{
    moetoken_unpermute_grad_args *args = arguments;
    if (!find_inputs(job, args))
        return false;
    args->drop_and_pad = job->drop_and_pad;
    args->restore_shape = job->has_restore_shape ? job->restore_shape : NULL;
    job->token_type = tensor_type(args->unpermuted_tokens_grad);
    job->tokens_num = tensor_dimension(args->unpermuted_tokens_grad, 0);
    job->hidden_size = tensor_dimension(args->unpermuted_tokens_grad, 1);
    job->slots_num = tensor_dimension(args->out_index, 0);
    job->rows_num =
        args->permuted_tokens != NULL ? tensor_dimension(args->permuted_tokens, 0) : job->slots_num;
    job_output(job, OPERATOR_UNPERMUTE_GRAD, 0, job->token_type, 2, job->rows_num,
               job->hidden_size);
    if (args->weights != NULL)
        job_output(job, OPERATOR_UNPERMUTE_GRAD, 2, tensor_type(args->weights), 2, job->tokens_num,
                   tensor_dimension(args->weights, 1));
    if (args->probs == NULL)
        return true;
    job->experts_num = tensor_dimension(args->probs, 1);
    job_output(job, OPERATOR_UNPERMUTE_GRAD, 1, tensor_type(args->probs), 2, job->tokens_num,
               job->experts_num);
    return true;
}

static moetoken_status call(const struct operator_job *job, void *arguments, bool check_only)
{
    moetoken_unpermute_grad_args *args = arguments;
    args->permuted_tokens_grad = job->outputs[0];
    args->probs_grad = job->outputs[1];
    args->weights_grad = job->outputs[2];
    return check_only ? moetoken_unpermute_grad_check(args, &job->options)
                      : moetoken_unpermute_grad(args, &job->options);
}

static int run(int argc, char **argv)
{
    static const struct operator_calls calls = {OPERATOR_UNPERMUTE_GRAD, prepare, call};
    moetoken_unpermute_grad_args args = {0};
    return run_operator_command(&command_unpermute_grad, &calls, &args, argc, argv);
}

static const struct option_spec options[] = {OPERATOR_OPTIONS, MASK_OPTION, MISMATCH_OPTION,
                                             SHAPE_OPTION};

const struct command command_unpermute_grad = {
    .name = "unpermute-grad",
    .operands = "CASE... -o OUT",
    .summary = "gradient of the weighted combine (MoeTokenUnpermuteWithRoutingMapGrad)",
    .description =
        "Reads   unpermuted_tokens_grad [T,H], out_index [N], permute_token_id [N] (optional\n"
        "        when dropless), and with probs [T,E] also routing_map [T,E] and\n"
        "        permuted_tokens [R,H]\n"
        "        or, of a routing by expert ids, weights [T,K], permuted_tokens and, optional,\n"
        "        expert_bias [E,H] with expert_ids [T,K]; out_index is permute's sorted_indices\n"
        "Writes  permuted_tokens_grad [R,H] and, with probs, probs_grad [T,E]; with weights,\n"
        "        weights_grad [T,K]\n"
        "\n"
        "R is the rows of permuted_tokens when the case has it, else N. Of several files the\n"
        "first that holds a tensor or an attribute gives it.",
    .options = options,
    .options_count = sizeof options / sizeof options[0],
    .operands_least = 1,
    .operands_most = CASE_FILES_MOST,
    .run = run,
};
