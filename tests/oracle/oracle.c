/* oracle.c - what the four operators must answer, straight from docs/contract.md, slow and plain.
 */
#include "oracle.h"

#include "oracle_slots.h"
#include "support/tensors.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* A sum kept in two binary64 numbers, for the error of the dot products. */
struct exact {
    double high, low, magnitude;
    int64_t parts;
};

static void exact_add(struct exact *sum, double value)
{
    double total = sum->high + value;
    double carried = total - sum->high;
    sum->low += (sum->high - (total - carried)) + (value - carried);
    sum->high = total;
}

static void exact_add_product(struct exact *sum, double x, double g)
{
    double product = x * g;
    exact_add(sum, product);
    sum->low += fma(x, g, -product);
    sum->magnitude += fabs(product);
}

static struct expected *want(struct oracle *oracle, const char *name, const DLTensor *output)
{
    struct expected *expected = &oracle->outputs[oracle->count++];
    expected->name = name;
    expected->output = output;
    if (output != NULL) {
        expected->rows = output->shape[0];
        expected->columns = tensor_columns(output);
        expected->bits = oracle_allocate(expected->rows * expected->columns, sizeof(uint64_t));
    }
    return expected;
}

static void expect_value(struct expected *expected, int64_t row, int64_t column, double value)
{
    expected->bits[row * expected->columns + column] =
        number_encode(value, tensor_type(expected->output));
}

/* w * x in the arithmetic of the token type, not yet rounded to it. */
static double multiply(double w, double x, moetoken_type type)
{
    double product = w * x; /* exact for two float32 numbers */
    return type == MOETOKEN_F64 ? product : number_round(product, MOETOKEN_F32);
}

static double add(double left, double right, moetoken_type type)
{
    /* Rounding the binary64 sum of two float32 numbers once more is the float32 sum. */
    double sum = left + right;
    return type == MOETOKEN_F64 ? sum : number_round(sum, MOETOKEN_F32);
}

/* The documented order: element h to lane h % 32, then the lanes in halves. */
static double dot(const DLTensor *x, int64_t row, const DLTensor *g, int64_t token,
                  struct exact *exact)
{
    double lanes[32] = {0};
    for (int64_t h = 0; h < g->shape[1]; h++) {
        double a = tensor_get(x, row, h), b = tensor_get(g, token, h);
        double product = a * b;
        lanes[h % 32] += product;
        exact_add_product(exact, a, b);
    }
    for (int half = 16; half > 0; half /= 2) {
        for (int lane = 0; lane < half; lane++) {
            lanes[lane] += lanes[lane + half];
        }
    }
    exact->parts++;
    return lanes[0];
}

static void note_dot_error(struct oracle *oracle, const struct exact *exact, double sum, int64_t h)
{
    /* Where binary64 itself over- or underflows there is no bound to hold. */
    if (exact->parts == 0 || !(exact->magnitude > 1e-250 && exact->magnitude < 1e300)) {
        return;
    }
    double bound = (double)(h + exact->parts - 1) * 0x1p-53 * exact->magnitude;
    double error = fabs((sum - exact->high) - exact->low);
    if (error / bound > oracle->worst_dot_error) {
        oracle->worst_dot_error = error / bound;
    }
}

/* ---- unpermute_grad ------------------------------------------------------------------------- */

static bool is_masked(const struct oracle_slot *slot, const DLTensor *map, bool padded,
                      uint32_t flags)
{
    return padded && (flags & MOETOKEN_MASK_FILL_SLOTS) != 0 && map != NULL && slot->expert >= 0 &&
           !oracle_is_set(map, slot->token, slot->expert);
}

static void expect_scaled_row(struct expected *dx, const moetoken_unpermute_grad_args *args,
                              const struct oracle_slot *slot)
{
    const DLTensor *g = args->unpermuted_tokens_grad;
    moetoken_type type = tensor_type(g);
    double weight = 0;
    if (args->probs != NULL && slot->expert >= 0) {
        weight = tensor_get(args->probs, slot->token, slot->expert);
    }
    for (int64_t h = 0; h < dx->columns; h++) {
        if (args->probs == NULL) {
            dx->bits[slot->row * dx->columns + h] = tensor_get_bits(g, slot->token, h);
        } else {
            expect_value(dx, slot->row, h, multiply(weight, tensor_get(g, slot->token, h), type));
        }
    }
}

