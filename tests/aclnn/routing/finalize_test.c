/* finalize_test.c - MoeFinalizeRouting, V2 and its gradient, and MoeReRouting, against the
 * documents' formulas in plain loops with sums in double. Numbers are chosen so that every sum is
 * exact in every type. */
#include "support.h"

#include <math.h>

enum {
    ROUNDS = 300
};

static uint64_t bytes;
static aclOpExecutor *executor;

/* One routing with everything that a finalize may be given. */
struct routing {
    int64_t tokens, topk, hidden, slots, experts, capacity, rows;
    bool pads;
    double rows_in[256], x1[64], x2[64], bias[64], scales[64], ids[64], g[64];
    int64_t row[64]; /* of slot t * K + k, -1: none */
};

static void shuffle_rows(struct routing *routing, int64_t rows_num)
{
    int64_t row[64];
    for (int64_t i = 0; i < rows_num; i++)
        row[i] = i;
    for (int64_t i = rows_num - 1; i > 0; i--) {
        int64_t j = draw(0, i), other = row[i];
        row[i] = row[j];
        row[j] = other;
    }
    for (int64_t i = 0; i < routing->slots; i++)
        routing->row[i] = i < rows_num && draw(0, 5) > 0 ? row[i] : -1;
}

/* NaN where no slot reads. */
static void spoil_unnamed_rows(struct routing *routing)
{
    for (int64_t row = 0; row < routing->rows; row++) {
        bool named = false;
        for (int64_t i = 0; i < routing->slots; i++)
            named |= routing->row[i] == row;
        for (int64_t h = 0; h < routing->hidden && !named; h++)
            routing->rows_in[row * routing->hidden + h] = NAN;
    }
}

/* Without padding rows may be fewer than slots: then the slots of the others add nothing. */
static struct routing draw_routing(bool pads, bool scaled)
{
    struct routing made = {.tokens = draw(0, 6),
                           .topk = scaled ? draw(0, 4) : 1,
                           .hidden = draw(0, 5),
                           .experts = draw(1, 4),
                           .pads = pads};
    made.slots = made.tokens * made.topk;
    made.capacity = draw(1, 6);
    made.rows = pads         ? made.experts * made.capacity
                : draw(0, 1) ? made.slots
                             : draw(made.slots > 0, made.slots);
    shuffle_rows(&made, pads ? made.rows : made.slots);
    draw_values(made.rows_in, made.rows * made.hidden, -2, 2, 1);
    spoil_unnamed_rows(&made);
    draw_values(made.x1, made.tokens * made.hidden, -2, 2, 1);
    draw_values(made.x2, made.tokens * made.hidden, -2, 2, 1);
    draw_values(made.g, made.tokens * made.hidden, -2, 2, 1);
    draw_values(made.bias, made.experts * made.hidden, -2, 2, 1);
    draw_values(made.scales, made.slots, 0, 4, 0.25);
    draw_values(made.ids, made.slots, 0, made.experts - 1, 1);
    return made;
}

static bool has_row(const struct routing *routing, int64_t slot)
{
    return routing->row[slot] >= 0 && routing->row[slot] < routing->rows;
}

/* The rows as the operator takes them: slot k * T + t or t * K + k. */
static void list_rows(const struct routing *routing, bool by_column, double *idx)
{
    for (int64_t i = 0; i < routing->slots; i++) {
        int64_t t = i / routing->topk, k = i % routing->topk;
        idx[by_column ? k * routing->tokens + t : i] = (double)routing->row[i];
    }
}

static struct values rows_tensor(const struct routing *routing, aclDataType type,
                                 const double *from)
{
    if (routing->pads)
        return VALUES(type, from, routing->experts, routing->capacity, routing->hidden);
    return VALUES(type, from, routing->rows, routing->hidden);
}

/* ---- finalize ------------------------------------------------------------------------------- */

struct parts {
    bool x1, x2, bias, scales;
};

static void finalize_expected(const struct routing *routing, struct parts parts, double *out)
{
    const int64_t H = routing->hidden;
    for (int64_t i = 0; i < routing->tokens * H; i++)
        out[i] = (parts.x1 ? routing->x1[i] : 0) + (parts.x2 ? routing->x2[i] : 0);
    for (int64_t s = 0; s < routing->slots; s++) {
        const double scale = parts.scales ? routing->scales[s] : 1;
        const double *bias = &routing->bias[(int64_t)routing->ids[s] * H];
        for (int64_t h = 0; h < H && has_row(routing, s); h++)
            out[s / routing->topk * H + h] +=
                scale * (routing->rows_in[routing->row[s] * H + h] + (parts.bias ? bias[h] : 0));
    }
}

