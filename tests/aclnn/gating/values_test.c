/* values_test.c - the gating operators against the oracle, on random logits with many ties; and the
 * way from logits through the routing operators and back. */
#include "oracle.h"

#include "aclnnop/aclnn_moe_compute_expert_tokens.h"
#include "aclnnop/aclnn_moe_gating_top_k.h"
#include "aclnnop/aclnn_moe_gating_top_k_softmax.h"
#include "aclnnop/aclnn_moe_gating_top_k_softmax_v2.h"
#include "aclnnop/aclnn_moe_gating_top_k_v2.h"

#include <math.h>

enum {
    ROUNDS = 300,
    TOKENS_MAX = 8
};

static uint64_t bytes;
static aclOpExecutor *executor;

/* Eighths in [-8, 8]: exact in every type, and equal ones are common. */
static void draw_logits(double *logits, int64_t count)
{
    const int64_t most = draw(0, 1) ? 64 : 2;
    draw_values(logits, count, -most, most, 0.125);
}

/* What is compared of a call for every token. */
struct expected {
    int64_t tokens;
    const double *logits, *bias;
    const struct values *y, *ids, *scores;
    const double *finished;
};

static void expect_gate(const struct gate_problem *problem, const struct expected *expected)
{
    double y[VALUES_MAX], ids[VALUES_MAX], scores[VALUES_MAX];
    const int64_t E = problem->experts, K = problem->topk;
    values_read(expected->y, y);
    values_read(expected->ids, ids);
    if (expected->scores)
        values_read(expected->scores, scores);
    for (int64_t t = 0; t < expected->tokens; t++) {
        int64_t chosen[GATE_EXPERTS_MAX];
        long double weights[GATE_EXPERTS_MAX], exact[GATE_EXPERTS_MAX];
        const double *logits = expected->logits + t * E;
        gate_choose(problem, logits, expected->bias, chosen);
        gate_weights(problem, logits, chosen, weights);
        gate_scores(problem, logits, exact);
        for (int64_t k = 0; k < K; k++) {
            const int64_t id = expected->finished && expected->finished[t] != 0 ? E : chosen[k];
            if (ids[t * K + k] != (double)id)
                fail_msg("expertIdxOut[%lld, %lld] is %g, expected %lld", (long long)t,
                         (long long)k, ids[t * K + k], (long long)id);
            expect_rounded(expected->y->type, y[t * K + k], weights[k], "yOut", t * K + k);
        }
        for (int64_t e = 0; e < E && expected->scores; e++)
            expect_rounded(ACL_FLOAT, scores[t * E + e], exact[e], "scores", t * E + e);
    }
}

/* ---- softmax alone -------------------------------------------------------------------------- */

/* [T, last], or [1, T, last], [T, 1, last] or [T / 2, 2, last]. */
static struct values token_rows(aclDataType type, const double *from, int64_t tokens, int64_t last,
                                int form)
{
    if (form == 0)
        return VALUES(type, from, tokens, last);
    const int64_t inner = form == 1 ? tokens : form == 3 && tokens % 2 == 0 ? 2 : 1;
    return VALUES(type, from, inner > 0 ? tokens / inner : 1, inner, last);
}

static struct values token_marks(const double *from, int64_t tokens, int form)
{
    if (form == 0)
        return VALUES(ACL_BOOL, from, tokens);
    const int64_t inner = form == 1 ? tokens : form == 3 && tokens % 2 == 0 ? 2 : 1;
    return VALUES(ACL_BOOL, from, inner > 0 ? tokens / inner : 1, inner);
}

