/* grad_case.c - a complete random call of moetoken_unpermute_grad. */
#include "grad_case.h"

#include "check.h"
#include "oracle/oracle.h"
#include "random.h"
#include <string.h>

struct grad_spec grad_spec_default(bool padded)
{
    return (struct grad_spec){
        .routing = {.padded = padded, .tokens = 7, .experts = 5, .slots = 3, .hole_percent = 10},
        .hidden = 19,
        .map_type = MOETOKEN_U8,
        .index_type = MOETOKEN_I32};
}

static void make(struct grad_case *grad, struct test_tensor *tensor, moetoken_type type, int ndim,
                 int64_t rows, int64_t columns, bool output)
{
    struct layout layout = {0};
    if (grad->spec.random_layouts) {
        layout = layout_random(output);
    }
    tensor_make(tensor, type, ndim, rows, columns, &layout);
}

static void fill_routing(struct grad_case *grad)
{
    const struct routing *routing = &grad->routing;
    tensor_fill_indices(&grad->out_index.dl, routing->row);
    tensor_fill_indices(&grad->token_id.dl, routing->token);
    for (int64_t i = 0; i < routing->tokens * routing->experts; i++) {
        tensor_set_bits(&grad->map.dl, i / routing->experts, i % routing->experts, routing->map[i]);
    }
}

static void make_tensors(struct grad_case *grad)
{
    const struct grad_spec *spec = &grad->spec;
    int64_t tokens = grad->routing.tokens, experts = grad->routing.experts;
    int64_t slots = grad->routing.slots_num, rows = grad->routing.rows_num;
    make(grad, &grad->grad, spec->token_type, 2, tokens, spec->hidden, false);
    make(grad, &grad->rows, spec->token_type, 2, rows, spec->hidden, spec->in_place);
    make(grad, &grad->rows_grad, spec->token_type, 2, rows, spec->hidden, true);
    make(grad, &grad->probs, spec->probs_type, 2, tokens, experts, false);
    make(grad, &grad->probs_grad, spec->probs_type, 2, tokens, experts, true);
    /* Indices and maps must hold what the routing says: nothing repeats here. */
    make(grad, &grad->out_index, spec->index_type, 1, slots, 1, true);
    make(grad, &grad->token_id, spec->index_type, 1, slots, 1, true);
    make(grad, &grad->map, spec->map_type, 2, tokens, experts, true);
    tensor_fill_random(&grad->grad.dl, spec->special_percent);
    tensor_fill_random(&grad->rows.dl, spec->special_percent);
    tensor_fill_random(&grad->probs.dl, spec->special_percent);
    fill_routing(grad);
}

void grad_case_make(struct grad_case *grad, const struct grad_spec *spec)
{
    *grad = (struct grad_case){.spec = *spec};
    routing_make(&grad->routing, &spec->routing);
    make_tensors(grad);
    grad->restore_shape[0] = spec->routing.tokens;
    grad->restore_shape[1] = spec->hidden;
    grad->args = (moetoken_unpermute_grad_args){
        .unpermuted_tokens_grad = &grad->grad.dl,
        .out_index = &grad->out_index.dl,
        .permute_token_id = spec->null_token_id ? NULL : &grad->token_id.dl,
        .restore_shape = random_chance(50) ? grad->restore_shape : NULL,
        .drop_and_pad = spec->routing.padded,
        .permuted_tokens_grad = spec->in_place ? &grad->rows.dl : &grad->rows_grad.dl};
    if (spec->without_tokens_grad) {
        grad->args.permuted_tokens_grad = NULL;
    }
    if (!spec->without_probs) {
        grad->args.routing_map = &grad->map.dl;
        grad->args.permuted_tokens = &grad->rows.dl;
        grad->args.probs = &grad->probs.dl;
        grad->args.probs_grad = spec->without_probs_grad ? NULL : &grad->probs_grad.dl;
    }
}

/* All tensors, inputs first. */
#define GRAD_TENSORS 8

