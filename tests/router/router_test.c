/* router_test.c - moetoken_router against an oracle in long double that shares nothing with it. */
#include "support/check.h"
#include "support/random.h"
#include "support/tensors.h"

#include <math.h>
#include <moetoken/router.h>
#include <stdlib.h>
#include <string.h>

#define E_MOST 140

/* ---- the oracle ----------------------------------------------------------------------------- */

static long double score_of(const moetoken_router_config *config, const double *x, int e, int count)
{
    long double sum = 0, most = -INFINITY;
    switch (config->score) {
    case MOETOKEN_SCORE_SIGMOID:
        return 1 / (1 + expl(-(long double)x[e]));
    case MOETOKEN_SCORE_SQRTSOFTPLUS:
        return sqrtl(x[e] > 0 ? x[e] + log1pl(expl(-(long double)x[e]))
                              : log1pl(expl((long double)x[e])));
    default:
        for (int i = 0; i < count; i++)
            most = x[i] > most ? (long double)x[i] : most;
        for (int i = 0; i < count; i++)
            sum += expl(x[i] - most);
        return expl(x[e] - most) / sum;
    }
}

/* By counting the better ones: a lower index, or a higher value. */
static int rank_of(const double *value, const bool *out, int e, int count)
{
    int rank = 0;
    for (int i = 0; i < count; i++) {
        if (out[i] || i == e)
            continue;
        bool above = isnan(value[e]) ? !isnan(value[i]) : value[i] > value[e];
        bool equal = isnan(value[e]) ? isnan(value[i]) : value[i] == value[e];
        rank += above || (equal && i < e);
    }
    return rank;
}

static double group_value(const double *value, int first, int size, int wanted)
{
    bool out[E_MOST] = {false};
    double sum = 0;
    for (int k = 0; k < wanted; k++)
        for (int i = 0; i < size; i++)
            if (rank_of(value + first, out, i, size) == k)
                sum = k == 0 ? value[first + i] : sum + value[first + i];
    return sum;
}

/* Marks the experts of groups that do not stay. */
static void leave_groups(const moetoken_router_config *config, const double *value, int count,
                         bool *out)
{
    double groups[E_MOST];
    bool none[E_MOST] = {false};
    int num = (int)config->groups_num, size = num > 0 ? count / num : 0;
    for (int g = 0; g < num; g++)
        groups[g] = group_value(value, g * size, size, (int)config->group_score_count);
    for (int e = 0; e < count && num > 1; e++)
        out[e] = rank_of(groups, none, e / size, num) >= config->groups_top;
}

/* ---- a call --------------------------------------------------------------------------------- */

struct routed {
    struct test_tensor logits, bias, mask, ids, weights, map, probs, scores, counts;
    moetoken_router_args args;
};

static void routed_make(struct routed *r, int tokens, int experts,
                        const moetoken_router_config *config, moetoken_type type,
                        moetoken_type weights, bool strides)
{
    struct layout in = layout_random(false), out[6];
    for (int i = 0; i < 6; i++)
        out[i] = layout_random(true);
    in.repeat_rows = in.repeat_columns = false;
    const struct layout *plain = NULL;
    memset(r, 0, sizeof *r);
    tensor_make(&r->logits, type, 2, tokens, experts, strides ? &in : plain);
    tensor_make(&r->bias, type, 1, experts, 1, NULL);
    tensor_make(&r->mask, MOETOKEN_BOOL, 1, tokens, 1, NULL);
    tensor_make(&r->ids, random_chance(50) ? MOETOKEN_I32 : MOETOKEN_I64, 2, tokens, config->topk,
                strides ? &out[0] : plain);
    tensor_make(&r->weights, weights, 2, tokens, config->topk, strides ? &out[1] : plain);
    tensor_make(&r->map, MOETOKEN_U8, 2, tokens, experts, strides ? &out[2] : plain);
    tensor_make(&r->probs, weights, 2, tokens, experts, strides ? &out[3] : plain);
    tensor_make(&r->scores, weights, 2, tokens, experts, strides ? &out[4] : plain);
    tensor_make(&r->counts, MOETOKEN_I64, 1, experts, 1, strides ? &out[5] : plain);
    r->args = (moetoken_router_args){.struct_size = sizeof r->args,
                                     .logits = &r->logits.dl,
                                     .config = *config,
                                     .expert_ids = &r->ids.dl,
                                     .weights = &r->weights.dl,
                                     .routing_map = &r->map.dl,
                                     .probs = &r->probs.dl,
                                     .scores = &r->scores.dl,
                                     .rows_per_expert = &r->counts.dl};
}

