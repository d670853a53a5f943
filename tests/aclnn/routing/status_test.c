/* status_test.c - every status that the documents have for the init, finalize and re-routing
 * operators, the words that go with it, and that nothing is written when values are wrong. */
#include "calls.h"

#define INNER ACLNN_ERR_INNER_NULLPTR

/* ---- init routing --------------------------------------------------------------------------- */

static void init_v1_statuses(void **state)
{
    (void)state;
    const char *names[] = {"x is NULL",
                           "rowIdx is NULL",
                           "expertIdx is NULL",
                           "expandedXOut is NULL",
                           "expandedRowIdxOut is NULL",
                           "expandedExpertIdxOut is NULL"};
    for (int i = 0; i < 6; i++)
        REFUSED_WITHOUT(init_v1, i, NULLPTR, names[i]);
    REFUSED_WITH(init_v1, 0, VALUES(ACL_INT32, NULL, 3, 2), INVALID, "x has data type 3");
    REFUSED_WITH(init_v1, 2, VALUES(ACL_INT64, NULL, 3, 2), INVALID, "expertIdx has data type 9");
    REFUSED_WITH(init_v1, 3, VALUES(ACL_BF16, NULL, 6, 2), INVALID,
                 "expandedXOut has data type 27");
    REFUSED_WITH(init_v1, 0, VALUES(ACL_FLOAT, NULL, 3, 2, 1), TILING, "x has shape [3, 2, 1]");
    REFUSED_WITH(init_v1, 1, VALUES(ACL_INT32, NULL, 6), TILING, "rowIdx has shape [6]");
    REFUSED_WITH(init_v1, 1, VALUES(ACL_INT32, NULL, 2, 3), TILING, "rowIdx has shape [2, 3]");
    REFUSED_WITH(init_v1, 2, VALUES(ACL_INT32, NULL, 6), TILING, "expertIdx has shape [6]");
    REFUSED_WITH(init_v1, 3, VALUES(ACL_FLOAT, NULL, 5, 2), TILING, "expandedXOut has shape");
    REFUSED_WITH(init_v1, 4, VALUES(ACL_INT32, NULL, 5), TILING, "expandedRowIdxOut has shape [5]");
    REFUSED_WITH(init_v1, 5, VALUES(ACL_INT32, NULL, 5), TILING, "expandedExpertIdxOut has shape");
    REFUSED_OPTION(init_v1, 0, -1, TILING, "activeNum = -1");
    VALUES_REFUSED(init_v1, 1, VALUES(ACL_INT32, INTS(0, 3, 1, 4, 2, 6), 3, 2),
                   "rowIdx[2, 1] = 6 is outside [0, 6)");
    VALUES_REFUSED(init_v1, 1, VALUES(ACL_INT32, INTS(0, 3, 1, -1, 2, 5), 3, 2),
                   "rowIdx[1, 1] = -1 is outside [0, 6)");
    VALUES_REFUSED(init_v1, 1, VALUES(ACL_INT32, INTS(0, 3, 1, 4, 0, 5), 3, 2),
                   "rowIdx[2, 0] = 0 comes up twice");
}