static void softmax_round(int round)
{
    const int64_t T = draw(0, TOKENS_MAX), E = draw(1, GATE_EXPERTS_MAX), K = draw(0, E);
    const int form = (int)draw(0, 3);
    const bool marked = draw(0, 1);
    const struct gate_problem problem = {.experts = E, .topk = K, .groups = 1, .factor = 1};
    double logits[VALUES_MAX], marks[TOKENS_MAX], rows[VALUES_MAX];
    draw_logits(logits, T * E);
    draw_values(marks, T, 0, 1, 1);
    for (int64_t i = 0; i < T * K; i++)
        rows[i] = (double)(i % K * T + i / K);
    const aclDataType type = token_type(round);
    struct values all[] = {token_rows(type, logits, T, E, form), token_marks(marks, T, form),
                           token_rows(type, NULL, T, K, form),
                           token_rows(ACL_INT32, NULL, T, K, form),
                           token_rows(ACL_INT32, NULL, T, K, form)};
    assert_int_equal(aclnnMoeGatingTopKSoftmaxGetWorkspaceSize(
                         all[0].twin.tensor, marked ? all[1].twin.tensor : NULL, K,
                         all[2].twin.tensor, all[3].twin.tensor, all[4].twin.tensor, &bytes,
                         &executor),
                     ACLNN_SUCCESS);
    assert_int_equal(run(aclnnMoeGatingTopKSoftmax, bytes, executor), ACLNN_SUCCESS);
    expect_gate(&problem, &(struct expected){.tokens = T,
                                             .logits = logits,
                                             .y = &all[2],
                                             .ids = &all[3],
                                             .finished = marked ? marks : NULL});
    values_expect(&all[4], rows, "rowIdxOut");
    for (int i = 0; i < 5; i++)
        values_drop(&all[i]);
}

static void top_k_softmax(void **state)
{
    (void)state;
    for (int round = 0; round < ROUNDS; round++)
        softmax_round(round);
}

/* softmaxResultOutOptional when nothing asks for it is filled with zeros. */
static void softmax_v2_round(int round)
{
    const int64_t T = draw(0, TOKENS_MAX), E = draw(1, GATE_EXPERTS_MAX), K = draw(0, E);
    const int form = (int)draw(0, 3);
    const bool marked = draw(0, 1), renorm = draw(0, 1), flag = draw(0, 1);
    const struct gate_problem problem = {
        .experts = E, .topk = K, .groups = 1, .factor = 1, .softmax_after = renorm};
    double logits[VALUES_MAX], marks[TOKENS_MAX], zeros[VALUES_MAX] = {0};
    draw_logits(logits, T * E);
    draw_values(marks, T, 0, 1, 1);
    const aclDataType type = token_type(round);
    struct values all[] = {token_rows(type, logits, T, E, form), token_marks(marks, T, form),
                           token_rows(type, NULL, T, K, form),
                           token_rows(ACL_INT32, NULL, T, K, form),
                           token_rows(ACL_FLOAT, NULL, T, E, form)};
    const bool given = flag || draw(0, 1);
    assert_int_equal(aclnnMoeGatingTopKSoftmaxV2GetWorkspaceSize(
                         all[0].twin.tensor, marked ? all[1].twin.tensor : NULL, K, renorm, flag,
                         all[2].twin.tensor, all[3].twin.tensor, given ? all[4].twin.tensor : NULL,
                         &bytes, &executor),
                     ACLNN_SUCCESS);
    assert_int_equal(run(aclnnMoeGatingTopKSoftmaxV2, bytes, executor), ACLNN_SUCCESS);
    expect_gate(&problem, &(struct expected){.tokens = T,
                                             .logits = logits,
                                             .y = &all[2],
                                             .ids = &all[3],
                                             .scores = flag && !renorm ? &all[4] : NULL,
                                             .finished = marked ? marks : NULL});
    if (given && (renorm || !flag))
        values_expect(&all[4], zeros, "softmaxResultOutOptional");
    for (int i = 0; i < 5; i++)
        values_drop(&all[i]);
}

static void top_k_softmax_v2(void **state)
{
    (void)state;
    for (int round = 0; round < ROUNDS; round++)
        softmax_v2_round(round);
}

/* ---- all scores ----------------------------------------------------------------------------- */

struct top_k_call {
    struct gate_problem problem;
    int64_t tokens, renorm, keys;
    bool biased, out_flag;
    double logits[VALUES_MAX], bias[GATE_EXPERTS_MAX], key[TOKENS_MAX], table[VALUES_MAX];
};

/* Sums of two choice values that are equal are to be sums of the same two numbers, so that no
 * rounding decides: logits above 0, as sigmoid(x) + sigmoid(-x) is 1 for every x; and one bias for
 * all experts of a group. */
