/* limits_by_ids_test.c - what the products take of a routing by expert ids: limits_by_ids.c, by
 * which the tool answers, and phase one of the operators say the same. */
#include "products/limits_by_ids.h"
#include "twin.h"

#include "aclnnop/aclnn_moe_finalize_routing_v2.h"
#include "aclnnop/aclnn_moe_finalize_routing_v2_grad.h"
#include "aclnnop/aclnn_moe_init_routing_v3.h"
#include "aclnnop/aclnn_moe_token_permute.h"
#include "aclnnop/aclnn_moe_token_permute_with_ep.h"
#include "aclnnop/aclnn_moe_token_unpermute.h"

static uint64_t bytes;
static aclOpExecutor *executor;

/* Phase one alone: there is no memory behind the sizes. */
static aclTensor *sized(aclDataType type, int64_t rows, int64_t columns)
{
    const int64_t shape[] = {rows, columns};
    aclTensor *tensor = aclCreateTensor(shape, columns < 0 ? 1 : 2, type, NULL, 0, ACL_FORMAT_ND,
                                        shape, columns < 0 ? 1 : 2, NULL);
    assert_non_null(tensor);
    return tensor;
}

static void drop(aclTensor **tensors, int count)
{
    for (int i = 0; i < count; i++)
        assert_int_equal(aclDestroyTensor(tensors[i]), ACL_SUCCESS);
}

/* The operator number `index` of the step takes the call when phase one did. */
static void expect_alike(const struct product *product, const struct limits_ids_call *call,
                         const char *name, aclnnStatus status)
{
    char reason[512] = "";
    size_t index = 0;
    while (strcmp(limits_ids_operator(call->step, index), name) != 0)
        index++;
    const bool accepted = limits_ids_accept(product, index, call, reason, sizeof reason);
    if (accepted != (status == ACLNN_SUCCESS))
        fail_msg("%s, %s: phase one says %d (%s), the limits %s", product->name, name, (int)status,
                 aclGetRecentErrMsg(), accepted ? "accept" : reason);
    if (status == ACLNN_SUCCESS)
        assert_int_equal(aclDestroyAclOpExecutor(executor), ACL_SUCCESS);
}

static void choose(const struct product *product)
{
    assert_int_equal(setenv("MOETOKEN_SOC", product->name, 1), 0);
}

static void permute_sizes(const struct product *product, int64_t tokens, int64_t topk)
{
    const struct limits_ids_call call = {
        .step = LIMITS_PERMUTE, .tokens_num = tokens, .topk = topk, .experts_num = 8};
    aclTensor *all[] = {sized(ACL_FLOAT16, tokens, 1), sized(ACL_INT32, tokens, topk),
                        sized(ACL_FLOAT16, tokens * topk, 1), sized(ACL_INT32, tokens * topk, -1),
                        sized(ACL_FLOAT16, tokens * topk, -1)};
    choose(product);
    expect_alike(product, &call, "aclnnMoeTokenPermute",
                 aclnnMoeTokenPermuteGetWorkspaceSize(all[0], all[1], 0, false, all[2], all[3],
                                                      &bytes, &executor));
    expect_alike(product, &call, "aclnnMoeTokenPermuteWithEp",
                 aclnnMoeTokenPermuteWithEpGetWorkspaceSize(all[0], all[1], NULL, NULL, 0, false,
                                                            all[2], all[3], all[4], &bytes,
                                                            &executor));
    drop(all, 5);
}

static void init_experts(const struct product *product, int64_t experts)
{
    const struct limits_ids_call call = {
        .step = LIMITS_PERMUTE, .tokens_num = 2, .topk = 1, .experts_num = experts};
    aclTensor *all[] = {sized(ACL_FLOAT, 2, 1), sized(ACL_INT32, 2, 1), sized(ACL_FLOAT, 2, 1),
                        sized(ACL_INT32, 2, -1), sized(ACL_INT64, experts, -1)};
    choose(product);
    expect_alike(product, &call, "aclnnMoeInitRoutingV3",
                 aclnnMoeInitRoutingV3GetWorkspaceSize(all[0], all[1], NULL, NULL, 0, 0, experts, 0,
                                                       1, true, -1, NULL, 0, all[2], all[3], all[4],
                                                       NULL, &bytes, &executor));
    drop(all, 5);
}

