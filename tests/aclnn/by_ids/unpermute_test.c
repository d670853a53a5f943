/* unpermute_test.c - aclnnMoeTokenUnpermute and ...WithEp against sums in binary64, in all nine
 * combinations of types: rows that are not there, slots of -1, rows that are named twice. */
#include "ids_twin.h"

#include <math.h>

static struct routing routing;
static struct numbers rows, probs, tokens;

/* What a call is given beside the routing: the rows [begin, end) of those in expert order, of which
 * permutedTokens holds rows.rows. */
struct window {
    bool range_given, probs_given, strided;
    int64_t begin, end;
    aclDataType type, probs_type;
};

static void expect_sums(const struct window *window)
{
    numbers_zero(&tokens, routing.tokens, rows.columns);
    for (int64_t i = 0; i < routing.slots; i++) {
        int64_t row = routing.row[i] - window->begin;
        double weight = window->probs_given ? probs.value[i] : 1;
        if (routing.row[i] < window->begin || routing.row[i] >= window->end || row >= rows.rows ||
            weight == 0)
            continue;
        for (int64_t h = 0; h < rows.columns; h++)
            tokens.value[i / routing.topk * rows.columns + h] +=
                weight * rows.value[row * rows.columns + h];
    }
}

static void unpermute(const struct window *window)
{
    const int64_t bounds[] = {window->begin, window->end};
    aclIntArray *range = window->range_given ? aclCreateIntArray(bounds, 2) : NULL;
    struct twin_tensor in = numbers_tensor(&rows, window->type, 2, window->strided);
    struct twin_tensor sorted = routing_indices(&routing);
    struct twin_tensor weights = numbers_tensor(&probs, window->probs_type, 2, window->strided);
    struct twin_tensor out =
        room_tensor(routing.tokens, rows.columns, window->type, 2, window->strided);
    const aclTensor *given = window->probs_given ? weights.tensor : NULL;
    if (window->range_given || random_chance(30)) /* without a range numTopk is ignored */
        ids_run(aclnnMoeTokenUnpermuteWithEpGetWorkspaceSize(
                    in.tensor, sorted.tensor, given, window->range_given ? routing.topk : 77, range,
                    false, NULL, out.tensor, &ids_workspace_bytes, &ids_executor),
                aclnnMoeTokenUnpermuteWithEp);
    else
        ids_run(aclnnMoeTokenUnpermuteGetWorkspaceSize(in.tensor, sorted.tensor, given, false, NULL,
                                                       out.tensor, &ids_workspace_bytes,
                                                       &ids_executor),
                aclnnMoeTokenUnpermute);
    expect_sums(window);
    expect_numbers(&out, &tokens, "out");
    struct twin_tensor *all[] = {&in, &sorted, &weights, &out};
    for (size_t i = 0; i < 4; i++)
        twin_drop(all[i]);
    aclDestroyIntArray(range);
}

/* Every row once, as permute numbers them; some slots made unused, some made to share a row. */
static void make_case(struct window *window, int64_t topk)
{
    routing_make(&routing, 1 + random_below(30), topk, 0, 6);
    for (int64_t i = 0; i < routing.slots; i++)
        if (random_chance(10))
            routing.row[i] = random_chance(50) ? -1 : random_below(routing.slots);
    window->begin = window->range_given ? random_below(routing.slots + 1) : 0;
    window->end = window->range_given
                      ? window->begin + random_below(routing.slots - window->begin + 1)
                      : INT64_MAX;
    int64_t rows_num = window->range_given ? window->end - window->begin : routing.slots;
    if (random_chance(30)) /* fewer rows, after numOutTokens, or more than are named */
        rows_num = random_below(rows_num + 3);
    numbers_fill(&rows, rows_num, 1 + random_below(20), 4);
    numbers_fill(&probs, routing.tokens, topk, 8);
}

static void by_definition(void **state)
{
    (void)state;
    for (int round = 0; round < 600; round++) {
        struct window window = {.range_given = random_chance(50),
                                .probs_given = random_chance(80),
                                .strided = random_chance(30),
                                .type = float_types[round % 3],
                                .probs_type = float_types[round / 3 % 3]};
        bool one = !window.probs_given && !window.range_given; /* K = 1 then */
        make_case(&window, one ? 1 : 1 + random_below(6));
        unpermute(&window);
    }
}

