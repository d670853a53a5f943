/* limits_test.c - the products' limits: the numbers of limits.c against the formulas evaluated one
 * size at a time, phase one at the last size that passes and the first that does not, and the table
 * in docs/aclnn.md, line by line. */
#include "products/limits.h"
#include "twin.h"

#include <inttypes.h>

struct types {
    const char *tokens, *probs;
    aclDataType token_type, probs_type;
    int64_t token_bytes, probs_bytes;
};
static const struct types combinations[] = {
    {"float32", "float32", ACL_FLOAT, ACL_FLOAT, 4, 4},
    {"float16", "float16", ACL_FLOAT16, ACL_FLOAT16, 2, 2},
    {"bfloat16", "bfloat16", ACL_BF16, ACL_BF16, 2, 2},
    {"bfloat16", "float32", ACL_BF16, ACL_FLOAT, 2, 4},
};
enum {
    COMBINATIONS = sizeof combinations / sizeof combinations[0]
};

/* The specification's own words, for one size. */
static bool experts_pass(int64_t buffer, int64_t experts, const struct types *types)
{
    int64_t rounded = (experts + 31) / 32 * 32;
    return (buffer - (types->probs_bytes + 1) * rounded - (types->token_bytes + 8) * 256) /
               (6 * types->token_bytes + 12) >=
           1;
}

static int64_t largest_experts(int64_t buffer, const struct types *types)
{
    int64_t experts = 0;
    while (experts_pass(buffer, experts + 1, types))
        experts++;
    return experts;
}

static bool hidden_passes(int64_t buffer, int64_t hidden, const struct types *types)
{
    return hidden * (8 + types->token_bytes) <= 256 * (buffer - 2080);
}

static const struct {
    const char *name;
    int64_t buffer;
} limited[] = {{"Ascend910B", 196352}, {"Ascend910_93", 196352}, {"Ascend950", 253952}};

static void formulas(void **state)
{
    (void)state;
    for (size_t i = 0; i < 3; i++) {
        const struct product *product = limits_find_product(limited[i].name);
        assert_string_equal(product->name, limited[i].name);
        for (int j = 0; j < COMBINATIONS; j++) {
            const struct types *types = &combinations[j];
            int64_t hidden = limits_hidden_max(product, (int)types->token_bytes);
            assert_int_equal(
                limits_experts_max(product, (int)types->token_bytes, (int)types->probs_bytes),
                largest_experts(limited[i].buffer, types));
            assert_true(hidden_passes(limited[i].buffer, hidden, types));
            assert_false(hidden_passes(limited[i].buffer, hidden + 1, types));
        }
    }
    /* By hand: (196352 - 12 * 256 - 36) / 5 = 38648, 1207 times 32; 256 * 194272 / 12. */
    const struct product *a2 = limits_find_product("Ascend910B");
    assert_int_equal(limits_experts_max(a2, 4, 4), 38624);
    assert_int_equal(limits_hidden_max(a2, 4), 4144469);
    assert_int_equal(limits_experts_max(limits_product(0), 4, 4), -1);
    assert_int_equal(limits_hidden_max(limits_product(0), 4), -1);
}

/* Phase one needs no data, so sizes cost nothing. */
static aclTensor *describe(aclDataType type, int64_t rows, int64_t columns)
{
    int64_t shape[] = {rows, columns};
    uint64_t rank = columns < 0 ? 1 : 2;
    return aclCreateTensor(shape, rank, type, NULL, 0, ACL_FORMAT_ND, shape, rank, NULL);
}

static aclnnStatus phase_one(const struct types *types, int64_t hidden, int64_t experts,
                             bool drop_and_pad)
{
    int64_t slots = drop_and_pad ? experts : 1;
    uint64_t bytes;
    aclOpExecutor *executor;
    aclTensor *grad = describe(types->token_type, 1, hidden),
              *index = describe(ACL_INT32, slots, -1);
    aclTensor *map = describe(ACL_BOOL, 1, experts),
              *probs = describe(types->probs_type, 1, experts);
    aclTensor *rows = describe(types->token_type, slots, hidden);
    aclTensor *rows_grad = describe(types->token_type, slots, hidden);
    aclTensor *probs_grad = describe(types->probs_type, 1, experts);
    aclnnStatus status = aclnnMoeTokenUnpermuteWithRoutingMapGradGetWorkspaceSize(
        grad, index, index, map, rows, probs, drop_and_pad, NULL, rows_grad, probs_grad, &bytes,
        &executor);
    if (status == ACLNN_SUCCESS)
        aclDestroyAclOpExecutor(executor);
    aclTensor *all[] = {grad, index, map, probs, rows, rows_grad, probs_grad};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        aclDestroyTensor(all[i]);
    return status;
}