static void finalize_v2_round(int round)
{
    const int64_t mode = round % 4;
    const struct parts parts = {draw(0, 1), draw(0, 1), draw(0, 1), draw(0, 2) > 0};
    const bool x2 = parts.x1 && parts.x2;
    const struct routing routing = draw_routing(mode % 2, parts.scales);
    const int64_t T = routing.tokens, K = routing.topk, H = routing.hidden;
    double idx[64], expected[64];
    list_rows(&routing, mode < 2, idx);
    finalize_expected(&routing, (struct parts){parts.x1, x2, parts.bias, parts.scales}, expected);
    aclDataType type = token_type(round), scale_type = token_type(round / 3);
    struct values all[] = {rows_tensor(&routing, type, routing.rows_in),
                           VALUES(ACL_INT32, idx, T * K),
                           VALUES(type, routing.x1, T, H),
                           VALUES(type, routing.x2, T, H),
                           VALUES(type, routing.bias, routing.experts, H),
                           VALUES(scale_type, routing.scales, T, K),
                           VALUES(ACL_INT32, routing.ids, T, K),
                           VALUES(type, NULL, T, H)};
    assert_int_equal(aclnnMoeFinalizeRoutingV2GetWorkspaceSize(
                         all[0].twin.tensor, all[1].twin.tensor,
                         parts.x1 ? all[2].twin.tensor : NULL, x2 ? all[3].twin.tensor : NULL,
                         parts.bias ? all[4].twin.tensor : NULL,
                         parts.scales ? all[5].twin.tensor : NULL,
                         parts.bias || round % 2 ? all[6].twin.tensor : NULL, mode,
                         all[7].twin.tensor, &bytes, &executor),
                     ACLNN_SUCCESS);
    assert_int_equal(run(aclnnMoeFinalizeRoutingV2, bytes, executor), ACLNN_SUCCESS);
    values_expect(&all[7], expected, "out");
    for (int i = 0; i < 8; i++)
        values_drop(&all[i]);
}

static void finalize_routing_v2(void **state)
{
    (void)state;
    for (int round = 0; round < 2 * ROUNDS; round++)
        finalize_v2_round(round);
}

static void finalize_v1_round(int round)
{
    const struct routing routing = draw_routing(false, true);
    const int64_t T = routing.tokens, K = routing.topk, H = routing.hidden;
    const bool x2 = round % 2;
    double idx[64], expected[64];
    list_rows(&routing, true, idx);
    finalize_expected(&routing, (struct parts){true, x2, true, true}, expected);
    aclDataType type = token_type(round);
    struct values all[] = {rows_tensor(&routing, type, routing.rows_in),
                           VALUES(type, routing.x1, T, H),
                           VALUES(type, routing.x2, T, H),
                           VALUES(type, routing.bias, routing.experts, H),
                           VALUES(type, routing.scales, T, K),
                           VALUES(ACL_INT32, idx, T * K),
                           VALUES(ACL_INT32, routing.ids, T, K),
                           VALUES(type, NULL, T, H)};
    assert_int_equal(aclnnMoeFinalizeRoutingGetWorkspaceSize(
                         all[0].twin.tensor, all[1].twin.tensor, x2 ? all[2].twin.tensor : NULL,
                         all[3].twin.tensor, all[4].twin.tensor, all[5].twin.tensor,
                         all[6].twin.tensor, all[7].twin.tensor, &bytes, &executor),
                     ACLNN_SUCCESS);
    assert_int_equal(run(aclnnMoeFinalizeRouting, bytes, executor), ACLNN_SUCCESS);
    values_expect(&all[7], expected, "out");
    for (int i = 0; i < 8; i++)
        values_drop(&all[i]);
}

static void finalize_routing(void **state)
{
    (void)state;
    for (int round = 0; round < ROUNDS; round++)
        finalize_v1_round(round);
}

/* The forward only reads: a row may be named twice, with and without scales. */
static void row_named_twice(void **state)
{
    (void)state;
    struct values x = VALUES(ACL_FLOAT, ((const double[]){3, 5}), 2, 1);
    struct values idx = VALUES(ACL_INT32, ((const double[]){1, 1}), 2);
    struct values scales = VALUES(ACL_FLOAT, ((const double[]){0.5, 2}), 2, 1);
    struct values out = VALUES(ACL_FLOAT, NULL, 2, 1);
    for (int scaled = 0; scaled < 2; scaled++) {
        assert_int_equal(
            aclnnMoeFinalizeRoutingV2GetWorkspaceSize(x.twin.tensor, idx.twin.tensor, NULL, NULL,
                                                      NULL, scaled ? scales.twin.tensor : NULL,
                                                      NULL, 2, out.twin.tensor, &bytes, &executor),
            ACLNN_SUCCESS);
        assert_int_equal(run(aclnnMoeFinalizeRoutingV2, bytes, executor), ACLNN_SUCCESS);
        values_expect(&out, scaled ? (const double[]){2.5, 10} : (const double[]){5, 5}, "out");
    }
    struct values *all[] = {&x, &idx, &scales, &out};
    for (int i = 0; i < 4; i++)
        values_drop(all[i]);
}