static void expect_probs_grad(struct oracle *oracle, struct expected *dprobs,
                              const moetoken_unpermute_grad_args *args,
                              const struct oracle_routing *routing, uint32_t flags)
{
    const DLTensor *g = args->unpermuted_tokens_grad;
    int64_t entries = dprobs->rows * dprobs->columns;
    double *sums = oracle_allocate(entries, sizeof *sums);
    struct exact *exact = oracle_allocate(entries, sizeof *exact);
    for (int64_t i = 0; i < routing->slots_num; i++) {
        const struct oracle_slot *slot = &routing->slots[i];
        if (!slot->hole && slot->expert >= 0 &&
            !is_masked(slot, args->routing_map, args->drop_and_pad, flags)) {
            int64_t entry = slot->token * dprobs->columns + slot->expert;
            sums[entry] += dot(args->permuted_tokens, slot->row, g, slot->token, &exact[entry]);
        }
    }
    for (int64_t entry = 0; entry < entries; entry++) {
        expect_value(dprobs, entry / dprobs->columns, entry % dprobs->columns, sums[entry]);
        note_dot_error(oracle, &exact[entry], sums[entry], g->shape[1]);
    }
    free(sums);
    free(exact);
}

struct oracle *oracle_unpermute_grad(const moetoken_unpermute_grad_args *args, uint32_t flags)
{
    struct oracle *oracle = oracle_allocate(1, sizeof *oracle);
    struct expected *dx = want(oracle, "permuted_tokens_grad", args->permuted_tokens_grad);
    struct expected *dprobs = want(oracle, "probs_grad", args->probs_grad);
    const DLTensor *rows = args->permuted_tokens != NULL && args->probs != NULL
                               ? args->permuted_tokens
                               : args->permuted_tokens_grad;
    int64_t tokens_num = args->unpermuted_tokens_grad->shape[0];
    const DLTensor *map = args->routing_map;
    struct oracle_routing routing =
        args->drop_and_pad
            ? oracle_route_padded(args->out_index, args->permute_token_id, tokens_num,
                                  rows->shape[0], map != NULL ? map->shape[1] : 0)
            : oracle_route_dropless(args->out_index, args->permute_token_id,
                                    args->probs != NULL ? map : NULL, tokens_num, rows->shape[0],
                                    (flags & MOETOKEN_TOLERATE_ROUTING_MISMATCH) != 0);
    oracle->fault = routing.fault;
    for (int64_t i = 0; routing.fault == MOETOKEN_OK && dx->bits && i < routing.slots_num; i++) {
        const struct oracle_slot *slot = &routing.slots[i];
        if (!slot->hole && !is_masked(slot, map, args->drop_and_pad, flags)) {
            expect_scaled_row(dx, args, slot);
        }
    }
    if (routing.fault == MOETOKEN_OK && dprobs->bits) {
        expect_probs_grad(oracle, dprobs, args, &routing, flags);
    }
    free(routing.slots);
    return oracle;
}

/* ---- unpermute ------------------------------------------------------------------------------ */

/* The weight of every slot: 0 for a hole. */
static double *slot_weights(const moetoken_unpermute_args *args,
                            const struct oracle_routing *routing, uint32_t flags)
{
    double *weights = oracle_allocate(routing->slots_num, sizeof *weights);
    for (int64_t i = 0; i < routing->slots_num; i++) {
        const struct oracle_slot *slot = &routing->slots[i];
        if (slot->hole || is_masked(slot, args->routing_map, args->drop_and_pad, flags)) {
            weights[i] = 0;
        } else if (args->probs == NULL) {
            weights[i] = 1;
        } else if (slot->expert >= 0) {
            weights[i] = tensor_get(args->probs, slot->token, slot->expert);
        }
    }
    return weights;
}

