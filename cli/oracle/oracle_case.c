/* oracle_case.c - CASE and OUT -> the checked inputs of one operator call.
 *
 * Checks types and shapes on its own: a case that the library wrongly accepted is found here. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "oracle.h"
#include "terminal/options.h"
#include "values/number_formats.h"

enum tensor_kind {
    KIND_TOKENS,
    KIND_PROBS,
    KIND_INDEX,
    KIND_MAP
};

struct input_rule {
    enum operator_kind operator_kind;
    const char *name;
    size_t offset; /* in struct oracle_case */
    enum tensor_kind kind;
    const char *sizes; /* a letter for each dimension */
};

#define PLACE(member) offsetof(struct oracle_case, member)

/* In the order in which they define the sizes. */
static const struct input_rule rules[] = {
    {OPERATOR_UNPERMUTE_GRAD, "unpermuted_tokens_grad", PLACE(unpermuted_tokens_grad), KIND_TOKENS,
     "TH"},
    {OPERATOR_UNPERMUTE_GRAD, "out_index", PLACE(out_index), KIND_INDEX, "N"},
    {OPERATOR_UNPERMUTE_GRAD, "permute_token_id", PLACE(permute_token_id), KIND_INDEX, "N"},
    {OPERATOR_UNPERMUTE_GRAD, "probs", PLACE(probs), KIND_PROBS, "TE"},
    {OPERATOR_UNPERMUTE_GRAD, "routing_map", PLACE(routing_map), KIND_MAP, "TE"},
    {OPERATOR_UNPERMUTE_GRAD, "permuted_tokens", PLACE(permuted_tokens), KIND_TOKENS, "RH"},
    {OPERATOR_UNPERMUTE_GRAD, "weights", PLACE(weights), KIND_PROBS, "TK"},
    {OPERATOR_UNPERMUTE_GRAD, "expert_bias", PLACE(expert_bias), KIND_TOKENS, "EH"},
    {OPERATOR_UNPERMUTE_GRAD, "expert_ids", PLACE(expert_ids), KIND_INDEX, "TK"},
    {OPERATOR_UNPERMUTE, "permuted_tokens", PLACE(permuted_tokens), KIND_TOKENS, "RH"},
    {OPERATOR_UNPERMUTE, "sorted_indices", PLACE(sorted_indices), KIND_INDEX, "N"},
    {OPERATOR_UNPERMUTE, "probs", PLACE(probs), KIND_PROBS, "TE"},
    {OPERATOR_UNPERMUTE, "routing_map", PLACE(routing_map), KIND_MAP, "TE"},
    {OPERATOR_UNPERMUTE, "weights", PLACE(weights), KIND_PROBS, "TK"},
    {OPERATOR_UNPERMUTE, "residual", PLACE(residual), KIND_TOKENS, "TH"},
    {OPERATOR_UNPERMUTE, "residual2", PLACE(residual2), KIND_TOKENS, "TH"},
    {OPERATOR_UNPERMUTE, "expert_bias", PLACE(expert_bias), KIND_TOKENS, "EH"},
    {OPERATOR_UNPERMUTE, "expert_ids", PLACE(expert_ids), KIND_INDEX, "TK"},
    {OPERATOR_PERMUTE, "tokens", PLACE(plain_tokens), KIND_TOKENS, "TH"},
    {OPERATOR_PERMUTE, "expert_ids", PLACE(expert_ids), KIND_INDEX, "TK"},
    {OPERATOR_PERMUTE, "weights", PLACE(weights), KIND_PROBS, "TK"},
    {OPERATOR_PERMUTE, "routing_map", PLACE(routing_map), KIND_MAP, "TE"},
    {OPERATOR_PERMUTE, "probs", PLACE(probs), KIND_PROBS, "TE"},
    {OPERATOR_PERMUTE_GRAD, "permuted_tokens_grad", PLACE(permuted_tokens_grad), KIND_TOKENS, "RH"},
    {OPERATOR_PERMUTE_GRAD, "permuted_probs_grad", PLACE(permuted_probs_grad), KIND_PROBS, "R"},
    {OPERATOR_PERMUTE_GRAD, "sorted_indices", PLACE(sorted_indices), KIND_INDEX, "N"},
    {OPERATOR_PERMUTE_GRAD, "routing_map", PLACE(routing_map), KIND_MAP, "TE"},
};
enum {
    RULES_COUNT = sizeof rules / sizeof rules[0]
};

