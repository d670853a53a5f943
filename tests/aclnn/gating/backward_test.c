/* backward_test.c - aclnnMoeGatingTopKBackward: against the whole matrix of derivatives in long
 * double, by hand, and after the forward call. */
#include "oracle.h"

#include "aclnnop/aclnn_moe_gating_top_k.h"
#include "aclnnop/aclnn_moe_gating_top_k_backward.h"

#include <math.h>

enum {
    ROUNDS = 400
};

static uint64_t bytes;
static aclOpExecutor *executor;

/* d y[q] / d s[p] = factor * ((p == q) / D - s[q] / D^2), D = eps + the sum of the chosen s, and
 * d s / d x = s (1 - s): each logit's gradient is the sum over both. */
static void expected_grad(const struct gate_problem *problem, const double *scores,
                          const double *y_grad, const double *ids, long double *grad,
                          long double *size)
{
    long double divisor = (long double)problem->eps;
    for (int64_t k = 0; k < problem->topk; k++)
        divisor += ids[k] < 0 ? 0 : (long double)scores[(int64_t)ids[k]];
    for (int64_t e = 0; e < problem->experts; e++) {
        const long double slope = (long double)scores[e] * (1 - (long double)scores[e]);
        grad[e] = size[e] = 0;
        for (int64_t p = 0; p < problem->topk; p++)
            for (int64_t q = 0; q < problem->topk && ids[p] == (double)e; q++) {
                if (ids[q] < 0)
                    continue;
                const long double share = (long double)scores[(int64_t)ids[q]] / divisor;
                const long double one = p == q ? 1 : 0;
                const long double g = (long double)problem->factor * (long double)y_grad[q];
                grad[e] += slope * g * (one - share) / divisor;
                size[e] += fabsl(slope * g / divisor) * (one + share);
            }
    }
}

/* A sum of K terms, of which each took a handful of roundings in binary64: below 64 units of 2^-53
 * of the terms' size. */
static void expect_grad(aclDataType type, double found, long double exact, long double size,
                        int64_t place)
{
    const long double slack = size * 0x1p-47L;
    if ((long double)found >= exact - slack && (long double)found <= exact + slack)
        return;
    expect_rounded(type, found, exact + ((long double)found > exact ? slack : -slack), "out",
                   place);
}

static void backward_round(int round)
{
    const int64_t T = draw(0, 6), E = draw(1, GATE_EXPERTS_MAX), K = draw(0, E);
    const struct gate_problem problem = {
        .experts = E, .topk = K, .factor = draw(0, 1) ? 2.5 : -0.75, .eps = draw(0, 1) ? 0 : 0.25};
    double scores[VALUES_MAX], y_grad[VALUES_MAX], ids[VALUES_MAX], found[VALUES_MAX];
    draw_values(scores, T * E, 1, 1023, 1.0 / 1024);
    draw_values(y_grad, T * K, -64, 64, 0.125);
    draw_values(ids, T * K, round % 4 ? 0 : -1, E - 1, 1); /* also some twice */
    const aclDataType type = token_type(round);
    struct values all[] = {VALUES(ACL_FLOAT, scores, T, E), VALUES(type, y_grad, T, K),
                           VALUES(ACL_INT32, ids, T, K), VALUES(type, NULL, T, E)};
    assert_int_equal(aclnnMoeGatingTopKBackwardGetWorkspaceSize(
                         all[0].twin.tensor, all[1].twin.tensor, all[2].twin.tensor, round % 2, 1,
                         problem.factor, problem.eps, all[3].twin.tensor, &bytes, &executor),
                     ACLNN_SUCCESS);
    assert_int_equal(run(aclnnMoeGatingTopKBackward, bytes, executor), ACLNN_SUCCESS);
    values_read(&all[3], found);
    for (int64_t t = 0; t < T; t++) {
        long double grad[GATE_EXPERTS_MAX], size[GATE_EXPERTS_MAX];
        expected_grad(&problem, &scores[t * E], &y_grad[t * K], &ids[t * K], grad, size);
        for (int64_t e = 0; e < E; e++)
            expect_grad(type, found[t * E + e], grad[e], size[e], t * E + e);
    }
    for (int i = 0; i < 4; i++)
        values_drop(&all[i]);
}

static void backward(void **state)
{
    (void)state;
    for (int round = 0; round < ROUNDS; round++)
        backward_round(round);
}

/* Scores 1/2, 1/4, NaN, 1/4 with experts 0 and 1, eps 1/4, factor 2, gradients 1 and 3: D = 1, the
 * gradients of the scores 2 - (1/2 * 2 + 1/4 * 6) = -1/2 and 6 - 5/2 = 7/2, times 1/4 and 3/16.
 * What nobody chose is not looked at. */
static void by_hand(void **state)
{
    (void)state;
    struct values scores = VALUES(ACL_FLOAT, ((const double[]){0.5, 0.25, NAN, 0.25}), 1, 4);
    struct values y_grad = VALUES(ACL_FLOAT, ((const double[]){1, 3}), 1, 2);
    struct values ids = VALUES(ACL_INT32, ((const double[]){0, 1}), 1, 2);
    struct values out = VALUES(ACL_FLOAT, NULL, 1, 4);
    assert_int_equal(aclnnMoeGatingTopKBackwardGetWorkspaceSize(
                         scores.twin.tensor, y_grad.twin.tensor, ids.twin.tensor, 0, 1, 2, 0.25,
                         out.twin.tensor, &bytes, &executor),
                     ACLNN_SUCCESS);
    assert_int_equal(run(aclnnMoeGatingTopKBackward, bytes, executor), ACLNN_SUCCESS);
    values_expect(&out, (const double[]){-0.125, 0.65625, 0, 0}, "out");
    struct values *all[] = {&scores, &y_grad, &ids, &out};
    for (int i = 0; i < 4; i++)
        values_drop(all[i]);
}