/* The slots of a token that add something, in slot order. */
static int64_t slots_of(const struct oracle_routing *routing, int64_t token, const double *weights,
                        int64_t *slots)
{
    int64_t count = 0;
    for (int64_t i = 0; i < routing->slots_num; i++) {
        const struct oracle_slot *slot = &routing->slots[i];
        if (slot->token == token && !slot->hole && (weights == NULL || weights[i] != 0)) {
            slots[count++] = i;
        }
    }
    return count;
}

/* One row of a forward sum over the slots of a token; weights NULL: all 1. */
static void expect_sum(struct expected *out, int64_t token, const DLTensor *x,
                       const struct oracle_routing *routing, const double *weights)
{
    moetoken_type type = tensor_type(x);
    int64_t *slots = oracle_allocate(routing->slots_num, sizeof *slots);
    int64_t count = slots_of(routing, token, weights, slots);
    for (int64_t h = 0; h < out->columns; h++) {
        double sum = 0;
        for (int64_t j = 0; j < count; j++) {
            double weight = weights != NULL ? weights[slots[j]] : 1;
            double element = tensor_get(x, routing->slots[slots[j]].row, h);
            sum = add(sum, multiply(weight, element, type), type);
        }
        expect_value(out, token, h, sum);
    }
    free(slots);
}

static void expect_indices(struct expected *out_index, struct expected *token_id,
                           const struct oracle_routing *routing, int64_t tokens_num, bool padded)
{
    int64_t at = 0;
    for (int64_t token = 0; token < (padded ? tokens_num : 1); token++) {
        for (int64_t i = 0; i < routing->slots_num; i++) {
            const struct oracle_slot *slot = &routing->slots[i];
            if (padded && slot->token != token) {
                continue;
            }
            if (out_index->bits) {
                expect_value(out_index, at, 0, (double)slot->row);
            }
            if (token_id->bits) {
                expect_value(token_id, at, 0, (double)slot->token);
            }
            at++;
        }
    }
}

/* A weight of the map goes over bit for bit where it is a copy of one entry of probs. */
static void expect_permuted_probs(struct expected *out, const moetoken_unpermute_args *args,
                                  const struct oracle_routing *routing, const double *weights)
{
    for (int64_t i = 0; i < routing->slots_num; i++) {
        expect_value(out, i, 0, weights[i]);
        const struct oracle_slot *slot = &routing->slots[i];
        if (args->probs != NULL && isnan(weights[i]) && slot->expert >= 0) {
            out->bits[i] = tensor_get_bits(args->probs, slot->token, slot->expert);
        }
    }
}

static struct oracle_routing route_forward(const DLTensor *sorted_indices, const DLTensor *map,
                                           int64_t tokens_num, int64_t rows_num,
                                           int64_t experts_num, bool padded, uint32_t flags)
{
    if (padded) {
        return oracle_route_padded(NULL, sorted_indices, tokens_num, rows_num, experts_num);
    }
    return oracle_route_dropless(sorted_indices, NULL, map, tokens_num, rows_num,
                                 (flags & MOETOKEN_TOLERATE_ROUTING_MISMATCH) != 0);
}

struct oracle *oracle_unpermute(const moetoken_unpermute_args *args, uint32_t flags)
{
    struct oracle *oracle = oracle_allocate(1, sizeof *oracle);
    struct expected *out = want(oracle, "unpermuted_tokens", args->unpermuted_tokens);
    struct expected *out_index = want(oracle, "out_index", args->out_index);
    struct expected *token_id = want(oracle, "permute_token_id", args->permute_token_id);
    struct expected *permuted_probs = want(oracle, "permuted_probs", args->permuted_probs);
    int64_t tokens_num =
        args->restore_shape != NULL ? args->restore_shape[0] : args->unpermuted_tokens->shape[0];
    const DLTensor *map = args->routing_map;
    struct oracle_routing routing =
        route_forward(args->sorted_indices, args->probs != NULL ? map : NULL, tokens_num,
                      args->permuted_tokens->shape[0], map != NULL ? map->shape[1] : 0,
                      args->drop_and_pad, flags);
    oracle->fault = routing.fault;
    if (routing.fault == MOETOKEN_OK) {
        double *weights = slot_weights(args, &routing, flags);
        for (int64_t token = 0; out->bits && token < tokens_num; token++) {
            expect_sum(out, token, args->permuted_tokens, &routing, weights);
        }
        expect_indices(out_index, token_id, &routing, tokens_num, args->drop_and_pad);
        if (permuted_probs->bits) {
            expect_permuted_probs(permuted_probs, args, &routing, weights);
        }
        free(weights);
    }
    free(routing.slots);
    return oracle;
}

