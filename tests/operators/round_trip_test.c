/* round_trip_test.c - the four operators together: tokens come back, each gradient is the adjoint
 * of its forward operator, and agrees with a finite difference, in float64 and every mode.
 *
 * permute -> experts' rows -> unpermute -> unpermute_grad -> permute_grad, each fed with the index
 * tensors that the one before it wrote. */
#include "support/check.h"
#include "support/random.h"
#include "support/tensors.h"

#include <math.h>
#include <string.h>

#define MOST 4096

static void check_ok(moetoken_status status)
{
    check(status == MOETOKEN_OK, "%s: %s", moetoken_status_name(status), moetoken_last_error());
}

/* One layer in float64, everything contiguous. */
struct layer {
    int64_t tokens, hidden, experts, slots, rows; /* slots: N */
    bool padded;
    unsigned char map[MOST];
    double x[MOST], probs[MOST];                    /* [T,H], [T,E] */
    double permuted[MOST], row_probs[MOST];         /* [R,H], [R] */
    double combined[MOST];                          /* [T,H] */
    double grad[MOST], rows_grad[MOST];             /* [T,H], [R,H] */
    double probs_grad[MOST], tokens_grad[MOST];     /* [T,E], [T,H] */
    double row_probs_grad[MOST], second_grad[MOST]; /* [R], [T,E]: permute's way for probs */
    int64_t sorted[MOST], out_index[MOST], token_id[MOST];
    int64_t th[2], te[2], rh[2], r[1], n[1];
};

static DLTensor f64(double *data, int ndim, int64_t *shape)
{
    return moetoken_tensor(data, MOETOKEN_F64, ndim, shape);
}

static DLTensor i64(struct layer *layer, int64_t *data)
{
    return moetoken_tensor(data, MOETOKEN_I64, 1, layer->n);
}

static void fill(double *values, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        values[i] = number_decode(random_number(MOETOKEN_F64), MOETOKEN_F64);
    }
}

/* Tokens without experts, experts without tokens, probs of 0 and negative ones. */
static void layer_make(struct layer *layer, bool padded)
{
    memset(layer, 0, sizeof *layer);
    layer->padded = padded;
    layer->tokens = 5 + random_below(20);
    layer->hidden = 1 + random_below(20);
    layer->experts = 3 + random_below(6);
    int64_t pairs = 0;
    for (int64_t i = 0; i < layer->tokens * layer->experts; i++) {
        bool dull = i % layer->experts == 1 || i / layer->experts == 2;
        layer->map[i] = !dull && random_chance(40);
        pairs += layer->map[i];
    }
    int64_t per_token = layer->experts - 1, capacity = 1 + random_below(layer->tokens);
    layer->slots = padded ? layer->experts * capacity : layer->tokens * per_token;
    layer->rows = padded ? layer->slots : pairs + random_below(layer->slots - pairs + 1);
    fill(layer->x, layer->tokens * layer->hidden);
    fill(layer->grad, layer->tokens * layer->hidden);
    fill(layer->probs, layer->tokens * layer->experts);
    fill(layer->row_probs_grad, layer->rows);
    for (int64_t i = 0; i < layer->tokens * layer->experts; i += 4) {
        layer->probs[i] = 0;
    }
    layer->th[0] = layer->te[0] = layer->tokens;
    layer->th[1] = layer->rh[1] = layer->hidden;
    layer->te[1] = layer->experts;
    layer->rh[0] = layer->r[0] = layer->rows;
    layer->n[0] = layer->slots;
}

static void run_permute(struct layer *layer)
{
    DLTensor x = f64(layer->x, 2, layer->th), probs = f64(layer->probs, 2, layer->te);
    DLTensor permuted = f64(layer->permuted, 2, layer->rh);
    DLTensor row_probs = f64(layer->row_probs, 1, layer->r), sorted = i64(layer, layer->sorted);
    DLTensor map = moetoken_tensor(layer->map, MOETOKEN_BOOL, 2, layer->te);
    moetoken_permute_args args = {.tokens = &x,
                                  .routing_map = &map,
                                  .probs = &probs,
                                  .num_out_tokens = layer->slots,
                                  .drop_and_pad = layer->padded,
                                  .permuted_tokens = &permuted,
                                  .permuted_probs = &row_probs,
                                  .sorted_indices = &sorted};
    check_ok(moetoken_permute(&args, NULL));
}