static void init_v2_statuses(void **state)
{
    (void)state;
    for (int i = 0; i < 4; i++)
        REFUSED_WITHOUT(init_v2, i, NULLPTR, "is NULL");
    REFUSED_WITHOUT(init_v2, 4, NULLPTR, "expertTokensCountOrCumsumOut is NULL");
    REFUSED_WITH(init_v2, 1, VALUES(ACL_FLOAT, NULL, 3, 2), INVALID, "expertIdx has data type 0");
    REFUSED_WITH(init_v2, 2, VALUES(ACL_FLOAT16, NULL, 6, 2), INVALID, "expandedXOut has data");
    REFUSED_WITH(init_v2, 4, VALUES(ACL_INT64, NULL, 3), INVALID, "CumsumOut has data type 9");
    REFUSED_WITH(init_v2, 0, VALUES(ACL_FLOAT, NULL, 6), INNER, "x has shape [6]");
    REFUSED_WITH(init_v2, 1, VALUES(ACL_INT32, NULL, 2, 3), INNER, "expertIdx has shape [2, 3]");
    REFUSED_WITH(init_v2, 3, VALUES(ACL_INT32, NULL, 7), INNER, "expandedRowIdxOut has shape [7]");
    REFUSED_WITH(init_v2, 4, VALUES(ACL_INT32, NULL, 4), INNER, "CumsumOut has shape [4]");
    REFUSED_OPTION(init_v2, 0, -1, INNER, "activeNum = -1");
    REFUSED_OPTION(init_v2, 0, 4, INNER, "has shape [6, 2], expected [R,H] = [4, 2]");
    REFUSED_OPTION(init_v2, 1, -1, INNER, "expertCapacity = -1");
    REFUSED_OPTION(init_v2, 2, -1, INNER, "expertNum = -1");
    REFUSED_OPTION(init_v2, 2, 0, INNER, "expertNum = 0");
    REFUSED_OPTION(init_v2, 3, 2, INNER, "dropPadMode = 2");
    REFUSED_OPTION(init_v2, 3, 1, INNER, "expertCapacity = 0");
    REFUSED_OPTION(init_v2, 4, 3, INNER, "expertTokensCountOrCumsumFlag = 3");
    VALUES_REFUSED(init_v2, 1, VALUES(ACL_INT32, INTS(1, 2, 0, 3, 0, 2), 3, 2),
                   "expertIdx[1, 1] = 3 is outside [0, 2]");
    VALUES_REFUSED(init_v2, 1, VALUES(ACL_INT32, INTS(1, 2, 0, 1, -1, 2), 3, 2),
                   "expertIdx[2, 0] = -1 is outside [0, 2]");
    REFUSED_WITHOUT(init_v2_padded, 5, NULLPTR, "expertTokensBeforeCapacityOut is NULL");
    REFUSED_WITH(init_v2_padded, 2, VALUES(ACL_FLOAT, NULL, 6, 2), INNER,
                 "expandedXOut has shape [6, 2], expected [E,C,H] = [3, 2, 2]");
    REFUSED_OPTION(init_v2_padded, 1, 4, INNER, "expertCapacity = 4 is above 3");
    REFUSED_OPTION(init_v2_padded, 2, 0, INNER, "expertNum = 0");
    VALUES_REFUSED(init_v2_padded, 1, VALUES(ACL_INT32, INTS(1, 2, 0, 9, 0, 2), 3, 2),
                   "expertIdx[1, 1] = 9 is outside [0, 2]");
}

/* Where ids are not counted a negative one is an error all the same. */
static void init_v2_negative_id(void **state)
{
    (void)state;
    struct call call = init_v2.make();
    call.option[4] = 0;
    call_replace(&call, 1, VALUES(ACL_INT32, INTS(1, 2, 0, 99, 0, -2), 3, 2));
    assert_int_equal(init_v2.phase_one(&call), ACLNN_SUCCESS);
    assert_fails(run(init_v2.phase_two, call.bytes, call.executor), TILING, "expertIdx[2, 1] = -2");
    values_expect_untouched(&call.tensor[2], "expandedXOut");
    call_drop(&call);
}

static void range_refused(const int64_t *range, uint64_t count, const char *words)
{
    struct call call = init_v3.make();
    call_set_range(&call, range, count);
    expect_refused(&init_v3, &call, TILING, words, __LINE__);
}

