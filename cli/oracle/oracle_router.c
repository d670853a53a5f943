/* oracle_router.c - the router and its gradient again, token by token, beside what OUT holds.
 * Files -> router_case -> a report for each output. */
#include "oracle_router.h"

#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "oracle_report.h"
#include "oracle_sums.h"
#include "values/number_formats.h"

#define SMALLEST 0x1p-1074L /* of binary64 */

/* ---- scores and weights ---------------------------------------------------------------------- */

static void softmax(const long double *logits, int64_t count, long double *scores)
{
    long double largest = -INFINITY, sum = 0;
    for (int64_t e = 0; e < count; e++)
        largest = logits[e] > largest ? logits[e] : largest;
    for (int64_t e = 0; e < count; e++)
        sum += scores[e] = expl(logits[e] - largest);
    for (int64_t e = 0; e < count; e++)
        scores[e] /= sum;
}

static long double sigmoid(long double x)
{
    return x >= 0 ? 1 / (1 + expl(-x)) : expl(x) / (1 + expl(x));
}

static long double sqrtsoftplus(long double x)
{
    return sqrtl((x > 0 ? x : isnan(x) ? x : 0) + log1pl(expl(-fabsl(x))));
}

void router_scores(int32_t score, const long double *logits, int64_t count, long double *scores)
{
    if (score == MOETOKEN_SCORE_SOFTMAX || score == MOETOKEN_SCORE_SOFTMAX_AFTER) {
        softmax(logits, count, scores);
        return;
    }
    for (int64_t e = 0; e < count; e++)
        scores[e] = score == MOETOKEN_SCORE_SIGMOID ? sigmoid(logits[e]) : sqrtsoftplus(logits[e]);
}

void router_normalize(long double *values, int64_t count, double eps)
{
    long double sum = eps;
    for (int64_t i = 0; i < count; i++)
        sum += values[i];
    for (int64_t i = 0; i < count; i++)
        values[i] /= sum;
}

void router_weights(const moetoken_router_config *config, const long double *logits,
                    const long double *scores, const int64_t *ids, int64_t topk,
                    long double *weights)
{
    bool after = config->score == MOETOKEN_SCORE_SOFTMAX_AFTER;
    for (int64_t k = 0; k < topk; k++)
        weights[k] = after ? logits[ids[k]] : scores[ids[k]];
    if (after)
        softmax(weights, topk, weights);
    if (config->normalize)
        router_normalize(weights, topk, config->eps);
    for (int64_t k = 0; k < topk; k++)
        weights[k] *= config->scale;
}

/* How far off a score in binary64 may be: 2^-50 of it, and what underflow loses, which under the
 * root of sqrtsoftplus is more. */
static long double score_error(int32_t score, long double value)
{
    long double error = fabsl(value) * 0x1p-50L + SMALLEST;
    if (score == MOETOKEN_SCORE_SQRTSOFTPLUS && value < 0x1p-480L)
        error += value > 0x1p-536L ? SMALLEST / value : 0x1p-535L;
    return error;
}

void report_near(struct output_report *report, int64_t place, uint64_t got, long double want,
                 long double error)
{
    const int64_t roundings = 16;
    struct accurate_sum sum;
    accurate_sum_begin(&sum);
    sum.only_negative_zero = want == 0 && signbit(want);
    sum.terms = 1;
    if (fabsl(want) <= (long double)DBL_MAX) {
        sum.high = (double)want;
        sum.low = (double)(want - (long double)sum.high);
        sum.roundings = roundings;
        sum.magnitude = (double)(error * 0x1p53L / roundings);
    } else {
        sum.special = (double)want;
    }
    report_sum(report, place, got, &sum);
}

/* ---- the token ------------------------------------------------------------------------------- */