static void phase_one_at_the_limits(void **state)
{
    (void)state;
    char words[64];
    for (size_t i = 0; i < 3; i++) {
        setenv("MOETOKEN_SOC", limited[i].name, 1);
        assert_string_equal(aclrtGetSocName(), limited[i].name);
        for (int j = 0; j < COMBINATIONS; j++) {
            const struct types *types = &combinations[j];
            int64_t experts = largest_experts(limited[i].buffer, types);
            int64_t hidden = 256 * (limited[i].buffer - 2080) / (8 + types->token_bytes);
            assert_int_equal(phase_one(types, 8, experts, false), ACLNN_SUCCESS);
            snprintf(words, sizeof words, "experts_num = %" PRId64 " is above %" PRId64,
                     experts + 1, experts);
            assert_fails(phase_one(types, 8, experts + 1, false), ACLNN_ERR_INNER_TILING_ERROR,
                         words);
            assert_int_equal(phase_one(types, hidden, 2, true), ACLNN_SUCCESS);
            snprintf(words, sizeof words, "hidden_size = %" PRId64 " is above %" PRId64, hidden + 1,
                     hidden);
            assert_fails(phase_one(types, hidden + 1, 2, true), ACLNN_ERR_INNER_TILING_ERROR,
                         words);
            /* Neither limit holds in the other mode, nor on the host. */
            assert_int_equal(phase_one(types, hidden + 1, 2, false), ACLNN_SUCCESS);
            assert_int_equal(phase_one(types, 8, experts + 1, true), ACLNN_SUCCESS);
        }
    }
    unsetenv("MOETOKEN_SOC");
    assert_int_equal(phase_one(&combinations[0], 5000000, 50000, false), ACLNN_SUCCESS);
    assert_int_equal(phase_one(&combinations[0], 5000000, 50000, true), ACLNN_SUCCESS);
}

/* The message has formula and numbers. */
static void message(void **state)
{
    (void)state;
    setenv("MOETOKEN_SOC", "Ascend950", 1);
    assert_int_equal(phase_one(&combinations[3], 8, 100000, false), ACLNN_ERR_INNER_TILING_ERROR);
    assert_non_null(strstr(aclGetRecentErrMsg(),
                           "(UB - (Q + 1) * Ea - (S + 8) * 256) / (6 * S + 12) >= 1 does not hold "
                           "with UB = 253952, Q = 4, S = 2, Ea = 100000"));
    assert_int_equal(phase_one(&combinations[3], 9000000, 1, true), ACLNN_ERR_INNER_TILING_ERROR);
    assert_non_null(strstr(aclGetRecentErrMsg(),
                           "H <= 256 * (UB - 2080) / (8 + S) does not hold with UB = 253952, S = "
                           "2"));
    unsetenv("MOETOKEN_SOC");
}

/* float32 probs go with bfloat16 tokens there; the host takes float16 tokens too. */
static void mixed_types(void **state)
{
    (void)state;
    const struct types mixed = {"float16", "float32", ACL_FLOAT16, ACL_FLOAT, 2, 4};
    assert_int_equal(phase_one(&mixed, 8, 4, false), ACLNN_SUCCESS);
    setenv("MOETOKEN_SOC", "Ascend910B", 1);
    assert_fails(phase_one(&mixed, 8, 4, false), ACLNN_ERR_INNER_TILING_ERROR,
                 "with bfloat16 tokens only");
    assert_int_equal(phase_one(&combinations[3], 8, 4, false), ACLNN_SUCCESS);
    unsetenv("MOETOKEN_SOC");
}

