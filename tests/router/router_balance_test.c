/* router_balance_test.c - the losses, the bias, and dropping by weight: worked by hand, and against
 * sums in long double. */
#include "support/check.h"
#include "support/random.h"
#include "support/tensors.h"

#include <math.h>
#include <moetoken/router.h>
#include <string.h>

/* Two tokens, two experts: E * coeff / (topk * T^2) * (3 * (.75 + .5) + 1 * (.25 + .5)) with coeff
 * 1/2, topk 1: 2 * .5 / 4 * 4.5 = 1.125; gradients .25 * count. */
static void balance_loss_by_hand(void **state)
{
    (void)state;
    float scores[2][2] = {{0.75f, 0.25f}, {0.5f, 0.5f}}, grads[2][2], loss, own = 2;
    int64_t counts[2] = {3, 1}, te[] = {2, 2}, e[] = {2}, one[] = {1};
    DLTensor ts = moetoken_tensor(scores, MOETOKEN_F32, 2, te);
    DLTensor tc = moetoken_tensor(counts, MOETOKEN_I64, 1, e);
    DLTensor tl = moetoken_tensor(&loss, MOETOKEN_F32, 1, one);
    DLTensor to = moetoken_tensor(&own, MOETOKEN_F32, 1, one);
    DLTensor tg = moetoken_tensor(grads, MOETOKEN_F32, 2, te);
    moetoken_router_balance_loss_args args = {.scores = &ts,
                                              .rows_per_expert = &tc,
                                              .topk = 1,
                                              .coeff = 0.5,
                                              .loss_grad = &to,
                                              .loss = &tl,
                                              .scores_grad = &tg};
    check(moetoken_router_balance_loss(&args, NULL) == MOETOKEN_OK, "%s", moetoken_last_error());
    check(loss == 1.125f, "loss %g", (double)loss);
    for (int t = 0; t < 2; t++)
        check(grads[t][0] == 1.5f && grads[t][1] == 0.5f, "gradients of token %d", t);
    args.total_tokens = 4; /* two of another process */
    check(moetoken_router_balance_loss(&args, NULL) == MOETOKEN_OK, "%s", moetoken_last_error());
    check(loss == 1.125f / 4, "loss %g", (double)loss);
}

static long double log_sum(const float *x, int count)
{
    long double sum = 0;
    for (int e = 0; e < count; e++)
        sum += expl((long double)x[e]);
    return logl(sum);
}

static void z_loss_against_long_double(void **state)
{
    (void)state;
    static float x[300][7], grads[300][7];
    uint8_t routed[300];
    double loss;
    int64_t te[] = {300, 7}, t[] = {300}, one[] = {1};
    long double wanted = 0;
    int count = 0;
    for (int i = 0; i < 300; i++) {
        routed[i] = random_chance(70);
        count += routed[i];
        for (int e = 0; e < 7; e++)
            x[i][e] = (float)random_below(1 << 24) / (1 << 21) - 4;
        wanted += routed[i] ? log_sum(x[i], 7) * log_sum(x[i], 7) : 0;
    }
    DLTensor tx = moetoken_tensor(x, MOETOKEN_F32, 2, te);
    DLTensor tm = moetoken_tensor(routed, MOETOKEN_U8, 1, t);
    DLTensor tl = moetoken_tensor(&loss, MOETOKEN_F64, 1, one);
    DLTensor tg = moetoken_tensor(grads, MOETOKEN_F32, 2, te);
    moetoken_router_z_loss_args args = {
        .logits = &tx, .token_mask = &tm, .coeff = 0.125, .loss = &tl, .logits_grad = &tg};
    check(moetoken_router_z_loss(&args, NULL) == MOETOKEN_OK, "%s", moetoken_last_error());
    wanted = wanted / count / 8;
    check(fabsl(loss - wanted) <= 0x1p-50L * wanted, "loss %.17g, not %.17Lg", loss, wanted);
    for (int i = 0; i < 300; i++)
        for (int e = 0; e < 7; e++) {
            long double z = log_sum(x[i], 7), grad = 2 * z * expl(x[i][e] - z) / count / 8;
            float rounded = routed[i] ? (float)grad : 0;
            check(grads[i][e] == rounded, "[%d,%d]: %a not %a", i, e, (double)grads[i][e],
                  (double)rounded);
        }
}

