/* family_rules_test.c - what CANN's host code, and the product of MOETOKEN_SOC, refuse of permute,
 * permute_grad and unpermute beyond shapes and types. Phase one needs no data. */
#include "twin.h"

static uint64_t bytes;
static aclOpExecutor *executor;

static aclTensor *describe(aclDataType type, int64_t rows, int64_t columns)
{
    int64_t shape[] = {rows, columns};
    uint64_t rank = columns < 0 ? 1 : 2;
    return aclCreateTensor(shape, rank, type, NULL, 0, ACL_FORMAT_ND, shape, rank, NULL);
}

static aclnnStatus finish(aclnnStatus status, aclTensor *const tensors[], size_t count)
{
    if (status == ACLNN_SUCCESS)
        aclDestroyAclOpExecutor(executor);
    for (size_t i = 0; i < count; i++)
        aclDestroyTensor(tensors[i]);
    return status;
}

/* The sizes and types of a call: R rows, N slots. probs_type ACL_DT_UNDEFINED: without probs. */
struct sizes {
    int64_t tokens, experts, rows, slots;
    bool drop_and_pad;
    aclDataType type, probs_type;
};

static aclTensor *probs_like(const struct sizes *sizes, int64_t rows, int64_t columns)
{
    return sizes->probs_type == ACL_DT_UNDEFINED ? NULL
                                                 : describe(sizes->probs_type, rows, columns);
}

static aclnnStatus permute(struct sizes sizes, int64_t num_out_tokens)
{
    aclTensor *tensors[] = {describe(sizes.type, sizes.tokens, 2),
                            describe(ACL_BOOL, sizes.tokens, sizes.experts),
                            probs_like(&sizes, sizes.tokens, sizes.experts),
                            describe(sizes.type, sizes.rows, 2),
                            probs_like(&sizes, sizes.rows, -1),
                            describe(ACL_INT32, sizes.slots, -1)};
    return finish(aclnnMoeTokenPermuteWithRoutingMapGetWorkspaceSize(
                      tensors[0], tensors[1], tensors[2], num_out_tokens, sizes.drop_and_pad,
                      tensors[3], tensors[4], tensors[5], &bytes, &executor),
                  tensors, 6);
}

static aclnnStatus permute_grad(struct sizes sizes, bool with_map)
{
    aclTensor *tensors[] = {describe(sizes.type, sizes.rows, 2),
                            probs_like(&sizes, sizes.rows, -1),
                            describe(ACL_INT32, sizes.slots, -1),
                            with_map ? describe(ACL_BOOL, sizes.tokens, sizes.experts) : NULL,
                            describe(sizes.type, sizes.tokens, 2),
                            probs_like(&sizes, sizes.tokens, sizes.experts)};
    return finish(aclnnMoeTokenPermuteWithRoutingMapGradGetWorkspaceSize(
                      tensors[0], tensors[1], tensors[2], tensors[3], sizes.experts, sizes.tokens,
                      sizes.drop_and_pad, tensors[4], tensors[5], &bytes, &executor),
                  tensors, 6);
}

static aclnnStatus unpermute(struct sizes sizes, aclDataType map_type)
{
    const int64_t shape[] = {sizes.tokens, 2};
    aclIntArray *restore_shape = aclCreateIntArray(shape, 2);
    aclTensor *tensors[] = {describe(sizes.type, sizes.rows, 2),
                            describe(ACL_INT32, sizes.slots, -1),
                            describe(map_type, sizes.tokens, sizes.experts),
                            probs_like(&sizes, sizes.tokens, sizes.experts),
                            describe(sizes.type, sizes.tokens, 2),
                            describe(ACL_INT32, sizes.slots, -1),
                            describe(ACL_INT32, sizes.slots, -1),
                            probs_like(&sizes, sizes.slots, -1)};
    aclnnStatus status = aclnnMoeTokenUnpermuteWithRoutingMapGetWorkspaceSize(
        tensors[0], tensors[1], tensors[2], tensors[3], sizes.drop_and_pad, restore_shape,
        tensors[4], tensors[5], tensors[6], tensors[7], &bytes, &executor);
    aclDestroyIntArray(restore_shape);
    return finish(status, tensors, 8);
}

#define PLAIN .type = ACL_FLOAT, .probs_type = ACL_DT_UNDEFINED

/* Everywhere. */
static void value_rules(void **state)
{
    (void)state;
    struct sizes sizes = {.tokens = 2, .experts = 3, .rows = 6, .slots = 6, PLAIN};
    assert_int_equal(permute(sizes, 6), ACLNN_SUCCESS);
    sizes.rows = sizes.slots = 8;
    assert_fails(permute(sizes, 8), ACLNN_ERR_PARAM_INVALID,
                 "num_out_tokens = 8 is above T * E = 2 * 3");
    for (int padded = 0; padded < 2; padded++) {
        struct sizes grad = {.tokens = 2,
                             .experts = 2,
                             .rows = 4,
                             .slots = 4,
                             .drop_and_pad = padded,
                             .type = ACL_FLOAT,
                             .probs_type = ACL_FLOAT};
        assert_int_equal(permute_grad(grad, true), ACLNN_SUCCESS);
        assert_fails(permute_grad(grad, false), ACLNN_ERR_PARAM_NULLPTR,
                     "routingMapOptional is NULL although permutedProbsOutputGradOptional is");
    }
    struct sizes combine = {.tokens = 2,
                            .experts = 2,
                            .rows = 4,
                            .slots = 4,
                            .type = ACL_FLOAT,
                            .probs_type = ACL_FLOAT};
    assert_int_equal(unpermute(combine, ACL_UINT8), ACLNN_SUCCESS);
    assert_int_equal(unpermute(combine, ACL_INT32), ACLNN_ERR_PARAM_INVALID);
}

