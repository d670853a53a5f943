/* permute_test.c - aclnnMoeTokenPermute and ...WithEp against the definition: the row of a slot is
 * its place in a stable sort by id, found by counting. */
#include "ids_twin.h"

#include <limits.h>

static struct routing routing;
static struct numbers tokens, probs, rows, row_probs, indices;

/* What the rows [begin, end) hold. */
static void expect_rows(int64_t begin, int64_t end)
{
    numbers_zero(&rows, end - begin, tokens.columns);
    numbers_zero(&row_probs, end - begin, 1);
    numbers_zero(&indices, routing.slots, 1);
    for (int64_t i = 0; i < routing.slots; i++) {
        int64_t row = routing.row[i] - begin;
        indices.value[i] = (double)routing.row[i]; /* also of a row that is not made */
        if (row < 0 || row >= end - begin)
            continue;
        row_probs.value[row] = probs.value[i];
        for (int64_t h = 0; h < tokens.columns; h++)
            rows.value[row * tokens.columns + h] =
                tokens.value[i / routing.topk * tokens.columns + h];
    }
}

/* One call: types, ranks and layouts. */
struct layout {
    aclDataType type, id_type;
    bool strided, flat_ids; /* indices [T] */
};

static struct layout random_layout(void)
{
    return (struct layout){.type = float_types[random_below(3)],
                           .id_type = random_chance(50) ? ACL_INT32 : ACL_INT64,
                           .strided = random_chance(30),
                           .flat_ids = routing.topk == 1 && random_chance(50)};
}

static struct twin_tensor make_ids(const struct layout *layout)
{
    struct twin_tensor made = room_tensor(routing.tokens, routing.topk, layout->id_type,
                                          layout->flat_ids ? 1 : 2, layout->strided);
    size_t size = aclDataTypeSize(layout->id_type);
    for (int64_t i = 0; i < routing.slots; i++) {
        char *at = (char *)made.data + size * (size_t)(layout->strided ? 3 + 2 * i : i);
        if (layout->id_type == ACL_INT64)
            memcpy(at, &routing.id[i], sizeof routing.id[i]);
        else
            memcpy(at, &(int32_t){(int32_t)routing.id[i]}, sizeof(int32_t));
    }
    return made;
}

static void permute(const struct layout *layout, int64_t num_out_tokens, int64_t rows_num)
{
    struct twin_tensor ids = make_ids(layout);
    struct twin_tensor in = numbers_tensor(&tokens, layout->type, 2, layout->strided);
    struct twin_tensor out =
        room_tensor(rows_num, tokens.columns, layout->type, 2, layout->strided);
    struct twin_tensor sorted = room_tensor(routing.slots, 1, ACL_INT32, 1, layout->strided);
    ids_run(aclnnMoeTokenPermuteGetWorkspaceSize(in.tensor, ids.tensor, num_out_tokens, false,
                                                 out.tensor, sorted.tensor, &ids_workspace_bytes,
                                                 &ids_executor),
            aclnnMoeTokenPermute);
    expect_rows(0, rows_num);
    expect_numbers(&out, &rows, "permuteTokensOut");
    expect_numbers(&sorted, &indices, "sortedIndicesOut");
    struct twin_tensor *all[] = {&ids, &in, &out, &sorted};
    for (size_t i = 0; i < 4; i++)
        twin_drop(all[i]);
}