/* One NaN or +inf makes the loss NaN, and a mean over no token is 0. */
static void z_loss_of_odd_rows(void **state)
{
    (void)state;
    float x[2][2] = {{0, 1}, {NAN, 0}}, grads[2][2], loss;
    uint8_t routed[2] = {1, 1};
    int64_t te[] = {2, 2}, t[] = {2}, one[] = {1};
    DLTensor tx = moetoken_tensor(x, MOETOKEN_F32, 2, te);
    DLTensor tm = moetoken_tensor(routed, MOETOKEN_U8, 1, t);
    DLTensor tl = moetoken_tensor(&loss, MOETOKEN_F32, 1, one);
    DLTensor tg = moetoken_tensor(grads, MOETOKEN_F32, 2, te);
    moetoken_router_z_loss_args args = {
        .logits = &tx, .token_mask = &tm, .coeff = 1, .loss = &tl, .logits_grad = &tg};
    check(moetoken_router_z_loss(&args, NULL) == MOETOKEN_OK, "%s", moetoken_last_error());
    check(isnan(loss) && isnan(grads[1][0]) && isfinite(grads[0][0]), "NaN: loss %g", (double)loss);
    x[1][0] = INFINITY;
    check(moetoken_router_z_loss(&args, NULL) == MOETOKEN_OK, "%s", moetoken_last_error());
    check(isnan(loss), "+inf: loss %g", (double)loss);
    routed[0] = routed[1] = 0;
    check(moetoken_router_z_loss(&args, NULL) == MOETOKEN_OK, "%s", moetoken_last_error());
    check(loss == 0 && grads[0][0] == 0 && grads[1][1] == 0, "no token: loss %g", (double)loss);
    routed[0] = 1, te[1] = 0; /* the logarithm of a sum of nothing is -inf */
    check(moetoken_router_z_loss(&args, NULL) == MOETOKEN_OK, "%s", moetoken_last_error());
    check(isinf(loss) && loss > 0, "no expert: loss %g", (double)loss);
}

static void bias_by_hand(void **state)
{
    (void)state;
    double bias[4] = {0, 1, 0.5, -1};
    int64_t counts[4] = {1, 3, 2, 2}, e[] = {4}; /* mean 2 */
    DLTensor tb = moetoken_tensor(bias, MOETOKEN_F64, 1, e);
    DLTensor tc = moetoken_tensor(counts, MOETOKEN_I64, 1, e);
    moetoken_router_update_bias_args args = {
        .bias = &tb, .rows_per_expert = &tc, .rate = 0.25, .updated_bias = &tb};
    check(moetoken_router_update_bias(&args, NULL) == MOETOKEN_OK, "%s", moetoken_last_error());
    check(bias[0] == 0.25 && bias[1] == 0.75 && bias[2] == 0.5 && bias[3] == -1, "wrong bias");
}

/* Expert 0 has slots 0, 2, 3, 5 with weights .5, .5, NaN, .75: of two it keeps slot 5, and slot 0
 * of the two alike. */
static void drop_by_hand(void **state)
{
    (void)state;
    int32_t ids[3][2] = {{0, 1}, {0, 0}, {-1, 0}};
    float weights[3][2] = {{0.5f, 0.25f}, {0.5f, NAN}, {9, 0.75f}};
    int64_t counts[2], tk[] = {3, 2}, e[] = {2};
    DLTensor ti = moetoken_tensor(ids, MOETOKEN_I32, 2, tk);
    DLTensor tw = moetoken_tensor(weights, MOETOKEN_F32, 2, tk);
    DLTensor tc = moetoken_tensor(counts, MOETOKEN_I64, 1, e);
    moetoken_router_drop_args args = {.expert_ids = &ti,
                                      .weights = &tw,
                                      .experts_num = 2,
                                      .capacity = 2,
                                      .kept_ids = &ti,
                                      .kept_weights = &tw,
                                      .rows_per_expert = &tc};
    check(moetoken_router_drop(&args, NULL) == MOETOKEN_OK, "%s", moetoken_last_error());
    static const int32_t kept[3][2] = {{0, 1}, {-1, -1}, {-1, 0}};
    static const float left[3][2] = {{0.5f, 0.25f}, {0, 0}, {9, 0.75f}};
    check(memcmp(ids, kept, sizeof ids) == 0, "other ids");
    check(memcmp(weights, left, sizeof weights) == 0, "other weights");
    check(counts[0] == 2 && counts[1] == 1, "other counts");
}

