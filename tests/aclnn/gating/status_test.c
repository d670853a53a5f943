/* status_test.c - every status of the gating operators, the words that go with it, and that nothing
 * is written when values are wrong. */
#include "gating_calls.h"

#include <math.h>

static void softmax_statuses(void **state)
{
    (void)state;
    const int required[] = {0, 2, 3, 4};
    for (int i = 0; i < 4; i++)
        REFUSED_WITHOUT(softmax, required[i], NULLPTR, "is NULL");
    REFUSED_WITH(softmax, 0, VALUES(ACL_INT32, NULL, 3, 4), INVALID, "x has data type 3");
    REFUSED_WITH(softmax, 1, VALUES(ACL_INT8, NULL, 3), INVALID, "finishedOptional has data type");
    REFUSED_WITH(softmax, 2, VALUES(ACL_BF16, NULL, 3, 2), INVALID, "yOut has data type 27");
    REFUSED_WITH(softmax, 3, VALUES(ACL_INT64, NULL, 3, 2), INVALID, "expertIdxOut has data");
    REFUSED_WITH(softmax, 4, VALUES(ACL_INT64, NULL, 3, 2), INVALID, "rowIdxOut has data type 9");
    REFUSED_WITH(softmax, 0, VALUES(ACL_FLOAT, NULL, 12), TILING, "x has rank 1, expected 2 or 3");
    REFUSED_WITH(softmax, 0, VALUES(ACL_FLOAT, NULL, 1, 1, 3, 4), TILING, "x has rank 4");
    REFUSED_WITH(softmax, 1, VALUES(ACL_BOOL, NULL, 3, 1), TILING, "finishedOptional has shape");
    REFUSED_WITH(softmax, 1, VALUES(ACL_BOOL, NULL, 2), TILING, "finishedOptional has shape [2]");
    REFUSED_WITH(softmax, 2, VALUES(ACL_FLOAT, NULL, 3, 3), TILING, "yOut has shape [3, 3]");
    REFUSED_WITH(softmax, 3, VALUES(ACL_INT32, NULL, 2, 2), TILING, "expertIdxOut has shape [2");
    REFUSED_WITH(softmax, 4, VALUES(ACL_INT32, NULL, 6), TILING, "rowIdxOut has shape [6]");
    REFUSED_OPTION(softmax, 0, -1, TILING, "k = -1, expected 0 to 4");
    REFUSED_OPTION(softmax, 0, 5, TILING, "k = 5, expected 0 to 4");
}

/* That shape, and no memory. */
static void set_shape(struct values *values, int64_t rows, int64_t columns)
{
    const int64_t shape[] = {rows, columns};
    assert_int_equal(aclDestroyTensor(values->twin.tensor), ACL_SUCCESS);
    values->twin.tensor =
        aclCreateTensor(shape, 2, values->type, NULL, 0, ACL_FORMAT_ND, shape, 2, NULL);
}

/* rowIdxOut numbers T * k slots in int32. */
static void many_slots(void **state)
{
    (void)state;
    for (int fits = 0; fits < 2; fits++) {
        struct call call = softmax.make();
        call_replace(&call, 1, (struct values){.count = 0});
        const int64_t tokens = fits ? INT32_MAX : 1 << 21, topk = fits ? 1 : 1024;
        call.option[0] = topk;
        const int places[] = {0, 2, 3, 4};
        for (int i = 0; i < 4; i++)
            set_shape(&call.tensor[places[i]], tokens, topk);
        if (fits) {
            assert_int_equal(softmax.phase_one(&call), ACLNN_SUCCESS);
            assert_int_equal(aclDestroyAclOpExecutor(call.executor), ACL_SUCCESS);
            call_drop(&call);
        } else {
            expect_refused(&softmax, &call, TILING,
                           "rowIdxOut: T * k = 2097152 * 1024 does not fit in 31 bits", __LINE__);
        }
    }
}

static void softmax_v2_statuses(void **state)
{
    (void)state;
    const int required[] = {0, 2, 3};
    for (int i = 0; i < 3; i++)
        REFUSED_WITHOUT(softmax_v2, required[i], NULLPTR, "is NULL");
    REFUSED_WITHOUT(softmax_v2, 4, NULLPTR, "softmaxResultOutOptional is NULL although its flag");
    REFUSED_WITH(softmax_v2, 4, VALUES(ACL_BF16, NULL, 3, 4), INVALID, "OutOptional has data type");
    REFUSED_WITH(softmax_v2, 4, VALUES(ACL_FLOAT, NULL, 3, 2), TILING, "OutOptional has shape [3");
    REFUSED_OPTION(softmax_v2, 0, 5, TILING, "k = 5");
    REFUSED_OPTION(softmax_v2, 1, 2, TILING, "renorm = 2");
    REFUSED_OPTION(softmax_v2, 1, -1, TILING, "renorm = -1");
}

