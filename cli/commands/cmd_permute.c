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

/* The slots of the experts whose rows are made. */
static int64_t count_used(const struct operator_job *job, const DLTensor *ids)
{
    moetoken_type type;
    int64_t used = 0, count = tensor_elements(ids);
    if (!type_of_tensor(ids, &type) || (type != MOETOKEN_I32 && type != MOETOKEN_I64))
        return 0; /* the library's check has the last word */
    for (int64_t i = 0; i < count; i++) {
        int64_t expert = integer_at(ids, i);
        used += expert >= job->expert_begin && expert < job->expert_end;
    }
    return used;
}

/* E, the range of experts, C, and from them N and R. */
static bool find_sizes_by_ids(struct operator_job *job, moetoken_permute_args *args)
{
    const struct operator_settings *settings = job->settings;
    if (!case_integer(&job->files, "experts_num", settings->experts_num, &job->experts_num) ||
        !case_integer(&job->files, "expert_begin", settings->expert_begin, &job->expert_begin) ||
        !case_integer(&job->files, "expert_end", settings->expert_end, &job->expert_end) ||
        !case_integer(&job->files, "capacity", settings->capacity, &job->capacity))
        return false;
    if (job->experts_num < 0) {
        report_input(&job->files, "the number of experts is not known: give --experts-num");
        return false;
    }
    job->ranged = true;
    if (job->expert_begin == 0 && job->expert_end == 0)
        job->expert_end = job->experts_num;
    job->slots_num = tensor_elements(args->expert_ids);
    int64_t rows = count_used(job, args->expert_ids);
    int64_t experts = job->expert_end > job->expert_begin ? job->expert_end - job->expert_begin : 0;
    if (job->capacity > 0 && __builtin_mul_overflow(experts, job->capacity, &rows)) {
        report_input(&job->files, "experts times capacity do not fit in 64 bits");
        return false;
    }
    job->rows_num = rows;
    args->experts_num = job->experts_num;
    args->expert_begin = job->expert_begin;
    args->expert_end = job->expert_end;
    args->capacity = job->capacity;
    return true;
}

static bool find_inputs(struct operator_job *job, moetoken_permute_args *args)
{
    return job_input(job, "tokens", true, &args->tokens) &&
           job_input(job, "expert_ids", false, &args->expert_ids) &&
           job_input(job, "weights", false, &args->weights) &&
           job_input(job, "routing_map", args->expert_ids == NULL, &args->routing_map) &&
           job_input(job, "probs", false, &args->probs);
}

static void declare_outputs(struct operator_job *job, const moetoken_permute_args *args)
{
    const enum operator_kind kind = OPERATOR_PERMUTE;
    const DLTensor *weights = args->expert_ids != NULL ? args->weights : args->probs;
    bool wide =
        job->settings->index_type < 0 ? job->slots_num > INT32_MAX : job->settings->index_type == 1;
    moetoken_type index_type = wide ? MOETOKEN_I64 : MOETOKEN_I32;
    job_output(job, kind, 0, job->token_type, 2, job->rows_num, job->hidden_size);
    if (weights != NULL)
        job_output(job, kind, 1, tensor_type(weights), 1, job->rows_num, 0);
    job_output(job, kind, 2, index_type, 1, job->slots_num, 0);
    if (args->expert_ids == NULL)
        return;
    int64_t experts = job->expert_end > job->expert_begin ? job->expert_end - job->expert_begin : 0;
    job_output(job, kind, 3, index_type, 1, job->rows_num, 0);
    job_output(job, kind, 4, MOETOKEN_I64, 1, experts, 0);
}

static bool prepare(struct operator_job *job, void *arguments)
{
    moetoken_permute_args *args = arguments;
    if (!find_inputs(job, args))
        return false;
    job->token_type = tensor_type(args->tokens);
    job->tokens_num = tensor_dimension(args->tokens, 0);
    job->hidden_size = tensor_dimension(args->tokens, 1);
    args->drop_and_pad = job->drop_and_pad;
    if (args->expert_ids != NULL) {
        if (!find_sizes_by_ids(job, args))
            return false;
    } else {
        job->experts_num = tensor_dimension(args->routing_map, 1);
        if (!find_sizes(job, args->routing_map))
            return false;
        args->num_out_tokens = job->slots_num;
    }
    declare_outputs(job, args);
    return true;
}

static moetoken_status call(const struct operator_job *job, void *arguments, bool check_only)
{
    moetoken_permute_args *args = arguments;
    args->permuted_tokens = job->outputs[0];
    args->permuted_probs = job->outputs[1];
    args->sorted_indices = job->outputs[2];
    args->source_slots = job->outputs[3];
    args->rows_per_expert = job->outputs[4];
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
    {.name = "experts-num",
     .kind = OPTION_INTEGER,
     .value = "E",
     .offset = SETTING(experts_num),
     .most = INT64_MAX,
     .help = "by expert ids: the number of experts (default: metadata)"},
    {.name = "expert-begin",
     .kind = OPTION_INTEGER,
     .value = "E",
     .offset = SETTING(expert_begin),
     .most = INT64_MAX,
     .help = "by expert ids: the first expert whose rows are made"},
    {.name = "expert-end",
     .kind = OPTION_INTEGER,
     .value = "E",
     .offset = SETTING(expert_end),
     .most = INT64_MAX,
     .help = "by expert ids: the expert behind the last (default: all)"},
    {.name = "capacity",
     .kind = OPTION_INTEGER,
     .value = "C",
     .offset = SETTING(capacity),
     .most = INT64_MAX,
     .help = "by expert ids: rows of each expert, further slots are dropped\n"
             "(default 0: as many rows as there are slots)"},
    INDEX_OPTION,
};

const struct command command_permute = {
    .name = "permute",
    .operands = "CASE... -o OUT",
    .summary = "sends tokens to their experts",
    .description =
        "Reads   tokens [T,H], routing_map [T,E], probs [T,E] (optional)\n"
        "        or tokens [T,H], expert_ids [T,K], weights [T,K] (optional)\n"
        "Writes  permuted_tokens [R,H], sorted_indices [N] and, with probs or weights,\n"
        "        permuted_probs [R]; by expert ids also source_slots [R] and rows_per_expert [E]\n"
        "\n"
        "R is the number of set pairs when dropless, and N when padded. Of several files the\n"
        "first that holds a tensor or an attribute gives it.",
    .options = options,
    .options_count = sizeof options / sizeof options[0],
    .operands_least = 1,
    .operands_most = CASE_FILES_MOST,
    .run = run,
};