/* With a score of 1/2 and eps 1/2 the gradient is factor / 8: here in the middle between two
 * numbers of the type, where the even one is meant; and just above, where float32 in between would
 * go back to the middle. */
static void rounded_once(void **state)
{
    (void)state;
    const aclDataType types[] = {ACL_BF16, ACL_FLOAT16, ACL_FLOAT};
    const double units[] = {0x1p-7, 0x1p-10, 0x1p-23}; /* of the numbers from 1 on */
    const double half = 0.5, one = 1, zero = 0;
    for (int i = 0; i < 3; i++) {
        const double unit = units[i];
        const double exact[] = {1 + unit / 2, 1 + unit * 3 / 2, 1 + unit / 2 + 0x1p-40,
                                -1 - unit * 3 / 2};
        const double rounded[] = {1, 1 + 2 * unit, 1 + unit, -1 - 2 * unit};
        struct values scores = VALUES(ACL_FLOAT, &half, 1, 1),
                      y_grad = VALUES(types[i], &one, 1, 1);
        struct values ids = VALUES(ACL_INT32, &zero, 1, 1), out = VALUES(types[i], NULL, 1, 1);
        for (int j = 0; j < 4; j++) {
            assert_int_equal(aclnnMoeGatingTopKBackwardGetWorkspaceSize(
                                 scores.twin.tensor, y_grad.twin.tensor, ids.twin.tensor, 0, 1,
                                 8 * exact[j], 0.5, out.twin.tensor, &bytes, &executor),
                             ACLNN_SUCCESS);
            assert_int_equal(run(aclnnMoeGatingTopKBackward, bytes, executor), ACLNN_SUCCESS);
            values_expect(&out, &rounded[j], "out");
        }
        struct values *all[] = {&scores, &y_grad, &ids, &out};
        for (int j = 0; j < 4; j++)
            values_drop(all[j]);
    }
}

/* The gradient of the forward call's own results is the slope of sum of c * y, by differences. */
static void after_forward(void **state)
{
    (void)state;
    enum {
        E = 6,
        K = 3
    };
    const double logits[E] = {0.5, -1, 2, 0.25, 1.5, -0.125}, c[K] = {1, -2, 0.5};
    const struct gate_problem problem = {.experts = E,
                                         .topk = K,
                                         .groups = 1,
                                         .norm = GATE_SIGMOID,
                                         .divide = true,
                                         .factor = 2.5,
                                         .eps = 1e-20};
    struct values x = VALUES(ACL_FLOAT, logits, 1, E), y = VALUES(ACL_FLOAT, NULL, 1, K);
    struct values ids = VALUES(ACL_INT32, NULL, 1, K), scores = VALUES(ACL_FLOAT, NULL, 1, E);
    struct values y_grad = VALUES(ACL_FLOAT, c, 1, K), out = VALUES(ACL_FLOAT, NULL, 1, E);
    assert_int_equal(aclnnMoeGatingTopKGetWorkspaceSize(x.twin.tensor, NULL, K, 1, 1, 0, 0, 1, true,
                                                        2.5, 1e-20, y.twin.tensor, ids.twin.tensor,
                                                        scores.twin.tensor, &bytes, &executor),
                     ACLNN_SUCCESS);
    assert_int_equal(run(aclnnMoeGatingTopK, bytes, executor), ACLNN_SUCCESS);
    assert_int_equal(aclnnMoeGatingTopKBackwardGetWorkspaceSize(
                         scores.twin.tensor, y_grad.twin.tensor, ids.twin.tensor, 0, 1, 2.5, 1e-20,
                         out.twin.tensor, &bytes, &executor),
                     ACLNN_SUCCESS);
    assert_int_equal(run(aclnnMoeGatingTopKBackward, bytes, executor), ACLNN_SUCCESS);
    double found[E], ids_found[K];
    int64_t chosen[K];
    values_read(&out, found);
    values_read(&ids, ids_found);
    for (int k = 0; k < K; k++)
        chosen[k] = (int64_t)ids_found[k];
    for (int e = 0; e < E; e++) {
        const double step = 0x1p-12;
        long double above[K], below[K], slope = 0;
        double moved[E];
        memcpy(moved, logits, sizeof moved);
        moved[e] = logits[e] + step;
        gate_weights(&problem, moved, chosen, above);
        moved[e] = logits[e] - step;
        gate_weights(&problem, moved, chosen, below);
        for (int k = 0; k < K; k++)
            slope += (long double)c[k] * (above[k] - below[k]) / (2 * (long double)step);
        /* 2^-24 is step^2, and what a score and the result in float32 may be off: times the third
         * derivative over 6, and twice the largest slope, below 16 together. */
        assert_true(fabsl((long double)found[e] - slope) < 16 * 0x1p-24L);
    }
    struct values *all[] = {&x, &y, &ids, &scores, &y_grad, &out};
    for (int i = 0; i < 6; i++)
        values_drop(all[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(backward),
        cmocka_unit_test(by_hand),
        cmocka_unit_test(rounded_once),
        cmocka_unit_test(after_forward),
    };
    return cmocka_run_group_tests(tests, twin_setup, twin_teardown);
}