bool router_token_allocate(struct router_token *token, const struct router_case *router)
{
    size_t topk = (size_t)router->topk + 1, experts = (size_t)router->experts + 1;
    experts = experts > topk ? experts : topk;
    *token = (struct router_token){.router = router};
    token->logits = calloc(10 * experts + topk, sizeof *token->logits);
    token->ids = calloc(2 * topk, sizeof *token->ids);
    token->taken = calloc(experts, sizeof *token->taken);
    if (token->logits == NULL || token->ids == NULL || token->taken == NULL)
        return false;
    long double **rows[] = {
        &token->scores, &token->tolerance, &token->choice, &token->choice_tolerance,
        &token->grads,  &token->magnitude, &token->group,  &token->group_tolerance,
        &token->weights};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        *rows[i] = token->logits + (i + 1) * experts;
    token->own_ids = token->ids + topk;
    return true;
}

void router_token_free(struct router_token *token)
{
    free(token->logits);
    free(token->ids);
    free(token->taken);
}

static bool is_masked(const struct router_token *token)
{
    const DLTensor *mask = token->router->token_mask;
    return mask != NULL && !set_at(mask, token->t);
}

/* Scores and choice values. */
static void score_token(struct router_token *token)
{
    const struct router_case *router = token->router;
    const moetoken_router_config *config = &router->config;
    for (int64_t e = 0; e < router->experts; e++)
        token->logits[e] = (long double)float_at(router->logits, token->t * router->experts + e);
    router_scores(config->score, token->logits, router->experts, token->scores);
    bool after = config->score == MOETOKEN_SCORE_SOFTMAX_AFTER;
    for (int64_t e = 0; e < router->experts; e++) {
        long double bias = router->bias == NULL ? 0 : (long double)float_at(router->bias, e);
        token->tolerance[e] = score_error(config->score, token->scores[e]);
        token->choice[e] = (after ? token->logits[e] : token->scores[e]) + bias;
        token->choice_tolerance[e] = after ? 0 : token->tolerance[e];
        if (router->bias != NULL)
            token->choice_tolerance[e] += fabsl(token->choice[e]) * 0x1p-53L;
    }
}

/* The ids of the token in OUT, or where OUT has none the oracle's own; -1: masked. */
static bool find_ids(struct router_token *token)
{
    const struct router_case *router = token->router;
    const DLTensor *ids = router->output[0];
    for (int64_t k = 0; k < router->topk; k++)
        token->ids[k] = ids == NULL ? -1 : integer_at(ids, token->t * router->topk + k);
    bool right = router_choice_is_right(token);
    if (!right)
        memcpy(token->ids, token->own_ids, (size_t)router->topk * sizeof *token->ids);
    return right;
}

/* ---- the outputs of the router --------------------------------------------------------------- */

static void check_integer(struct output_report *report, const DLTensor *output, int64_t place,
                          int64_t want)
{
    uint64_t mask = report->type == MOETOKEN_I64   ? UINT64_MAX
                    : report->type == MOETOKEN_I32 ? UINT32_MAX
                                                   : UINT8_MAX;
    report_bits(report, place, bits_at(output, place), (uint64_t)want & mask);
}

static void check_ids(const struct router_token *token, struct output_report *report, bool masked,
                      bool right)
{
    const DLTensor *output = token->router->output[0];
    for (int64_t k = 0; k < token->router->topk; k++) {
        int64_t place = token->t * token->router->topk + k;
        int64_t want = masked ? -1 : right ? integer_at(output, place) : token->own_ids[k];
        check_integer(report, output, place, want);
    }
}

/* How far off the weight may be: its score's error, and through the sum those of all. */
static long double weight_error(const struct router_token *token, int64_t k)
{
    const moetoken_router_config *config = &token->router->config;
    long double error = fabsl(token->weights[k]) * 0x1p-49L + SMALLEST;
    if (config->score == MOETOKEN_SCORE_SOFTMAX_AFTER)
        return error + 4 * SMALLEST * fabsl((long double)config->scale);
    long double divisor = config->eps, errors = 0, scale = fabsl((long double)config->scale);
    for (int64_t j = 0; j < token->router->topk; j++) {
        divisor += token->scores[token->ids[j]];
        errors += token->tolerance[token->ids[j]];
    }
    if (!config->normalize)
        return error + scale * token->tolerance[token->ids[k]];
    return error + scale * token->tolerance[token->ids[k]] / divisor +
           fabsl(token->weights[k]) * errors / divisor;
}