static void permute_with_ep(const struct layout *layout, int64_t begin, int64_t end)
{
    const int64_t range[] = {begin, end};
    aclIntArray *array = aclCreateIntArray(range, 2);
    struct twin_tensor ids = make_ids(layout);
    struct twin_tensor in = numbers_tensor(&tokens, layout->type, 2, layout->strided);
    struct twin_tensor in_probs =
        numbers_tensor(&probs, layout->type, layout->flat_ids ? 1 : 2, layout->strided);
    struct twin_tensor out =
        room_tensor(end - begin, tokens.columns, layout->type, 2, layout->strided);
    struct twin_tensor out_probs = room_tensor(end - begin, 1, layout->type, 1, layout->strided);
    struct twin_tensor sorted = room_tensor(routing.slots, 1, ACL_INT32, 1, layout->strided);
    int64_t ignored = random_below(9) - 4; /* numOutTokens beside a range */
    ids_run(aclnnMoeTokenPermuteWithEpGetWorkspaceSize(
                in.tensor, ids.tensor, in_probs.tensor, array, ignored, false, out.tensor,
                sorted.tensor, out_probs.tensor, &ids_workspace_bytes, &ids_executor),
            aclnnMoeTokenPermuteWithEp);
    expect_rows(begin, end);
    expect_numbers(&out, &rows, "permuteTokensOut");
    expect_numbers(&out_probs, &row_probs, "permuteProbsOut");
    expect_numbers(&sorted, &indices, "sortedIndicesOut");
    struct twin_tensor *all[] = {&ids, &in, &in_probs, &out, &out_probs, &sorted};
    for (size_t i = 0; i < 6; i++)
        twin_drop(all[i]);
    aclDestroyIntArray(array);
}

static void make_case(int64_t least, int64_t ids_num)
{
    routing_make(&routing, 1 + random_below(40), 1 + random_below(6), least, ids_num);
    numbers_fill(&tokens, routing.tokens, 1 + random_below(20), 4);
    numbers_fill(&probs, routing.tokens, routing.topk, 8);
}

static const struct {
    int64_t least, ids_num;
} id_ranges[] = {{0, 8},         {0, 1},        {0, 16777215},
                 {1000000, 5},   {-3, 8},       {INT32_MIN, (int64_t)1 << 32},
                 {INT32_MAX, 1}, {INT32_MIN, 2}};

/* Python's slice [:n], 0 standing for all. */
static int64_t slice(int64_t n)
{
    int64_t end = n <= 0 ? routing.slots + n : n;
    return end < 0 ? 0 : end > routing.slots ? routing.slots : end;
}

static void by_definition(void **state)
{
    (void)state;
    for (int round = 0; round < 400; round++) {
        size_t range = (size_t)random_below(sizeof id_ranges / sizeof id_ranges[0]);
        make_case(id_ranges[range].least, id_ranges[range].ids_num);
        struct layout layout = random_layout();
        int64_t n = random_chance(40) ? 0 : random_below(4 * routing.slots + 1) - 2 * routing.slots;
        permute(&layout, n, slice(n));
        int64_t begin = random_below(routing.slots + 1);
        permute_with_ep(&layout, begin, begin + random_below(routing.slots - begin + 1));
    }
}

/* Ids that only int64 holds, up to its ends. */
static void wide_ids(void **state)
{
    (void)state;
    static const int64_t bases[] = {(int64_t)1 << 40, INT64_MAX - 7, -((int64_t)1 << 40),
                                    INT64_MIN};
    for (size_t i = 0; i < 4; i++)
        for (int round = 0; round < 20; round++) {
            make_case(bases[i], 8);
            struct layout layout = random_layout();
            layout.id_type = ACL_INT64;
            permute(&layout, 0, routing.slots);
            permute_with_ep(&layout, routing.slots / 3, routing.slots);
        }
}

/* Ids so far apart that their distance is no int64: 561002, and nothing is written. */
static void span_of_ids(void **state)
{
    (void)state;
    const int64_t far[] = {INT64_MIN, INT64_MAX};
    struct twin_tensor ids = twin_make(ACL_INT64, 1, 2, far);
    struct twin_tensor in = twin_make(ACL_FLOAT, 1, 1, (float[]){1});
    struct twin_tensor out = twin_make(ACL_FLOAT, 2, 1, NULL);
    struct twin_tensor sorted = twin_make(ACL_INT32, 2, -1, NULL);
    assert_int_equal(aclnnMoeTokenPermuteGetWorkspaceSize(in.tensor, ids.tensor, 0, false,
                                                          out.tensor, sorted.tensor,
                                                          &ids_workspace_bytes, &ids_executor),
                     ACLNN_SUCCESS);
    assert_fails(ids_phase_two(aclnnMoeTokenPermute), ACLNN_ERR_INNER_TILING_ERROR,
                 "indices go from -9223372036854775808 to 9223372036854775807");
    for (int i = 0; i < 8; i++)
        assert_true(((unsigned char *)out.data)[i] == 0xFF &&
                    ((unsigned char *)sorted.data)[i] == 0xFF);
    struct twin_tensor *all[] = {&ids, &in, &out, &sorted};
    for (size_t i = 0; i < 4; i++)
        twin_drop(all[i]);
}

