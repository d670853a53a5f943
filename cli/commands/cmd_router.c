/* cmd_router.c - `moetoken router`: from logits to experts and weights, on files. */
#include <moetoken/router.h>

#include "commands.h"
#include "operator_command.h"

/* The outputs by map are made when they are asked for by name: beside expert_ids they would be a
 * second spelling of the routing, which permute and unpermute refuse. */
static void declare_outputs(struct operator_job *job, const moetoken_router_args *args)
{
    const enum operator_kind kind = OPERATOR_ROUTER;
    moetoken_type weights = weights_type(job, args->logits);
    int64_t tokens = job->tokens_num, experts = job->experts_num, topk = job->config.topk;
    job_output(job, kind, 0, job->settings->index_type == 1 ? MOETOKEN_I64 : MOETOKEN_I32, 2,
               tokens, topk);
    job_output(job, kind, 1, weights, 2, tokens, topk);
    job_output(job, kind, 2, weights, 2, tokens, experts);
    job_output(job, kind, 3, MOETOKEN_I64, 1, experts, 0);
    if (job->settings->outputs == NULL)
        return;
    job_output(job, kind, 4, MOETOKEN_BOOL, 2, tokens, experts);
    job_output(job, kind, 5, weights, 2, tokens, experts);
}

static bool prepare(struct operator_job *job, void *arguments)
{
    moetoken_router_args *args = arguments;
    if (!job_input(job, "logits", true, &args->logits) ||
        !job_input(job, "bias", false, &args->bias) ||
        !job_input(job, "token_mask", false, &args->token_mask))
        return false;
    job->token_type = tensor_type(args->logits);
    job->tokens_num = tensor_dimension(args->logits, 0);
    job->experts_num = tensor_dimension(args->logits, 1);
    if (__builtin_mul_overflow(job->tokens_num, job->config.topk, &job->slots_num)) {
        report_input(&job->files, "logits: tokens times topk do not fit in 64 bits");
        return false;
    }
    args->config = job->config;
    declare_outputs(job, args);
    return true;
}

static moetoken_status call(const struct operator_job *job, void *arguments, bool check_only)
{
    moetoken_router_args *args = arguments;
    args->expert_ids = job->outputs[0];
    args->weights = job->outputs[1];
    args->scores = job->outputs[2];
    args->rows_per_expert = job->outputs[3];
    args->routing_map = job->outputs[4];
    args->probs = job->outputs[5];
    return check_only ? moetoken_router_check(args, &job->options)
                      : moetoken_router(args, &job->options);
}

static int run(int argc, char **argv)
{
    static const struct operator_calls calls = {OPERATOR_ROUTER, prepare, call};
    moetoken_router_args args = {0};
    return run_operator_command(&command_router, &calls, &args, argc, argv);
}

static const struct option_spec options[] = {
    COMMON_OPTIONS,
    ROUTER_RECIPE_OPTION(struct operator_settings, router),
    ROUTER_CHOICE_OPTIONS(struct operator_settings, router),
    ROUTER_WEIGHT_OPTIONS(struct operator_settings, router),
    {.name = "weights-dtype",
     .kind = OPTION_CHOICE,
     .value = "f32|f64|logits",
     .offset = SETTING(weights_type),
     .help = "the type of weights, probs and scores (default f32; f64 with\n"
             "logits of f64)"},
    INDEX_OPTION,
};

const struct command command_router = {
    .name = "router",
    .operands = "CASE... -o OUT",
    .summary = "chooses each token's experts and their weights",
    .description =
        "Reads   logits [T,E], bias [E] (optional), token_mask [T] (optional)\n"
        "Writes  expert_ids [T,K], weights [T,K], scores [T,E], rows_per_expert [E]; where\n"
        "        --outputs names them routing_map [T,E] and probs [T,E]\n"
        "\n"
        "Scores from the logits (--score); choice value = score + bias; of the groups of experts\n"
        "the best stay; the K best experts are chosen, ties to the lower index; their weights are\n"
        "the scores without bias, divided by their sum (--normalize), times --scale. A token\n"
        "whose token_mask is 0 has expert_ids -1.\n"
        "\n"
        "Settings that no option gives come from the file: attributes recipe, topk, score,\n"
        "normalize, normalize_scores, groups_num, groups_top, group_score_count, eps, scale.\n"
        "expert_ids and weights are what permute and unpermute take.",
    .options = options,
    .options_count = sizeof options / sizeof options[0],
    .operands_least = 1,
    .operands_most = CASE_FILES_MOST,
    .run = run,
};