static void routed_free(struct routed *r)
{
    struct test_tensor *all[] = {&r->logits, &r->bias,  &r->mask,   &r->ids,   &r->weights,
                                 &r->map,    &r->probs, &r->scores, &r->counts};
    for (int i = 0; i < 9; i++)
        tensor_free(all[i]);
}

/* The value is the rounded one, but for exact values within 2^-50 of a tie, relative. */
static void check_rounded(const DLTensor *tensor, int64_t t, int64_t k, long double wanted,
                          long double slack)
{
    double got = tensor_get(tensor, t, k);
    moetoken_type type = tensor_type(tensor);
    if (isnan(wanted)) {
        check(isnan(got), "[%d,%d] = %a instead of NaN", (int)t, (int)k, got);
        return;
    }
    long double error = fabsl(wanted) * slack + 0x1p-1070L;
    double low = number_round((double)(wanted - error), type);
    double high = number_round((double)(wanted + error), type);
    if (type == MOETOKEN_F64) {
        low = (double)(wanted - error), high = (double)(wanted + error);
    }
    check(got >= low && got <= high, "[%d,%d] = %a instead of %La", (int)t, (int)k, got, wanted);
}

static int64_t get_id(const struct routed *r, int64_t t, int64_t k)
{
    return (int64_t)tensor_get(&r->ids.dl, t, k);
}

static void check_weights(const struct routed *r, int t, const double *x, int count)
{
    const moetoken_router_config *config = &r->args.config;
    long double weight[E_MOST], sum = 0, most = -INFINITY;
    bool after = config->score == MOETOKEN_SCORE_SOFTMAX_AFTER;
    int topk = (int)config->topk;
    for (int k = 0; k < topk; k++)
        most = x[get_id(r, t, k)] > most ? (long double)x[get_id(r, t, k)] : most;
    for (int k = 0; k < topk; k++) {
        double logit = x[get_id(r, t, k)];
        weight[k] = after ? expl(logit - most) : score_of(config, x, (int)get_id(r, t, k), count);
        sum += weight[k];
    }
    for (int k = 0; k < topk; k++) {
        weight[k] = after ? weight[k] / sum : weight[k];
        if (config->normalize)
            weight[k] /= after ? 1 + (long double)config->eps : sum + config->eps;
        if (config->scale != 0)
            weight[k] *= config->scale;
        check_rounded(&r->weights.dl, t, k, weight[k], 0x1p-49L);
        check(tensor_get_bits(&r->probs.dl, t, get_id(r, t, k)) ==
                  tensor_get_bits(&r->weights.dl, t, k),
              "probs and weights differ");
    }
}

/* The choice is made among the library's own binary64 scores, `own`, which are checked here against
 * long double: sums of them may tie, or miss a tie by an ulp, where sums of other roundings do not.
 */
