/* init_test.c - MoeInitRouting, V2, V3 and the gradient of V2 against the documents' formulas in
 * plain loops, on random routings. Values are small whole numbers, exact in every type. */
#include "support.h"

enum {
    ROUNDS = 300
};

static uint64_t bytes;
static aclOpExecutor *executor;

struct sizes {
    int64_t tokens, topk, hidden, slots;
};

static struct sizes draw_sizes(void)
{
    struct sizes sizes = {draw(0, 7), draw(0, 4), draw(0, 5), 0};
    sizes.slots = sizes.tokens * sizes.topk;
    return sizes;
}

/* Rows of x for the slots in sorted order, those from `rows` on cut off. */
static void gather_rows(const struct sizes *sizes, const double *x, const int64_t *place,
                        const int64_t *token, int64_t rows, double *out)
{
    for (int64_t i = 0; i < sizes->slots; i++)
        for (int64_t h = 0; h < sizes->hidden && place[i] >= 0 && place[i] < rows; h++)
            out[place[i] * sizes->hidden + h] = x[token[i] * sizes->hidden + h];
}

static void to_doubles(const int64_t *from, int64_t count, double *to)
{
    for (int64_t i = 0; i < count; i++)
        to[i] = (double)from[i];
}

/* ---- V1 ------------------------------------------------------------------------------------- */

/* rowIdx as the document has it, k * T + t, or any other order of the numbers. */
static void draw_row_idx(const struct sizes *sizes, bool shuffled, double *row_idx)
{
    for (int64_t i = 0; i < sizes->slots; i++)
        row_idx[i] = (double)(i % sizes->topk * sizes->tokens + i / sizes->topk);
    for (int64_t i = sizes->slots - 1; shuffled && i > 0; i--) {
        int64_t j = draw(0, i);
        double other = row_idx[i];
        row_idx[i] = row_idx[j];
        row_idx[j] = other;
    }
}

static void init_routing_round(int round)
{
    const struct sizes sizes = draw_sizes();
    const int64_t T = sizes.tokens, K = sizes.topk, H = sizes.hidden, active = draw(0, 9);
    const int64_t rows = (active < T ? active : T) * K;
    double x[64], ids[64], row_idx[64], rows_out[256] = {0}, idx_out[64], ids_out[64];
    int64_t place[64] = {0}, token[64] = {0};
    draw_values(x, T * H, -9, 9, 1);
    draw_values(ids, sizes.slots, -3, 5, round % 2 ? 1 : 400000000);
    draw_row_idx(&sizes, round % 3 == 0, row_idx);
    sorted_places(ids, sizes.slots, place);
    for (int64_t i = 0; i < sizes.slots; i++) {
        token[i] = (int64_t)row_idx[i] % T;
        idx_out[(int64_t)row_idx[i]] = (double)place[i];
        ids_out[place[i]] = ids[i];
    }
    gather_rows(&sizes, x, place, token, rows, rows_out);
    aclDataType type = token_type(round);
    struct values all[] = {VALUES(type, x, T, H),          VALUES(ACL_INT32, row_idx, T, K),
                           VALUES(ACL_INT32, ids, T, K),   VALUES(type, NULL, rows, H),
                           VALUES(ACL_INT32, NULL, T * K), VALUES(ACL_INT32, NULL, T * K)};
    assert_int_equal(aclnnMoeInitRoutingGetWorkspaceSize(all[0].twin.tensor, all[1].twin.tensor,
                                                         all[2].twin.tensor, active,
                                                         all[3].twin.tensor, all[4].twin.tensor,
                                                         all[5].twin.tensor, &bytes, &executor),
                     ACLNN_SUCCESS);
    assert_int_equal(run(aclnnMoeInitRouting, bytes, executor), ACLNN_SUCCESS);
    values_expect(&all[3], rows_out, "expandedXOut");
    values_expect(&all[4], idx_out, "expandedRowIdxOut");
    values_expect(&all[5], ids_out, "expandedExpertIdxOut");
    for (int i = 0; i < 6; i++)
        values_drop(&all[i]);
}

static void init_routing(void **state)
{
    (void)state;
    for (int round = 0; round < ROUNDS; round++)
        init_routing_round(round);
}

/* ---- V2 ------------------------------------------------------------------------------------- */