static aclnnStatus any_operator(int number)
{
    uint64_t bytes;
    aclOpExecutor *executor;
    aclTensor *rows = describe(ACL_FLOAT, 2, 2), *out = describe(ACL_FLOAT, 2, 2);
    aclTensor *index = describe(ACL_INT32, 2, -1), *map = describe(ACL_BOOL, 2, 2);
    aclTensor *index_out = describe(ACL_INT32, 2, -1), *id_out = describe(ACL_INT32, 2, -1);
    const int64_t sizes[] = {2, 2};
    aclIntArray *shape = aclCreateIntArray(sizes, 2);
    aclnnStatus status = ACLNN_SUCCESS;
    if (number == 0)
        status = aclnnMoeTokenUnpermuteWithRoutingMapGradGetWorkspaceSize(
            rows, index, index, NULL, NULL, NULL, false, NULL, out, NULL, &bytes, &executor);
    else if (number == 1)
        status = aclnnMoeTokenUnpermuteWithRoutingMapGetWorkspaceSize(
            rows, index, NULL, NULL, false, shape, out, index_out, id_out, NULL, &bytes, &executor);
    else if (number == 2)
        status = aclnnMoeTokenPermuteWithRoutingMapGetWorkspaceSize(
            rows, map, NULL, 2, false, out, NULL, index_out, &bytes, &executor);
    else
        status = aclnnMoeTokenPermuteWithRoutingMapGradGetWorkspaceSize(
            rows, NULL, index, NULL, 2, 2, false, out, NULL, &bytes, &executor);
    if (status == ACLNN_SUCCESS)
        aclDestroyAclOpExecutor(executor);
    aclTensor *all[] = {rows, out, index, map, index_out, id_out};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        aclDestroyTensor(all[i]);
    aclDestroyIntArray(shape);
    return status;
}

/* Products without the operators, and names that are none: 561003, for all four. */
static void products_without(void **state)
{
    (void)state;
    static const char *const names[] = {"Ascend310B", "Ascend310P", "Ascend910A", "Ascend310P3",
                                        "Quantum1"};
    for (int number = 0; number < 4; number++) {
        for (size_t i = 0; i < 5; i++) {
            setenv("MOETOKEN_SOC", names[i], 1);
            assert_fails(any_operator(number), ACLNN_ERR_INNER_FIND_KERNEL_ERROR,
                         i < 4 ? "does not have this operator" : "MOETOKEN_SOC = Quantum1 is none");
        }
        setenv("MOETOKEN_SOC", "Ascend910B4", 1); /* a model of Ascend910B */
        assert_int_equal(any_operator(number), ACLNN_SUCCESS);
        setenv("MOETOKEN_SOC", "host", 1);
        assert_int_equal(any_operator(number), ACLNN_SUCCESS);
    }
    unsetenv("MOETOKEN_SOC");
}

/* The documentation's table says what the code does. */
static void documented_table(void **state)
{
    (void)state;
    static char text[1 << 16];
    FILE *file = fopen(getenv("ACLNN_DOCUMENT"), "r");
    assert_non_null(file);
    text[fread(text, 1, sizeof text - 1, file)] = '\0';
    fclose(file);
    char line[256];
    for (size_t i = 0; limits_product(i); i++) {
        const struct product *product = limits_product(i);
        for (int j = 0; product->unified_buffer && j < COMBINATIONS; j++) {
            const struct types *types = &combinations[j];
            snprintf(line, sizeof line, "| `%s` (%s) | %s | %s | %" PRId64 " | %" PRId64 " |\n",
                     product->name, product->sold_as, types->tokens, types->probs,
                     limits_experts_max(product, (int)types->token_bytes, (int)types->probs_bytes),
                     limits_hidden_max(product, (int)types->token_bytes));
            if (strstr(text, line) == NULL)
                fail_msg("docs/aclnn.md lacks the line\n%s", line);
        }
        if (!product->has_operators && strstr(text, product->name) == NULL)
            fail_msg("docs/aclnn.md does not name %s", product->name);
    }
}

int main(void)
{
    unsetenv("MOETOKEN_SOC");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(formulas),         cmocka_unit_test(phase_one_at_the_limits),
        cmocka_unit_test(message),          cmocka_unit_test(mixed_types),
        cmocka_unit_test(products_without), cmocka_unit_test(documented_table),
    };
    return cmocka_run_group_tests(tests, twin_setup, twin_teardown);
}
