/* family_case.c - complete random calls of unpermute, permute and permute_grad. */
#include "family_case.h"

#include "check.h"
#include "oracle/oracle.h"
#include "random.h"

struct family_spec family_spec_default(enum family_verb verb, bool padded)
{
    return (struct family_spec){
        .verb = verb,
        .routing = {.padded = padded, .tokens = 7, .experts = 5, .slots = 3, .hole_percent = 10},
        .hidden = 19,
        .map_type = MOETOKEN_U8,
        .index_type = MOETOKEN_I32};
}

static void make(struct family_case *family, struct test_tensor *tensor, moetoken_type type,
                 int ndim, int64_t rows, int64_t columns, bool output)
{
    struct layout layout = {0};
    if (family->spec.random_layouts) {
        layout = layout_random(output);
    }
    tensor_make(tensor, type, ndim, rows, columns, &layout);
}

static void make_routing_tensors(struct family_case *family)
{
    const struct routing *routing = &family->routing;
    make(family, &family->map, family->spec.map_type, 2, routing->tokens, routing->experts, true);
    make(family, &family->indices, family->spec.index_type, 1, routing->slots_num, 1, true);
    tensor_fill_indices(&family->indices.dl,
                        family->spec.routing.padded ? routing->token : routing->row);
    for (int64_t i = 0; i < routing->tokens * routing->experts; i++) {
        tensor_set_bits(&family->map.dl, i / routing->experts, i % routing->experts,
                        routing->map[i]);
    }
}

static void make_output(struct family_case *family, moetoken_type type, int ndim, int64_t rows,
                        int64_t columns)
{
    make(family, &family->outputs[family->output_count++], type, ndim, rows, columns, true);
}

static const DLTensor *output(struct family_case *family, int i)
{
    return family->spec.absent >> i & 1 ? NULL : &family->outputs[i].dl;
}

static void make_unpermute(struct family_case *family)
{
    const struct family_spec *spec = &family->spec;
    const struct routing *routing = &family->routing;
    make(family, &family->token_rows, spec->token_type, 2, routing->rows_num, spec->hidden, false);
    make(family, &family->probs, spec->probs_type, 2, routing->tokens, routing->experts, false);
    make_output(family, spec->token_type, 2, routing->tokens, spec->hidden);
    make_output(family, spec->index_type, 1, routing->slots_num, 1);
    make_output(family, spec->index_type, 1, routing->slots_num, 1);
    make_output(family, spec->probs_type, 1, routing->slots_num, 1);
    family->restore_shape[0] = routing->tokens;
    family->restore_shape[1] = spec->hidden;
    bool shape_needed = (spec->absent & 1) != 0;
    family->unpermute = (moetoken_unpermute_args){
        .permuted_tokens = &family->token_rows.dl,
        .sorted_indices = &family->indices.dl,
        .routing_map = &family->map.dl,
        .probs = spec->without_probs ? NULL : &family->probs.dl,
        .restore_shape = shape_needed || random_chance(50) ? family->restore_shape : NULL,
        .drop_and_pad = spec->routing.padded,
        .unpermuted_tokens = output(family, 0),
        .out_index = output(family, 1),
        .permute_token_id = output(family, 2),
        .permuted_probs = output(family, 3)};
}

/* The most set experts of a token: fewer slots than that would be a fault. */
static int64_t most_set(const struct routing *routing)
{
    int64_t most = 0;
    for (int64_t t = 0; t < routing->tokens; t++) {
        int64_t count = 0;
        for (int64_t e = 0; e < routing->experts; e++) {
            count += routing->map[t * routing->experts + e] != 0;
        }
        most = count > most ? count : most;
    }
    return most;
}

static void make_permute(struct family_case *family)
{
    const struct family_spec *spec = &family->spec;
    const struct routing *routing = &family->routing;
    int64_t slots = routing->slots_num, rows = slots;
    if (!spec->routing.padded) {
        slots = routing->tokens * (most_set(routing) + random_below(2));
        int64_t pairs = 0;
        for (int64_t i = 0; i < routing->tokens * routing->experts; i++) {
            pairs += routing->map[i] != 0;
        }
        rows = pairs + random_below(slots - pairs + 1);
    }
    make(family, &family->token_rows, spec->token_type, 2, routing->tokens, spec->hidden, false);
    make(family, &family->probs, spec->probs_type, 2, routing->tokens, routing->experts, false);
    make_output(family, spec->token_type, 2, rows, spec->hidden);
    make_output(family, spec->probs_type, 1, rows, 1);
    make_output(family, spec->index_type, 1, slots, 1);
    family->permute =
        (moetoken_permute_args){.tokens = &family->token_rows.dl,
                                .routing_map = &family->map.dl,
                                .probs = spec->without_probs ? NULL : &family->probs.dl,
                                .num_out_tokens = slots,
                                .drop_and_pad = spec->routing.padded,
                                .permuted_tokens = output(family, 0),
                                .permuted_probs = spec->without_probs ? NULL : output(family, 1),
                                .sorted_indices = output(family, 2)};
}