static void draw_choice(struct top_k_call *call)
{
    const struct gate_problem *problem = &call->problem;
    const int64_t size = problem->experts / problem->groups;
    draw_values(call->logits, call->tokens * problem->experts, 1, draw(0, 1) ? 64 : 3, 0.125);
    draw_values(call->bias, problem->experts, -4, 4, 0.125);
    for (int64_t e = 0; e < problem->experts && problem->best_two; e++)
        call->bias[e] = call->bias[e / size * size];
}

static struct top_k_call draw_top_k(void)
{
    const int64_t counts[] = {1, 2, 4};
    const double factors[] = {1, 2.5, -0.75, 0};
    struct top_k_call made = {.tokens = draw(0, TOKENS_MAX), .renorm = draw(0, 1)};
    struct gate_problem *problem = &made.problem;
    problem->groups = counts[draw(0, 2)];
    problem->groups_top = draw(1, problem->groups);
    const int64_t size = draw(2, GATE_EXPERTS_MAX / problem->groups);
    problem->experts = size * problem->groups;
    problem->topk = draw(1, size * problem->groups_top);
    problem->norm = (enum gate_norm)draw(0, 2);
    problem->best_two = draw(0, 1);
    problem->divide = problem->norm != GATE_SOFTMAX || made.renorm == 1;
    problem->factor = factors[draw(0, 3)];
    problem->eps = draw(0, 1) ? 1e-20 : 0.25;
    made.biased = draw(0, 1);
    made.out_flag = draw(0, 1);
    made.keys = draw(1, 4);
    draw_choice(&made);
    draw_values(made.key, made.tokens, 0, made.keys - 1, 1);
    draw_values(made.table, made.keys * problem->topk, 0, problem->experts - 1, 1);
    return made;
}

enum {
    CALL_V1,
    CALL_V2,
    CALL_V2_ONE_TENSOR /* only one of the two that a table needs: a choice all the same */
};

static aclnnStatus top_k_phase_one(const struct top_k_call *call, int version,
                                   const struct values *all)
{
    const struct gate_problem *problem = &call->problem;
    const aclTensor *bias = call->biased ? all[1].twin.tensor : NULL;
    if (version == CALL_V1)
        return aclnnMoeGatingTopKGetWorkspaceSize(
            all[0].twin.tensor, bias, problem->topk, problem->groups_top, problem->groups,
            problem->best_two, call->renorm, problem->norm, call->out_flag, problem->factor,
            problem->eps, all[2].twin.tensor, all[3].twin.tensor, all[4].twin.tensor, &bytes,
            &executor);
    return aclnnMoeGatingTopKV2GetWorkspaceSize(
        all[0].twin.tensor, bias, version == CALL_V2_ONE_TENSOR ? all[5].twin.tensor : NULL, NULL,
        problem->topk, problem->groups_top, problem->groups, problem->best_two, call->renorm,
        problem->norm, call->out_flag, problem->factor, problem->eps, all[2].twin.tensor,
        all[3].twin.tensor, all[4].twin.tensor, &bytes, &executor);
}

static void top_k_round(int round)
{
    const struct top_k_call call = draw_top_k();
    const int64_t T = call.tokens, E = call.problem.experts, K = call.problem.topk;
    const int version = round % 3;
    const double zeros[VALUES_MAX] = {0};
    const aclDataType type = token_type(round / 3);
    struct values all[] = {VALUES(type, call.logits, T, E), VALUES(type, call.bias, E),
                           VALUES(type, NULL, T, K),        VALUES(ACL_INT32, NULL, T, K),
                           VALUES(ACL_FLOAT, NULL, T, E),   VALUES(ACL_INT32, call.key, T)};
    assert_int_equal(top_k_phase_one(&call, version, all), ACLNN_SUCCESS);
    assert_int_equal(
        run(version == CALL_V1 ? aclnnMoeGatingTopK : aclnnMoeGatingTopKV2, bytes, executor),
        ACLNN_SUCCESS);
    expect_gate(&call.problem, &(struct expected){.tokens = T,
                                                  .logits = call.logits,
                                                  .bias = call.biased ? call.bias : NULL,
                                                  .y = &all[2],
                                                  .ids = &all[3],
                                                  .scores = call.out_flag ? &all[4] : NULL});
    if (!call.out_flag)
        values_expect(&all[4], zeros, "outOut");
    for (int i = 0; i < 6; i++)
        values_drop(&all[i]);
}