static void check_token(const struct routed *r, const DLTensor *own, int t, int64_t *counts)
{
    const moetoken_router_config *config = &r->args.config;
    int count = (int)r->logits.shape[1], set = 0;
    double x[E_MOST], value[E_MOST];
    bool out[E_MOST] = {false};
    for (int e = 0; e < count; e++)
        x[e] = tensor_get(&r->logits.dl, t, e);
    for (int e = 0; e < count; e++) {
        long double score = score_of(config, x, e, count);
        bool after = config->score == MOETOKEN_SCORE_SOFTMAX_AFTER;
        value[e] = after ? x[e] : tensor_get(own, t, e);
        check_rounded(own, t, e, score, 0x1p-50L);
        if (r->args.bias)
            value[e] += tensor_get(&r->bias.dl, e, 0);
        check_rounded(&r->scores.dl, t, e, score, 0x1p-50L);
        set += (int)tensor_get(&r->map.dl, t, e);
    }
    check(set == config->topk, "token %d: %d experts set", t, set);
    leave_groups(config, value, count, out);
    for (int k = 0; k < config->topk; k++) {
        int64_t id = get_id(r, t, k);
        check(!out[id] && rank_of(value, out, (int)id, count) == k,
              "token %d: slot %d went to expert %d", t, k, (int)id);
        check(tensor_get(&r->map.dl, t, id) == 1, "token %d: expert %d not set", t, (int)id);
        counts[id]++;
    }
    check_weights(r, t, x, count);
}

static void check_all(const struct routed *r)
{
    int64_t counts[E_MOST] = {0};
    struct test_tensor own;
    moetoken_router_args args = {
        .logits = &r->logits.dl, .config = r->args.config, .scores = &own.dl};
    tensor_make(&own, MOETOKEN_F64, 2, r->logits.shape[0], r->logits.shape[1], NULL);
    check(moetoken_router(&args, NULL) == MOETOKEN_OK, "%s", moetoken_last_error());
    for (int t = 0; t < r->logits.shape[0]; t++) {
        if (r->args.token_mask == NULL || tensor_get(&r->mask.dl, t, 0) != 0) {
            check_token(r, &own.dl, t, counts);
            continue;
        }
        for (int k = 0; k < r->args.config.topk; k++)
            check(get_id(r, t, k) == -1 && tensor_get(&r->weights.dl, t, k) == 0, "not masked");
        for (int e = 0; e < r->logits.shape[1]; e++)
            check(tensor_get(&r->scores.dl, t, e) == 0 && tensor_get(&r->map.dl, t, e) == 0 &&
                      tensor_get(&r->probs.dl, t, e) == 0,
                  "a masked token has a score, a map or a prob");
    }
    for (int e = 0; e < r->logits.shape[1]; e++)
        check(tensor_get_index(&r->counts.dl, e) == counts[e], "expert %d counts wrong", e);
    tensor_free(&own);
}

/* Logits from few values, so that ties are common, and NaN and -inf here and there. */
static void fill(struct routed *r, bool ties, int special)
{
    moetoken_type type = r->logits.type;
    for (int t = 0; t < r->logits.shape[0]; t++)
        for (int e = 0; e < r->logits.shape[1]; e++) {
            double value = ties ? (double)random_below(7) / 2 - 1
                                : (double)(random_bits() >> 11) * 0x1p-53 * 16 - 8;
            if (random_chance(special))
                value = random_chance(50) ? NAN : -INFINITY;
            tensor_set(&r->logits.dl, t, e, number_round(value, type));
        }
    for (int e = 0; e < r->logits.shape[1]; e++)
        tensor_set(&r->bias.dl, e, 0, (double)random_below(5) / 4 - 0.5);
    for (int t = 0; t < r->logits.shape[0]; t++)
        tensor_set(&r->mask.dl, t, 0, random_chance(80));
}

static const moetoken_type types[] = {MOETOKEN_F32, MOETOKEN_F16, MOETOKEN_BF16, MOETOKEN_F64};