/* The row of each slot when every expert has `capacity` rows; -1 beyond. */
static void padded_places(const double *ids, int64_t slots, int64_t capacity, int64_t *place)
{
    for (int64_t i = 0; i < slots; i++) {
        int64_t before = 0;
        for (int64_t j = 0; j < i; j++)
            before += ids[j] == ids[i];
        place[i] = before < capacity ? (int64_t)ids[i] * capacity + before : -1;
    }
}

static void count_ids(const double *ids, int64_t slots, int64_t first, int64_t experts, bool sums,
                      double *counts)
{
    for (int64_t e = 0; e < experts; e++) {
        counts[e] = sums && e > 0 ? counts[e - 1] : 0;
        for (int64_t i = 0; i < slots; i++)
            counts[e] += ids[i] == (double)(first + e);
    }
}

/* An output that the flag does not ask for is filled with zeros. */
static void init_v2_dropless_round(int round)
{
    struct sizes sizes = draw_sizes();
    sizes.topk = round % 5 ? sizes.topk : 1;
    sizes.slots = sizes.tokens * sizes.topk;
    const int64_t T = sizes.tokens, K = sizes.topk, H = sizes.hidden, N = sizes.slots;
    const int64_t experts = draw(1, 6), flag = round % 3, active = draw(0, 1) ? draw(1, 30) : 0;
    const int64_t rows = active > 0 && active < N ? active : N;
    double x[64], ids[64], rows_out[256] = {0}, idx_out[64], counts[8] = {0};
    int64_t place[64] = {0}, token[64] = {0};
    draw_values(x, T * H, -9, 9, 1);
    draw_values(ids, N, 0, experts - 1, flag || round % 2 ? 1 : 300000000);
    sorted_places(ids, N, place);
    for (int64_t i = 0; i < N; i++)
        token[i] = i / K;
    gather_rows(&sizes, x, place, token, rows, rows_out);
    to_doubles(place, N, idx_out);
    if (flag > 0)
        count_ids(ids, N, 0, experts, flag == 1, counts);
    aclDataType type = token_type(round), id_type = round % 2 ? ACL_INT32 : ACL_INT64;
    struct values all[] = {
        VALUES(type, x, T, H), round % 5 ? VALUES(id_type, ids, T, K) : VALUES(id_type, ids, T),
        VALUES(type, NULL, rows, H), VALUES(ACL_INT32, NULL, N), VALUES(ACL_INT32, NULL, experts)};
    assert_int_equal(aclnnMoeInitRoutingV2GetWorkspaceSize(
                         all[0].twin.tensor, all[1].twin.tensor, active, 0, experts, 0, flag,
                         round % 2, all[2].twin.tensor, all[3].twin.tensor, all[4].twin.tensor,
                         NULL, &bytes, &executor),
                     ACLNN_SUCCESS);
    assert_int_equal(run(aclnnMoeInitRoutingV2, bytes, executor), ACLNN_SUCCESS);
    values_expect(&all[2], rows_out, "expandedXOut");
    values_expect(&all[3], idx_out, "expandedRowIdxOut");
    values_expect(&all[4], counts, "expertTokensCountOrCumsumOut");
    for (int i = 0; i < 5; i++)
        values_drop(&all[i]);
}

