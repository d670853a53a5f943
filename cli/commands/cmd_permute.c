/* cmd_permute.c - `moetoken permute`: sends tokens to their experts, on files. */
#include <inttypes.h>

#include "commands.h"
#include "operator_command.h"
#include "values/number_formats.h"

/* The set pairs of the map in all, and the most that one token has. */
static void count_pairs(const DLTensor *map, int64_t *pairs, int64_t *most)
{
    int64_t tokens = tensor_dimension(map, 0), experts = tensor_dimension(map, 1);
    *pairs = *most = 0;
    for (int64_t t = 0; experts > 0 && t < tokens; t++) {
        int64_t here = 0;
        for (int64_t e = 0; e < experts; e++)
            here += set_at(map, t * experts + e);
        *pairs += here;
        *most = here > *most ? here : *most;
    }
}

/* T times the most experts that a token has. */
static bool default_slots(struct operator_job *job, int64_t most, int64_t *slots)
{
    if (!__builtin_mul_overflow(job->tokens_num, most, slots))
        return true;
    fprintf(stderr, "moetoken: %s: tokens: %" PRId64 " tokens of %" PRId64 " slots are too many\n",
            job->files.paths[0], job->tokens_num, most);
    return false;
}

/* N and R. Dropless, the slots default to those of the token with the most experts. A number that
 * is given is rounded down to whole tokens or, padded, experts. */
static bool find_sizes(struct operator_job *job, const DLTensor *map)
{
    int64_t pairs = 0, most = 0, slots = -1;
    if (!case_integer(&job->files, "num_out_tokens", job->settings->num_out_tokens, &slots))
        return false;
    if (map->dtype.bits == 8 && map->ndim == 2) /* else the library's check has the last word */
        count_pairs(map, &pairs, &most);
    if (slots < 0 && job->drop_and_pad) {
        report_input(&job->files, "the capacity is not known: give --num-out-tokens (experts "
                                  "times capacity)");
        return false;
    }
    int64_t groups = job->drop_and_pad ? job->experts_num : job->tokens_num;
    if (slots < 0 && !default_slots(job, most, &slots))
        return false;
    if (groups > 0)
        slots -= slots % groups;
    job->slots_num = slots;
    job->rows_num = job->drop_and_pad || pairs > job->slots_num ? job->slots_num : pairs;
    return true;
}

static bool prepare(struct operator_job *job, void *arguments)
{
    moetoken_permute_args *args = arguments;
    if (!job_input(job, "tokens", true, &args->tokens) ||
        !job_input(job, "routing_map", true, &args->routing_map) ||
        !job_input(job, "probs", false, &args->probs))
        return false;
    job->token_type = tensor_type(args->tokens);
    job->tokens_num = tensor_dimension(args->tokens, 0);
    job->hidden_size = tensor_dimension(args->tokens, 1);
    job->experts_num = tensor_dimension(args->routing_map, 1);
    if (!find_sizes(job, args->routing_map))
        return false;
    args->drop_and_pad = job->drop_and_pad;
    args->num_out_tokens = job->slots_num;
    bool wide =
        job->settings->index_type < 0 ? job->slots_num > INT32_MAX : job->settings->index_type == 1;
    job_output(job, OPERATOR_PERMUTE, 0, job->token_type, 2, job->rows_num, job->hidden_size);
    if (args->probs != NULL)
        job_output(job, OPERATOR_PERMUTE, 1, tensor_type(args->probs), 1, job->rows_num, 0);
    job_output(job, OPERATOR_PERMUTE, 2, wide ? MOETOKEN_I64 : MOETOKEN_I32, 1, job->slots_num, 0);
    return true;
}

static moetoken_status call(const struct operator_job *job, void *arguments, bool check_only)
{
    moetoken_permute_args *args = arguments;
    args->permuted_tokens = job->outputs[0];
    args->permuted_probs = job->outputs[1];
    args->sorted_indices = job->outputs[2];
    return check_only ? moetoken_permute_check(args, &job->options)
                      : moetoken_permute(args, &job->options);
}

static int run(int argc, char **argv)
{
    static const struct operator_calls calls = {OPERATOR_PERMUTE, prepare, call};
    moetoken_permute_args args = {0};
    return run_operator_command(&command_permute, &calls, &args, argc, argv);
}

static const struct option_spec options[] = {
    OPERATOR_OPTIONS,
    {.name = "num-out-tokens",
     .kind = OPTION_INTEGER,
     .value = "N",
     .offset = SETTING(num_out_tokens),
     .most = INT64_MAX,
     .help = "the number of slots: T * K dropless (default: K is the most\n"
             "experts a token has), E * C padded; rounded down to such"},
    INDEX_OPTION,
};

const struct command command_permute = {
    .name = "permute",
    .operands = "CASE... -o OUT",
    .summary = "sends tokens to their experts",
    .description =
        "Reads   tokens [T,H], routing_map [T,E], probs [T,E] (optional)\n"
        "Writes  permuted_tokens [R,H], sorted_indices [N] and, with probs, permuted_probs [R]\n"
        "\n"
        "R is the number of set pairs when dropless, and N when padded. Of several files the\n"
        "first that holds a tensor or an attribute gives it.",
    .options = options,
    .options_count = sizeof options / sizeof options[0],
    .operands_least = 1,
    .operands_most = CASE_FILES_MOST,
    .run = run,
};