/* ---- permute -------------------------------------------------------------------------------- */

struct permute_outputs {
    const moetoken_permute_args *args;
    struct expected *tokens, *probs, *indices;
};

static void expect_permuted_row(const struct permute_outputs *outputs, int64_t row, int64_t token,
                                int64_t expert)
{
    struct expected *tokens = outputs->tokens, *probs = outputs->probs;
    for (int64_t h = 0; tokens->bits && h < tokens->columns; h++) {
        tokens->bits[row * tokens->columns + h] = tensor_get_bits(outputs->args->tokens, token, h);
    }
    if (probs->bits) {
        probs->bits[row] = tensor_get_bits(outputs->args->probs, token, expert);
    }
}

static moetoken_status permute_dropless(const struct permute_outputs *outputs, int64_t slots,
                                        int64_t rows_num)
{
    const DLTensor *map = outputs->args->routing_map;
    int64_t *ordinal = oracle_allocate(map->shape[0], sizeof *ordinal);
    moetoken_status fault = MOETOKEN_OK;
    for (int64_t i = 0; outputs->indices->bits && i < outputs->indices->rows; i++) {
        expect_value(outputs->indices, i, 0, -1);
    }
    int64_t row = 0;
    for (int64_t expert = 0; expert < map->shape[1]; expert++) {
        for (int64_t token = 0; token < map->shape[0]; token++) {
            if (oracle_is_set(map, token, expert)) {
                ordinal[token]++; /* whether there is room is known after the loop */
                fault = ordinal[token] > slots || row >= rows_num ? MOETOKEN_ERR_ROUTING : fault;
                if (fault == MOETOKEN_OK) {
                    expect_permuted_row(outputs, row, token, expert);
                }
                row++;
            }
        }
    }
    /* Rows are numbered again to find each pair's ordinal by ascending expert. */
    row = 0;
    for (int64_t expert = 0; fault == MOETOKEN_OK && expert < map->shape[1]; expert++) {
        for (int64_t token = 0; token < map->shape[0]; token++) {
            if (!oracle_is_set(map, token, expert)) {
                continue;
            }
            int64_t before = 0;
            for (int64_t e = 0; e < expert; e++) {
                before += oracle_is_set(map, token, e);
            }
            if (outputs->indices->bits) {
                expect_value(outputs->indices, token * slots + before, 0, (double)row);
            }
            row++;
        }
    }
    free(ordinal);
    return fault;
}

static void permute_padded(const struct permute_outputs *outputs, int64_t capacity)
{
    const DLTensor *map = outputs->args->routing_map;
    for (int64_t expert = 0; expert < map->shape[1]; expert++) {
        int64_t taken = 0;
        /* First the tokens that are set, then the others, both ascending, until full. */
        for (int pass = 0; pass < 2; pass++) {
            for (int64_t token = 0; token < map->shape[0] && taken < capacity; token++) {
                if (oracle_is_set(map, token, expert) == (pass == 0)) {
                    int64_t row = expert * capacity + taken++;
                    expect_permuted_row(outputs, row, token, expert);
                    if (outputs->indices->bits) {
                        expect_value(outputs->indices, row, 0, (double)token);
                    }
                }
            }
        }
    }
}