static void init_v2_padded_round(int round)
{
    struct sizes sizes = draw_sizes();
    sizes.tokens = sizes.tokens ? sizes.tokens : 1;
    sizes.slots = sizes.tokens * sizes.topk;
    const int64_t T = sizes.tokens, K = sizes.topk, H = sizes.hidden, N = sizes.slots;
    const int64_t experts = draw(1, 5), capacity = draw(1, T);
    double x[64], ids[64], rows_out[256] = {0}, idx_out[64], counts[8] = {0};
    int64_t place[64] = {0}, token[64] = {0};
    draw_values(x, T * H, -9, 9, 1);
    draw_values(ids, N, 0, experts - 1, 1);
    padded_places(ids, N, capacity, place);
    for (int64_t i = 0; i < N; i++)
        token[i] = i / K;
    gather_rows(&sizes, x, place, token, experts * capacity, rows_out);
    to_doubles(place, N, idx_out);
    if (round % 2)
        count_ids(ids, N, 0, experts, false, counts);
    aclDataType type = token_type(round);
    struct values all[] = {VALUES(type, x, T, H), VALUES(ACL_INT32, ids, T, K),
                           VALUES(type, NULL, experts, capacity, H), VALUES(ACL_INT32, NULL, N),
                           VALUES(ACL_INT32, NULL, experts)};
    assert_int_equal(aclnnMoeInitRoutingV2GetWorkspaceSize(
                         all[0].twin.tensor, all[1].twin.tensor, 3, capacity, experts, 1, 0,
                         round % 2, all[2].twin.tensor, all[3].twin.tensor, NULL,
                         all[4].twin.tensor, &bytes, &executor),
                     ACLNN_SUCCESS);
    assert_int_equal(run(aclnnMoeInitRoutingV2, bytes, executor), ACLNN_SUCCESS);
    values_expect(&all[2], rows_out, "expandedXOut");
    values_expect(&all[3], idx_out, "expandedRowIdxOut");
    values_expect(&all[4], counts, "expertTokensBeforeCapacityOut");
    for (int i = 0; i < 5; i++)
        values_drop(&all[i]);
}

static void init_routing_v2(void **state)
{
    (void)state;
    for (int round = 0; round < ROUNDS; round++) {
        init_v2_dropless_round(round);
        init_v2_padded_round(round);
    }
}

/* ---- V3 ------------------------------------------------------------------------------------- */

struct v3_case {
    struct sizes sizes;
    int64_t experts, begin, end, capacity, active, rows, kind;
    bool pads, by_row, scaled, counted;
    double x[64], ids[64], scale[16];
    double rows_out[256], idx_out[64], counts[16], scale_out[128]; /* the results */
};

static struct v3_case draw_v3(int round)
{
    struct v3_case made = {.sizes = draw_sizes(), .experts = draw(1, 6)};
    made.pads = round % 4 == 3;
    if (made.pads && made.sizes.tokens == 0)
        made.sizes = (struct sizes){1, 2, 3, 2};
    made.begin = made.pads ? 0 : draw(0, made.experts - 1);
    made.end = made.pads ? made.experts : draw(made.begin + 1, made.experts);
    made.capacity = made.pads ? draw(1, made.sizes.tokens) : 0;
    made.active = draw(0, 1) ? draw(1, 30) : draw(-1, 0);
    made.kind = made.pads ? 1 : draw(0, 2);
    made.by_row = !made.pads && draw(0, 1);
    made.scaled = draw(0, 1);
    made.counted = draw(0, 3) > 0;
    made.rows = made.active > 0 && made.active < made.sizes.slots ? made.active : made.sizes.slots;
    if (made.pads)
        made.rows = made.experts * made.capacity;
    draw_values(made.x, made.sizes.tokens * made.sizes.hidden, -9, 9, 1);
    draw_values(made.scale, made.sizes.tokens, 1, 9, 0.5);
    /* Without padding also ids that no expert has: they are as good as absent. */
    draw_values(made.ids, made.sizes.slots, made.pads ? 0 : -2,
                made.pads ? made.experts - 1 : made.experts + 1, 1);
    return made;
}

/* Slots of the range in sorted order; -1 for the others. */
static void v3_places(const struct v3_case *v3, int64_t *place)
{
    const int64_t slots = v3->sizes.slots;
    double key[64];
    for (int64_t i = 0; i < slots; i++)
        key[i] = v3->ids[i] >= (double)v3->begin && v3->ids[i] < (double)v3->end ? v3->ids[i] : 99;
    sorted_places(key, slots, place);
    for (int64_t i = 0; i < slots; i++)
        place[i] = key[i] == 99 ? -1 : place[i];
    if (v3->pads)
        padded_places(v3->ids, slots, v3->capacity, place);
}

static void v3_counts(struct v3_case *v3)
{
    double plain[16];
    int64_t experts = v3->end - v3->begin, pair = 0;
    if (!v3->counted)
        return;
    count_ids(v3->ids, v3->sizes.slots, v3->begin, experts, v3->kind == 0, v3->counts);
    if (v3->kind < 2)
        return;
    memcpy(plain, v3->counts, sizeof plain);
    memset(v3->counts, 0, sizeof v3->counts);
    for (int64_t e = 0; e < experts; e++)
        if (plain[e] > 0) {
            v3->counts[2 * pair] = (double)(v3->begin + e);
            v3->counts[2 * pair++ + 1] = plain[e];
        }
}