/* By hand: ids 2 0 | 0 1 | 2 2, so rows 3 0 | 1 2 | 4 5. Rows 1 to 3 are those of slots 2, 3, 0. */
static void by_hand(void **state)
{
    (void)state;
    const int64_t id[] = {2, 0, 0, 1, 2, 2}, row[] = {3, 0, 1, 2, 4, 5};
    const double token[] = {1, 2, 3}, prob[] = {0.125, 0.25, 0.375, 0.5, 0.625, 0.75};
    routing = (struct routing){.tokens = 3, .topk = 2, .slots = 6};
    memcpy(routing.id, id, sizeof id);
    memcpy(routing.row, row, sizeof row);
    numbers_zero(&tokens, 3, 1);
    memcpy(tokens.value, token, sizeof token);
    numbers_zero(&probs, 3, 2);
    memcpy(probs.value, prob, sizeof prob);
    struct layout layout = {ACL_FLOAT, ACL_INT32, false, false};
    permute_with_ep(&layout, 1, 4);
    assert_true(rows.value[0] == 2 && rows.value[1] == 2 && rows.value[2] == 1);
    assert_true(row_probs.value[0] == 0.375 && row_probs.value[2] == 0.125);
    permute(&layout, -4, 2);
    assert_true(rows.value[0] == 1 && rows.value[1] == 2 && indices.value[5] == 5);
}

/* Without a range probs are ignored, as the document says, and numOutTokens counts. */
static void without_range(void **state)
{
    (void)state;
    make_case(0, 4);
    struct layout layout = {ACL_BF16, ACL_INT32, false, false};
    struct twin_tensor ids = make_ids(&layout), in = numbers_tensor(&tokens, ACL_BF16, 2, false);
    struct twin_tensor in_probs = numbers_tensor(&probs, ACL_BF16, 2, false);
    struct twin_tensor out = room_tensor(1, tokens.columns, ACL_BF16, 2, false);
    struct twin_tensor out_probs = room_tensor(7, 1, ACL_BF16, 1, false);
    struct twin_tensor sorted = room_tensor(routing.slots, 1, ACL_INT32, 1, false);
    ids_run(aclnnMoeTokenPermuteWithEpGetWorkspaceSize(
                in.tensor, ids.tensor, in_probs.tensor, NULL, 1, false, out.tensor, sorted.tensor,
                out_probs.tensor, &ids_workspace_bytes, &ids_executor),
            aclnnMoeTokenPermuteWithEp);
    expect_rows(0, 1);
    expect_numbers(&out, &rows, "permuteTokensOut");
    expect_numbers(&sorted, &indices, "sortedIndicesOut");
    numbers_zero(&row_probs, 7, 1);
    expect_numbers(&out_probs, &row_probs, "permuteProbsOut");
    struct twin_tensor *all[] = {&ids, &in, &in_probs, &out, &out_probs, &sorted};
    for (size_t i = 0; i < 6; i++)
        twin_drop(all[i]);
}

/* Programs without probs pass tensors of shape [0], or none. */
static void vacant_probs(void **state)
{
    (void)state;
    const int64_t bounds[] = {1, 3};
    aclIntArray *range = aclCreateIntArray(bounds, 2);
    make_case(0, 4);
    routing_make(&routing, 5, 2, 0, 4);
    numbers_fill(&tokens, 5, 3, 4);
    struct layout layout = {ACL_FLOAT16, ACL_INT64, false, false};
    struct twin_tensor ids = make_ids(&layout), in = numbers_tensor(&tokens, ACL_FLOAT16, 2, false);
    struct twin_tensor vacant = twin_make(ACL_FLOAT16, 0, -1, NULL);
    struct twin_tensor out = room_tensor(2, 3, ACL_FLOAT16, 2, false);
    struct twin_tensor sorted = room_tensor(10, 1, ACL_INT32, 1, false);
    for (int round = 0; round < 2; round++) {
        ids_run(aclnnMoeTokenPermuteWithEpGetWorkspaceSize(
                    in.tensor, ids.tensor, round ? NULL : vacant.tensor, range, 0, false,
                    out.tensor, sorted.tensor, round ? NULL : vacant.tensor, &ids_workspace_bytes,
                    &ids_executor),
                aclnnMoeTokenPermuteWithEp);
        expect_rows(1, 3);
        expect_numbers(&out, &rows, "permuteTokensOut");
    }
    struct twin_tensor *all[] = {&ids, &in, &vacant, &out, &sorted};
    for (size_t i = 0; i < 5; i++)
        twin_drop(all[i]);
    aclDestroyIntArray(range);
}

