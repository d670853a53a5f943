/* gradients_test.c - the gradients of permute and unpermute by expert ids, with a range of rows and
 * without, against the formulas in binary64. */
#include "ids_twin.h"

static struct routing routing;
static struct numbers grad, rows, probs, rows_grad, probs_grad, row_probs, tokens;

struct window {
    bool range_given, probs_given, strided, with_ep;
    int64_t begin, end, rows_num;
    aclDataType type, probs_type;
};

/* The row of a slot in the permuted tensors, or -1. */
static int64_t row_here(const struct window *window, int64_t slot)
{
    int64_t row = routing.row[slot];
    if (row < window->begin || row >= window->end || row - window->begin >= window->rows_num)
        return -1;
    return row - window->begin;
}

static aclIntArray *make_range(const struct window *window)
{
    const int64_t bounds[] = {window->begin, window->end};
    return window->range_given ? aclCreateIntArray(bounds, 2) : NULL;
}

/* Rows as permute numbers them, some slots unused. */
static struct window make_case(int round)
{
    struct window window = {.range_given = random_chance(50),
                            .probs_given = random_chance(70),
                            .strided = random_chance(30),
                            .with_ep = random_chance(50),
                            .end = INT64_MAX,
                            .type = float_types[round % 3],
                            .probs_type = float_types[round / 3 % 3]};
    window.with_ep = window.with_ep || window.range_given;
    bool one = !window.probs_given && !window.with_ep; /* unpermute without probs: K = 1 */
    routing_make(&routing, 1 + random_below(30), one ? 1 : 1 + random_below(6), 0, 6);
    for (int64_t i = 0; i < routing.slots; i++)
        if (random_chance(10))
            routing.row[i] = -1;
    if (window.range_given) {
        window.begin = random_below(routing.slots + 1);
        window.end = window.begin + random_below(routing.slots - window.begin + 1);
    }
    window.rows_num = window.range_given ? window.end - window.begin : routing.slots;
    if (random_chance(30))
        window.rows_num = random_below(window.rows_num + 3);
    return window;
}

/* ---- unpermute ------------------------------------------------------------------------------ */

/* Through float32 first where tokens and probs are of types that do not go together. */
static double round_dot(double dot, const struct window *window)
{
    bool converted = window->probs_type != window->type && window->probs_type != ACL_FLOAT;
    return converted ? (double)(float)dot : dot;
}

static void expect_unpermute_grad(const struct window *window)
{
    const int64_t hidden = grad.columns;
    numbers_zero(&rows_grad, window->rows_num, hidden);
    numbers_zero(&probs_grad, routing.tokens, routing.topk);
    for (int64_t i = 0; i < routing.slots; i++) {
        int64_t row = row_here(window, i), token = i / routing.topk;
        double dot = 0;
        for (int64_t h = 0; h < hidden && row >= 0; h++) {
            double g = grad.value[token * hidden + h];
            double product = (window->probs_given ? probs.value[i] : 1) * g;
            rows_grad.value[row * hidden + h] = (double)(float)product;
            dot += rows.value[row * hidden + h] * g;
        }
        probs_grad.value[i] = window->probs_given ? round_dot(dot, window) : 0;
    }
}

static void unpermute_grad(const struct window *window)
{
    aclIntArray *range = make_range(window);
    struct twin_tensor g = numbers_tensor(&grad, window->type, 2, window->strided);
    struct twin_tensor x = numbers_tensor(&rows, window->type, 2, window->strided);
    struct twin_tensor p = numbers_tensor(&probs, window->probs_type, 2, window->strided);
    struct twin_tensor sorted = routing_indices(&routing);
    struct twin_tensor dx =
        room_tensor(window->rows_num, grad.columns, window->type, 2, window->strided);
    struct twin_tensor dp =
        room_tensor(routing.tokens, routing.topk, window->probs_type, 2, window->strided);
    const aclTensor *given = window->probs_given ? p.tensor : NULL;
    if (window->with_ep)
        ids_run(aclnnMoeTokenUnpermuteWithEpGradGetWorkspaceSize(
                    g.tensor, sorted.tensor, x.tensor, given, false, NULL, range, routing.topk,
                    dx.tensor, dp.tensor, &ids_workspace_bytes, &ids_executor),
                aclnnMoeTokenUnpermuteWithEpGrad);
    else
        ids_run(aclnnMoeTokenUnpermuteGradGetWorkspaceSize(x.tensor, g.tensor, sorted.tensor, given,
                                                           false, NULL, dx.tensor, dp.tensor,
                                                           &ids_workspace_bytes, &ids_executor),
                aclnnMoeTokenUnpermuteGrad);
    expect_unpermute_grad(window);
    expect_numbers(&dx, &rows_grad, "permutedTokensGradOut");
    expect_numbers(&dp, &probs_grad, "probsGradOut");
    struct twin_tensor *all[] = {&g, &x, &p, &sorted, &dx, &dp};
    for (size_t i = 0; i < 6; i++)
        twin_drop(all[i]);
    aclDestroyIntArray(range);
}