/* The whole numbers that both versions have in common. */
static void top_k_numbers(const struct tested *tested)
{
    REFUSED_OPTION(*tested, 0, 0, TILING, "k = 0, expected 1 to 2");
    REFUSED_OPTION(*tested, 0, 3, TILING, "k = 3, expected 1 to 2, the experts of kGroup groups");
    REFUSED_OPTION(*tested, 1, 0, TILING, "kGroup = 0, expected 1 to 2");
    REFUSED_OPTION(*tested, 1, 3, TILING, "kGroup = 3, expected 1 to 2");
    REFUSED_OPTION(*tested, 2, 0, TILING, "groupCount = 0, expected a divisor of 4");
    REFUSED_OPTION(*tested, 2, 3, TILING, "groupCount = 3, expected a divisor of 4");
    REFUSED_OPTION(*tested, 2, 4, TILING, "groupSelectMode = 1 wants groups of more than 1");
    REFUSED_OPTION(*tested, 3, 2, TILING, "groupSelectMode = 2");
    REFUSED_OPTION(*tested, 3, -1, TILING, "groupSelectMode = -1");
    REFUSED_OPTION(*tested, 4, 2, TILING, "renorm = 2");
    REFUSED_OPTION(*tested, 5, 3, TILING, "normType = 3");
    REFUSED_OPTION(*tested, 5, -1, TILING, "normType = -1");
}

static void refuse_number(const struct tested *tested, int number, double value, const char *words,
                          int line)
{
    struct call call = tested->make();
    call.number[number] = value;
    expect_refused(tested, &call, TILING, words, line);
}

static void top_k_statuses(void **state)
{
    (void)state;
    const int required[] = {0, 2, 3, 4};
    for (int i = 0; i < 4; i++)
        REFUSED_WITHOUT(top_k, required[i], NULLPTR, "is NULL");
    REFUSED_WITH(top_k, 0, VALUES(ACL_INT8, NULL, 3, 4), INVALID, "x has data type 2");
    REFUSED_WITH(top_k, 1, VALUES(ACL_FLOAT16, NULL, 4), INVALID, "biasOptional has data type 1");
    REFUSED_WITH(top_k, 2, VALUES(ACL_BF16, NULL, 3, 2), INVALID, "yOut has data type 27");
    REFUSED_WITH(top_k, 3, VALUES(ACL_INT64, NULL, 3, 2), INVALID, "expertIdxOut has data");
    REFUSED_WITH(top_k, 4, VALUES(ACL_BF16, NULL, 3, 4), INVALID, "outOut has data type 27");
    REFUSED_WITH(top_k, 0, VALUES(ACL_FLOAT, NULL, 1, 3, 4), TILING, "x has rank 3, expected 2");
    REFUSED_WITH(top_k, 1, VALUES(ACL_FLOAT, NULL, 3), TILING, "biasOptional has shape [3]");
    REFUSED_WITH(top_k, 2, VALUES(ACL_FLOAT, NULL, 3, 3), TILING, "yOut has shape [3, 3]");
    REFUSED_WITH(top_k, 3, VALUES(ACL_INT32, NULL, 2, 2), TILING, "expertIdxOut has shape [2");
    REFUSED_WITH(top_k, 4, VALUES(ACL_FLOAT, NULL, 3, 2), TILING, "outOut has shape [3, 2]");
    top_k_numbers(&top_k);
    refuse_number(&top_k, 0, NAN, "routedScalingFactor = nan", __LINE__);
    refuse_number(&top_k, 0, -INFINITY, "routedScalingFactor = -inf", __LINE__);
    refuse_number(&top_k, 1, -1e-20, "eps = -1e-20", __LINE__);
    refuse_number(&top_k, 1, INFINITY, "eps = inf", __LINE__);
}