/* weights (i = 1) or, by map, probs (i = 5). */
static void check_weights(const struct router_token *token, struct output_report *report, int i,
                          bool masked)
{
    const struct router_case *router = token->router;
    const DLTensor *output = router->output[i];
    int64_t experts = router->experts;
    for (int64_t e = 0; i == 5 && e < experts; e++)
        if (masked || !token->taken[e])
            report_bits(report, token->t * experts + e, bits_at(output, token->t * experts + e), 0);
    for (int64_t k = 0; k < router->topk; k++) {
        int64_t place = i == 5 ? token->t * experts + token->ids[k] : token->t * router->topk + k;
        if (!masked)
            report_near(report, place, bits_at(output, place), token->weights[k],
                        weight_error(token, k));
        else if (i == 1)
            report_bits(report, place, bits_at(output, place), 0);
    }
}

static void check_scores(const struct router_token *token, struct output_report *report,
                         bool masked)
{
    const struct router_case *router = token->router;
    const DLTensor *output = router->output[2];
    long double divisor = router->config.normalize_scores ? router->config.eps : 1, errors = 0;
    for (int64_t e = 0; router->config.normalize_scores && e < router->experts; e++) {
        divisor += token->scores[e];
        errors += token->tolerance[e];
    }
    for (int64_t e = 0; e < router->experts; e++) {
        int64_t place = token->t * router->experts + e;
        long double want = token->scores[e] / divisor;
        if (masked)
            report_bits(report, place, bits_at(output, place), 0);
        else
            report_near(report, place, bits_at(output, place), want,
                        (token->tolerance[e] + want * errors) / divisor +
                            fabsl(want) * (divisor == 1 ? 0 : 0x1p-51L));
    }
}

static void check_map(const struct router_token *token, struct output_report *report, bool masked)
{
    const struct router_case *router = token->router;
    for (int64_t e = 0; e < router->experts; e++)
        check_integer(report, router->output[4], token->t * router->experts + e,
                      !masked && token->taken[e]);
}

/* All outputs of a token; counts[e] gets the tokens of each expert. */
static void check_router_token(struct router_token *token, const bool *checked,
                               struct output_report *reports, int64_t *counts)
{
    const struct router_case *router = token->router;
    bool masked = is_masked(token), right = false;
    score_token(token);
    if (!masked) {
        right = find_ids(token);
        router_weights(&router->config, token->logits, token->scores, token->ids, router->topk,
                       token->weights);
    }
    for (int64_t e = 0; e < router->experts; e++)
        token->taken[e] = false;
    for (int64_t k = 0; !masked && k < router->topk; k++) {
        token->taken[token->ids[k]] = true;
        counts[token->ids[k]]++;
    }
    if (checked[0])
        check_ids(token, &reports[0], masked, right);
    if (checked[1])
        check_weights(token, &reports[1], 1, masked);
    if (checked[2])
        check_scores(token, &reports[2], masked);
    if (checked[4])
        check_map(token, &reports[4], masked);
    if (checked[5])
        check_weights(token, &reports[5], 5, masked);
}

/* ---- the gradient ---------------------------------------------------------------------------- */

/* Through values / (their sum + eps): gradients, and the sums of absolute values beside them. */
static void divide_back(const long double *values, int64_t count, double eps, long double *grads,
                        long double *magnitude)
{
    long double divisor = eps, shared = 0, shared_magnitude = 0;
    for (int64_t i = 0; i < count; i++)
        divisor += values[i];
    for (int64_t i = 0; i < count; i++) {
        shared += grads[i] * values[i] / divisor;
        shared_magnitude += magnitude[i] * values[i] / divisor;
    }
    for (int64_t i = 0; i < count; i++) {
        grads[i] = (grads[i] - shared) / divisor;
        magnitude[i] = (magnitude[i] + shared_magnitude) / divisor;
    }
}