static void top_k(void **state)
{
    (void)state;
    for (int round = 0; round < 3 * ROUNDS; round++)
        top_k_round(round);
}

static void expect_hash(const struct top_k_call *call, const struct values *all)
{
    double y[VALUES_MAX], ids[VALUES_MAX], scores[VALUES_MAX];
    const int64_t E = call->problem.experts, K = call->problem.topk;
    values_read(&all[2], y);
    values_read(&all[3], ids);
    values_read(&all[4], scores);
    for (int64_t t = 0; t < call->tokens; t++) {
        int64_t chosen[GATE_EXPERTS_MAX];
        long double weights[GATE_EXPERTS_MAX], exact[GATE_EXPERTS_MAX];
        for (int64_t k = 0; k < K; k++)
            chosen[k] = (int64_t)call->table[(int64_t)call->key[t] * K + k];
        gate_weights(&call->problem, &call->logits[t * E], chosen, weights);
        gate_scores(&call->problem, &call->logits[t * E], exact);
        for (int64_t k = 0; k < K; k++) {
            assert_true(ids[t * K + k] == (double)chosen[k]);
            expect_rounded(all[2].type, y[t * K + k], weights[k], "yOut", t * K + k);
        }
        for (int64_t e = 0; e < E; e++)
            expect_rounded(ACL_FLOAT, scores[t * E + e], call->out_flag ? exact[e] : 0, "outOut",
                           t * E + e);
    }
}

/* A table may name an expert twice. */
static void hash_round(int round)
{
    const struct top_k_call call = draw_top_k();
    const struct gate_problem *problem = &call.problem;
    const int64_t T = call.tokens, E = problem->experts, K = problem->topk;
    const aclDataType type = token_type(round);
    struct values all[] = {VALUES(type, call.logits, T, E),
                           VALUES(type, call.bias, E),
                           VALUES(type, NULL, T, K),
                           VALUES(ACL_INT32, NULL, T, K),
                           VALUES(ACL_FLOAT, NULL, T, E),
                           VALUES(round % 2 ? ACL_INT32 : ACL_INT64, call.key, T),
                           VALUES(round % 4 < 2 ? ACL_INT32 : ACL_INT64, call.table, call.keys, K)};
    assert_int_equal(aclnnMoeGatingTopKV2GetWorkspaceSize(
                         all[0].twin.tensor, call.biased ? all[1].twin.tensor : NULL,
                         all[5].twin.tensor, all[6].twin.tensor, K, problem->groups_top,
                         problem->groups, problem->best_two, call.renorm, problem->norm,
                         call.out_flag, problem->factor, problem->eps, all[2].twin.tensor,
                         all[3].twin.tensor, all[4].twin.tensor, &bytes, &executor),
                     ACLNN_SUCCESS);
    assert_int_equal(run(aclnnMoeGatingTopKV2, bytes, executor), ACLNN_SUCCESS);
    expect_hash(&call, all);
    for (int i = 0; i < 7; i++)
        values_drop(&all[i]);
}

static void top_k_by_table(void **state)
{
    (void)state;
    for (int round = 0; round < ROUNDS; round++)
        hash_round(round);
}

/* More tokens than the scores of one piece of work: x is one column of zeros that all rows share.
 */