static void init_v3_statuses(void **state)
{
    (void)state;
    const int required[] = {0, 1, 4, 5};
    for (int i = 0; i < 4; i++)
        REFUSED_WITHOUT(init_v3, required[i], NULLPTR, "is NULL");
    REFUSED_WITHOUT(init_v3, 6, NULLPTR, "expertTokensCountOrCumsumOut is NULL");
    REFUSED_WITHOUT(init_v3, 7, NULLPTR, "expandedScaleOut is NULL");
    REFUSED_WITH(init_v3, 4, VALUES(ACL_INT8, NULL, 6, 2), INVALID, "expandedXOut has data type 2");
    REFUSED_WITH(init_v3, 1, VALUES(ACL_INT64, NULL, 3, 2), INVALID, "expertIdx has data type 9");
    REFUSED_WITH(init_v3, 6, VALUES(ACL_INT32, NULL, 3), INVALID, "CumsumOut has data type 3");
    REFUSED_WITH(init_v3, 1, VALUES(ACL_INT32, NULL, 3), TILING, "expertIdx has shape [3]");
    REFUSED_WITH(init_v3, 2, VALUES(ACL_FLOAT, NULL, 4), TILING, "scaleOptional has shape [4]");
    REFUSED_WITH(init_v3, 7, VALUES(ACL_FLOAT, NULL, 5), TILING, "expandedScaleOut has shape");
    REFUSED_WITH(init_v3, 6, VALUES(ACL_INT64, NULL, 2), TILING, "CumsumOut has shape [2]");
    REFUSED_OPTION(init_v3, 0, -2, TILING, "activeNum = -2");
    REFUSED_OPTION(init_v3, 2, 2, TILING, "activeExpertRangeOptional = {0, 3}");
    REFUSED_OPTION(init_v3, 3, 2, TILING, "dropPadMode = 2");
    REFUSED_OPTION(init_v3, 3, 1, TILING, "expertCapacity = 0");
    REFUSED_OPTION(init_v3, 4, 3, TILING, "expertTokensNumType = 3");
    REFUSED_OPTION(init_v3, 7, 2, TILING, "rowIdxType = 2");
    range_refused((const int64_t[]){1, 1}, 2, "activeExpertRangeOptional = {1, 1}");
    range_refused((const int64_t[]){2, 1}, 2, "activeExpertRangeOptional = {2, 1}");
    range_refused((const int64_t[]){-1, 2}, 2, "activeExpertRangeOptional = {-1, 2}");
    range_refused((const int64_t[]){0, 4}, 2, "expertNum = 3");
    range_refused((const int64_t[]){0, 1, 2}, 3, "activeExpertRangeOptional has 3 values");
}

/* By their names, whatever the output's type is. */
static void quantised_modes(void **state)
{
    (void)state;
    for (int64_t mode = 0; mode < 18; mode++) {
        struct call call = init_v3.make();
        call.option[6] = mode;
        call_replace(&call, 4, VALUES(ACL_INT8, NULL, 6, 2));
        expect_refused(&init_v3, &call, INVALID, "quantised modes are not supported", __LINE__);
        REFUSED_OPTION(init_v3, 6, mode, INVALID, "quantised modes are not supported");
    }
}

static void init_v3_padded_statuses(void **state)
{
    (void)state;
    struct call call = init_v3_padded.make();
    call_set_range(&call, (const int64_t[]){0, 2}, 2);
    expect_refused(&init_v3_padded, &call, TILING, "expected {0, expertNum = 3}", __LINE__);
    REFUSED_OPTION(init_v3_padded, 1, 4, TILING, "expertCapacity = 4");
    REFUSED_OPTION(init_v3_padded, 4, 0, TILING, "expertTokensNumType = 0");
    REFUSED_OPTION(init_v3_padded, 7, 1, TILING, "rowIdxType = 1");
}