static int64_t *size_of_letter(struct oracle_case *oracle, char letter)
{
    switch (letter) {
    case 'T':
        return &oracle->tokens;
    case 'H':
        return &oracle->hidden;
    case 'E':
        return &oracle->experts;
    case 'N':
        return &oracle->slots;
    case 'K':
        return &oracle->topk;
    default:
        return &oracle->rows;
    }
}

static bool type_is_of_kind(moetoken_type type, enum tensor_kind kind)
{
    switch (kind) {
    case KIND_TOKENS:
    case KIND_PROBS:
        return type_is_float(type);
    case KIND_INDEX:
        return type == MOETOKEN_I32 || type == MOETOKEN_I64;
    case KIND_MAP:
        return type == MOETOKEN_BOOL || type == MOETOKEN_I8 || type == MOETOKEN_U8;
    }
    return false;
}

static bool check_input(struct oracle_case *oracle, const struct input_rule *rule,
                        const DLTensor *tensor)
{
    moetoken_type type;
    if (!type_of_tensor(tensor, &type) || !type_is_of_kind(type, rule->kind)) {
        snprintf(oracle->error, TENSOR_FILE_ERROR_SIZE, "%s has a type it cannot have", rule->name);
        return false;
    }
    if (tensor->ndim != (int)strlen(rule->sizes)) {
        snprintf(oracle->error, TENSOR_FILE_ERROR_SIZE, "%s has %d dimensions, expected %d",
                 rule->name, tensor->ndim, (int)strlen(rule->sizes));
        return false;
    }
    for (int d = 0; d < tensor->ndim; d++) {
        int64_t *size = size_of_letter(oracle, rule->sizes[d]);
        if (*size >= 0 && *size != tensor->shape[d]) {
            snprintf(oracle->error, TENSOR_FILE_ERROR_SIZE,
                     "%s has %" PRId64 " in dimension %d, expected %c = %" PRId64, rule->name,
                     tensor->shape[d], d, rule->sizes[d], *size);
            return false;
        }
        *size = tensor->shape[d];
    }
    return true;
}

/* Tensors that the call does not need are left out: without probs nothing is weighted. */
static bool is_ignored(const struct oracle_case *oracle, const struct input_rule *rule)
{
    bool grad_or_combine =
        rule->operator_kind == OPERATOR_UNPERMUTE_GRAD || rule->operator_kind == OPERATOR_UNPERMUTE;
    return grad_or_combine && strcmp(rule->name, "routing_map") == 0 && oracle->probs == NULL &&
           !(oracle->drop_and_pad && oracle->mask_fill_slots) &&
           rule->operator_kind == OPERATOR_UNPERMUTE_GRAD;
}

static bool load_inputs(const struct case_files *inputs, struct oracle_case *oracle)
{
    for (int i = 0; i < RULES_COUNT; i++) {
        const struct input_rule *rule = &rules[i];
        if (rule->operator_kind != oracle->operator_kind || is_ignored(oracle, rule))
            continue;
        const DLTensor *tensor;
        if (!case_tensor(inputs, rule->name, false, &tensor))
            return false;
        if (tensor != NULL && !check_input(oracle, rule, tensor)) {
            report_input(inputs, oracle->error);
            return false;
        }
        *(const DLTensor **)((char *)oracle + rule->offset) = tensor;
    }
    return true;
}

static bool is_missing(const struct case_files *inputs, const char *name, const DLTensor *tensor,
                       bool required)
{
    if (tensor != NULL || !required)
        return false;
    fprintf(stderr, "moetoken: %s: there is no tensor %s\n", inputs->paths[0], name);
    return true;
}

static bool is_by_ids(const struct oracle_case *oracle)
{
    switch (oracle->operator_kind) {
    case OPERATOR_PERMUTE:
        return oracle->expert_ids != NULL;
    case OPERATOR_PERMUTE_GRAD:
        return oracle->permuted_probs_grad != NULL && oracle->routing_map == NULL &&
               !oracle->drop_and_pad;
    default:
        return oracle->weights != NULL || oracle->expert_bias != NULL;
    }
}