/* Every capacity is one, the largest too: then nothing is dropped. */
static void drop_nothing(void **state)
{
    (void)state;
    static const int64_t capacities[] = {3, INT64_C(1) << 40, INT64_MAX - 1, INT64_MAX};
    for (int i = 0; i < 4; i++) {
        int32_t ids[3][2] = {{0, 1}, {1, 0}, {-1, 1}};
        float weights[3][2] = {{1, 2}, {3, 4}, {5, 6}};
        int64_t counts[2], tk[] = {3, 2}, e[] = {2};
        DLTensor ti = moetoken_tensor(ids, MOETOKEN_I32, 2, tk);
        DLTensor tw = moetoken_tensor(weights, MOETOKEN_F32, 2, tk);
        DLTensor tc = moetoken_tensor(counts, MOETOKEN_I64, 1, e);
        moetoken_router_drop_args args = {.expert_ids = &ti,
                                          .weights = &tw,
                                          .experts_num = 2,
                                          .capacity = capacities[i],
                                          .kept_ids = &ti,
                                          .rows_per_expert = &tc};
        check(moetoken_router_drop(&args, NULL) == MOETOKEN_OK, "%s", moetoken_last_error());
        static const int32_t kept[3][2] = {{0, 1}, {1, 0}, {-1, 1}};
        check(memcmp(ids, kept, sizeof ids) == 0, "other ids");
        check(counts[0] == 2 && counts[1] == 3, "other counts");
    }
}

/* A slot stays when fewer than C slots of its expert are heavier, or as heavy and lower. */
static void drop_keeps_the_heaviest(void **state)
{
    (void)state;
    for (int round = 0; round < 60; round++) {
        enum {
            SLOTS = 400
        };
        int64_t ids[SLOTS], kept[SLOTS], shape[] = {SLOTS / 4, 4};
        float weights[SLOTS];
        int experts = 1 + (int)random_below(9), capacity = (int)random_below(90);
        for (int i = 0; i < SLOTS; i++) {
            ids[i] = random_below(experts + 1) - 1;
            weights[i] = random_chance(5) ? NAN : (float)random_below(20);
        }
        DLTensor ti = moetoken_tensor(ids, MOETOKEN_I64, 2, shape);
        DLTensor tw = moetoken_tensor(weights, MOETOKEN_F32, 2, shape);
        DLTensor tk = moetoken_tensor(kept, MOETOKEN_I64, 2, shape);
        moetoken_router_drop_args args = {.expert_ids = &ti,
                                          .weights = &tw,
                                          .experts_num = experts,
                                          .capacity = capacity,
                                          .kept_ids = &tk};
        check(moetoken_router_drop(&args, NULL) == MOETOKEN_OK, "%s", moetoken_last_error());
        for (int i = 0; i < SLOTS; i++) {
            int before = 0;
            for (int j = 0; j < SLOTS; j++) {
                bool equal = weights[j] == weights[i] || (isnan(weights[i]) && isnan(weights[j]));
                bool above = isnan(weights[i]) ? !isnan(weights[j]) : weights[j] > weights[i];
                before += ids[j] == ids[i] && (above || (equal && j < i));
            }
            check(kept[i] == (before < capacity ? ids[i] : -1), "slot %d", i);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(balance_loss_by_hand),
        cmocka_unit_test(z_loss_against_long_double),
        cmocka_unit_test(z_loss_of_odd_rows),
        cmocka_unit_test(bias_by_hand),
        cmocka_unit_test(drop_by_hand),
        cmocka_unit_test(drop_nothing),
        cmocka_unit_test(drop_keeps_the_heaviest),
    };
    random_start("router_balance_test");
    return cmocka_run_group_tests(tests, NULL, NULL);
}
