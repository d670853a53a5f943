/* workspace_test.c - what the init, finalize and re-routing operators make of workspaces and views:
 * missing, too small, not aligned, on top of a tensor; outputs over inputs; rows with gaps. */
#include "calls.h"

static const struct tested *const all_operators[] = {
    &init_v1,   &init_v2,     &init_v2_padded, &init_v3,       &init_v3_padded,
    &init_grad, &finalize_v1, &finalize_v2,    &finalize_grad, &finalize_grad_padded,
    &re_routing};
enum {
    OPERATORS_NUM = sizeof all_operators / sizeof all_operators[0]
};

/* As they stand, the calls are right. */
static void right_calls(void **state)
{
    (void)state;
    for (int i = 0; i < OPERATORS_NUM; i++) {
        struct call call = all_operators[i]->make();
        assert_int_equal(all_operators[i]->phase_one(&call), ACLNN_SUCCESS);
        assert_int_equal(run(all_operators[i]->phase_two, call.bytes, call.executor),
                         ACLNN_SUCCESS);
        call_drop(&call);
    }
}

/* Workspaces of `call` that are refused: a view of it is enough, and it can be run afterwards. */
static void refuse_workspaces(const struct tested *tested, const struct call *call)
{
    const struct twin_tensor first = call->tensor[0].twin;
    char *workspace = NULL;
    assert_int_equal(aclrtMalloc((void **)&workspace, call->bytes + 8, ACL_MEM_MALLOC_HUGE_FIRST),
                     ACL_SUCCESS);
    assert_fails(tested->phase_two(NULL, call->bytes, call->executor, twin_stream),
                 ACLNN_ERR_PARAM_NULLPTR, "workspace is NULL");
    assert_fails(tested->phase_two(workspace, call->bytes - 1, call->executor, twin_stream),
                 ACLNN_ERR_PARAM_INVALID, "workspaceSize");
    assert_fails(tested->phase_two(workspace + 4, call->bytes, call->executor, twin_stream),
                 ACLNN_ERR_PARAM_INVALID, "not aligned");
    assert_int_equal(aclSetTensorAddr(call->executor, 0, first.tensor, workspace), ACL_SUCCESS);
    assert_fails(tested->phase_two(workspace, call->bytes, call->executor, twin_stream),
                 ACLNN_ERR_PARAM_INVALID, "workspace shares memory with");
    assert_int_equal(aclSetTensorAddr(call->executor, 0, first.tensor, first.data), ACL_SUCCESS);
    assert_int_equal(tested->phase_two(workspace, call->bytes, call->executor, twin_stream),
                     ACLNN_SUCCESS);
    assert_int_equal(aclrtFree(workspace), ACL_SUCCESS);
}

static void workspaces(void **state)
{
    (void)state;
    for (int i = 0; i < OPERATORS_NUM; i++) {
        struct call call = all_operators[i]->make();
        assert_int_equal(all_operators[i]->phase_one(&call), ACLNN_SUCCESS);
        assert_true(call.bytes > 0);
        refuse_workspaces(all_operators[i], &call);
        call_drop(&call);
    }
}

/* Addresses changed so that the first output lies on the first input: nothing is computed. */
static void outputs_over_inputs(void **state)
{
    (void)state;
    for (int i = 0; i < OPERATORS_NUM; i++) {
        const struct tested *tested = all_operators[i];
        struct call call = tested->make();
        assert_int_equal(tested->phase_one(&call), ACLNN_SUCCESS);
        aclTensor *output = call.tensor[tested->first_output].twin.tensor;
        assert_int_equal(aclSetOutputTensorAddr(call.executor, 0, output, call.tensor[0].twin.data),
                         ACL_SUCCESS);
        assert_int_not_equal(run(tested->phase_two, call.bytes, call.executor), ACLNN_SUCCESS);
        if (strstr(aclGetRecentErrMsg(), "shares memory with") == NULL)
            fail_msg("operator %d: \"%s\"", i, aclGetRecentErrMsg());
        for (int place = tested->first_output + 1; place < TENSORS_MAX; place++)
            if (call.tensor[place].twin.tensor)
                values_expect_untouched(&call.tensor[place], "an output");
        call_drop(&call);
    }
}

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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(right_calls),
        cmocka_unit_test(workspaces),
        cmocka_unit_test(outputs_over_inputs),
        cmocka_unit_test(gaps_between_experts),
    };
    return cmocka_run_group_tests(tests, twin_setup, twin_teardown);
}