static void init_grad_statuses(void **state)
{
    (void)state;
    for (int i = 0; i < 3; i++)
        REFUSED_WITHOUT(init_grad, i, NULLPTR, "is NULL");
    REFUSED_WITH(init_grad, 0, VALUES(ACL_INT8, NULL, 6, 2), INVALID, "gradExpandedX has data");
    REFUSED_WITH(init_grad, 2, VALUES(ACL_BF16, NULL, 3, 2), INVALID, "out has data type 27");
    REFUSED_OPTION(init_grad, 1, 2, INNER, "dropPadMode = 2");
    REFUSED_OPTION(init_grad, 1, 1, INNER, "gradExpandedX has shape [6, 2], expected [E,C,H]");
    REFUSED_OPTION(init_grad, 0, 0, INNER, "topK = 0");
    REFUSED_OPTION(init_grad, 0, 4, INNER, "a multiple of topK = 4");
    REFUSED_OPTION(init_grad, 2, -1, INNER, "activeNum = -1");
    REFUSED_OPTION(init_grad, 2, 5, INNER, "expected [activeNum,H] = [5, any]");
    REFUSED_WITH(init_grad, 0, VALUES(ACL_FLOAT, NULL, 12), INNER, "gradExpandedX has shape [12]");
    REFUSED_WITH(init_grad, 0, VALUES(ACL_FLOAT, NULL, 5, 2), INNER, "gradExpandedX has shape [5");
    REFUSED_WITH(init_grad, 2, VALUES(ACL_FLOAT, NULL, 3, 3), INNER, "out has shape [3, 3]");
    REFUSED_WITH(init_grad, 2, VALUES(ACL_FLOAT, NULL, 2, 2), INNER, "out has shape [2, 2]");
    VALUES_REFUSED(init_grad, 1, VALUES(ACL_INT32, INTS(2, 4, 0, 3, 1, 6), 6),
                   "expandedRowIdx[5] = 6 is outside [-1, 6)");
    VALUES_REFUSED(init_grad, 1, VALUES(ACL_INT32, INTS(2, -2, 0, 3, 1, 5), 6),
                   "expandedRowIdx[1] = -2 is outside [-1, 6)");
    VALUES_REFUSED(init_grad, 1, VALUES(ACL_INT32, INTS(2, 4, 0, 3, 2, 5), 6), "sorted_indices");
}

/* ---- finalize routing ----------------------------------------------------------------------- */

static void finalize_v1_statuses(void **state)
{
    (void)state;
    const int required[] = {0, 1, 3, 4, 5, 6, 7};
    for (int i = 0; i < 7; i++)
        REFUSED_WITHOUT(finalize_v1, required[i], NULLPTR, "is NULL");
    REFUSED_WITH(finalize_v1, 1, VALUES(ACL_BF16, NULL, 3, 2), INVALID, "x1 has data type 27");
    REFUSED_WITH(finalize_v1, 4, VALUES(ACL_BF16, NULL, 3, 2), INVALID, "scales has data type 27");
    REFUSED_WITH(finalize_v1, 5, VALUES(ACL_INT64, NULL, 6), INVALID, "expandedRowIdx has data");
    REFUSED_WITH(finalize_v1, 0, VALUES(ACL_FLOAT, NULL, 7, 2), INVALID, "expandedX has 7 rows");
    REFUSED_WITH(finalize_v1, 2, VALUES(ACL_FLOAT, NULL, 2, 2), INVALID, "x2Optional has shape");
    REFUSED_WITH(finalize_v1, 3, VALUES(ACL_FLOAT, NULL, 3, 1), INVALID, "bias has shape [3, 1]");
    REFUSED_WITH(finalize_v1, 5, VALUES(ACL_INT32, NULL, 3, 2), INVALID,
                 "expandedRowIdx has shape");
    REFUSED_WITH(finalize_v1, 6, VALUES(ACL_INT32, NULL, 3, 1), INVALID, "ExpertIdx has shape [3");
    VALUES_REFUSED(finalize_v1, 5, VALUES(ACL_INT32, INTS(2, 4, 0, 6, 1, 5), 6),
                   "expandedRowIdx[3] = 6 is outside [-1, 6)");
    VALUES_REFUSED(finalize_v1, 6, VALUES(ACL_INT32, INTS(0, 1, 2, 3, 0, 0), 3, 2),
                   "expert_ids[1, 1] = 3");
}