static void unpermute_grad_by_definition(void **state)
{
    (void)state;
    for (int round = 0; round < 600; round++) {
        struct window window = make_case(round);
        numbers_fill(&grad, routing.tokens, 1 + random_below(20), 4);
        numbers_fill(&rows, window.rows_num, grad.columns, 4);
        numbers_fill(&probs, routing.tokens, routing.topk, 8);
        unpermute_grad(&window);
    }
}

static void fill_full(struct numbers *numbers, aclDataType type)
{
    moetoken_type number = number_type(type);
    for (int64_t i = 0; i < numbers->rows * numbers->columns; i++)
        numbers->value[i] = number_decode(random_number(number), number);
}

/* Full mantissas: one rounding of a product, and of a dot product of length 1, which binary64
 * holds. */
static void unpermute_grad_rounds_once(void **state)
{
    (void)state;
    for (int round = 0; round < 200; round++) {
        struct window window = make_case(round);
        numbers_zero(&grad, routing.tokens, 1);
        numbers_zero(&rows, window.rows_num, 1);
        numbers_zero(&probs, routing.tokens, routing.topk);
        fill_full(&grad, window.type);
        fill_full(&rows, window.type);
        fill_full(&probs, window.probs_type);
        unpermute_grad(&window);
    }
}

/* The range of the gradient is a slice of Python's: {-4, -1} of 6 is {2, 5}, {1, 99} is {1, 6}. */
static void range_as_a_slice(void **state)
{
    (void)state;
    static const int64_t ranges[][2] = {{-4, -1}, {1, 99}, {-99, 3}, {6, 6}};
    static const int64_t meant[][2] = {{2, 5}, {1, 6}, {0, 3}, {6, 6}};
    for (size_t i = 0; i < 4; i++) {
        struct window window = {.range_given = true,
                                .begin = meant[i][0],
                                .end = meant[i][1],
                                .rows_num = meant[i][1] - meant[i][0],
                                .type = ACL_FLOAT,
                                .probs_type = ACL_FLOAT};
        routing_make(&routing, 3, 2, 0, 4);
        numbers_fill(&grad, 3, 2, 4);
        numbers_fill(&rows, window.rows_num, 2, 4);
        aclIntArray *range = aclCreateIntArray(ranges[i], 2);
        struct twin_tensor g = numbers_tensor(&grad, ACL_FLOAT, 2, false);
        struct twin_tensor sorted = routing_indices(&routing);
        struct twin_tensor dx = room_tensor(window.rows_num, 2, ACL_FLOAT, 2, false);
        ids_run(aclnnMoeTokenUnpermuteWithEpGradGetWorkspaceSize(
                    g.tensor, sorted.tensor, NULL, NULL, false, NULL, range, 2, dx.tensor, NULL,
                    &ids_workspace_bytes, &ids_executor),
                aclnnMoeTokenUnpermuteWithEpGrad);
        expect_unpermute_grad(&window);
        expect_numbers(&dx, &rows_grad, "permutedTokensGradOut");
        struct twin_tensor *all[] = {&g, &sorted, &dx};
        for (size_t j = 0; j < 3; j++)
            twin_drop(all[j]);
        aclDestroyIntArray(range);
    }
}

/* ---- permute -------------------------------------------------------------------------------- */

static void expect_permute_grad(const struct window *window)
{
    numbers_zero(&tokens, routing.tokens, rows.columns);
    numbers_zero(&probs_grad, routing.tokens, routing.topk);
    for (int64_t i = 0; i < routing.slots; i++) {
        int64_t row = row_here(window, i);
        if (row < 0)
            continue;
        for (int64_t h = 0; h < rows.columns; h++)
            tokens.value[i / routing.topk * rows.columns + h] += rows.value[row * rows.columns + h];
        if (window->range_given && window->probs_given)
            probs_grad.value[i] = row_probs.value[row];
    }
}

static void permute_grad(const struct window *window)
{
    aclIntArray *range = make_range(window);
    struct twin_tensor g = numbers_tensor(&rows, window->type, 2, window->strided);
    struct twin_tensor gp = numbers_tensor(&row_probs, window->type, 1, window->strided);
    struct twin_tensor sorted = routing_indices(&routing);
    struct twin_tensor dt =
        room_tensor(routing.tokens, rows.columns, window->type, 2, window->strided);
    struct twin_tensor dp =
        room_tensor(routing.tokens, routing.topk, window->type, 2, window->strided);
    expect_permute_grad(window);
    if (window->with_ep)
        ids_run(aclnnMoeTokenPermuteWithEpGradGetWorkspaceSize(
                    g.tensor, sorted.tensor, window->probs_given ? gp.tensor : NULL, routing.topk,
                    range, false, dt.tensor, dp.tensor, &ids_workspace_bytes, &ids_executor),
                aclnnMoeTokenPermuteWithEpGrad);
    else
        ids_run(aclnnMoeTokenPermuteGradGetWorkspaceSize(g.tensor, sorted.tensor, routing.topk,
                                                         false, dt.tensor, &ids_workspace_bytes,
                                                         &ids_executor),
                aclnnMoeTokenPermuteGrad);
    expect_numbers(&dt, &tokens, "tokenGradOut");
    if (window->with_ep) /* zero without a range, or without probs */
        expect_numbers(&dp, &probs_grad, "probsGradOut");
    struct twin_tensor *all[] = {&g, &gp, &sorted, &dt, &dp};
    for (size_t i = 0; i < 5; i++)
        twin_drop(all[i]);
    aclDestroyIntArray(range);
}

