/* workspace_test.c - what the operators make of workspaces: missing, too small, not aligned, on top
 * of a tensor; and of outputs over inputs. */
#include "calls.h"

/* As they stand, the calls are right. */
static void right_calls(void **state)
{
    (void)state;
    for (int i = 0; i < operators_num; i++) {
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
    for (int i = 0; i < operators_num; i++) {
        struct call call = all_operators[i]->make();
        assert_int_equal(all_operators[i]->phase_one(&call), ACLNN_SUCCESS);
        if (call.bytes > 0)
            refuse_workspaces(all_operators[i], &call);
        call_drop(&call);
    }
}

/* Addresses changed so that the first output lies on the first input: nothing is computed. */
static void outputs_over_inputs(void **state)
{
    (void)state;
    for (int i = 0; i < operators_num; i++) {
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(right_calls),
        cmocka_unit_test(workspaces),
        cmocka_unit_test(outputs_over_inputs),
    };
    return cmocka_run_group_tests(tests, twin_setup, twin_teardown);
}
