/* values_test.c - what the operators compute through CANN's interface, against numbers worked by
 * hand: views with strides and offsets, optional tensors, types, empty tensors, executors used
 * again. */
#include "twin.h"

#include <math.h>

static void expect_floats(const struct twin_tensor *tensor, const float *expected, size_t count)
{
    float values[64];
    twin_read(tensor, values);
    for (size_t i = 0; i < count; i++)
        if (values[i] != expected[i] || signbit(values[i]) != signbit(expected[i]))
            fail_msg("element %zu is %g, expected %g", i, (double)values[i], (double)expected[i]);
}

static void worked_example(void **state)
{
    (void)state;
    struct grad_call call = grad_call_make();
    assert_int_equal(grad_call_phase_one(&call), ACLNN_SUCCESS);
    assert_int_equal(call.workspace_bytes, 16 * (EXAMPLE_T + EXAMPLE_N));
    assert_int_equal(grad_call_phase_two(&call), ACLNN_SUCCESS);
    expect_floats(&call.rows_grad, example_rows_grad, 10);
    expect_floats(&call.probs_grad, example_probs_grad, 9);
    grad_call_drop(&call);
}

/* Dropless, permuteTokenId's values mean nothing: PyTorch's plug-in passes outIndex. */
static void token_id_is_ignored(void **state)
{
    (void)state;
    struct grad_call call = grad_call_make();
    const int32_t nonsense[] = {2, 99, -7, 0, 1, 2};
    twin_replace(&call.token_id, twin_make(ACL_INT32, 6, -1, nonsense));
    assert_int_equal(grad_call_phase_one(&call), ACLNN_SUCCESS);
    assert_int_equal(grad_call_phase_two(&call), ACLNN_SUCCESS);
    expect_floats(&call.rows_grad, example_rows_grad, 10);
    expect_floats(&call.probs_grad, example_probs_grad, 9);
    grad_call_drop(&call);
}

/* Without probs: the map and the rows are ignored, and probsGradOut is filled with zeros. */
static void without_probs(void **state)
{
    (void)state;
    const float copies[10] = {1, -1, -2, 4, 2, 0, -2, 4, 1, -1}, zeros[9] = {0};
    struct grad_call call = grad_call_make();
    twin_drop(&call.probs);
    twin_replace(&call.map, twin_make(ACL_DOUBLE, 1, 1, NULL));
    twin_replace(&call.rows, twin_make(ACL_DOUBLE, 1, 1, NULL));
    assert_int_equal(grad_call_phase_one(&call), ACLNN_SUCCESS);
    assert_int_equal(grad_call_phase_two(&call), ACLNN_SUCCESS);
    expect_floats(&call.rows_grad, copies, 10);
    expect_floats(&call.probs_grad, zeros, 9);
    grad_call_drop(&call);
}

/* A zero-filled output may be a view: column 1 of [3,2], from element 1 on. */
static void zero_fill_of_a_view(void **state)
{
    (void)state;
    struct grad_call call = grad_call_make();
    twin_drop(&call.probs);
    struct twin_tensor block = twin_make(ACL_FLOAT, 3, 2, example_grad);
    int64_t shape[] = {3, 1}, strides[] = {2, 1}, storage[] = {3, 2};
    aclTensor *own = call.probs_grad.tensor;
    call.probs_grad.tensor =
        aclCreateTensor(shape, 2, ACL_FLOAT, strides, 1, ACL_FORMAT_ND, storage, 2, block.data);
    assert_int_equal(grad_call_phase_one(&call), ACLNN_SUCCESS);
    assert_int_equal(grad_call_phase_two(&call), ACLNN_SUCCESS);
    expect_floats(&block, (const float[]){1, 0, 2, 0, -2, 0}, 6);
    aclDestroyTensor(call.probs_grad.tensor);
    call.probs_grad.tensor = own;
    twin_drop(&block);
    grad_call_drop(&call);
}

/* A row that no slot names is zero, here the sixth; it is undefined on a device. */
static void spare_row_is_zero(void **state)
{
    (void)state;
    struct grad_call call = grad_call_make();
    float rows[12] = {0}, expected[12] = {0};
    memcpy(rows, example_rows, sizeof example_rows);
    memcpy(expected, example_rows_grad, sizeof example_rows_grad);
    twin_replace(&call.rows, twin_make(ACL_FLOAT, 6, 2, rows));
    twin_replace(&call.rows_grad, twin_make(ACL_FLOAT, 6, 2, NULL));
    assert_int_equal(grad_call_phase_one(&call), ACLNN_SUCCESS);
    assert_int_equal(grad_call_phase_two(&call), ACLNN_SUCCESS);
    expect_floats(&call.rows_grad, expected, 12);
    grad_call_drop(&call);
}