static void finalize_v2_statuses(void **state)
{
    (void)state;
    const int required[] = {0, 1, 7};
    for (int i = 0; i < 3; i++)
        REFUSED_WITHOUT(finalize_v2, required[i], NULLPTR, "is NULL");
    REFUSED_WITHOUT(finalize_v2, 2, INNER, "x1Optional is NULL although x2Optional is given");
    REFUSED_WITHOUT(finalize_v2, 6, INNER, "expertIdxOptional is NULL although biasOptional");
    REFUSED_WITHOUT(finalize_v2, 5, INNER, "expandedRowIdx has shape [6], expected [T*K] = [3]");
    REFUSED_WITH(finalize_v2, 4, VALUES(ACL_FLOAT16, NULL, 3, 2), INVALID, "biasOptional has data");
    REFUSED_WITH(finalize_v2, 5, VALUES(ACL_INT32, NULL, 3, 2), INVALID, "scalesOptional has data");
    REFUSED_WITH(finalize_v2, 2, VALUES(ACL_FLOAT, NULL, 3, 1), INNER, "x1Optional has shape");
    REFUSED_WITH(finalize_v2, 5, VALUES(ACL_FLOAT, NULL, 2, 2), INNER, "scalesOptional has shape");
    REFUSED_WITH(finalize_v2, 0, VALUES(ACL_FLOAT, NULL, 3, 2, 2), INNER, "expandedX has shape");
    REFUSED_OPTION(finalize_v2, 0, -1, INNER, "dropPadMode = -1");
    REFUSED_OPTION(finalize_v2, 0, 4, INNER, "dropPadMode = 4");
    REFUSED_OPTION(finalize_v2, 0, 3, INNER, "expected [E,C,H]");
    VALUES_REFUSED(finalize_v2, 1, VALUES(ACL_INT32, INTS(2, 4, 0, 6, 1, 5), 6),
                   "expandedRowIdx[3] = 6 is outside [-1, 6)");
    VALUES_REFUSED(finalize_v2, 1, VALUES(ACL_INT32, INTS(-2, 4, 0, 3, 1, 5), 6),
                   "expandedRowIdx[0] = -2 is outside [-1, 6)");
    VALUES_REFUSED(finalize_v2, 6, VALUES(ACL_INT32, INTS(0, 1, 2, 1, 0, -1), 3, 2),
                   "expert_ids[2, 1] = -1");
}

static void finalize_grad_statuses(void **state)
{
    (void)state;
    const int required[] = {0, 1, 6, 7};
    for (int i = 0; i < 4; i++)
        REFUSED_WITHOUT(finalize_grad, required[i], NULLPTR, "is NULL");
    REFUSED_WITHOUT(finalize_grad, 2, INNER, "expandedXOptional is NULL although scalesOptional");
    REFUSED_WITHOUT(finalize_grad, 4, INNER, "expertIdxOptional is NULL although biasOptional");
    REFUSED_WITHOUT(finalize_grad, 3, INNER, "expandedRowIdx has shape [6], expected [T*K] = [3]");
    REFUSED_WITH(finalize_grad, 6, VALUES(ACL_BF16, NULL, 6, 2), INVALID, "gradExpandedXOut has");
    REFUSED_WITH(finalize_grad, 7, VALUES(ACL_BF16, NULL, 3, 2), INVALID, "gradScalesOut has data");
    REFUSED_WITH(finalize_grad, 6, VALUES(ACL_FLOAT, NULL, 5, 2), INNER, "gradExpandedXOut has");
    REFUSED_WITH(finalize_grad, 7, VALUES(ACL_FLOAT, NULL, 2, 2), INNER, "gradScalesOut has shape");
    REFUSED_OPTION(finalize_grad, 0, 2, INNER, "dropPadMode = 2");
    REFUSED_OPTION(finalize_grad, 0, 1, INNER, "expertNum = 0");
    REFUSED_OPTION(finalize_grad, 1, 4, INNER, "expandedXOptional has shape [6, 2]");
    VALUES_REFUSED(finalize_grad, 1, VALUES(ACL_INT32, INTS(2, 4, 0, 3, 1, 7), 6),
                   "expandedRowIdx[5] = 7 is outside [-1, 6)");
    VALUES_REFUSED(finalize_grad, 1, VALUES(ACL_INT32, INTS(2, 4, 0, 3, 2, 5), 6), "out_index");
    VALUES_REFUSED(finalize_grad, 4, VALUES(ACL_INT32, INTS(0, 1, 2, 3, 0, 0), 3, 2),
                   "expert_ids[1, 1] = 3");
    REFUSED_OPTION(finalize_grad_padded, 3, 0, INNER, "expertCapacity = 0");
    REFUSED_OPTION(finalize_grad_padded, 2, 2, INNER, "biasOptional has 3 rows");
    REFUSED_OPTION(finalize_grad_padded, 3, 3, INNER, "expandedXOptional has shape [3, 2, 2]");
    REFUSED_WITH(finalize_grad_padded, 6, VALUES(ACL_FLOAT, NULL, 6, 2), INNER,
                 "gradExpandedXOut has shape [6, 2]");
}