struct oracle *oracle_permute(const moetoken_permute_args *args)
{
    struct oracle *oracle = oracle_allocate(1, sizeof *oracle);
    struct permute_outputs outputs = {.args = args};
    outputs.tokens = want(oracle, "permuted_tokens", args->permuted_tokens);
    outputs.probs = want(oracle, "permuted_probs", args->permuted_probs);
    outputs.indices = want(oracle, "sorted_indices", args->sorted_indices);
    int64_t tokens_num = args->routing_map->shape[0], experts_num = args->routing_map->shape[1];
    int64_t rows_num = args->num_out_tokens;
    if (args->permuted_tokens != NULL) {
        rows_num = args->permuted_tokens->shape[0];
    } else if (args->permuted_probs != NULL) {
        rows_num = args->permuted_probs->shape[0];
    }
    if (args->drop_and_pad) {
        permute_padded(&outputs, experts_num > 0 ? args->num_out_tokens / experts_num : 0);
    } else {
        int64_t slots = tokens_num > 0 ? args->num_out_tokens / tokens_num : 0;
        oracle->fault = permute_dropless(&outputs, slots, rows_num);
    }
    return oracle;
}

/* ---- permute_grad --------------------------------------------------------------------------- */

static void expect_pair_sums(struct expected *out, const DLTensor *grad,
                             const struct oracle_routing *routing)
{
    double *sums = oracle_allocate(out->rows * out->columns, sizeof *sums);
    bool *reached = oracle_allocate(out->rows * out->columns, sizeof *reached);
    for (int64_t i = 0; i < routing->slots_num; i++) {
        const struct oracle_slot *slot = &routing->slots[i];
        if (!slot->hole && slot->expert >= 0) {
            int64_t entry = slot->token * out->columns + slot->expert;
            double more = tensor_get(grad, slot->row, 0);
            sums[entry] = reached[entry] ? sums[entry] + more : more; /* a lone -0 stays -0 */
            reached[entry] = true;
        }
    }
    for (int64_t entry = 0; entry < out->rows * out->columns; entry++) {
        expect_value(out, entry / out->columns, entry % out->columns, sums[entry]);
    }
    free(sums);
    free(reached);
}

struct oracle *oracle_permute_grad(const moetoken_permute_grad_args *args, uint32_t flags)
{
    struct oracle *oracle = oracle_allocate(1, sizeof *oracle);
    struct expected *tokens = want(oracle, "tokens_grad", args->tokens_grad);
    struct expected *probs = want(oracle, "probs_grad", args->probs_grad);
    const DLTensor *rows =
        args->permuted_tokens_grad != NULL ? args->permuted_tokens_grad : args->permuted_probs_grad;
    struct oracle_routing routing = route_forward(
        args->sorted_indices, args->probs_grad != NULL ? args->routing_map : NULL, args->tokens_num,
        rows->shape[0], args->experts_num, args->drop_and_pad, flags);
    oracle->fault = routing.fault;
    for (int64_t token = 0;
         routing.fault == MOETOKEN_OK && tokens->bits && token < args->tokens_num; token++) {
        expect_sum(tokens, token, args->permuted_tokens_grad, &routing, NULL);
    }
    if (routing.fault == MOETOKEN_OK && probs->bits) {
        expect_pair_sums(probs, args->permuted_probs_grad, &routing);
    }
    free(routing.slots);
    return oracle;
}

/* ---- for the tests -------------------------------------------------------------------------- */

void oracle_free(struct oracle *oracle)
{
    for (int i = 0; i < oracle->count; i++) {
        free(oracle->outputs[i].bits);
    }
    free(oracle);
}

const char *oracle_difference(const struct oracle *oracle, char *line, size_t line_bytes)
{
    line[0] = '\0';
    for (int o = 0; o < oracle->count; o++) {
        const struct expected *expected = &oracle->outputs[o];
        for (int64_t i = 0; expected->bits && i < expected->rows * expected->columns; i++) {
            int64_t row = i / expected->columns, column = i % expected->columns;
            uint64_t bits = tensor_get_bits(expected->output, row, column);
            if (bits != expected->bits[i]) {
                snprintf(line, line_bytes, "%s (%s)[%lld,%lld] is 0x%llx, expected 0x%llx",
                         expected->name, number_type_name(tensor_type(expected->output)),
                         (long long)row, (long long)column, (unsigned long long)bits,
                         (unsigned long long)expected->bits[i]);
                return line;
            }
        }
    }
    return line;
}