/* A routing by expert ids: its form, and the tensors that it needs besides. */
static bool check_form(const struct case_files *inputs, struct oracle_case *oracle)
{
    oracle->by_ids = is_by_ids(oracle);
    if (!oracle->by_ids)
        return true;
    if (oracle->routing_map != NULL || oracle->probs != NULL || oracle->drop_and_pad) {
        report_input(inputs, "expert_ids and weights go with neither routing_map, probs nor "
                             "drop_and_pad");
        return false;
    }
    bool grad = oracle->operator_kind == OPERATOR_UNPERMUTE_GRAD;
    return !is_missing(inputs, "expert_ids", oracle->expert_ids, oracle->expert_bias != NULL) &&
           !is_missing(inputs, "permuted_tokens", oracle->permuted_tokens,
                       grad && oracle->weights != NULL) &&
           !is_missing(inputs, "residual", oracle->residual, oracle->residual2 != NULL);
}

/* What each operator cannot do without. */
static bool has_required_inputs(const struct case_files *inputs, const struct oracle_case *oracle)
{
    enum operator_kind kind = oracle->operator_kind;
    bool grad = kind == OPERATOR_UNPERMUTE_GRAD, probs = oracle->probs != NULL;
    bool needs_map = (kind == OPERATOR_PERMUTE && !oracle->by_ids) || probs;
    return !is_missing(inputs, "unpermuted_tokens_grad", oracle->unpermuted_tokens_grad, grad) &&
           !is_missing(inputs, "out_index", oracle->out_index, grad) &&
           !is_missing(inputs, "permute_token_id", oracle->permute_token_id,
                       grad && oracle->drop_and_pad) &&
           !is_missing(inputs, "permuted_tokens", oracle->permuted_tokens,
                       kind == OPERATOR_UNPERMUTE || (grad && probs)) &&
           !is_missing(inputs, "sorted_indices", oracle->sorted_indices,
                       kind == OPERATOR_UNPERMUTE || kind == OPERATOR_PERMUTE_GRAD) &&
           !is_missing(inputs, "tokens", oracle->plain_tokens, kind == OPERATOR_PERMUTE) &&
           !is_missing(inputs, "permuted_tokens_grad", oracle->permuted_tokens_grad,
                       kind == OPERATOR_PERMUTE_GRAD) &&
           !is_missing(inputs, "routing_map", oracle->routing_map, needs_map);
}

static bool attribute(const struct case_files *attributes, const char *key, int64_t given,
                      int64_t *size)
{
    int64_t value = -1;
    if (!case_integer(attributes, key, given, &value))
        return false;
    if (*size < 0)
        *size = value;
    return true;
}

/* Beside a size of 0, and in metadata, any number is possible; here they stay far from overflow. */
static bool check_magnitudes(const struct case_files *attributes, const struct oracle_case *oracle)
{
    const int64_t most = INT64_C(1) << 48;
    if (oracle->tokens <= most && oracle->hidden <= most && oracle->experts <= most &&
        oracle->slots <= most && oracle->rows <= most)
        return true;
    report_input(attributes, "a size is above 2^48");
    return false;
}

/* What is kept for each slot, token, row, element of a row and expert; see oracle_slots. */
static bool check_work(const struct case_files *attributes, const struct oracle_case *oracle)
{
    return case_justifies(attributes, 0,
                          64.0 * (double)oracle->slots + 16.0 * (double)oracle->tokens +
                              8.0 * (double)oracle->rows + 16.0 * (double)oracle->hidden +
                              64.0 * (double)oracle->experts);
}

/* permute rounds the number of slots down to whole tokens or, padded, experts. */
static void round_slots(struct oracle_case *oracle)
{
    int64_t groups = oracle->drop_and_pad ? oracle->experts : oracle->tokens;
    if (oracle->operator_kind == OPERATOR_PERMUTE && oracle->slots > 0 && groups > 0)
        oracle->slots -= oracle->slots % groups;
}