static void agrees_with_the_oracle(void **state)
{
    (void)state;
    static const int experts[] = {7, 33, 130, 8, 64}, groups[] = {1, 3, 5, 4, 8};
    for (int i = 0; i < 600; i++) {
        int n = i % 5;
        moetoken_router_config config = {.score = i / 5 % 4,
                                         .normalize = random_chance(50),
                                         .groups_num = random_chance(60) ? groups[n] : 1,
                                         .eps = random_chance(50) ? 1e-20 : 0.125,
                                         .scale = random_chance(50) ? 2.5 : 0};
        int size = experts[n] / (int)config.groups_num;
        config.groups_top = 1 + random_below(config.groups_num);
        config.group_score_count = 1 + random_below(size < 3 ? size : 3);
        config.topk = 1 + random_below(config.groups_top * size < 9 ? config.groups_top * size : 9);
        moetoken_type type = types[random_below(4)];
        moetoken_type weights = random_chance(50) ? type : MOETOKEN_F32;
        struct routed r;
        routed_make(&r, 5, experts[n], &config, type, weights, random_chance(50));
        fill(&r, random_chance(50), random_chance(30) ? 8 : 0);
        r.args.bias = random_chance(50) ? &r.bias.dl : NULL;
        r.args.token_mask = random_chance(30) ? &r.mask.dl : NULL;
        check(moetoken_router(&r.args, NULL) == MOETOKEN_OK, "%s", moetoken_last_error());
        check_all(&r);
        routed_free(&r);
    }
}

/* Pairs of logits that are a unit in the last place apart, the greater one second: softmax makes
 * some of them equal, and then the first is chosen. */
static void fill_with_neighbours(struct routed *r)
{
    for (int t = 0; t < r->logits.shape[0]; t++)
        for (int e = 0; e < r->logits.shape[1]; e++) {
            double value = 0.5 + (double)(random_bits() >> 11) * 0x1p-54;
            if (e > 0 && random_chance(40))
                value = nextafter(tensor_get(&r->logits.dl, t, random_below(e)), 2);
            tensor_set(&r->logits.dl, t, e, value);
        }
}

/* Where nobody asks for the scores they are not all divided by their sum: the choice is the same.
 */
static void the_choice_without_scores(void **state)
{
    (void)state;
    static const int experts[] = {16, 61, 64, 130, 256};
    for (int i = 0; i < 40; i++) {
        moetoken_router_config config = {.topk = 1 + i % 8, .normalize = i % 2 == 0};
        struct routed r, other;
        routed_make(&r, 300, experts[i % 5], &config, MOETOKEN_F64, MOETOKEN_F64, false);
        routed_make(&other, 300, experts[i % 5], &config, MOETOKEN_F64, MOETOKEN_F64, false);
        if (i % 4 < 3)
            fill_with_neighbours(&r);
        else
            fill(&r, i % 8 == 3, 3);
        moetoken_options options = {.isa_mask = MOETOKEN_ISA_SCALAR};
        check(moetoken_router(&r.args, &options) == MOETOKEN_OK, "%s", moetoken_last_error());
        other.args.logits = &r.logits.dl;
        other.args.scores = NULL;
        for (options.isa_mask = 1; options.isa_mask <= 8; options.isa_mask *= 2) {
            check(moetoken_router(&other.args, &options) == MOETOKEN_OK, "%s",
                  moetoken_last_error());
            check(tensor_difference(&r.weights.dl, &other.weights.dl) == -1, "%s: weights differ",
                  moetoken_isa_name(options.isa_mask));
            for (int t = 0; t < 300; t++)
                for (int k = 0; k < config.topk; k++)
                    check(get_id(&r, t, k) == get_id(&other, t, k), "%s: another choice",
                          moetoken_isa_name(options.isa_mask));
        }
        routed_free(&r);
        routed_free(&other);
    }
}