static void make_permute_grad(struct family_case *family)
{
    const struct family_spec *spec = &family->spec;
    const struct routing *routing = &family->routing;
    make(family, &family->token_rows, spec->token_type, 2, routing->rows_num, spec->hidden, false);
    make(family, &family->probs, spec->probs_type, 1, routing->rows_num, 1, false);
    make_output(family, spec->token_type, 2, routing->tokens, spec->hidden);
    make_output(family, spec->probs_type, 2, routing->tokens, routing->experts);
    family->permute_grad = (moetoken_permute_grad_args){
        .permuted_tokens_grad = &family->token_rows.dl,
        .permuted_probs_grad = spec->without_probs ? NULL : &family->probs.dl,
        .sorted_indices = &family->indices.dl,
        .routing_map = &family->map.dl,
        .tokens_num = routing->tokens,
        .experts_num = routing->experts,
        .drop_and_pad = spec->routing.padded,
        .tokens_grad = output(family, 0),
        .probs_grad = spec->without_probs ? NULL : output(family, 1)};
}

void family_case_make(struct family_case *family, const struct family_spec *spec)
{
    *family = (struct family_case){.spec = *spec};
    routing_make(&family->routing, &spec->routing);
    make_routing_tensors(family);
    if (spec->verb == FAMILY_UNPERMUTE) {
        make_unpermute(family);
    } else if (spec->verb == FAMILY_PERMUTE) {
        make_permute(family);
    } else {
        make_permute_grad(family);
    }
    tensor_fill_random(&family->token_rows.dl, spec->special_percent);
    tensor_fill_random(&family->probs.dl, spec->special_percent);
}

static void list_tensors(struct family_case *family, struct test_tensor *tensors[FAMILY_TENSORS])
{
    tensors[0] = &family->token_rows;
    tensors[1] = &family->probs;
    tensors[2] = &family->indices;
    tensors[3] = &family->map;
    for (int i = 0; i < 4; i++) {
        tensors[4 + i] = &family->outputs[i];
    }
}

void family_case_free(struct family_case *family)
{
    struct test_tensor *tensors[FAMILY_TENSORS];
    list_tensors(family, tensors);
    for (int i = 0; i < FAMILY_TENSORS; i++) {
        tensor_free(tensors[i]);
    }
    routing_free(&family->routing);
}

moetoken_status family_case_call(struct family_case *family, const moetoken_options *options)
{
    switch (family->spec.verb) {
    case FAMILY_UNPERMUTE:
        return moetoken_unpermute(&family->unpermute, options);
    case FAMILY_PERMUTE:
        return moetoken_permute(&family->permute, options);
    default:
        return moetoken_permute_grad(&family->permute_grad, options);
    }
}

static struct oracle *call_oracle(const struct family_case *family, uint32_t flags)
{
    switch (family->spec.verb) {
    case FAMILY_UNPERMUTE:
        return oracle_unpermute(&family->unpermute, flags);
    case FAMILY_PERMUTE:
        return oracle_permute(&family->permute);
    default:
        return oracle_permute_grad(&family->permute_grad, flags);
    }
}

static void snapshot_all(struct family_case *family)
{
    struct test_tensor *tensors[FAMILY_TENSORS];
    list_tensors(family, tensors);
    for (int i = 0; i < 4 + family->output_count; i++) {
        if (i >= 4) {
            tensor_fill_poison(&tensors[i]->dl);
        }
        tensor_snapshot(tensors[i]);
    }
}

static const char *describe(const struct family_case *family)
{
    static const char *const names[] = {"unpermute", "permute", "permute_grad"};
    static char line[300];
    const struct family_spec *spec = &family->spec;
    snprintf(line, sizeof line,
             "%s %s T=%lld H=%lld E=%lld N=%lld R=%lld %s/%s ids=%s%s%s absent=%u",
             names[spec->verb], spec->routing.padded ? "padded" : "dropless",
             (long long)family->routing.tokens, (long long)spec->hidden,
             (long long)family->routing.experts, (long long)family->routing.slots_num,
             (long long)family->routing.rows_num, number_type_name(spec->token_type),
             number_type_name(spec->probs_type), number_type_name(spec->index_type),
             spec->without_probs ? " no probs" : "", spec->random_layouts ? " strided" : "",
             spec->absent);
    return line;
}

static bool only_outputs_changed(struct family_case *family, const struct oracle *oracle)
{
    struct test_tensor *tensors[FAMILY_TENSORS];
    list_tensors(family, tensors);
    bool good = true;
    for (int i = 0; i < 4 + family->output_count; i++) {
        bool wanted = i >= 4 && oracle->outputs[i - 4].bits != NULL;
        good = good && (wanted ? tensor_gaps_unchanged(tensors[i]) : tensor_unchanged(tensors[i]));
    }
    return good;
}

void family_case_check(struct family_case *family, const moetoken_options *options)
{
    char line[300];
    snapshot_all(family);
    struct oracle *oracle = call_oracle(family, options != NULL ? options->flags : 0);
    check(oracle->fault == MOETOKEN_OK, "the case itself is faulty: %s", describe(family));
    moetoken_status status = family_case_call(family, options);
    check(status == MOETOKEN_OK, "%s %s: %s", moetoken_status_name(status), moetoken_last_error(),
          describe(family));
    oracle_difference(oracle, line, sizeof line);
    check(line[0] == '\0', "%s: %s", line, describe(family));
    check(only_outputs_changed(family, oracle), "bytes outside the outputs changed: %s",
          describe(family));
    oracle_free(oracle);
}

void family_case_refused(struct family_case *family, const moetoken_options *options,
                         moetoken_status status, const char *text, const char *second,
                         const char *third)
{
    struct test_tensor *tensors[FAMILY_TENSORS];
    list_tensors(family, tensors);
    snapshot_all(family);
    check_refused(family_case_call(family, options), status, text, second, third);
    for (int i = 0; i < 4 + family->output_count; i++) {
        check(tensor_unchanged(tensors[i]), "tensor %d changed although %s", i,
              moetoken_last_error());
    }
}