/* A weight of exactly 0 keeps its row out, whatever is in it. */
static void weight_of_zero(void **state)
{
    (void)state;
    struct values x = VALUES(ACL_FLOAT, ((const double[]){NAN, 5, INFINITY}), 3, 1);
    struct values idx = VALUES(ACL_INT32, ((const double[]){0, 1, 2, 1}), 4);
    struct values scales = VALUES(ACL_FLOAT, ((const double[]){0, 2, -0.0, 3}), 2, 2);
    struct values out = VALUES(ACL_FLOAT, NULL, 2, 1);
    assert_int_equal(aclnnMoeFinalizeRoutingV2GetWorkspaceSize(
                         x.twin.tensor, idx.twin.tensor, NULL, NULL, NULL, scales.twin.tensor, NULL,
                         2, out.twin.tensor, &bytes, &executor),
                     ACLNN_SUCCESS);
    assert_int_equal(run(aclnnMoeFinalizeRoutingV2, bytes, executor), ACLNN_SUCCESS);
    values_expect(&out, (const double[]){10, 15}, "out");
    struct values *all[] = {&x, &idx, &scales, &out};
    for (int i = 0; i < 4; i++)
        values_drop(all[i]);
}

/* ---- the gradient --------------------------------------------------------------------------- */

static void grad_expected(const struct routing *routing, bool scaled, bool biased,
                          double *rows_grad, double *scales_grad)
{
    const int64_t H = routing->hidden;
    memset(rows_grad, 0, 256 * sizeof *rows_grad);
    memset(scales_grad, 0, 64 * sizeof *scales_grad);
    for (int64_t s = 0; s < routing->slots; s++) {
        const double *g = &routing->g[s / routing->topk * H];
        const double *bias = &routing->bias[(int64_t)routing->ids[s] * H];
        for (int64_t h = 0; h < H && has_row(routing, s); h++) {
            const int64_t at = routing->row[s] * H + h;
            rows_grad[at] = (scaled ? routing->scales[s] : 1) * g[h];
            if (scaled)
                scales_grad[s] += (routing->rows_in[at] + (biased ? bias[h] : 0)) * g[h];
        }
    }
}

static void grad_round(int round)
{
    const bool pads = round % 2, scaled = draw(0, 2) > 0, biased = draw(0, 1);
    const struct routing routing = draw_routing(pads, scaled);
    const int64_t T = routing.tokens, K = routing.topk, H = routing.hidden;
    double idx[64], rows_grad[256], scales_grad[64];
    list_rows(&routing, false, idx);
    grad_expected(&routing, scaled, biased, rows_grad, scales_grad);
    aclDataType type = token_type(round), scale_type = token_type(round / 3);
    struct values all[] = {VALUES(type, routing.g, T, H),
                           VALUES(ACL_INT32, idx, T * K),
                           rows_tensor(&routing, type, routing.rows_in),
                           VALUES(scale_type, routing.scales, T, K),
                           VALUES(ACL_INT32, routing.ids, T, K),
                           VALUES(type, routing.bias, routing.experts, H),
                           rows_tensor(&routing, type, NULL),
                           VALUES(scale_type, NULL, T, K)};
    const int64_t active = routing.rows < routing.slots ? routing.rows : 0;
    assert_int_equal(
        aclnnMoeFinalizeRoutingV2GradGetWorkspaceSize(
            all[0].twin.tensor, all[1].twin.tensor, scaled || round % 2 ? all[2].twin.tensor : NULL,
            scaled ? all[3].twin.tensor : NULL, biased ? all[4].twin.tensor : NULL,
            biased ? all[5].twin.tensor : NULL, pads, active, routing.experts, routing.capacity,
            all[6].twin.tensor, all[7].twin.tensor, &bytes, &executor),
        ACLNN_SUCCESS);
    assert_int_equal(run(aclnnMoeFinalizeRoutingV2Grad, bytes, executor), ACLNN_SUCCESS);
    values_expect(&all[6], rows_grad, "gradExpandedXOut");
    values_expect(&all[7], scales_grad, "gradScalesOut");
    for (int i = 0; i < 8; i++)
        values_drop(&all[i]);
}

