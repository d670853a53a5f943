/* router_grad_test.c - moetoken_router_grad against central differences in long double of a forward
 * pass written here. */
#include "support/check.h"
#include "support/random.h"
#include "support/tensors.h"

#include <math.h>
#include <moetoken/router.h>
#include <string.h>

enum {
    TOKENS = 3,
    EXPERTS = 9,
    TOPK = 3
};

static long double score_of(int kind, const long double *x, int count, int e)
{
    long double sum = 0;
    if (kind == MOETOKEN_SCORE_SIGMOID)
        return 1 / (1 + expl(-x[e]));
    if (kind == MOETOKEN_SCORE_SQRTSOFTPLUS)
        return sqrtl(log1pl(expl(x[e])));
    for (int i = 0; i < count; i++)
        sum += expl(x[i]);
    return expl(x[e]) / sum;
}

struct problem {
    moetoken_router_config config;
    double x[TOKENS][EXPERTS], weights_grad[TOKENS][TOPK], probs_grad[TOKENS][EXPERTS];
    double scores_grad[TOKENS][EXPERTS];
    int64_t ids[TOKENS][TOPK];
    bool with_weights, with_probs, with_scores;
};

/* What the gradients are the gradients of. */
static long double objective(const struct problem *p, int t, const long double *x)
{
    const moetoken_router_config *config = &p->config;
    bool after = config->score == MOETOKEN_SCORE_SOFTMAX_AFTER;
    long double total = 0, sum = 0, weight[TOPK], chosen[TOPK];
    for (int k = 0; k < TOPK; k++)
        chosen[k] = x[p->ids[t][k]];
    for (int k = 0; k < TOPK; k++) {
        weight[k] = after ? score_of(MOETOKEN_SCORE_SOFTMAX, chosen, TOPK, k)
                          : score_of(config->score, x, EXPERTS, (int)p->ids[t][k]);
        sum += weight[k];
    }
    for (int k = 0; k < TOPK; k++) {
        long double w = config->normalize ? weight[k] / (sum + config->eps) : weight[k];
        total += w * config->scale *
                 ((p->with_weights ? p->weights_grad[t][k] : 0.0) +
                  (p->with_probs ? p->probs_grad[t][p->ids[t][k]] : 0.0));
    }
    sum = 0;
    for (int e = 0; e < EXPERTS; e++)
        sum += score_of(config->score, x, EXPERTS, e);
    for (int e = 0; e < EXPERTS && p->with_scores; e++) {
        long double s = score_of(config->score, x, EXPERTS, e);
        total += (config->normalize_scores ? s / (sum + config->eps) : s) * p->scores_grad[t][e];
    }
    return total;
}

static void problem_make(struct problem *p, int combination)
{
    memset(p, 0, sizeof *p);
    p->config = (moetoken_router_config){.topk = TOPK,
                                         .score = combination % 4,
                                         .normalize = combination / 4 % 2,
                                         .normalize_scores = combination / 8 % 2,
                                         .eps = combination / 16 % 2 ? 0.25 : 1e-20,
                                         .scale = 2.5};
    p->with_weights = combination / 32 % 2;
    p->with_probs = combination / 64 % 2;
    p->with_scores = combination / 128 % 2;
    for (int t = 0; t < TOKENS; t++) {
        int64_t order[EXPERTS];
        random_permutation(order, EXPERTS);
        for (int e = 0; e < EXPERTS; e++) {
            p->x[t][e] = (double)random_below(100000) / 12500 - 4;
            p->probs_grad[t][e] = (double)random_below(10000) / 5000 - 1;
            p->scores_grad[t][e] = (double)random_below(10000) / 5000 - 1;
        }
        for (int k = 0; k < TOPK; k++) {
            p->ids[t][k] = order[k];
            p->weights_grad[t][k] = (double)random_below(10000) / 5000 - 1;
        }
    }
}

static moetoken_status call(struct problem *p, double *grad, const DLTensor *mask,
                            const moetoken_options *options)
{
    int64_t te[] = {TOKENS, EXPERTS}, tk[] = {TOKENS, TOPK};
    DLTensor x = moetoken_tensor(p->x, MOETOKEN_F64, 2, te);
    DLTensor ids = moetoken_tensor(p->ids, MOETOKEN_I64, 2, tk);
    DLTensor weights = moetoken_tensor(p->weights_grad, MOETOKEN_F64, 2, tk);
    DLTensor probs = moetoken_tensor(p->probs_grad, MOETOKEN_F64, 2, te);
    DLTensor scores = moetoken_tensor(p->scores_grad, MOETOKEN_F64, 2, te);
    DLTensor out = moetoken_tensor(grad, MOETOKEN_F64, 2, te);
    moetoken_router_grad_args args = {.struct_size = sizeof args,
                                      .logits = &x,
                                      .token_mask = mask,
                                      .expert_ids = &ids,
                                      .config = p->config,
                                      .weights_grad = p->with_weights ? &weights : NULL,
                                      .probs_grad = p->with_probs ? &probs : NULL,
                                      .scores_grad = p->with_scores ? &scores : NULL,
                                      .logits_grad = &out};
    check(moetoken_router_grad_check(&args, options) == MOETOKEN_OK, "%s", moetoken_last_error());
    return moetoken_router_grad(&args, options);
}

static void check_token(const struct problem *p, int t, const double *grad)
{
    const long double step = 0x1p-16L;
    for (int e = 0; e < EXPERTS; e++) {
        long double x[EXPERTS];
        for (int i = 0; i < EXPERTS; i++)
            x[i] = p->x[t][i];
        x[e] += step;
        long double above = objective(p, t, x);
        x[e] -= 2 * step;
        long double wanted = (above - objective(p, t, x)) / (2 * step);
        check(fabsl(grad[t * EXPERTS + e] - wanted) <= 1e-8L,
              "score %d, normalize %d, token %d, expert %d: %.12g instead of %.12Lg",
              p->config.score, p->config.normalize, t, e, grad[t * EXPERTS + e], wanted);
    }
}