static void list_tensors(struct grad_case *grad, struct test_tensor *tensors[GRAD_TENSORS])
{
    tensors[0] = &grad->grad;
    tensors[1] = &grad->out_index;
    tensors[2] = &grad->token_id;
    tensors[3] = &grad->map;
    tensors[4] = &grad->probs;
    tensors[5] = &grad->rows;
    tensors[6] = &grad->rows_grad;
    tensors[7] = &grad->probs_grad;
}

void grad_case_free(struct grad_case *grad)
{
    struct test_tensor *tensors[GRAD_TENSORS];
    list_tensors(grad, tensors);
    for (int i = 0; i < GRAD_TENSORS; i++) {
        tensor_free(tensors[i]);
    }
    routing_free(&grad->routing);
}

static void snapshot_all(struct grad_case *grad)
{
    struct test_tensor *tensors[GRAD_TENSORS];
    list_tensors(grad, tensors);
    tensor_fill_poison(&grad->rows_grad.dl);
    tensor_fill_poison(&grad->probs_grad.dl);
    for (int i = 0; i < GRAD_TENSORS; i++) {
        tensor_snapshot(tensors[i]);
    }
}

static bool only_outputs_changed(struct grad_case *grad)
{
    struct test_tensor *tensors[GRAD_TENSORS];
    list_tensors(grad, tensors);
    bool good = true;
    for (int i = 0; i < GRAD_TENSORS; i++) {
        bool output = &tensors[i]->dl == grad->args.permuted_tokens_grad ||
                      &tensors[i]->dl == grad->args.probs_grad;
        good = good && (output ? tensor_gaps_unchanged(tensors[i]) : tensor_unchanged(tensors[i]));
    }
    return good;
}

static const char *describe(const struct grad_case *grad)
{
    static char line[300];
    const struct grad_spec *spec = &grad->spec;
    snprintf(line, sizeof line, "%s T=%lld H=%lld E=%lld N=%lld R=%lld %s/%s ids=%s%s%s%s%s%s%s%s",
             spec->routing.padded ? "padded" : "dropless", (long long)grad->routing.tokens,
             (long long)spec->hidden, (long long)grad->routing.experts,
             (long long)grad->routing.slots_num, (long long)grad->routing.rows_num,
             number_type_name(spec->token_type), number_type_name(spec->probs_type),
             number_type_name(spec->index_type), spec->without_probs ? " no probs" : "",
             spec->null_token_id ? " no ids" : "", spec->in_place ? " in place" : "",
             spec->random_layouts ? " strided" : "", spec->without_tokens_grad ? " no dx" : "",
             spec->without_probs_grad ? " no dprobs" : "",
             spec->special_percent > 0 ? " specials" : "");
    return line;
}

void grad_case_check(struct grad_case *grad, const moetoken_options *options)
{
    char line[300];
    uint32_t flags = options != NULL ? options->flags : 0;
    snapshot_all(grad);
    struct oracle *oracle = oracle_unpermute_grad(&grad->args, flags);
    check(oracle->fault == MOETOKEN_OK, "the case itself is faulty: %s", describe(grad));
    check(oracle->worst_dot_error <= 1, "documented order is off by %g: %s",
          oracle->worst_dot_error, describe(grad));
    moetoken_status status = moetoken_unpermute_grad(&grad->args, options);
    check(status == MOETOKEN_OK, "%s %s: %s", moetoken_status_name(status), moetoken_last_error(),
          describe(grad));
    oracle_difference(oracle, line, sizeof line);
    check(line[0] == '\0', "%s: %s", line, describe(grad));
    check(only_outputs_changed(grad), "bytes outside the outputs changed: %s", describe(grad));
    oracle_free(oracle);
}

void grad_case_refused(struct grad_case *grad, const moetoken_options *options,
                       moetoken_status status, const char *text, const char *second,
                       const char *third)
{
    struct test_tensor *tensors[GRAD_TENSORS];
    list_tensors(grad, tensors);
    snapshot_all(grad);
    check_refused(moetoken_unpermute_grad(&grad->args, options), status, text, second, third);
    for (int i = 0; i < GRAD_TENSORS; i++) {
        check(tensor_unchanged(tensors[i]), "tensor %d changed although %s", i,
              moetoken_last_error());
    }
}
