/* cmd_router_grad.c - `moetoken router-grad`: the gradient of the logits, on files. */
#include <moetoken/router.h>

#include "commands.h"
#include "operator_command.h"

static bool prepare(struct operator_job *job, void *arguments)
{
    moetoken_router_grad_args *args = arguments;
    if (!job_input(job, "logits", true, &args->logits) ||
        !job_input(job, "token_mask", false, &args->token_mask) ||
        !job_input(job, "expert_ids", false, &args->expert_ids) ||
        !job_input(job, "weights_grad", false, &args->weights_grad) ||
        !job_input(job, "probs_grad", false, &args->probs_grad) ||
        !job_input(job, "scores_grad", false, &args->scores_grad))
        return false;
    job->token_type = tensor_type(args->logits);
    job->tokens_num = tensor_dimension(args->logits, 0);
    job->experts_num = tensor_dimension(args->logits, 1);
    job->slots_num = args->expert_ids == NULL ? 0 : tensor_elements(args->expert_ids);
    args->config = job->config;
    job_output(job, OPERATOR_ROUTER_GRAD, 0, job->token_type, 2, job->tokens_num, job->experts_num);
    return true;
}

static moetoken_status call(const struct operator_job *job, void *arguments, bool check_only)
{
    moetoken_router_grad_args *args = arguments;
    args->logits_grad = job->outputs[0];
    return check_only ? moetoken_router_grad_check(args, &job->options)
                      : moetoken_router_grad(args, &job->options);
}

static int run(int argc, char **argv)
{
    static const struct operator_calls calls = {OPERATOR_ROUTER_GRAD, prepare, call};
    moetoken_router_grad_args args = {0};
    return run_operator_command(&command_router_grad, &calls, &args, argc, argv);
}

static const struct option_spec options[] = {
    COMMON_OPTIONS,
    ROUTER_RECIPE_OPTION(struct operator_settings, router),
    ROUTER_WEIGHT_OPTIONS(struct operator_settings, router),
};

const struct command command_router_grad = {
    .name = "router-grad",
    .operands = "CASE... -o OUT",
    .summary = "from gradients of weights and scores to that of the logits",
    .description =
        "Reads   logits [T,E], token_mask [T] (optional), expert_ids [T,K] and at least one of\n"
        "        weights_grad [T,K], probs_grad [T,E], scores_grad [T,E]\n"
        "Writes  logits_grad [T,E]\n"
        "\n"
        "The choice is constant: expert_ids are those that the router wrote, and for scores_grad\n"
        "alone they are not needed. weights_grad and probs_grad add up. Settings are those of\n"
        "the router, from options, or the file's attributes as there.",
    .options = options,
    .options_count = sizeof options / sizeof options[0],
    .operands_least = 1,
    .operands_most = CASE_FILES_MOST,
    .run = run,
};