/* permute by expert ids: which experts, and how many rows of each. */
static bool find_range(const struct case_files *attributes, const struct oracle_options *options,
                       struct oracle_case *oracle)
{
    if (!case_integer(attributes, "expert_begin", options->expert_begin, &oracle->expert_begin) ||
        !case_integer(attributes, "expert_end", options->expert_end, &oracle->expert_end) ||
        !case_integer(attributes, "capacity", options->capacity, &oracle->capacity))
        return false;
    if (oracle->expert_begin == 0 && oracle->expert_end == 0)
        oracle->expert_end = oracle->experts;
    oracle->slots = tensor_elements(oracle->expert_ids);
    if (oracle->experts >= 0 && oracle->expert_begin <= oracle->expert_end &&
        oracle->expert_end <= oracle->experts)
        return true;
    report_input(attributes, "experts_num, expert_begin and expert_end: expected "
                             "0 <= expert_begin <= expert_end <= experts_num");
    return false;
}

/* Sizes that no input tensor told. */
static bool complete_sizes(const struct case_files *attributes,
                           const struct oracle_options *options, struct oracle_case *oracle)
{
    int64_t shape[2];
    bool present;
    if (!case_restore_shape(attributes, options->restore_shape, shape, &present))
        return false;
    if (present && oracle->tokens < 0)
        oracle->tokens = shape[0];
    if (!attribute(attributes, "tokens_num", options->tokens_num, &oracle->tokens) ||
        !attribute(attributes, "experts_num", options->experts_num, &oracle->experts) ||
        !attribute(attributes, "num_out_tokens", options->num_out_tokens, &oracle->slots))
        return false;
    if (oracle->by_ids && oracle->operator_kind == OPERATOR_PERMUTE) {
        if (!find_range(attributes, options, oracle))
            return false;
    } else {
        round_slots(oracle);
    }
    if (oracle->operator_kind == OPERATOR_PERMUTE)
        oracle->rows = oracle->output[0] != NULL   ? tensor_dimension(oracle->output[0], 0)
                       : oracle->output[1] != NULL ? tensor_dimension(oracle->output[1], 0)
                                                   : oracle->slots;
    if (oracle->rows < 0)
        oracle->rows = oracle->slots;
    if (oracle->tokens < 0 || oracle->slots < 0) {
        report_input(attributes, "the number of tokens or slots is not known");
        return false;
    }
    return check_magnitudes(attributes, oracle) && check_work(attributes, oracle);
}

bool oracle_find_kind(const struct case_files *output, int given, enum operator_kind *kind)
{
    const char *name = case_metadata(output, "operator");
    if (given >= 0) {
        *kind = (enum operator_kind)given;
        return true;
    }
    if (name != NULL)
        return find_operator(name, kind) ||
               (report_input(output, "metadata operator names none that is known"), false);
    for (int i = 0; i < OPERATORS_COUNT; i++) {
        if (tensor_file_find(output->files[0], operator_outputs[i].outputs[0]) != NULL) {
            *kind = (enum operator_kind)i;
            return true;
        }
    }
    report_input(output, "it is not known which operator wrote this: give --operator");
    return false;
}

bool oracle_case_load(const struct case_files *inputs, const struct case_files *output,
                      const struct case_files *attributes, const struct oracle_options *options,
                      struct oracle_case *oracle)
{
    oracle->tokens = oracle->hidden = oracle->experts = oracle->slots = oracle->rows = -1;
    oracle->topk = -1;
    if (!oracle_find_kind(output, options->operator_kind, &oracle->operator_kind) ||
        !case_switch(attributes, "drop_and_pad", options->drop_and_pad, &oracle->drop_and_pad) ||
        !case_switch(attributes, "mask_fill_slots", options->mask_fill_slots,
                     &oracle->mask_fill_slots) ||
        !case_switch(attributes, "tolerate_routing_mismatch", options->tolerate_routing_mismatch,
                     &oracle->tolerate_routing_mismatch))
        return false;
    for (int i = 0; i < OUTPUTS_MOST; i++) {
        const char *name = operator_outputs[oracle->operator_kind].outputs[i];
        if (name != NULL && !case_tensor(output, name, false, &oracle->output[i]))
            return false;
    }
    return load_inputs(inputs, oracle) && check_form(inputs, oracle) &&
           has_required_inputs(inputs, oracle) && complete_sizes(attributes, options, oracle);
}