static void finalize_routing_v2_grad(void **state)
{
    (void)state;
    for (int round = 0; round < 2 * ROUNDS; round++)
        grad_round(round);
}

/* ---- re-routing ----------------------------------------------------------------------------- */

struct ranks {
    int64_t ranks, experts, rows, hidden;
    double counts[64], sums[8], tokens[256], old_place[64], new_place[64];
};

static struct ranks draw_ranks(bool sums)
{
    struct ranks made = {.ranks = draw(0, 4), .experts = draw(1, 4), .hidden = draw(0, 3)};
    int64_t begin[64];
    draw_values(made.counts, made.ranks * made.experts, 0, 3, 1);
    for (int64_t i = 0; i < made.ranks * made.experts; i++) {
        begin[i] = made.rows;
        made.rows += (int64_t)made.counts[i];
    }
    int64_t to = 0;
    for (int64_t e = 0; e < made.experts; e++) {
        for (int64_t rank = 0; rank < made.ranks; rank++)
            for (int64_t i = 0; i < (int64_t)made.counts[rank * made.experts + e]; i++, to++) {
                const int64_t from = begin[rank * made.experts + e] + i;
                made.old_place[to] = (double)from;
                made.new_place[from] = (double)to;
                made.sums[e] += sums ? 0 : 1;
            }
        if (sums)
            made.sums[e] = (double)to;
    }
    draw_values(made.tokens, made.rows * made.hidden, -9, 9, 1);
    return made;
}

static void re_routing_round(int round)
{
    const aclDataType types[] = {ACL_FLOAT16, ACL_BF16, ACL_INT8};
    const aclDataType type = types[round % 3], count_type = round % 2 ? ACL_INT32 : ACL_INT64;
    const bool sums = draw(0, 1), scaled = draw(0, 1), flat = draw(0, 1), by_old_place = draw(0, 1);
    const struct ranks ranks = draw_ranks(sums);
    const int64_t A = ranks.rows, H = ranks.hidden;
    double scales[64], moved[256], moved_scales[64] = {0};
    draw_values(scales, A, 1, 9, 0.5);
    for (int64_t i = 0; i < A; i++) {
        const int64_t from = (int64_t)ranks.old_place[i];
        memcpy(&moved[i * H], &ranks.tokens[from * H], (size_t)H * sizeof moved[0]);
        if (scaled)
            moved_scales[i] = scales[from];
    }
    struct values all[] = {VALUES(type, ranks.tokens, A, H),
                           VALUES(count_type, ranks.counts, ranks.ranks, ranks.experts),
                           flat ? VALUES(ACL_FLOAT, scales, A) : VALUES(ACL_FLOAT, scales, A, 1),
                           VALUES(type, NULL, A, H),
                           flat ? VALUES(ACL_FLOAT, NULL, A) : VALUES(ACL_FLOAT, NULL, A, 1),
                           VALUES(ACL_INT32, NULL, A),
                           VALUES(count_type, NULL, ranks.experts)};
    assert_int_equal(aclnnMoeReRoutingGetWorkspaceSize(
                         all[0].twin.tensor, all[1].twin.tensor, scaled ? all[2].twin.tensor : NULL,
                         !sums, by_old_place, all[3].twin.tensor, all[4].twin.tensor,
                         all[5].twin.tensor, all[6].twin.tensor, &bytes, &executor),
                     ACLNN_SUCCESS);
    assert_int_equal(run(aclnnMoeReRouting, bytes, executor), ACLNN_SUCCESS);
    values_expect(&all[3], moved, "permuteTokensOut");
    values_expect(&all[4], moved_scales, "permutePerTokenScalesOut");
    values_expect(&all[5], by_old_place ? ranks.new_place : ranks.old_place, "permuteTokenIdxOut");
    values_expect(&all[6], ranks.sums, "expertTokenNumOut");
    for (int i = 0; i < 7; i++)
        values_drop(&all[i]);
}

static void re_routing(void **state)
{
    (void)state;
    for (int round = 0; round < ROUNDS; round++)
        re_routing_round(round);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(finalize_routing_v2),      cmocka_unit_test(finalize_routing),
        cmocka_unit_test(row_named_twice),          cmocka_unit_test(weight_of_zero),
        cmocka_unit_test(finalize_routing_v2_grad), cmocka_unit_test(re_routing),
    };
    return cmocka_run_group_tests(tests, twin_setup, twin_teardown);
}