/* ---- re-routing ----------------------------------------------------------------------------- */

static void re_routing_statuses(void **state)
{
    (void)state;
    const int required[] = {0, 1, 3, 5, 6};
    for (int i = 0; i < 5; i++)
        REFUSED_WITHOUT(re_routing, required[i], NULLPTR, "is NULL");
    REFUSED_WITHOUT(re_routing, 4, NULLPTR, "permutePerTokenScalesOut is NULL although");
    REFUSED_WITH(re_routing, 0, VALUES(ACL_FLOAT, NULL, 3, 2), INVALID, "tokens has data type 0");
    REFUSED_WITH(re_routing, 3, VALUES(ACL_INT8, NULL, 3, 2), INVALID, "permuteTokensOut has data");
    REFUSED_WITH(re_routing, 6, VALUES(ACL_INT64, NULL, 2), INVALID, "expertTokenNumOut has data");
    REFUSED_WITH(re_routing, 1, VALUES(ACL_INT32, NULL, 4), TILING, "NumPerRank has shape [4]");
    REFUSED_WITH(re_routing, 2, VALUES(ACL_FLOAT, NULL, 2), TILING, "perTokenScalesOptional has");
    REFUSED_WITH(re_routing, 4, VALUES(ACL_FLOAT, NULL, 2), TILING, "PerTokenScalesOut has shape");
    REFUSED_WITH(re_routing, 5, VALUES(ACL_INT32, NULL, 2), TILING, "permuteTokenIdxOut has shape");
    REFUSED_WITH(re_routing, 6, VALUES(ACL_INT32, NULL, 3), TILING, "expertTokenNumOut has shape");
    REFUSED_OPTION(re_routing, 0, 2, TILING, "expertTokenNumType = 2");
    REFUSED_OPTION(re_routing, 1, 2, TILING, "idxType = 2");
    VALUES_REFUSED(re_routing, 1, VALUES(ACL_INT32, INTS(1, 0, 1, 2), 2, 2),
                   "expertTokenNumPerRank[1, 1] = 2, expected 0 to 1");
    VALUES_REFUSED(re_routing, 1, VALUES(ACL_INT32, INTS(2, -1, 1, 1), 2, 2),
                   "expertTokenNumPerRank[0, 1] = -1");
    VALUES_REFUSED(re_routing, 1, VALUES(ACL_INT32, INTS(1, 0, 1, 0), 2, 2),
                   "adds up to 2, expected 3");
}

/* ---- products ------------------------------------------------------------------------------- */