/* The same bits for every instruction set and number of threads. */
static void same_bits_everywhere(void **state)
{
    (void)state;
    for (int i = 0; i < 24; i++) {
        moetoken_router_config config = {.topk = 6, .score = i % 4, .normalize = i % 3 == 0};
        moetoken_type type = types[i / 4 % 4];
        struct routed r, other;
        moetoken_options options = {.isa_mask = MOETOKEN_ISA_SCALAR, .threads = 1};
        routed_make(&r, 700, 130, &config, type, MOETOKEN_F64, false);
        fill(&r, false, i % 2);
        check(moetoken_router(&r.args, &options) == MOETOKEN_OK, "%s", moetoken_last_error());
        routed_make(&other, 700, 130, &config, type, MOETOKEN_F64, i % 2 == 1);
        other.args.logits = &r.logits.dl;
        for (unsigned isa = 1; isa <= 8; isa *= 2) {
            options = (moetoken_options){.isa_mask = isa, .threads = 1 + i % 5};
            check(moetoken_router(&other.args, &options) == MOETOKEN_OK, "%s",
                  moetoken_last_error());
            check(tensor_difference(&r.weights.dl, &other.weights.dl) == -1 &&
                      tensor_difference(&r.scores.dl, &other.scores.dl) == -1 &&
                      tensor_difference(&r.probs.dl, &other.probs.dl) == -1,
                  "%s differs from scalar, score %d", moetoken_isa_name(isa), config.score);
            for (int t = 0; t < 700; t++)
                for (int k = 0; k < 6; k++)
                    check(get_id(&r, t, k) == get_id(&other, t, k), "another choice");
            for (int e = 0; e < 130; e++)
                check(tensor_get_index(&r.counts.dl, e) == tensor_get_index(&other.counts.dl, e),
                      "another count");
        }
        routed_free(&r);
        routed_free(&other);
    }
}

static void odd_rows_by_hand(void **state)
{
    (void)state;
    moetoken_router_config config = {.topk = 2};
    struct routed r;
    double rows[4][3] = {{-INFINITY, -INFINITY, -INFINITY}, /* softmax: NaN, lowest experts */
                         {0, NAN, 1},                       /* softmax: NaN everywhere */
                         {-INFINITY, 0, -INFINITY},         /* 1, then a tie of zeros */
                         {-0.0, 0.0, -1}};                  /* -0 and +0 tie */
    routed_make(&r, 4, 3, &config, MOETOKEN_F32, MOETOKEN_F32, false);
    tensor_fill_from(&r.logits.dl, &rows[0][0]);
    check(moetoken_router(&r.args, NULL) == MOETOKEN_OK, "%s", moetoken_last_error());
    for (int t = 0; t < 2; t++)
        check(get_id(&r, t, 0) == 0 && get_id(&r, t, 1) == 1 &&
                  isnan(tensor_get(&r.weights.dl, t, 0)) && isnan(tensor_get(&r.weights.dl, t, 1)),
              "row %d", t);
    check(get_id(&r, 2, 0) == 1 && get_id(&r, 2, 1) == 0 && tensor_get(&r.weights.dl, 2, 0) == 1 &&
              tensor_get(&r.weights.dl, 2, 1) == 0,
          "one finite logit");
    check(get_id(&r, 3, 0) == 0 && get_id(&r, 3, 1) == 1, "-0 and +0");
    r.args.config.score = MOETOKEN_SCORE_SOFTMAX_AFTER; /* NaN is chosen last */
    check(moetoken_router(&r.args, NULL) == MOETOKEN_OK, "%s", moetoken_last_error());
    check(get_id(&r, 1, 0) == 2 && get_id(&r, 1, 1) == 0, "NaN was chosen");
    routed_free(&r);
}

/* sqrtsoftplus of +inf is +inf, and so is the sum: over it a number is 0, not NaN. */
static void an_infinite_score_by_hand(void **state)
{
    (void)state;
    moetoken_router_config config = {
        .topk = 2, .score = MOETOKEN_SCORE_SQRTSOFTPLUS, .normalize = true};
    struct routed r;
    routed_make(&r, 1, 3, &config, MOETOKEN_F32, MOETOKEN_F32, false);
    tensor_fill_from(&r.logits.dl, (const double[]){0, -1, INFINITY});
    check(moetoken_router(&r.args, NULL) == MOETOKEN_OK, "%s", moetoken_last_error());
    check(get_id(&r, 0, 0) == 2 && get_id(&r, 0, 1) == 0, "another choice");
    check(isnan(tensor_get(&r.weights.dl, 0, 0)) && tensor_get(&r.weights.dl, 0, 1) == 0,
          "weights %g and %g", tensor_get(&r.weights.dl, 0, 0), tensor_get(&r.weights.dl, 0, 1));
    routed_free(&r);
}