/* 513 slots of one token, on the host and on a product. */
static void topk_of_a_product(void **state)
{
    (void)state;
    struct sizes most = {.tokens = 1, .experts = 600, .rows = 512, .slots = 512, PLAIN};
    struct sizes more = {.tokens = 1, .experts = 600, .rows = 513, .slots = 513, PLAIN};
    for (int product = 0; product < 2; product++) {
        if (product)
            setenv("MOETOKEN_SOC", "Ascend910B", 1);
        aclnnStatus expected = product ? ACLNN_ERR_INNER_NULLPTR : ACLNN_SUCCESS;
        assert_int_equal(permute(most, 512), ACLNN_SUCCESS);
        assert_int_equal(permute(more, 513), expected);
        assert_int_equal(permute_grad(most, true), ACLNN_SUCCESS);
        assert_int_equal(permute_grad(more, true), expected);
        assert_int_equal(unpermute(most, ACL_BOOL), ACLNN_SUCCESS);
        assert_int_equal(unpermute(more, ACL_BOOL), expected);
    }
    assert_non_null(strstr(aclGetRecentErrMsg(), "topK_num = R / T = 513 / 1 = 513 is above 512"));
    unsetenv("MOETOKEN_SOC");
}

/* float32 probs go with bfloat16 tokens on a product, and with float16 tokens on the host as well.
 */
static void probs_of_a_product(void **state)
{
    (void)state;
    struct sizes sizes = {.tokens = 2,
                          .experts = 2,
                          .rows = 4,
                          .slots = 4,
                          .type = ACL_FLOAT16,
                          .probs_type = ACL_FLOAT};
    assert_int_equal(permute(sizes, 4), ACLNN_SUCCESS);
    assert_int_equal(permute_grad(sizes, true), ACLNN_SUCCESS);
    assert_int_equal(unpermute(sizes, ACL_BOOL), ACLNN_SUCCESS);
    setenv("MOETOKEN_SOC", "Ascend950", 1);
    assert_fails(permute(sizes, 4), ACLNN_ERR_PARAM_INVALID, "with bfloat16 tokens only");
    assert_int_equal(permute_grad(sizes, true), ACLNN_ERR_PARAM_INVALID);
    assert_int_equal(unpermute(sizes, ACL_BOOL), ACLNN_ERR_PARAM_INVALID);
    sizes.type = ACL_BF16;
    assert_int_equal(permute(sizes, 4), ACLNN_SUCCESS);
    assert_int_equal(permute_grad(sizes, true), ACLNN_SUCCESS);
    assert_int_equal(unpermute(sizes, ACL_BOOL), ACLNN_SUCCESS);
    unsetenv("MOETOKEN_SOC");
}

/* The rows and numbers that a product wants. */
static void numbers_of_a_product(void **state)
{
    (void)state;
    struct sizes fewer = {.tokens = 3, .experts = 3, .rows = 5, .slots = 6, PLAIN};
    struct sizes none = {.tokens = 0, .experts = 3, .rows = 0, .slots = 0, PLAIN};
    struct sizes long_sort = {
        .tokens = 16777215, .experts = 1, .rows = 16777215, .slots = 16777215, PLAIN};
    assert_int_equal(permute(fewer, 6), ACLNN_SUCCESS);
    assert_int_equal(permute(long_sort, 16777215), ACLNN_SUCCESS);
    assert_int_equal(permute_grad(none, true), ACLNN_SUCCESS);
    setenv("MOETOKEN_SOC", "Ascend910_93", 1);
    assert_fails(permute(fewer, 6), ACLNN_ERR_PARAM_INVALID,
                 "permuteTokensOut has 5 rows, expected 6");
    assert_fails(permute(long_sort, 16777215), ACLNN_ERR_PARAM_INVALID,
                 "tokens_num = 16777215 is above 16777214");
    long_sort.tokens = 8388608;
    long_sort.experts = 2;
    long_sort.rows = long_sort.slots = 16777216;
    assert_fails(permute(long_sort, 16777216), ACLNN_ERR_INNER_NULLPTR,
                 "topK_num * tokens_num = 16777216");
    assert_fails(permute_grad(none, true), ACLNN_ERR_PARAM_INVALID, "tokensNum = 0, expected");
    unsetenv("MOETOKEN_SOC");
}

int main(void)
{
    unsetenv("MOETOKEN_SOC");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(value_rules),
        cmocka_unit_test(topk_of_a_product),
        cmocka_unit_test(probs_of_a_product),
        cmocka_unit_test(numbers_of_a_product),
    };
    return cmocka_run_group_tests(tests, twin_setup, twin_teardown);
}