static void v3_expected(struct v3_case *v3)
{
    const struct sizes *sizes = &v3->sizes;
    int64_t place[64] = {0}, token[64] = {0};
    v3_places(v3, place);
    for (int64_t i = 0; i < sizes->slots; i++) {
        token[i] = i / sizes->topk;
        if (v3->by_row)
            v3->idx_out[i] = -1;
    }
    for (int64_t i = 0; i < sizes->slots; i++) {
        if (!v3->by_row)
            v3->idx_out[i] = (double)place[i];
        else if (place[i] >= 0)
            v3->idx_out[place[i]] = (double)i;
        if (v3->scaled && place[i] >= 0 && place[i] < v3->rows)
            v3->scale_out[place[i]] = v3->scale[token[i]];
    }
    gather_rows(sizes, v3->x, place, token, v3->rows, v3->rows_out);
    v3_counts(v3);
}

static struct values v3_rows(const struct v3_case *v3, aclDataType type)
{
    if (v3->pads)
        return VALUES(type, NULL, v3->experts, v3->capacity, v3->sizes.hidden);
    return VALUES(type, NULL, v3->rows, v3->sizes.hidden);
}

static void init_v3_round(int round)
{
    struct v3_case v3 = draw_v3(round);
    v3_expected(&v3);
    const int64_t T = v3.sizes.tokens, range[] = {v3.begin, v3.end};
    bool all_experts = v3.begin == 0 && v3.end == v3.experts;
    aclDataType type = token_type(round);
    aclIntArray *array = all_experts && round % 2 ? NULL : aclCreateIntArray(range, 2);
    struct values all[] = {VALUES(type, v3.x, T, v3.sizes.hidden),
                           VALUES(ACL_INT32, v3.ids, T, v3.sizes.topk),
                           VALUES(ACL_FLOAT, v3.scale, T),
                           v3_rows(&v3, type),
                           VALUES(ACL_INT32, NULL, v3.sizes.slots),
                           v3.kind == 2 ? VALUES(ACL_INT64, NULL, v3.experts, 2)
                                        : VALUES(ACL_INT64, NULL, v3.end - v3.begin),
                           VALUES(ACL_FLOAT, NULL, v3.rows)};
    assert_int_equal(aclnnMoeInitRoutingV3GetWorkspaceSize(
                         all[0].twin.tensor, all[1].twin.tensor,
                         v3.scaled ? all[2].twin.tensor : NULL, NULL, v3.active, v3.capacity,
                         v3.experts, v3.pads, v3.kind, v3.counted, -1, array, v3.by_row,
                         all[3].twin.tensor, all[4].twin.tensor, all[5].twin.tensor,
                         all[6].twin.tensor, &bytes, &executor),
                     ACLNN_SUCCESS);
    assert_int_equal(run(aclnnMoeInitRoutingV3, bytes, executor), ACLNN_SUCCESS);
    values_expect(&all[3], v3.rows_out, "expandedXOut");
    values_expect(&all[4], v3.idx_out, "expandedRowIdxOut");
    values_expect(&all[5], v3.counts, "expertTokensCountOrCumsumOut");
    values_expect(&all[6], v3.scale_out, "expandedScaleOut");
    for (int i = 0; i < 7; i++)
        values_drop(&all[i]);
    if (array)
        assert_int_equal(aclDestroyIntArray(array), ACL_SUCCESS);
}

static void init_routing_v3(void **state)
{
    (void)state;
    for (int round = 0; round < 2 * ROUNDS; round++)
        init_v3_round(round);
}

/* ---- the gradient of V2 --------------------------------------------------------------------- */