static void weight_types(const struct product *product, aclDataType tokens, aclDataType weights)
{
    struct limits_ids_call call = {.step = LIMITS_UNPERMUTE,
                                   .tokens_num = 2,
                                   .topk = 2,
                                   .weights = true,
                                   .weights_of_token_type = tokens == weights,
                                   .weights_float32 = weights == ACL_FLOAT,
                                   .tokens_bfloat16 = tokens == ACL_BF16};
    aclTensor *all[] = {sized(tokens, 4, 1), sized(ACL_INT32, 4, -1), sized(weights, 2, 2),
                        sized(tokens, 2, 1), sized(tokens, 4, 1),     sized(weights, 2, 2)};
    choose(product);
    expect_alike(product, &call, "aclnnMoeTokenUnpermute",
                 aclnnMoeTokenUnpermuteGetWorkspaceSize(all[0], all[1], all[2], false, NULL, all[3],
                                                        &bytes, &executor));
    expect_alike(product, &call, "aclnnMoeFinalizeRoutingV2",
                 aclnnMoeFinalizeRoutingV2GetWorkspaceSize(all[0], all[1], NULL, NULL, NULL, all[2],
                                                           NULL, 2, all[3], &bytes, &executor));
    call.step = LIMITS_UNPERMUTE_GRAD;
    expect_alike(product, &call, "aclnnMoeFinalizeRoutingV2Grad",
                 aclnnMoeFinalizeRoutingV2GradGetWorkspaceSize(all[3], all[1], all[0], all[2], NULL,
                                                               NULL, 0, 0, 0, 0, all[4], all[5],
                                                               &bytes, &executor));
    drop(all, 6);
}

/* 32768 * 512 slots are two more than the sort of Atlas A2 and A3 takes. */
static void alike(void **state)
{
    (void)state;
    const int64_t sizes[][2] = {{4, 2}, {1, 512}, {1, 513}, {32767, 512}, {32768, 512}};
    const aclDataType types[] = {ACL_FLOAT, ACL_FLOAT16, ACL_BF16};
    for (size_t i = 0; limits_product(i) != NULL; i++) {
        const struct product *product = limits_product(i);
        for (size_t j = 0; j < sizeof sizes / sizeof sizes[0]; j++)
            permute_sizes(product, sizes[j][0], sizes[j][1]);
        for (int64_t experts = 10239; experts < 10243; experts++)
            init_experts(product, experts);
        for (int j = 0; j < 9; j++)
            weight_types(product, types[j / 3], types[j % 3]);
    }
    assert_int_equal(unsetenv("MOETOKEN_SOC"), 0);
}

/* And by hand. */
static void by_hand(void **state)
{
    (void)state;
    char reason[512];
    const struct product *a2 = limits_find_product("Ascend910B");
    struct limits_ids_call call = {
        .step = LIMITS_PERMUTE, .tokens_num = 8388607, .topk = 2, .experts_num = 8};
    assert_true(limits_ids_accept(a2, 0, &call, reason, sizeof reason));
    call.tokens_num = 8388608;
    assert_false(limits_ids_accept(a2, 0, &call, reason, sizeof reason));
    assert_string_equal(reason, "T * K = 8388608 * 2 slots, Atlas A2 and A3 sort at most 16777214");
    call.tokens_num = 4;
    call.capacity = 5;
    assert_false(limits_ids_accept(a2, 2, &call, reason, sizeof reason));
    assert_string_equal(reason, "capacity = 5 is above T = 4");
    call.capacity = 4;
    assert_true(limits_ids_accept(a2, 2, &call, reason, sizeof reason));
    assert_true(limits_ids_accept(a2, 3, &call, reason, sizeof reason));
    assert_false(limits_ids_accept(a2, 0, &call, reason, sizeof reason));
    call.range = true;
    assert_false(limits_ids_accept(a2, 3, &call, reason, sizeof reason));
    assert_string_equal(reason, "with a capacity it sends to all experts");
    call.capacity = 0;
    assert_true(limits_ids_accept(a2, 3, &call, reason, sizeof reason));
    assert_false(limits_ids_accept(a2, 2, &call, reason, sizeof reason));
    assert_null(limits_ids_operator(LIMITS_PERMUTE, 4));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(alike),
        cmocka_unit_test(by_hand),
    };
    return cmocka_run_group_tests(tests, twin_setup, twin_teardown);
}