static void agrees_with_differences(void **state)
{
    (void)state;
    for (int i = 32; i < 256; i++) {
        struct problem p;
        double grad[TOKENS * EXPERTS];
        problem_make(&p, i);
        if (random_chance(30))
            p.ids[1][2] = p.ids[1][0]; /* no router does that, but it has a gradient */
        check(call(&p, grad, NULL, NULL) == MOETOKEN_OK, "%s", moetoken_last_error());
        for (int t = 0; t < TOKENS; t++)
            check_token(&p, t, grad);
    }
}

static void masked_tokens_and_unused_slots(void **state)
{
    (void)state;
    for (int score = 0; score < 4; score++) {
        struct problem p;
        double grad[TOKENS * EXPERTS];
        uint8_t routed[TOKENS] = {1, 0, 1};
        int64_t tokens[] = {TOKENS};
        DLTensor mask = moetoken_tensor(routed, MOETOKEN_U8, 1, tokens);
        problem_make(&p, 32 + score);
        for (int k = 0; k < TOPK; k++)
            p.ids[2][k] = -1;
        check(call(&p, grad, &mask, NULL) == MOETOKEN_OK, "%s", moetoken_last_error());
        check_token(&p, 0, grad);
        for (int e = EXPERTS; e < TOKENS * EXPERTS; e++)
            check(grad[e] == 0, "%g where nothing was routed", grad[e]);
    }
}

/* -1000 and 1000: exp underflows on one side; neither gradient is NaN. */
static void far_logits(void **state)
{
    (void)state;
    for (int score = 0; score < 4; score++) {
        struct problem p;
        double grad[TOKENS * EXPERTS];
        problem_make(&p, 32 + score);
        for (int e = 0; e < EXPERTS; e++)
            p.x[0][e] = e % 2 ? -1000 : 1000, p.x[1][e] = -1000;
        check(call(&p, grad, NULL, NULL) == MOETOKEN_OK, "%s", moetoken_last_error());
        for (int i = 0; i < 2 * EXPERTS; i++)
            check(isfinite(grad[i]), "score %d: %g", score, grad[i]);
    }
}

/* An unused slot between two others is as one at the end. */
static void unused_slot_in_the_middle(void **state)
{
    (void)state;
    for (int score = 0; score < 4; score++) {
        struct problem p;
        double middle[TOKENS * EXPERTS], end[TOKENS * EXPERTS];
        problem_make(&p, 32 + 4 + score);
        for (int t = 0; t < TOKENS; t++)
            p.ids[t][1] = -1;
        check(call(&p, middle, NULL, NULL) == MOETOKEN_OK, "%s", moetoken_last_error());
        for (int t = 0; t < TOKENS; t++) {
            p.ids[t][1] = p.ids[t][2], p.ids[t][2] = -1;
            p.weights_grad[t][1] = p.weights_grad[t][2];
        }
        check(call(&p, end, NULL, NULL) == MOETOKEN_OK, "%s", moetoken_last_error());
        check(memcmp(middle, end, sizeof end) == 0, "score %d: the slot counts", score);
    }
}

/* Far below zero sqrtsoftplus and its slope are tiny, and right to their last bits still. */
static void slope_of_small_scores(void **state)
{
    (void)state;
    struct problem p;
    double grad[TOKENS * EXPERTS];
    problem_make(&p, 32 + MOETOKEN_SCORE_SQRTSOFTPLUS);
    p.config.scale = 1;
    for (int e = 0; e < EXPERTS; e++)
        p.x[0][e] = -40 - e;
    check(call(&p, grad, NULL, NULL) == MOETOKEN_OK, "%s", moetoken_last_error());
    for (int k = 0; k < TOPK; k++) {
        int e = (int)p.ids[0][k];
        long double power = expl((long double)p.x[0][e]);
        long double slope = power / (1 + power) / (2 * sqrtl(log1pl(power)));
        long double wanted = slope * p.weights_grad[0][k];
        check(fabsl(grad[e] - wanted) <= 0x1p-48L * fabsl(wanted), "%.17g instead of %.17Lg",
              grad[e], wanted);
    }
}

static void same_bits_everywhere(void **state)
{
    (void)state;
    for (int i = 32; i < 256; i += 5) {
        struct problem p;
        double scalar[TOKENS * EXPERTS], other[TOKENS * EXPERTS];
        problem_make(&p, i);
        moetoken_options options = {.isa_mask = MOETOKEN_ISA_SCALAR};
        check(call(&p, scalar, NULL, &options) == MOETOKEN_OK, "%s", moetoken_last_error());
        for (unsigned isa = 2; isa <= 8; isa *= 2) {
            options.isa_mask = isa;
            check(call(&p, other, NULL, &options) == MOETOKEN_OK, "%s", moetoken_last_error());
            check(memcmp(scalar, other, sizeof scalar) == 0, "%s differs", moetoken_isa_name(isa));
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(agrees_with_differences),
        cmocka_unit_test(masked_tokens_and_unused_slots),
        cmocka_unit_test(far_logits),
        cmocka_unit_test(unused_slot_in_the_middle),
        cmocka_unit_test(slope_of_small_scores),
        cmocka_unit_test(same_bits_everywhere),
    };
    random_start("router_grad_test");
    return cmocka_run_group_tests(tests, NULL, NULL);
}