static void grad_round(int round)
{
    struct sizes sizes = draw_sizes();
    sizes.tokens = sizes.tokens ? sizes.tokens : 1;
    sizes.topk = sizes.topk ? sizes.topk : 1;
    const int64_t T = sizes.tokens, K = sizes.topk, H = sizes.hidden, N = T * K;
    const bool pads = round % 3 == 2;
    const int64_t experts = 3, capacity = draw(1, T), active = round % 3 == 1 ? draw(1, N) : 0;
    const int64_t rows = pads ? experts * capacity : active ? active : N;
    double ids[64], g[256], idx[64], expected[64] = {0};
    int64_t place[64] = {0};
    draw_values(ids, N, 0, experts - 1, 1);
    sorted_places(ids, N, place);
    if (pads)
        padded_places(ids, N, capacity, place);
    if (!pads && round % 2)
        place[draw(0, N - 1)] = -1; /* as V3 leaves it for an expert of somebody else */
    draw_values(g, rows * H, -9, 9, 1);
    to_doubles(place, N, idx);
    for (int64_t i = 0; i < N; i++)
        for (int64_t h = 0; h < H && place[i] >= 0 && place[i] < rows; h++)
            expected[i / K * H + h] += g[place[i] * H + h];
    aclDataType type = token_type(round);
    struct values all[] = {pads ? VALUES(type, g, experts, capacity, H) : VALUES(type, g, rows, H),
                           VALUES(ACL_INT32, idx, N), VALUES(type, NULL, T, H)};
    assert_int_equal(
        aclnnMoeInitRoutingV2GradGetWorkspaceSize(all[0].twin.tensor, all[1].twin.tensor, K, pads,
                                                  active, all[2].twin.tensor, &bytes, &executor),
        ACLNN_SUCCESS);
    assert_int_equal(run(aclnnMoeInitRoutingV2Grad, bytes, executor), ACLNN_SUCCESS);
    values_expect(&all[2], expected, "out");
    for (int i = 0; i < 3; i++)
        values_drop(&all[i]);
}

static void init_routing_v2_grad(void **state)
{
    (void)state;
    for (int round = 0; round < ROUNDS; round++)
        grad_round(round);
}

/* ---- views ---------------------------------------------------------------------------------- */

/* x and expertIdx as transposed views with an offset. */
static void strided_inputs(void **state)
{
    (void)state;
    const double x_memory[] = {90, 91, 1, 2, 3, 4, 5, 6}, id_memory[] = {80, 1, 0, 1, 0, 1, 0};
    const int64_t x_shape[] = {3, 2}, x_strides[] = {1, 3}, eight[] = {8};
    const int64_t id_shape[] = {3, 2}, id_strides[] = {1, 3}, seven[] = {7};
    struct values x = VALUES(ACL_FLOAT, x_memory, 8), ids = VALUES(ACL_INT32, id_memory, 7);
    struct values rows = VALUES(ACL_FLOAT, NULL, 6, 2), idx = VALUES(ACL_INT32, NULL, 6);
    aclTensor *x_view =
        aclCreateTensor(x_shape, 2, ACL_FLOAT, x_strides, 2, ACL_FORMAT_ND, eight, 1, x.twin.data);
    aclTensor *id_view = aclCreateTensor(id_shape, 2, ACL_INT32, id_strides, 1, ACL_FORMAT_ND,
                                         seven, 1, ids.twin.data);
    assert_int_equal(aclnnMoeInitRoutingV2GetWorkspaceSize(x_view, id_view, 0, 0, 0, 0, 0, false,
                                                           rows.twin.tensor, idx.twin.tensor, NULL,
                                                           NULL, &bytes, &executor),
                     ACLNN_SUCCESS);
    assert_int_equal(run(aclnnMoeInitRoutingV2, bytes, executor), ACLNN_SUCCESS);
    /* x = [1 4 | 2 5 | 3 6], ids = [1 0 | 0 1 | 1 0]: slots 1, 2, 5 go first. */
    values_expect(&rows, (const double[]){1, 4, 2, 5, 3, 6, 1, 4, 2, 5, 3, 6}, "expandedXOut");
    values_expect(&idx, (const double[]){3, 0, 1, 4, 5, 2}, "expandedRowIdxOut");
    assert_int_equal(aclDestroyTensor(x_view), ACL_SUCCESS);
    assert_int_equal(aclDestroyTensor(id_view), ACL_SUCCESS);
    struct values *all[] = {&x, &ids, &rows, &idx};
    for (int i = 0; i < 4; i++)
        values_drop(all[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(init_routing),    cmocka_unit_test(init_routing_v2),
        cmocka_unit_test(init_routing_v3), cmocka_unit_test(init_routing_v2_grad),
        cmocka_unit_test(strided_inputs),
    };
    return cmocka_run_group_tests(tests, twin_setup, twin_teardown);
}