static void softmax_back(const long double *scores, int64_t count, long double *grads,
                         long double *magnitude)
{
    long double shared = 0, shared_magnitude = 0;
    for (int64_t i = 0; i < count; i++) {
        shared += scores[i] * grads[i];
        shared_magnitude += scores[i] * magnitude[i];
    }
    for (int64_t i = 0; i < count; i++) {
        grads[i] = scores[i] * (grads[i] - shared);
        magnitude[i] =
            scores[i] * (magnitude[i] + shared_magnitude) + 0x1p-1000L * shared_magnitude;
    }
}

static void score_back(const struct router_token *token, int64_t e)
{
    long double x = token->logits[e], factor = 0, score = token->scores[e];
    if (token->router->config.score == MOETOKEN_SCORE_SIGMOID)
        factor = score * sigmoid(-x);
    else if (score != 0)
        factor = sigmoid(x) / (2 * score);
    token->grads[e] *= factor;
    token->magnitude[e] *= factor + 0x1p-470L;
}

/* The used slots: in ids, with the gradients of their scores (or logits) and their magnitudes. */
static int64_t slots_back(struct router_token *token, long double *grads, long double *magnitude)
{
    const struct router_case *router = token->router;
    const moetoken_router_config *config = &router->config;
    bool after = config->score == MOETOKEN_SCORE_SOFTMAX_AFTER;
    int64_t count = 0;
    for (int64_t k = 0; k < router->topk; k++) {
        int64_t slot = token->t * router->topk + k, id = integer_at(router->expert_ids, slot);
        if (id < 0)
            continue;
        long double grad = 0, by_map = 0;
        if (router->weights_grad != NULL)
            grad = (long double)float_at(router->weights_grad, slot);
        if (router->probs_grad != NULL)
            by_map = (long double)float_at(router->probs_grad, token->t * router->experts + id);
        token->ids[count] = id;
        token->weights[count] = after ? token->logits[id] : token->scores[id];
        grads[count] = (grad + by_map) * config->scale;
        magnitude[count++] = (fabsl(grad) + fabsl(by_map)) * fabsl((long double)config->scale);
    }
    if (after && count > 0)
        softmax(token->weights, count, token->weights);
    if (config->normalize)
        divide_back(token->weights, count, config->eps, grads, magnitude);
    if (after)
        softmax_back(token->weights, count, grads, magnitude);
    return count;
}

static void add_slots(const struct router_token *token, int64_t count, const long double *grads,
                      const long double *magnitude)
{
    for (int64_t k = 0; k < count; k++) {
        token->grads[token->ids[k]] += grads[k];
        token->magnitude[token->ids[k]] += magnitude[k];
    }
}

static void scores_back(struct router_token *token)
{
    const struct router_case *router = token->router;
    for (int64_t e = 0; e < router->experts; e++) {
        token->grads[e] =
            router->scores_grad == NULL
                ? 0
                : (long double)float_at(router->scores_grad, token->t * router->experts + e);
        token->magnitude[e] = fabsl(token->grads[e]);
    }
    if (router->config.normalize_scores && router->scores_grad != NULL)
        divide_back(token->scores, router->experts, router->config.eps, token->grads,
                    token->magnitude);
}