static void products(void **state)
{
    (void)state;
    assert_int_equal(setenv("MOETOKEN_SOC", "Ascend910B", 1), 0);
    REFUSED_OPTION(re_routing, 0, 0, TILING, "no product has running sums");
    REFUSED_WITH(finalize_v2, 5, VALUES(ACL_BF16, NULL, 3, 2), INVALID, "scalesOptional has data");
    REFUSED_WITH(finalize_grad, 3, VALUES(ACL_BF16, NULL, 3, 2), INVALID,
                 "scalesOptional has data");
    struct call call = init_v3.make();
    call.option[2] = 10241;
    call_set_range(&call, (const int64_t[]){1, 10241}, 2);
    expect_refused(&init_v3, &call, TILING, "a product takes at most 10240", __LINE__);
    assert_int_equal(setenv("MOETOKEN_SOC", "Ascend950", 1), 0);
    call = finalize_v1.make();
    expect_refused(&finalize_v1, &call, ACLNN_ERR_INNER_FIND_KERNEL_ERROR, "does not have this",
                   __LINE__);
    assert_int_equal(setenv("MOETOKEN_SOC", "Ascend910A", 1), 0);
    call = init_v2.make();
    expect_refused(&init_v2, &call, ACLNN_ERR_INNER_FIND_KERNEL_ERROR, "does not have this",
                   __LINE__);
    assert_int_equal(unsetenv("MOETOKEN_SOC"), 0);
}

/* ---- views ---------------------------------------------------------------------------------- */

/* A view of [E,C,H] in which no stride goes from one expert to the next. */
static void gaps_between_experts(void **state)
{
    (void)state;
    const int64_t shape[] = {3, 2, 2}, strides[] = {6, 2, 1}, storage[] = {18};
    struct call call = init_v2_padded.make();
    struct values memory = VALUES(ACL_FLOAT, NULL, 18);
    aclTensor *own = call.tensor[2].twin.tensor;
    call.tensor[2].twin.tensor = aclCreateTensor(shape, 3, ACL_FLOAT, strides, 0, ACL_FORMAT_ND,
                                                 storage, 1, memory.twin.data);
    assert_fails(init_v2_padded.phase_one(&call), ACLNN_ERR_INNER_NULLPTR,
                 "expandedXOut has strides 6, 2");
    assert_int_equal(aclDestroyTensor(call.tensor[2].twin.tensor), ACL_SUCCESS);
    call.tensor[2].twin.tensor = own;
    values_drop(&memory);
    call_drop(&call);
}

/* expertTokensCountOrCumsumOut as pairs in columns that interleave: no two of them on one another,
 * but with the second view. */
static void interleaved_pairs(void **state)
{
    (void)state;
    for (int meet = 0; meet < 2; meet++) {
        struct call call = init_v3.make();
        call.option[4] = 2;
        call_replace(&call, 6, VALUES(ACL_INT64, NULL, 8));
        values_set_view(&call.tensor[6], (const int64_t[]){3, 2}, 2,
                        meet ? (const int64_t[]){2, 2} : (const int64_t[]){2, 3}, 0, 8);
        if (meet) {
            assert_fails(init_v3.phase_one(&call), ACLNN_ERR_INNER_TILING_ERROR,
                         "expertTokensCountOrCumsumOut: a stride is negative, or two of its");
        } else {
            assert_int_equal(init_v3.phase_one(&call), ACLNN_SUCCESS);
            assert_int_equal(run(init_v3.phase_two, call.bytes, call.executor), ACLNN_SUCCESS);
            int64_t found[8];
            twin_read(&call.tensor[6].twin, found);
            /* Experts 0, 1, 2 have two slots each. */
            assert_memory_equal(found, ((const int64_t[]){0, -1, 1, 2, 2, 2, -1, 2}), sizeof found);
        }
        call_drop(&call);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(init_v1_statuses),     cmocka_unit_test(init_v2_statuses),
        cmocka_unit_test(init_v2_negative_id),  cmocka_unit_test(init_v3_statuses),
        cmocka_unit_test(quantised_modes),      cmocka_unit_test(init_v3_padded_statuses),
        cmocka_unit_test(init_grad_statuses),   cmocka_unit_test(finalize_v1_statuses),
        cmocka_unit_test(finalize_v2_statuses), cmocka_unit_test(finalize_grad_statuses),
        cmocka_unit_test(re_routing_statuses),  cmocka_unit_test(products),
        cmocka_unit_test(gaps_between_experts), cmocka_unit_test(interleaved_pairs),
    };
    return cmocka_run_group_tests(tests, twin_setup, twin_teardown);
}