/* A slot with a row but beyond the set experts of its token has weight 0. */
static void routing_mismatch_is_tolerated(void **state)
{
    (void)state;
    struct grad_call call = grad_call_make();
    int8_t map[9];
    memcpy(map, example_map, sizeof map);
    map[7] = 0; /* t2 keeps expert 0 alone; its second slot, row 3, has none */
    twin_replace(&call.map, twin_make(ACL_BOOL, 3, 3, map));
    assert_int_equal(grad_call_phase_one(&call), ACLNN_SUCCESS);
    assert_int_equal(grad_call_phase_two(&call), ACLNN_SUCCESS);
    float rows_grad[10], probs_grad[9];
    twin_read(&call.rows_grad, rows_grad);
    twin_read(&call.probs_grad, probs_grad);
    assert_true(rows_grad[6] == 0 && rows_grad[7] == 0 && rows_grad[2] == -1.5F);
    assert_true(probs_grad[6] == 14 && probs_grad[7] == 0);
    grad_call_drop(&call);
}

/* g as the transposed view of [2,3], from element 4 of its memory on; rows_grad inside wider rows.
 */
static void strides_and_offsets(void **state)
{
    (void)state;
    const float g_memory[] = {90, 91, 92, 93, 1, 2, -2, -1, 0, 4};
    struct grad_call call = grad_call_make();
    struct twin_tensor g = twin_make(ACL_FLOAT, 10, -1, g_memory);
    struct twin_tensor wide = twin_make(ACL_FLOAT, 5, 4, NULL);
    int64_t g_shape[] = {3, 2}, g_strides[] = {1, 3}, g_storage[] = {10};
    int64_t out_shape[] = {5, 2}, out_strides[] = {4, 2}, out_storage[] = {5, 4};
    aclTensor *own_g = call.grad.tensor, *own_out = call.rows_grad.tensor;
    call.grad.tensor =
        aclCreateTensor(g_shape, 2, ACL_FLOAT, g_strides, 4, ACL_FORMAT_ND, g_storage, 1, g.data);
    call.rows_grad.tensor = aclCreateTensor(out_shape, 2, ACL_FLOAT, out_strides, 1, ACL_FORMAT_ND,
                                            out_storage, 2, wide.data);
    assert_int_equal(grad_call_phase_one(&call), ACLNN_SUCCESS);
    assert_int_equal(grad_call_phase_two(&call), ACLNN_SUCCESS);
    expect_floats(&call.probs_grad, example_probs_grad, 9);
    float values[20];
    twin_read(&wide, values);
    for (int row = 0; row < 5; row++)
        for (int column = 0; column < 4; column++) {
            float value = values[4 * row + column];
            if (column % 2 == 1)
                assert_true(value == example_rows_grad[2 * row + column / 2]);
            else
                assert_true(value != value); /* NaN: not touched */
        }
    aclDestroyTensor(call.grad.tensor);
    aclDestroyTensor(call.rows_grad.tensor);
    call.grad.tensor = own_g;
    call.rows_grad.tensor = own_out;
    twin_drop(&g);
    twin_drop(&wide);
    grad_call_drop(&call);
}

static struct twin_tensor make_16(aclDataType type, int64_t rows, int64_t columns,
                                  const float *values)
{
    uint16_t halves[16];
    for (int64_t i = 0; i < rows * columns; i++) {
        uint32_t bits;
        memcpy(&bits, &values[i], sizeof bits);
        halves[i] = type == ACL_FLOAT16 ? aclFloatToFloat16(values[i]) : (uint16_t)(bits >> 16);
    }
    return twin_make(type, rows, columns, halves);
}

/* 16-bit tokens with float32 probs: every number of the example is exact in both types. */
static void sixteen_bit_tokens(void **state)
{
    (void)state;
    const aclDataType types[] = {ACL_FLOAT16, ACL_BF16};
    for (int i = 0; i < 2; i++) {
        struct grad_call call = grad_call_make();
        twin_replace(&call.grad, make_16(types[i], 3, 2, example_grad));
        twin_replace(&call.rows, make_16(types[i], 5, 2, example_rows));
        twin_replace(&call.rows_grad, twin_make(types[i], 5, 2, NULL));
        struct twin_tensor expected = make_16(types[i], 5, 2, example_rows_grad);
        assert_int_equal(grad_call_phase_one(&call), ACLNN_SUCCESS);
        assert_int_equal(grad_call_phase_two(&call), ACLNN_SUCCESS);
        assert_memory_equal(call.rows_grad.data, expected.data, expected.bytes);
        expect_floats(&call.probs_grad, example_probs_grad, 9);
        twin_drop(&expected);
        grad_call_drop(&call);
    }
}