/* Beside a logit of 2^126 every other one has the score 0, itself a large number or not; and zeros
 * are a tie. */
static void logits_far_apart_by_hand(void **state)
{
    (void)state;
    moetoken_router_config config = {.topk = 3};
    struct routed r;
    double rows[4][3] = {{0x1p126, 0x1.8p72, 1.5},
                         {0x1p126, -0.75, 1.5},
                         {0x1p70, 0x1p126, 0x1.fffffep125},
                         {-0x1.fffffep127, 0x1.fffffep127, 0x1.234568p80}};
    routed_make(&r, 4, 3, &config, MOETOKEN_F32, MOETOKEN_F32, false);
    tensor_fill_from(&r.logits.dl, &rows[0][0]);
    check(moetoken_router(&r.args, NULL) == MOETOKEN_OK, "%s", moetoken_last_error());
    for (int t = 0; t < 4; t++) {
        int first = t < 2 ? 0 : 1;
        for (int e = 0; e < 3; e++)
            check(tensor_get(&r.scores.dl, t, e) == (e == first), "score %d of row %d is %g", e, t,
                  tensor_get(&r.scores.dl, t, e));
        check(get_id(&r, t, 0) == first && get_id(&r, t, 1) == 1 - first && get_id(&r, t, 2) == 2,
              "the choice of row %d", t);
    }
    routed_free(&r);
}

static void sizes_of_zero(void **state)
{
    (void)state;
    static const int sizes[][3] = {{0, 4, 2}, {3, 4, 0}, {3, 0, 0}, {0, 0, 0}};
    for (int i = 0; i < 4; i++) {
        moetoken_router_config config = {.topk = sizes[i][2]};
        struct routed r;
        routed_make(&r, sizes[i][0], sizes[i][1], &config, MOETOKEN_F32, MOETOKEN_F32, false);
        tensor_fill(&r.logits.dl, 1);
        check(moetoken_router(&r.args, NULL) == MOETOKEN_OK, "%s", moetoken_last_error());
        check_all(&r);
        routed_free(&r);
    }
}

/* Faults of others: each of these once gave a wrong result somewhere. */
static void what_others_get_wrong(void **state)
{
    (void)state;
    struct routed r;
    /* Large bias: the weight is the score itself, not (score + bias) - bias. All choice values are
     * below zero: masked groups must not win with a 0. */
    moetoken_router_config config = {.topk = 2,
                                     .score = MOETOKEN_SCORE_SIGMOID,
                                     .groups_num = 2,
                                     .groups_top = 1,
                                     .group_score_count = 2};
    routed_make(&r, 1, 4, &config, MOETOKEN_F32, MOETOKEN_F32, false);
    tensor_fill_from(&r.logits.dl, (const double[]){0, 0, 0, 0});
    tensor_fill_from(&r.bias.dl, (const double[]){-0x1p40, -0x1p41, -0x1p20, -0x1p21});
    r.args.bias = &r.bias.dl;
    check(moetoken_router(&r.args, NULL) == MOETOKEN_OK, "%s", moetoken_last_error());
    check(get_id(&r, 0, 0) == 2 && get_id(&r, 0, 1) == 3, "the group below zero");
    check(tensor_get(&r.weights.dl, 0, 0) == 0.5, "the weight has the bias in it");
    routed_free(&r);
    /* One expert, normalised: 1, not the score. */
    config =
        (moetoken_router_config){.topk = 1, .score = MOETOKEN_SCORE_SIGMOID, .normalize = true};
    routed_make(&r, 1, 4, &config, MOETOKEN_F32, MOETOKEN_F32, false);
    tensor_fill_from(&r.logits.dl, (const double[]){-3, -2, -4, -8});
    check(moetoken_router(&r.args, NULL) == MOETOKEN_OK, "%s", moetoken_last_error());
    check(get_id(&r, 0, 0) == 1 && tensor_get(&r.weights.dl, 0, 0) == 1, "one normalised expert");
    routed_free(&r);
    /* Every expert chosen, all values negative. */
    config = (moetoken_router_config){.topk = 5, .score = MOETOKEN_SCORE_SOFTMAX_AFTER};
    routed_make(&r, 1, 5, &config, MOETOKEN_F32, MOETOKEN_F32, false);
    tensor_fill_from(&r.logits.dl, (const double[]){-5, -1, -3, -1, -9});
    check(moetoken_router(&r.args, NULL) == MOETOKEN_OK, "%s", moetoken_last_error());
    static const int order[] = {1, 3, 2, 0, 4};
    for (int k = 0; k < 5; k++)
        check(get_id(&r, 0, k) == order[k], "slot %d", k);
    routed_free(&r);
}