static void table_in_pieces(void **state)
{
    (void)state;
    enum {
        T = 70000
    };
    const int64_t shape[] = {T, 1}, strides[] = {0, 1}, one[] = {1};
    double zero = 0;
    struct values x = VALUES(ACL_FLOAT, &zero, 1), table = VALUES(ACL_INT32, &zero, 1, 1);
    struct twin_tensor keys = twin_make(ACL_INT32, T, -1, NULL);
    struct twin_tensor y = twin_make(ACL_FLOAT, T, 1, NULL), ids = twin_make(ACL_INT32, T, 1, NULL);
    struct twin_tensor out = twin_make(ACL_FLOAT, T, 1, NULL);
    assert_int_equal(aclrtMemset(keys.data, keys.bytes, 0, keys.bytes), ACL_SUCCESS);
    assert_int_equal(aclDestroyTensor(x.twin.tensor), ACL_SUCCESS);
    x.twin.tensor =
        aclCreateTensor(shape, 2, ACL_FLOAT, strides, 0, ACL_FORMAT_ND, one, 1, x.twin.data);
    assert_int_equal(aclnnMoeGatingTopKV2GetWorkspaceSize(
                         x.twin.tensor, NULL, keys.tensor, table.twin.tensor, 1, 1, 1, 0, 0, 1,
                         true, 3, 0, y.tensor, ids.tensor, out.tensor, &bytes, &executor),
                     ACLNN_SUCCESS);
    assert_int_equal(run(aclnnMoeGatingTopKV2, bytes, executor), ACLNN_SUCCESS);
    static float weights[T], scores[T];
    twin_read(&y, weights);
    twin_read(&out, scores);
    for (int64_t t = 0; t < T; t++)
        assert_true(weights[t] == 3 && scores[t] == 0.5F);
    values_drop(&x);
    values_drop(&table);
    struct twin_tensor *rest[] = {&keys, &y, &ids, &out};
    for (int i = 0; i < 4; i++)
        twin_drop(rest[i]);
}

/* A factor of 0 makes zeros, with the sign of the product, and leaves NaN. */
static void factor_of_zero(void **state)
{
    (void)state;
    const double logits[] = {1, 2, NAN, 3};
    struct values x = VALUES(ACL_FLOAT, logits, 2, 2), y = VALUES(ACL_FLOAT, NULL, 2, 1);
    struct values ids = VALUES(ACL_INT32, NULL, 2, 1), out = VALUES(ACL_FLOAT, NULL, 2, 2);
    for (int negative = 0; negative < 2; negative++) {
        double found[2];
        assert_int_equal(aclnnMoeGatingTopKGetWorkspaceSize(x.twin.tensor, NULL, 1, 1, 1, 0, 0, 0,
                                                            false, negative ? -0.0 : 0.0, 1e-20,
                                                            y.twin.tensor, ids.twin.tensor,
                                                            out.twin.tensor, &bytes, &executor),
                         ACLNN_SUCCESS);
        assert_int_equal(run(aclnnMoeGatingTopK, bytes, executor), ACLNN_SUCCESS);
        values_read(&y, found);
        assert_true(found[0] == 0 && !signbit(found[0]) == !negative && isnan(found[1]));
    }
    struct values *all[] = {&x, &y, &ids, &out};
    for (int i = 0; i < 4; i++)
        values_drop(all[i]);
}

/* ---- ends of the experts -------------------------------------------------------------------- */

static void expert_tokens_round(int round)
{
    const int64_t slots = draw(0, 40), experts = draw(1, 6);
    double ids[64], sorted[64], ends[8] = {0};
    int64_t place[64];
    draw_values(ids, slots, round % 3 ? 0 : -1, experts - 1 + round % 2, 1);
    sorted_places(ids, slots, place);
    for (int64_t i = 0; i < slots; i++)
        sorted[place[i]] = ids[i];
    for (int64_t e = 0; e < experts; e++)
        for (int64_t i = 0; i < slots; i++)
            ends[e] += ids[i] <= (double)e;
    struct values in = VALUES(ACL_INT32, sorted, slots), out = VALUES(ACL_INT32, NULL, experts);
    assert_int_equal(aclnnMoeComputeExpertTokensGetWorkspaceSize(
                         in.twin.tensor, experts, out.twin.tensor, &bytes, &executor),
                     ACLNN_SUCCESS);
    assert_int_equal(bytes, 0);
    assert_int_equal(run(aclnnMoeComputeExpertTokens, bytes, executor), ACLNN_SUCCESS);
    values_expect(&out, ends, "out");
    values_drop(&in);
    values_drop(&out);
}

static void expert_tokens(void **state)
{
    (void)state;
    for (int round = 0; round < ROUNDS; round++)
        expert_tokens_round(round);
}

/* ---- all together --------------------------------------------------------------------------- */

/* Logits, experts, rows in expert order, their ends, and back: with experts that change nothing and
 * weights that add up to 1 each token comes back. A finished token's slots go last. */