/* Every output empty: success, no workspace, and phase two wants none. */
static void all_outputs_empty(void **state)
{
    (void)state;
    struct grad_call call = grad_call_make();
    twin_replace(&call.grad, twin_make(ACL_FLOAT, 3, 0, NULL));
    twin_replace(&call.rows_grad, twin_make(ACL_FLOAT, 5, 0, NULL));
    twin_drop(&call.probs);
    twin_drop(&call.probs_grad);
    assert_int_equal(grad_call_phase_one(&call), ACLNN_SUCCESS);
    assert_int_equal(call.workspace_bytes, 0);
    assert_int_equal(grad_call_phase_two(&call), ACLNN_SUCCESS);
    grad_call_drop(&call);
}

/* No slots at all: outputs that are not empty are zero. */
static void no_slots(void **state)
{
    (void)state;
    struct grad_call call = grad_call_make();
    twin_replace(&call.out_index, twin_make(ACL_INT32, 0, -1, NULL));
    twin_replace(&call.token_id, twin_make(ACL_INT32, 0, -1, NULL));
    twin_replace(&call.rows, twin_make(ACL_FLOAT, 0, 2, NULL));
    twin_replace(&call.rows_grad, twin_make(ACL_FLOAT, 0, 2, NULL));
    twin_replace(&call.map, twin_make(ACL_INT8, 3, 3, (const int8_t[9]){0}));
    assert_int_equal(grad_call_phase_one(&call), ACLNN_SUCCESS);
    assert_int_equal(grad_call_phase_two(&call), ACLNN_SUCCESS);
    expect_floats(&call.probs_grad, (const float[9]){0}, 9);
    grad_call_drop(&call);
}

/* A repeatable executor with other addresses, by tensor and by place. */
static void repeated_with_new_addresses(void **state)
{
    (void)state;
    struct grad_call call = grad_call_make();
    const float twice[6] = {2, -2, 4, 0, -4, 8};
    struct twin_tensor other_grad = twin_make(ACL_FLOAT, 3, 2, twice);
    struct twin_tensor other_out = twin_make(ACL_FLOAT, 5, 2, NULL);
    assert_int_equal(grad_call_phase_one(&call), ACLNN_SUCCESS);
    assert_int_equal(aclSetAclOpExecutorRepeatable(call.executor), ACLNN_SUCCESS);
    assert_int_equal(grad_call_phase_two(&call), ACLNN_SUCCESS);
    assert_int_equal(aclSetInputTensorAddr(call.executor, 0, call.grad.tensor, other_grad.data), 0);
    /* Number 6 of all tensors is permutedTokensGradOut; described by another tensor. */
    assert_int_equal(aclSetTensorAddr(call.executor, 6, other_out.tensor, other_out.data), 0);
    assert_int_equal(grad_call_phase_two(&call), ACLNN_SUCCESS);
    expect_floats(&call.rows_grad, example_rows_grad, 10);
    float doubled[10];
    for (int i = 0; i < 10; i++)
        doubled[i] = 2 * example_rows_grad[i];
    expect_floats(&other_out, doubled, 10);
    assert_fails(aclSetOutputTensorAddr(call.executor, 2, call.rows_grad.tensor, other_out.data),
                 ACLNN_ERR_PARAM_INVALID, "index = 2 is behind the last tensor");
    assert_fails(aclSetOutputTensorAddr(call.executor, 0, NULL, other_out.data),
                 ACLNN_ERR_INNER_NULLPTR, "tensor is NULL");
    assert_fails(aclSetInputTensorAddr(NULL, 0, call.grad.tensor, other_grad.data),
                 ACLNN_ERR_INNER_NULLPTR, "executor is NULL");
    assert_int_equal(aclDestroyAclOpExecutor(call.executor), ACLNN_SUCCESS);
    assert_fails(grad_call_phase_two(&call), ACLNN_ERR_PARAM_INVALID, "is not a live executor");
    twin_drop(&other_grad);
    twin_drop(&other_out);
    grad_call_drop(&call);
}