static void run_unpermute(struct layer *layer)
{
    DLTensor permuted = f64(layer->permuted, 2, layer->rh);
    DLTensor probs = f64(layer->probs, 2, layer->te), sorted = i64(layer, layer->sorted);
    DLTensor map = moetoken_tensor(layer->map, MOETOKEN_BOOL, 2, layer->te);
    DLTensor combined = f64(layer->combined, 2, layer->th);
    DLTensor out_index = i64(layer, layer->out_index), token_id = i64(layer, layer->token_id);
    moetoken_unpermute_args args = {.permuted_tokens = &permuted,
                                    .sorted_indices = &sorted,
                                    .routing_map = &map,
                                    .probs = &probs,
                                    .drop_and_pad = layer->padded,
                                    .unpermuted_tokens = &combined,
                                    .out_index = &out_index,
                                    .permute_token_id = &token_id};
    check_ok(moetoken_unpermute(&args, NULL));
}

static void run_unpermute_grad(struct layer *layer)
{
    DLTensor grad = f64(layer->grad, 2, layer->th), permuted = f64(layer->permuted, 2, layer->rh);
    DLTensor probs = f64(layer->probs, 2, layer->te);
    DLTensor map = moetoken_tensor(layer->map, MOETOKEN_BOOL, 2, layer->te);
    DLTensor out_index = i64(layer, layer->out_index), token_id = i64(layer, layer->token_id);
    DLTensor rows_grad = f64(layer->rows_grad, 2, layer->rh);
    DLTensor probs_grad = f64(layer->probs_grad, 2, layer->te);
    moetoken_unpermute_grad_args args = {.unpermuted_tokens_grad = &grad,
                                         .out_index = &out_index,
                                         .permute_token_id = &token_id,
                                         .routing_map = &map,
                                         .permuted_tokens = &permuted,
                                         .probs = &probs,
                                         .restore_shape = layer->th,
                                         .drop_and_pad = layer->padded,
                                         .permuted_tokens_grad = &rows_grad,
                                         .probs_grad = &probs_grad};
    check_ok(moetoken_unpermute_grad(&args, NULL));
}

static void run_permute_grad(struct layer *layer)
{
    DLTensor rows_grad = f64(layer->rows_grad, 2, layer->rh);
    DLTensor row_probs_grad = f64(layer->row_probs_grad, 1, layer->r);
    DLTensor sorted = i64(layer, layer->sorted);
    DLTensor map = moetoken_tensor(layer->map, MOETOKEN_BOOL, 2, layer->te);
    DLTensor tokens_grad = f64(layer->tokens_grad, 2, layer->th);
    DLTensor second_grad = f64(layer->second_grad, 2, layer->te);
    moetoken_permute_grad_args args = {.permuted_tokens_grad = &rows_grad,
                                       .permuted_probs_grad = &row_probs_grad,
                                       .sorted_indices = &sorted,
                                       .routing_map = &map,
                                       .tokens_num = layer->tokens,
                                       .experts_num = layer->experts,
                                       .drop_and_pad = layer->padded,
                                       .tokens_grad = &tokens_grad,
                                       .probs_grad = &second_grad};
    check_ok(moetoken_permute_grad(&args, NULL));
}

static double dot(const double *left, const double *right, int64_t count)
{
    long double sum = 0;
    for (int64_t i = 0; i < count; i++) {
        sum += (long double)left[i] * (long double)right[i];
    }
    return (double)sum;
}

static double norm(const double *values, int64_t count)
{
    return sqrt(dot(values, values, count));
}

static void check_close(const char *what, double left, double right, double scale)
{
    check(fabs(left - right) <= 1e-12 * (scale + 1e-300), "%s: %.17g and %.17g", what, left, right);
}

/* <P x, y> = <x, P' y> for permute, its probs too; unpermute is linear in rows and in probs. */
static void gradients_are_adjoint(void **state)
{
    static struct layer layer;
    (void)state;
    for (int i = 0; i < 60; i++) {
        layer_make(&layer, i % 2 == 1);
        int64_t th = layer.tokens * layer.hidden, te = layer.tokens * layer.experts;
        int64_t rh = layer.rows * layer.hidden;
        run_permute(&layer);
        run_unpermute(&layer);
        run_unpermute_grad(&layer);
        run_permute_grad(&layer);
        double scale = norm(layer.combined, th) * norm(layer.grad, th) +
                       norm(layer.permuted, rh) * norm(layer.rows_grad, rh) +
                       norm(layer.probs, te) * norm(layer.probs_grad, te);
        double loss = dot(layer.combined, layer.grad, th);
        check_close("unpermute in rows", loss, dot(layer.permuted, layer.rows_grad, rh), scale);
        check_close("unpermute in probs", loss, dot(layer.probs, layer.probs_grad, te), scale);
        check_close("permute in tokens", dot(layer.permuted, layer.rows_grad, rh),
                    dot(layer.x, layer.tokens_grad, th), scale);
        check_close("permute in probs", dot(layer.row_probs, layer.row_probs_grad, layer.rows),
                    dot(layer.probs, layer.second_grad, te),
                    norm(layer.row_probs, layer.rows) * norm(layer.row_probs_grad, layer.rows) +
                        norm(layer.probs, te) * norm(layer.second_grad, te));
    }
}