static void there_and_back(void **state)
{
    (void)state;
    const double logits[] = {0, 0, -100, -100, 0, 0, 7, 7, 7}, x_values[] = {3, -5, 8};
    const double marks[] = {0, 0, 1}, zeros[4] = {0};
    struct values x = VALUES(ACL_FLOAT, x_values, 3, 1), gate = VALUES(ACL_FLOAT, logits, 3, 3);
    struct values finished = VALUES(ACL_BOOL, marks, 3), y = VALUES(ACL_FLOAT, NULL, 3, 2);
    struct values ids = VALUES(ACL_INT32, NULL, 3, 2), row_idx = VALUES(ACL_INT32, NULL, 3, 2);
    struct values rows = VALUES(ACL_FLOAT, NULL, 6, 1), row_of = VALUES(ACL_INT32, NULL, 6);
    struct values expert_of = VALUES(ACL_INT32, NULL, 6), ends = VALUES(ACL_INT32, NULL, 3);
    struct values skip = VALUES(ACL_FLOAT, zeros, 3, 1), bias = VALUES(ACL_FLOAT, zeros, 4, 1);
    struct values back = VALUES(ACL_FLOAT, NULL, 3, 1);
    assert_int_equal(aclnnMoeGatingTopKSoftmaxGetWorkspaceSize(
                         gate.twin.tensor, finished.twin.tensor, 2, y.twin.tensor, ids.twin.tensor,
                         row_idx.twin.tensor, &bytes, &executor),
                     ACLNN_SUCCESS);
    assert_int_equal(run(aclnnMoeGatingTopKSoftmax, bytes, executor), ACLNN_SUCCESS);
    values_expect(&ids, (const double[]){0, 1, 1, 2, 3, 3}, "expertIdxOut");
    assert_int_equal(aclnnMoeInitRoutingGetWorkspaceSize(
                         x.twin.tensor, row_idx.twin.tensor, ids.twin.tensor, 3, rows.twin.tensor,
                         row_of.twin.tensor, expert_of.twin.tensor, &bytes, &executor),
                     ACLNN_SUCCESS);
    assert_int_equal(run(aclnnMoeInitRouting, bytes, executor), ACLNN_SUCCESS);
    values_expect(&expert_of, (const double[]){0, 1, 1, 2, 3, 3}, "expandedExpertIdxOut");
    values_expect(&rows, (const double[]){3, 3, -5, -5, 8, 8}, "expandedXOut");
    assert_int_equal(aclnnMoeComputeExpertTokensGetWorkspaceSize(
                         expert_of.twin.tensor, 3, ends.twin.tensor, &bytes, &executor),
                     ACLNN_SUCCESS);
    assert_int_equal(run(aclnnMoeComputeExpertTokens, bytes, executor), ACLNN_SUCCESS);
    values_expect(&ends, (const double[]){1, 3, 4}, "out");
    assert_int_equal(aclnnMoeFinalizeRoutingGetWorkspaceSize(
                         rows.twin.tensor, skip.twin.tensor, NULL, bias.twin.tensor, y.twin.tensor,
                         row_of.twin.tensor, ids.twin.tensor, back.twin.tensor, &bytes, &executor),
                     ACLNN_SUCCESS);
    assert_int_equal(run(aclnnMoeFinalizeRouting, bytes, executor), ACLNN_SUCCESS);
    /* exp(-100) is lost beside 1; of the third token's softmax two thirds are chosen. */
    double found[3];
    values_read(&back, found);
    assert_true(found[0] == 3 && found[1] == -5);
    expect_rounded(ACL_FLOAT, found[2], 2 * 8 * (long double)(1.0F / 3), "out", 2);
    struct values *all[] = {&x,      &gate,      &finished, &y,    &ids,  &row_idx, &rows,
                            &row_of, &expert_of, &ends,     &skip, &bias, &back};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        values_drop(all[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(top_k_softmax),   cmocka_unit_test(top_k_softmax_v2),
        cmocka_unit_test(top_k),           cmocka_unit_test(top_k_by_table),
        cmocka_unit_test(table_in_pieces), cmocka_unit_test(factor_of_zero),
        cmocka_unit_test(expert_tokens),   cmocka_unit_test(there_and_back),
    };
    return cmocka_run_group_tests(tests, twin_setup, twin_teardown);
}