static void permute_grad_by_definition(void **state)
{
    (void)state;
    for (int round = 0; round < 400; round++) {
        struct window window = make_case(round);
        numbers_fill(&rows, window.rows_num, 1 + random_below(20), 4);
        numbers_fill(&row_probs, window.rows_num, 1, 8);
        permute_grad(&window);
    }
}

/* ---- both ----------------------------------------------------------------------------------- */

/* Two slots of one row: the gradients refuse what unpermute takes, and write nothing. */
static void repeated_rows(void **state)
{
    (void)state;
    const int32_t twice[] = {1, 1};
    struct twin_tensor two = twin_make(ACL_FLOAT, 2, 1, (float[]){3, 5});
    struct twin_tensor one = twin_make(ACL_FLOAT, 1, 1, (float[]){7});
    struct twin_tensor p = twin_make(ACL_FLOAT, 1, 2, (float[]){1, 2});
    struct twin_tensor sorted = twin_make(ACL_INT32, 2, -1, twice);
    struct twin_tensor out = twin_make(ACL_FLOAT, 1, 1, NULL);
    struct twin_tensor dx = twin_make(ACL_FLOAT, 2, 1, NULL), dp = twin_make(ACL_FLOAT, 1, 2, NULL);
    assert_int_equal(aclnnMoeTokenPermuteGradGetWorkspaceSize(two.tensor, sorted.tensor, 2, false,
                                                              out.tensor, &ids_workspace_bytes,
                                                              &ids_executor),
                     ACLNN_SUCCESS);
    assert_fails(ids_phase_two(aclnnMoeTokenPermuteGrad), ACLNN_ERR_INNER_TILING_ERROR,
                 "sorted_indices");
    assert_int_equal(aclnnMoeTokenUnpermuteGradGetWorkspaceSize(
                         two.tensor, one.tensor, sorted.tensor, p.tensor, false, NULL, dx.tensor,
                         dp.tensor, &ids_workspace_bytes, &ids_executor),
                     ACLNN_SUCCESS);
    assert_fails(ids_phase_two(aclnnMoeTokenUnpermuteGrad), ACLNN_ERR_INNER_TILING_ERROR,
                 "out_index");
    for (int i = 0; i < 8; i++)
        assert_true(((unsigned char *)dx.data)[i] == 0xFF && ((unsigned char *)dp.data)[i] == 0xFF);
    assert_true(*(unsigned char *)out.data == 0xFF);
    struct twin_tensor *all[] = {&two, &one, &p, &sorted, &out, &dx, &dp};
    for (size_t i = 0; i < 7; i++)
        twin_drop(all[i]);
}

/* T = 0, K = 0, H = 0. */
static void nothing_to_do(void **state)
{
    (void)state;
    static const int64_t sizes[][3] = {{0, 2, 3}, {3, 2, 0}, {3, 1, 1}};
    for (size_t i = 0; i < 3; i++) {
        routing_make(&routing, sizes[i][0], sizes[i][1], 0, 3);
        struct window window = {.probs_given = true,
                                .end = INT64_MAX,
                                .rows_num = i == 2 ? 0 : routing.slots,
                                .type = ACL_BF16,
                                .probs_type = ACL_FLOAT16};
        numbers_fill(&grad, sizes[i][0], sizes[i][2], 4);
        numbers_fill(&rows, window.rows_num, sizes[i][2], 4);
        numbers_fill(&probs, sizes[i][0], sizes[i][1], 8);
        numbers_fill(&row_probs, window.rows_num, 1, 8);
        unpermute_grad(&window);
        permute_grad(&window);
    }
}

int main(void)
{
    random_start("by_ids/gradients_test");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(unpermute_grad_by_definition),
        cmocka_unit_test(unpermute_grad_rounds_once),
        cmocka_unit_test(range_as_a_slice),
        cmocka_unit_test(permute_grad_by_definition),
        cmocka_unit_test(repeated_rows),
        cmocka_unit_test(nothing_to_do),
    };
    return cmocka_run_group_tests(tests, twin_setup, twin_teardown);
}