/* Sigmoid of 0 is 1/2: four of them over (their sum + 2) are 1/8 each. */
static void scores_normalized_by_hand(void **state)
{
    (void)state;
    moetoken_router_config config = {.topk = 1, .score = MOETOKEN_SCORE_SIGMOID, .eps = 2};
    struct routed r;
    config.normalize_scores = true;
    routed_make(&r, 1, 4, &config, MOETOKEN_F32, MOETOKEN_F32, false);
    tensor_fill(&r.logits.dl, 0);
    check(moetoken_router(&r.args, NULL) == MOETOKEN_OK, "%s", moetoken_last_error());
    for (int e = 0; e < 4; e++)
        check(tensor_get(&r.scores.dl, 0, e) == 0.125, "score %d", e);
    check(tensor_get(&r.weights.dl, 0, 0) == 0.5, "the weight is not normalised");
    routed_free(&r);
}

/* A recipe runs on its model's number of experts and says what the model's paper says. */
static void recipes_run(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        int64_t topk, groups;
        double scale;
    } models[] = {{"mixtral", 2, 0, 0},     {"qwen3", 8, 0, 0},    {"olmoe", 8, 0, 0},
                  {"gpt-oss", 4, 0, 0},     {"llama-4", 1, 0, 0},  {"deepseek-v3", 8, 8, 2.5},
                  {"kimi-k2", 8, 0, 2.827}, {"glm-4.5", 8, 0, 2.5}};
    for (int i = 0; i < 8; i++) {
        moetoken_router_config config;
        struct routed r;
        check(moetoken_router_recipe(models[i].name, &config) == MOETOKEN_OK, "%s",
              moetoken_last_error());
        check(config.topk == models[i].topk && config.groups_num == models[i].groups &&
                  config.scale == models[i].scale,
              "%s is another model", models[i].name);
        routed_make(&r, 4, 64, &config, MOETOKEN_F32, MOETOKEN_F32, false);
        fill(&r, false, 0);
        check(moetoken_router(&r.args, NULL) == MOETOKEN_OK, "%s", moetoken_last_error());
        check_all(&r);
        routed_free(&r);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(agrees_with_the_oracle),
        cmocka_unit_test(the_choice_without_scores),
        cmocka_unit_test(same_bits_everywhere),
        cmocka_unit_test(odd_rows_by_hand),
        cmocka_unit_test(an_infinite_score_by_hand),
        cmocka_unit_test(logits_far_apart_by_hand),
        cmocka_unit_test(sizes_of_zero),
        cmocka_unit_test(what_others_get_wrong),
        cmocka_unit_test(scores_normalized_by_hand),
        cmocka_unit_test(recipes_run),
    };
    random_start("router_test");
    return cmocka_run_group_tests(tests, NULL, NULL);
}