static void top_k_v2_statuses(void **state)
{
    (void)state;
    const int required[] = {0, 4, 5, 6};
    for (int i = 0; i < 4; i++)
        REFUSED_WITHOUT(top_k_v2, required[i], NULLPTR, "is NULL");
    REFUSED_WITH(top_k_v2, 2, VALUES(ACL_FLOAT, NULL, 3), INVALID, "inputIdsOptional has data");
    REFUSED_WITH(top_k_v2, 3, VALUES(ACL_FLOAT, NULL, 2, 2), INVALID, "tid2eidOptional has data");
    REFUSED_WITH(top_k_v2, 2, VALUES(ACL_INT64, NULL, 4), TILING, "inputIdsOptional has shape [4]");
    REFUSED_WITH(top_k_v2, 3, VALUES(ACL_INT32, NULL, 2, 3), TILING, "tid2eidOptional has shape");
    REFUSED_WITH(top_k_v2, 1, VALUES(ACL_FLOAT, NULL, 3), TILING, "biasOptional has shape [3]");
    top_k_numbers(&top_k_v2);
    top_k_numbers(&top_k_v2_chosen);
    VALUES_REFUSED(top_k_v2, 2, VALUES(ACL_INT64, INTS(0, 1, 2), 3),
                   "inputIdsOptional[2] = 2 is outside [0, 2)");
    VALUES_REFUSED(top_k_v2, 2, VALUES(ACL_INT64, INTS(0, -1, 1), 3),
                   "inputIdsOptional[1] = -1 is outside [0, 2)");
    VALUES_REFUSED(top_k_v2, 3, VALUES(ACL_INT32, INTS(0, 1, 2, 4), 2, 2),
                   "tid2eidOptional[1, 1] = 4 is outside [0, 4)");
    VALUES_REFUSED(top_k_v2, 3, VALUES(ACL_INT32, INTS(0, 1, -1, 3), 2, 2),
                   "tid2eidOptional[1, 0] = -1 is outside [0, 4)");
}

static void backward_statuses(void **state)
{
    (void)state;
    for (int i = 0; i < 4; i++)
        REFUSED_WITHOUT(backward, i, NULLPTR, "is NULL");
    REFUSED_WITH(backward, 0, VALUES(ACL_BF16, NULL, 3, 4), INVALID, "xNorm has data type 27");
    REFUSED_WITH(backward, 1, VALUES(ACL_INT32, NULL, 3, 2), INVALID, "gradY has data type 3");
    REFUSED_WITH(backward, 2, VALUES(ACL_INT64, NULL, 3, 2), INVALID, "expertIdx has data type 9");
    REFUSED_WITH(backward, 3, VALUES(ACL_BF16, NULL, 3, 4), INVALID, "out has data type 27");
    REFUSED_WITH(backward, 0, VALUES(ACL_FLOAT, NULL, 12), INVALID, "xNorm has shape [12]");
    REFUSED_WITH(backward, 1, VALUES(ACL_FLOAT, NULL, 2, 2), INVALID, "gradY has shape [2, 2]");
    REFUSED_WITH(backward, 2, VALUES(ACL_INT32, NULL, 3, 3), INVALID, "expertIdx has shape [3, 3]");
    REFUSED_WITH(backward, 3, VALUES(ACL_FLOAT, NULL, 3, 2), INVALID, "out has shape [3, 2]");
    REFUSED_OPTION(backward, 1, 0, TILING, "normType = 0, expected 1");
    refuse_number(&backward, 0, INFINITY, "routedScalingFactor = inf", __LINE__);
    refuse_number(&backward, 1, NAN, "eps = nan", __LINE__);
    struct call call = backward.make();
    call_replace(&call, 1, VALUES(ACL_FLOAT, NULL, 3, 5));
    call_replace(&call, 2, VALUES(ACL_INT32, NULL, 3, 5));
    expect_refused(&backward, &call, INVALID, "gradY has K = 5, expected at most 4", __LINE__);
    VALUES_REFUSED(backward, 2, VALUES(ACL_INT32, INTS(0, 1, 2, 3, 4, 0), 3, 2),
                   "expertIdx[2, 0] = 4 is outside [-1, 4)");
    VALUES_REFUSED(backward, 2, VALUES(ACL_INT32, INTS(0, -2, 2, 3, 1, 0), 3, 2),
                   "expertIdx[0, 1] = -2 is outside [-1, 4)");
}

static void expert_tokens_statuses(void **state)
{
    (void)state;
    REFUSED_WITHOUT(expert_tokens, 0, NULLPTR, "sortedExperts is NULL");
    REFUSED_WITHOUT(expert_tokens, 1, NULLPTR, "out is NULL");
    REFUSED_WITH(expert_tokens, 0, VALUES(ACL_INT64, NULL, 5), INVALID, "sortedExperts has data");
    REFUSED_WITH(expert_tokens, 1, VALUES(ACL_INT64, NULL, 4), INVALID, "out has data type 9");
    REFUSED_WITH(expert_tokens, 0, VALUES(ACL_INT32, NULL, 5, 1), TILING,
                 "sortedExperts has shape");
    REFUSED_WITH(expert_tokens, 1, VALUES(ACL_INT32, NULL, 3), TILING, "out has shape [3]");
    REFUSED_OPTION(expert_tokens, 0, 0, TILING, "numExperts = 0");
    REFUSED_OPTION(expert_tokens, 0, -1, TILING, "numExperts = -1");
    REFUSED_OPTION(expert_tokens, 0, 5, TILING, "out has shape [4], expected [numExperts] = [5]");
    VALUES_REFUSED(expert_tokens, 0, VALUES(ACL_INT32, INTS(0, 2, 1, 3, 3), 5),
                   "sortedExperts[2] = 1 comes after 2");
}