/* What the slots bring is in rows of E that the gradient does not use otherwise. */
static void gradient(struct router_token *token)
{
    const struct router_case *router = token->router;
    int32_t score = router->config.score;
    bool after = score == MOETOKEN_SCORE_SOFTMAX_AFTER;
    long double *grads = token->group, *magnitude = token->group_tolerance;
    score_token(token);
    scores_back(token);
    int64_t slots = slots_back(token, grads, magnitude);
    if (!after)
        add_slots(token, slots, grads, magnitude);
    if (score == MOETOKEN_SCORE_SOFTMAX || (after && router->scores_grad != NULL))
        softmax_back(token->scores, router->experts, token->grads, token->magnitude);
    for (int64_t e = 0; e < router->experts; e++)
        if (score == MOETOKEN_SCORE_SIGMOID || score == MOETOKEN_SCORE_SQRTSOFTPLUS)
            score_back(token, e);
    if (after)
        add_slots(token, slots, grads, magnitude);
}

static void check_grad_token(struct router_token *token, struct output_report *report)
{
    const struct router_case *router = token->router;
    const DLTensor *output = router->output[0];
    /* roundings of sums over E and K, of scores and of a few products, 2^-53 each */
    long double roundings = (long double)(64 + router->experts + 4 * router->topk) * 0x1p-53L;
    bool masked = is_masked(token);
    if (!masked)
        gradient(token);
    for (int64_t e = 0; e < router->experts; e++) {
        int64_t place = token->t * router->experts + e;
        if (masked)
            report_bits(report, place, bits_at(output, place), 0);
        else /* a zero may have either sign */
            report_near(report, place, bits_at(output, place), token->grads[e],
                        token->magnitude[e] * roundings + 0x1p-1000L);
    }
}

/* ---- all tokens ------------------------------------------------------------------------------ */

static bool check_tokens(const struct router_case *router, const bool *checked,
                         struct output_report *reports, int64_t *counts)
{
    bool good = true;
#pragma omp parallel if (router->tokens * router->experts > 1 << 14)
    {
        struct router_token token;
        struct output_report own[OUTPUTS_MOST];
        int64_t *own_counts = calloc((size_t)router->experts + 1, sizeof *own_counts);
        bool ready = router_token_allocate(&token, router) && own_counts != NULL;
        memcpy(own, reports, sizeof own);
#pragma omp for schedule(dynamic, 16)
        for (int64_t t = 0; t < router->tokens; t++) {
            token.t = t;
            if (ready && router->is_grad)
                check_grad_token(&token, &own[0]);
            else if (ready)
                check_router_token(&token, checked, own, own_counts);
        }
#pragma omp critical
        {
            good = good && ready;
            for (int i = 0; i < OUTPUTS_MOST; i++)
                report_merge(&reports[i], &own[i]);
            for (int64_t e = 0; ready && e < router->experts; e++)
                counts[e] += own_counts[e];
        }
        router_token_free(&token);
        free(own_counts);
    }
    return good;
}

static bool compare_all(const struct router_case *router, const bool *checked,
                        struct output_report *reports)
{
    int64_t *counts = calloc((size_t)router->experts + 1, sizeof *counts);
    bool good = counts != NULL && check_tokens(router, checked, reports, counts);
    for (int64_t e = 0; good && !router->is_grad && checked[3] && e < router->experts; e++)
        check_integer(&reports[3], router->output[3], e, counts[e]);
    free(counts);
    if (!good)
        report_error("no memory to check the router");
    return good;
}

bool oracle_router_verify(enum operator_kind kind, const struct router_options *options,
                          const struct case_files *inputs, const struct case_files *output,
                          const struct case_files *attributes, const bool wanted[OUTPUTS_MOST],
                          struct output_report reports[OUTPUTS_MOST])
{
    struct router_case router;
    bool checked[OUTPUTS_MOST];
    memset(reports, 0, OUTPUTS_MOST * sizeof *reports);
    if (!oracle_router_load(kind, options, inputs, output, attributes, &router))
        return false;
    oracle_router_shapes(&router, wanted, reports, checked);
    /* an output of the wrong form is not read: the choice is then the oracle's own */
    for (int i = 0; i < OUTPUTS_MOST; i++)
        router.output[i] = checked[i] ? router.output[i] : NULL;
    return compare_all(&router, checked, reports);
}