/* permute's and permute_grad's optional outputs without the input they belong to. */
static void family_zero_fill(void **state)
{
    (void)state;
    uint64_t bytes;
    aclOpExecutor *executor;
    void *workspace;
    struct twin_tensor tokens = twin_make(ACL_FLOAT, 3, 2, example_grad);
    struct twin_tensor map = twin_make(ACL_INT8, 3, 3, example_map);
    struct twin_tensor rows = twin_make(ACL_FLOAT, 5, 2, NULL);
    struct twin_tensor row_probs = twin_make(ACL_FLOAT, 5, -1, NULL);
    struct twin_tensor indices = twin_make(ACL_INT32, 6, -1, NULL);
    struct twin_tensor probs_grad = twin_make(ACL_FLOAT, 3, 3, NULL);
    assert_int_equal(aclrtMalloc(&workspace, 1024, ACL_MEM_MALLOC_HUGE_FIRST), 0);
    assert_int_equal(aclnnMoeTokenPermuteWithRoutingMapGetWorkspaceSize(
                         tokens.tensor, map.tensor, NULL, 6, false, rows.tensor, row_probs.tensor,
                         indices.tensor, &bytes, &executor),
                     ACLNN_SUCCESS);
    assert_int_equal(aclnnMoeTokenPermuteWithRoutingMap(workspace, 1024, executor, NULL), 0);
    expect_floats(&rows, (const float[]){1, -1, -2, 4, 2, 0, -2, 4, 1, -1}, 10);
    expect_floats(&row_probs, (const float[5]){0}, 5);
    int32_t found[6];
    twin_read(&indices, found);
    assert_memory_equal(found, example_out_index, sizeof found);
    assert_int_equal(aclnnMoeTokenPermuteWithRoutingMapGradGetWorkspaceSize(
                         rows.tensor, NULL, indices.tensor, NULL, 3, 3, false, tokens.tensor,
                         probs_grad.tensor, &bytes, &executor),
                     ACLNN_SUCCESS);
    assert_int_equal(aclnnMoeTokenPermuteWithRoutingMapGrad(workspace, 1024, executor, NULL), 0);
    expect_floats(&tokens, (const float[]){2, -2, 2, 0, -4, 8}, 6);
    expect_floats(&probs_grad, (const float[9]){0}, 9);
    struct twin_tensor *all[] = {&tokens, &map, &rows, &row_probs, &indices, &probs_grad};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        twin_drop(all[i]);
    assert_int_equal(aclrtFree(workspace), ACL_SUCCESS);
}

/* unpermute without probs: weights 1, {T, H} from restoreShape, permuteProbs of shape [0]. */
static void unpermute_without_probs(void **state)
{
    (void)state;
    uint64_t bytes;
    aclOpExecutor *executor;
    void *workspace;
    const int64_t sizes[] = {3, 2};
    aclIntArray *restore_shape = aclCreateIntArray(sizes, 2);
    struct twin_tensor rows = twin_make(ACL_FLOAT, 5, 2, example_rows);
    struct twin_tensor indices = twin_make(ACL_INT32, 6, -1, example_out_index);
    struct twin_tensor tokens = twin_make(ACL_FLOAT, 3, 2, NULL);
    struct twin_tensor out_index = twin_make(ACL_INT32, 6, -1, NULL);
    struct twin_tensor token_id = twin_make(ACL_INT32, 6, -1, NULL);
    struct twin_tensor none = twin_make(ACL_FLOAT, 0, -1, NULL);
    assert_int_equal(aclnnMoeTokenUnpermuteWithRoutingMapGetWorkspaceSize(
                         rows.tensor, indices.tensor, NULL, NULL, false, restore_shape,
                         tokens.tensor, out_index.tensor, token_id.tensor, none.tensor, &bytes,
                         &executor),
                     ACLNN_SUCCESS);
    assert_int_equal(aclrtMalloc(&workspace, bytes, ACL_MEM_MALLOC_HUGE_FIRST), 0);
    assert_int_equal(aclnnMoeTokenUnpermuteWithRoutingMap(workspace, bytes, executor, twin_stream),
                     0);
    expect_floats(&tokens, (const float[]){2, 4, 3, 4, 10, 12}, 6);
    int32_t found[6];
    twin_read(&out_index, found);
    assert_memory_equal(found, example_out_index, sizeof found);
    twin_read(&token_id, found);
    assert_memory_equal(found, example_token_id, sizeof found);
    struct twin_tensor *all[] = {&rows, &indices, &tokens, &out_index, &token_id, &none};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        twin_drop(all[i]);
    aclDestroyIntArray(restore_shape);
    assert_int_equal(aclrtFree(workspace), ACL_SUCCESS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(worked_example),
        cmocka_unit_test(token_id_is_ignored),
        cmocka_unit_test(without_probs),
        cmocka_unit_test(zero_fill_of_a_view),
        cmocka_unit_test(spare_row_is_zero),
        cmocka_unit_test(routing_mismatch_is_tolerated),
        cmocka_unit_test(strides_and_offsets),
        cmocka_unit_test(sixteen_bit_tokens),
        cmocka_unit_test(all_outputs_empty),
        cmocka_unit_test(no_slots),
        cmocka_unit_test(repeated_with_new_addresses),
        cmocka_unit_test(family_zero_fill),
        cmocka_unit_test(unpermute_without_probs),
    };
    return cmocka_run_group_tests(tests, twin_setup, twin_teardown);
}