/* Dimensions behind the first count as one: [4, 2, 3] as [4, 6], also inside wider rows. */
static void dimensions_behind_the_first(void **state)
{
    (void)state;
    int64_t shape[] = {4, 2, 3}, wide[] = {8, 3, 1}, apart[] = {12, 6, 1}, storage[] = {48};
    routing_make(&routing, 4, 2, 0, 3);
    numbers_fill(&tokens, 4, 12, 4);
    struct layout layout = {ACL_FLOAT, ACL_INT32, false, false};
    struct twin_tensor ids = make_ids(&layout), in = numbers_tensor(&tokens, ACL_FLOAT, 2, false);
    struct twin_tensor sorted = room_tensor(8, 1, ACL_INT32, 1, false);
    struct twin_tensor out = room_tensor(8, 6, ACL_FLOAT, 2, false);
    aclTensor *cut =
        aclCreateTensor(shape, 3, ACL_FLOAT, wide, 0, ACL_FORMAT_ND, storage, 1, in.data);
    ids_run(aclnnMoeTokenPermuteGetWorkspaceSize(cut, ids.tensor, 0, false, out.tensor,
                                                 sorted.tensor, &ids_workspace_bytes,
                                                 &ids_executor),
            aclnnMoeTokenPermute);
    numbers_zero(&rows, 8, 6);
    for (int64_t i = 0; i < 48; i++)
        rows.value[routing.row[i / 6] * 6 + i % 6] = tokens.value[i / 6 / 2 * 8 + i % 6];
    expect_numbers(&out, &rows, "permuteTokensOut");
    aclDestroyTensor(cut);
    cut = aclCreateTensor(shape, 3, ACL_FLOAT, apart, 0, ACL_FORMAT_ND, storage, 1, in.data);
    ids_refused(aclnnMoeTokenPermuteGetWorkspaceSize(cut, ids.tensor, 0, false, out.tensor,
                                                     sorted.tensor, &ids_workspace_bytes,
                                                     &ids_executor),
                ACLNN_ERR_INNER_TILING_ERROR, "no stride goes through all dimensions");
    aclDestroyTensor(cut);
    struct twin_tensor *all[] = {&ids, &in, &sorted, &out};
    for (size_t i = 0; i < 4; i++)
        twin_drop(all[i]);
}

/* T = 0, K = 0, H = 0, and no row wanted. */
static void nothing_to_do(void **state)
{
    (void)state;
    static const int64_t sizes[][3] = {{0, 2, 3}, {3, 0, 3}, {3, 2, 0}, {0, 0, 0}};
    for (size_t i = 0; i < 4; i++) {
        routing_make(&routing, sizes[i][0], sizes[i][1], 0, 3);
        numbers_fill(&tokens, sizes[i][0], sizes[i][2], 4);
        numbers_fill(&probs, sizes[i][0], sizes[i][1], 8);
        struct layout layout = {ACL_FLOAT, ACL_INT64, false, false};
        permute(&layout, 0, routing.slots);
        permute(&layout, -routing.slots - 1, 0);
        permute_with_ep(&layout, 0, 0);
        permute_with_ep(&layout, 0, routing.slots);
    }
}

int main(void)
{
    random_start("by_ids/permute_test");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(by_hand),       cmocka_unit_test(by_definition),
        cmocka_unit_test(wide_ids),      cmocka_unit_test(span_of_ids),
        cmocka_unit_test(without_range), cmocka_unit_test(vacant_probs),
        cmocka_unit_test(nothing_to_do), cmocka_unit_test(dimensions_behind_the_first),
    };
    return cmocka_run_group_tests(tests, twin_setup, twin_teardown);
}
