/* twin.c - see twin.h. The example's results are worked by hand from the contract's formulas. */
#include "twin.h"

aclrtStream twin_stream;

const float example_grad[6] = {1, -1, 2, 0, -2, 4};
const float example_rows[10] = {1, 2, 5, 6, 3, 4, 5, 6, 1, 2};
const float example_probs[9] = {0.5F, 9, 0.25F, 9, 1, 9, 0.75F, 0.5F, 9};
const int8_t example_map[9] = {1, 0, 1, 0, 1, 0, 1, 1, 0};
const int32_t example_out_index[6] = {0, 4, 2, -1, 1, 3};
const int32_t example_token_id[6] = {0, 0, 1, 1, 2, 2};
const float example_rows_grad[10] = {0.5F, -0.5F, -1.5F, 3, 2, 0, -1, 2, 0.25F, -0.25F};
const float example_probs_grad[9] = {-1, 0, -1, 0, 6, 0, 14, 14, 0};

int twin_setup(void **state)
{
    (void)state;
    assert_int_equal(aclInit(NULL), ACL_SUCCESS);
    assert_int_equal(aclrtSetDevice(0), ACL_SUCCESS);
    assert_int_equal(aclrtCreateStream(&twin_stream), ACL_SUCCESS);
    return 0;
}

int twin_teardown(void **state)
{
    (void)state;
    assert_int_equal(aclrtDestroyStream(twin_stream), ACL_SUCCESS);
    assert_int_equal(aclrtResetDevice(0), ACL_SUCCESS);
    assert_int_equal(aclFinalize(), ACL_SUCCESS);
    return 0;
}

struct twin_tensor twin_make(aclDataType type, int64_t rows, int64_t columns, const void *host)
{
    int64_t shape[] = {rows, columns};
    uint64_t rank = columns < 0 ? 1 : 2;
    struct twin_tensor made = {NULL, NULL, 0};
    made.bytes = (size_t)(rows * (rank == 1 ? 1 : columns)) * aclDataTypeSize(type);
    if (made.bytes > 0) {
        assert_int_equal(aclrtMalloc(&made.data, made.bytes, ACL_MEM_MALLOC_HUGE_FIRST), 0);
        if (host)
            assert_int_equal(
                aclrtMemcpy(made.data, made.bytes, host, made.bytes, ACL_MEMCPY_HOST_TO_DEVICE), 0);
        else
            assert_int_equal(aclrtMemset(made.data, made.bytes, 0xFF, made.bytes), 0);
    }
    made.tensor =
        aclCreateTensor(shape, rank, type, NULL, 0, ACL_FORMAT_ND, shape, rank, made.data);
    assert_non_null(made.tensor);
    return made;
}

void twin_drop(struct twin_tensor *tensor)
{
    assert_int_equal(aclDestroyTensor(tensor->tensor), ACL_SUCCESS);
    if (tensor->data)
        assert_int_equal(aclrtFree(tensor->data), ACL_SUCCESS);
    *tensor = (struct twin_tensor){NULL, NULL, 0};
}

void twin_read(const struct twin_tensor *tensor, void *host)
{
    assert_int_equal(
        aclrtMemcpy(host, tensor->bytes, tensor->data, tensor->bytes, ACL_MEMCPY_DEVICE_TO_HOST),
        ACL_SUCCESS);
}

void twin_replace(struct twin_tensor *place, struct twin_tensor by)
{
    twin_drop(place);
    *place = by;
}

struct grad_call grad_call_make(void)
{
    return (struct grad_call){.grad = twin_make(ACL_FLOAT, EXAMPLE_T, EXAMPLE_H, example_grad),
                              .out_index = twin_make(ACL_INT32, EXAMPLE_N, -1, example_out_index),
                              .token_id = twin_make(ACL_INT32, EXAMPLE_N, -1, example_token_id),
                              .map = twin_make(ACL_INT8, EXAMPLE_T, EXAMPLE_E, example_map),
                              .rows = twin_make(ACL_FLOAT, EXAMPLE_R, EXAMPLE_H, example_rows),
                              .probs = twin_make(ACL_FLOAT, EXAMPLE_T, EXAMPLE_E, example_probs),
                              .rows_grad = twin_make(ACL_FLOAT, EXAMPLE_R, EXAMPLE_H, NULL),
                              .probs_grad = twin_make(ACL_FLOAT, EXAMPLE_T, EXAMPLE_E, NULL)};
}

void grad_call_drop(struct grad_call *call)
{
    struct twin_tensor *all[] = {&call->grad,      &call->out_index, &call->token_id,
                                 &call->map,       &call->rows,      &call->probs,
                                 &call->rows_grad, &call->probs_grad};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        twin_drop(all[i]);
}

aclnnStatus grad_call_phase_one(struct grad_call *call)
{
    return aclnnMoeTokenUnpermuteWithRoutingMapGradGetWorkspaceSize(
        call->grad.tensor, call->out_index.tensor, call->token_id.tensor, call->map.tensor,
        call->rows.tensor, call->probs.tensor, call->drop_and_pad, call->restore_shape,
        call->rows_grad.tensor, call->probs_grad.tensor, &call->workspace_bytes, &call->executor);
}

aclnnStatus grad_call_phase_two(struct grad_call *call)
{
    void *workspace = NULL;
    if (call->workspace_bytes > 0)
        assert_int_equal(aclrtMalloc(&workspace, call->workspace_bytes, ACL_MEM_MALLOC_HUGE_FIRST),
                         0);
    aclnnStatus status = aclnnMoeTokenUnpermuteWithRoutingMapGrad(workspace, call->workspace_bytes,
                                                                  call->executor, twin_stream);
    if (workspace)
        assert_int_equal(aclrtFree(workspace), ACL_SUCCESS);
    return status;
}

void twin_assert_fails(int status, int expected, const char *words, int line)
{
    if (status != expected || strstr(aclGetRecentErrMsg(), words) == NULL)
        fail_msg("line %d: status %d, expected %d; message \"%s\", expected to hold \"%s\"", line,
                 status, expected, aclGetRecentErrMsg(), words);
}