/* ---- products ------------------------------------------------------------------------------- */

/* x of that many experts, which is not looked at beyond its shape. */
static void refuse_experts(const struct tested *tested, int64_t experts, int64_t groups,
                           int64_t groups_top, const char *words, int line)
{
    struct call call = tested->make();
    const int64_t strides[] = {0, 0}, shape[] = {3, experts};
    values_set_view(&call.tensor[0], shape, 2, strides, 0, call.tensor[0].count);
    call.option[1] = groups_top;
    call.option[2] = groups;
    call.option[6] = 0; /* no scores */
    values_drop(&call.tensor[1]);
    call.tensor[1] = (struct values){.count = 0};
    if (words) {
        expect_refused(tested, &call, TILING, words, line);
        return;
    }
    assert_int_equal(tested->phase_one(&call), ACLNN_SUCCESS);
    assert_int_equal(run(tested->phase_two, call.bytes, call.executor), ACLNN_SUCCESS);
    call_drop(&call);
}

static void refuse_topk(const struct tested *tested)
{
    struct call call = tested->make();
    const int64_t shape[] = {3, 1100}, strides[] = {0, 0};
    values_set_view(&call.tensor[0], shape, 2, strides, 0, call.tensor[0].count);
    call.option[0] = 1025;
    expect_refused(tested, &call, TILING, "k = 1025 is above 1024", __LINE__);
}

static void on_a2(void **state)
{
    (void)state;
    assert_int_equal(setenv("MOETOKEN_SOC", "Ascend910B", 1), 0);
    REFUSED_OPTION(top_k, 5, 2, TILING, "normType = 2, expected 0 or 1");
    refuse_topk(&softmax);
    refuse_topk(&softmax_v2);
    refuse_experts(&top_k, 2049, 1, 1, "x has 2049 experts, a product takes at most 2048",
                   __LINE__);
    refuse_experts(&top_k, 2048, 1, 1, NULL, __LINE__);
    /* 128 groups of 2 experts, each rounded up to 32. */
    refuse_experts(&top_k, 256, 128, 64, "are 4096, a product takes at most 2048", __LINE__);
    refuse_experts(&top_k, 256, 64, 32, NULL, __LINE__);
    refuse_experts(&top_k, 256, 128, 128, NULL, __LINE__);
    REFUSED_OPTION(top_k_v2, 1, 1, TILING, "kGroup = 1, a product takes with tid2eidOptional only");
    REFUSED_OPTION(expert_tokens, 0, 2049, TILING, "numExperts = 2049, expected 1 to 2048");
    REFUSED_WITH(backward, 0, VALUES(ACL_FLOAT, NULL, 3, 1), INVALID, "out has shape");
    assert_int_equal(unsetenv("MOETOKEN_SOC"), 0);
    refuse_experts(&top_k, 2049, 1, 1, NULL, __LINE__);
    refuse_experts(&top_k, 256, 128, 64, NULL, __LINE__);
}

/* Which products have the operators at all. */
static void presence(const char *product, const struct tested *tested, bool has)
{
    struct call call = tested->make();
    if (tested == &top_k_v2)
        call.option[1] = 2; /* the groups that a product wants of it */
    assert_int_equal(setenv("MOETOKEN_SOC", product, 1), 0);
    const aclnnStatus status = tested->phase_one(&call);
    if (status != (has ? ACLNN_SUCCESS : ACLNN_ERR_INNER_FIND_KERNEL_ERROR))
        fail_msg("%s: status %d, \"%s\"", product, (int)status, aclGetRecentErrMsg());
    if (has)
        assert_int_equal(run(tested->phase_two, call.bytes, call.executor), ACLNN_SUCCESS);
    assert_int_equal(unsetenv("MOETOKEN_SOC"), 0);
    call_drop(&call);
}

static void products(void **state)
{
    (void)state;
    for (int i = 0; i < operators_num; i++) {
        presence("Ascend910B", all_operators[i], true);
        presence("Ascend910_93", all_operators[i], true);
        presence("Ascend950", all_operators[i], all_operators[i] != &backward);
        presence("Ascend310P", all_operators[i], all_operators[i] == &softmax);
        presence("Ascend310B", all_operators[i], false);
        presence("Ascend910A", all_operators[i], false);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(many_slots),
        cmocka_unit_test(softmax_statuses),
        cmocka_unit_test(softmax_v2_statuses),
        cmocka_unit_test(top_k_statuses),
        cmocka_unit_test(top_k_v2_statuses),
        cmocka_unit_test(backward_statuses),
        cmocka_unit_test(expert_tokens_statuses),
        cmocka_unit_test(on_a2),
        cmocka_unit_test(products),
    };
    return cmocka_run_group_tests(tests, twin_setup, twin_teardown);
}