/* A weight of 0 keeps the row out, whatever it holds; so does a row that is not in the range. */
static void rows_that_are_not_read(void **state)
{
    (void)state;
    for (int i = 0; i < 9; i++) {
        struct window window = {.range_given = true,
                                .probs_given = true,
                                .begin = 1,
                                .end = 3,
                                .type = float_types[i % 3],
                                .probs_type = float_types[i / 3]};
        routing = (struct routing){.tokens = 1, .topk = 3, .slots = 3, .row = {0, 1, 2}};
        numbers_zero(&rows, 2, 2);
        numbers_zero(&probs, 1, 3);
        rows.value[0] = rows.value[1] = NAN; /* row 1 of all, of weight 0 */
        rows.value[2] = 1.5;
        rows.value[3] = -2;
        probs.value[0] = INFINITY; /* row 0 is not here */
        probs.value[2] = 0.5;
        unpermute(&window);
        assert_true(tokens.value[0] == 0.75 && tokens.value[1] == -1);
    }
}

/* Each value of probs counts as it is in float32, where every 16-bit number has its place: the
 * product with 1, in float32 tokens, is the weight itself. Subnormals and the largest too. */
static void weights_are_exact(void **state)
{
    (void)state;
    for (int i = 0; i < 9; i++) {
        aclDataType type = float_types[i % 3], probs_type = float_types[i / 3];
        moetoken_type number = number_type(probs_type);
        struct window window = {
            .probs_given = true, .end = INT64_MAX, .type = type, .probs_type = probs_type};
        routing_make(&routing, 200, 1, 0, 1);
        numbers_zero(&rows, 200, 1);
        numbers_zero(&probs, 200, 1);
        for (int j = 0; j < 200; j++) {
            rows.value[j] = 1;
            probs.value[j] = number_decode(random_number(number), number);
        }
        probs.value[0] = number_decode(1, number); /* the least of the type */
        probs.value[1] = number_decode(number_infinity(number) - 1, number);
        probs.value[2] = -number_decode(number_infinity(number), number);
        probs.value[3] = NAN;
        unpermute(&window);
    }
}

/* T = 0, K = 0, H = 0, R = 0. */
static void nothing_to_add(void **state)
{
    (void)state;
    static const int64_t sizes[][3] = {{0, 2, 3}, {3, 0, 3}, {3, 2, 0}, {4, 2, 3}};
    for (size_t i = 0; i < 4; i++) {
        struct window window = {
            .probs_given = true, .end = INT64_MAX, .type = ACL_FLOAT16, .probs_type = ACL_BF16};
        routing_make(&routing, sizes[i][0], sizes[i][1], 0, 3);
        numbers_fill(&rows, 0, sizes[i][2], 4);
        numbers_fill(&probs, sizes[i][0], sizes[i][1], 8);
        unpermute(&window);
    }
}

/* A value that is far beyond all rows is a row that is not there; one below -1 is refused. */
static void values_of_indices(void **state)
{
    (void)state;
    const int32_t far[] = {INT32_MAX, 0}, wrong[] = {0, -2};
    struct twin_tensor in = twin_make(ACL_FLOAT, 2, 1, (float[]){3, 5});
    struct twin_tensor probs_in = twin_make(ACL_FLOAT, 1, 2, (float[]){1, 2});
    struct twin_tensor out = twin_make(ACL_FLOAT, 1, 1, NULL);
    struct twin_tensor sorted = twin_make(ACL_INT32, 2, -1, far);
    ids_run(aclnnMoeTokenUnpermuteGetWorkspaceSize(in.tensor, sorted.tensor, probs_in.tensor, false,
                                                   NULL, out.tensor, &ids_workspace_bytes,
                                                   &ids_executor),
            aclnnMoeTokenUnpermute);
    assert_true(*(float *)out.data == 6);
    twin_replace(&sorted, twin_make(ACL_INT32, 2, -1, wrong));
    assert_int_equal(aclnnMoeTokenUnpermuteGetWorkspaceSize(
                         in.tensor, sorted.tensor, probs_in.tensor, false, NULL, out.tensor,
                         &ids_workspace_bytes, &ids_executor),
                     ACLNN_SUCCESS);
    assert_fails(ids_phase_two(aclnnMoeTokenUnpermute), ACLNN_ERR_INNER_TILING_ERROR,
                 "sortedIndices[1] = -2, expected a row or -1");
    assert_true(*(float *)out.data == 6);
    struct twin_tensor *all[] = {&in, &probs_in, &out, &sorted};
    for (size_t i = 0; i < 4; i++)
        twin_drop(all[i]);
}

int main(void)
{
    random_start("by_ids/unpermute_test");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(by_definition),     cmocka_unit_test(rows_that_are_not_read),
        cmocka_unit_test(weights_are_exact), cmocka_unit_test(nothing_to_add),
        cmocka_unit_test(values_of_indices),
    };
    return cmocka_run_group_tests(tests, twin_setup, twin_teardown);
}