/* The loss <unpermute(permute(x), probs), g>, with one input moved. */
static double loss_with(struct layer *layer, double *moved, double by)
{
    double held = *moved;
    *moved = held + by;
    run_permute(layer);
    run_unpermute(layer);
    *moved = held;
    return dot(layer->combined, layer->grad, layer->tokens * layer->hidden);
}

static void gradients_agree_with_finite_differences(void **state)
{
    static struct layer layer;
    (void)state;
    for (int i = 0; i < 20; i++) {
        layer_make(&layer, i % 2 == 1);
        run_permute(&layer);
        run_unpermute(&layer);
        run_unpermute_grad(&layer);
        run_permute_grad(&layer);
        for (int j = 0; j < 10; j++) {
            int64_t token = random_below(layer.tokens * layer.hidden);
            int64_t pair = random_below(layer.tokens * layer.experts);
            double step = 0.25; /* the loss is linear in each: no error but rounding */
            double token_slope = (loss_with(&layer, &layer.x[token], step) -
                                  loss_with(&layer, &layer.x[token], -step)) /
                                 (2 * step);
            double pair_slope = (loss_with(&layer, &layer.probs[pair], step) -
                                 loss_with(&layer, &layer.probs[pair], -step)) /
                                (2 * step);
            check(fabs(token_slope - layer.tokens_grad[token]) <= 1e-7, "token %lld: %g, not %g",
                  (long long)token, layer.tokens_grad[token], token_slope);
            check(fabs(pair_slope - layer.probs_grad[pair]) <= 1e-7, "pair %lld: %g, not %g",
                  (long long)pair, layer.probs_grad[pair], pair_slope);
        }
    }
}

/* Weights 1/4, 1/4, 1/2 in ascending experts: every partial sum is exact in every type. */
static void weights_that_sum_to_one_give_the_tokens_back(void **state)
{
    enum {
        T = 23,
        H = 37,
        E = 8
    };
    (void)state;
    for (int i = 0; i < 8; i++) {
        moetoken_type type = (moetoken_type)(i / 2);
        moetoken_type probs_type = type == MOETOKEN_F64 ? type : MOETOKEN_F32;
        bool padded = i % 2 == 1; /* with room for all: C = T, fill slots have weight 0 */
        int64_t slots = padded ? E * T : 3 * T;
        struct test_tensor x, map, probs, rows, sorted, back;
        tensor_make(&x, type, 2, T, H, NULL);
        tensor_make(&map, MOETOKEN_I8, 2, T, E, NULL);
        tensor_make(&probs, probs_type, 2, T, E, NULL);
        tensor_make(&rows, type, 2, slots, H, NULL);
        tensor_make(&sorted, MOETOKEN_I32, 1, slots, 1, NULL);
        tensor_make(&back, type, 2, T, H, NULL);
        tensor_fill_random(&x.dl, 0);
        tensor_fill(&map.dl, 0);
        tensor_fill(&probs.dl, 0);
        for (int64_t t = 0; t < T; t++) {
            static const double weights[3] = {0.25, 0.25, 0.5};
            int64_t expert = random_below(3);
            for (int j = 0; j < 3; j++, expert += 1 + random_below(2)) {
                tensor_set(&map.dl, t, expert, 1);
                tensor_set(&probs.dl, t, expert, weights[j]);
            }
        }
        moetoken_permute_args forward = {.tokens = &x.dl,
                                         .routing_map = &map.dl,
                                         .num_out_tokens = slots,
                                         .drop_and_pad = padded,
                                         .permuted_tokens = &rows.dl,
                                         .sorted_indices = &sorted.dl};
        check_ok(moetoken_permute(&forward, NULL));
        moetoken_unpermute_args combine = {.permuted_tokens = &rows.dl,
                                           .sorted_indices = &sorted.dl,
                                           .routing_map = &map.dl,
                                           .probs = &probs.dl,
                                           .drop_and_pad = padded,
                                           .unpermuted_tokens = &back.dl};
        check_ok(moetoken_unpermute(&combine, NULL));
        check(tensor_difference(&x.dl, &back.dl) == -1, "%s %s: element %lld differs",
              number_type_name(type), padded ? "padded" : "dropless",
              (long long)tensor_difference(&x.dl, &back.dl));
        struct test_tensor *all[] = {&x, &map, &probs, &rows, &sorted, &back};
        for (int t = 0; t < 6; t++) {
            tensor_free(all[t]);
        }
    }
}

int main(void)
{
    random_start("round_trip_test");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_are_adjoint),
        cmocka_unit_test(gradients_agree_with_finite_differences),
        cmocka_unit_test(weights_that_sum_to_one_give_the_tokens_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
