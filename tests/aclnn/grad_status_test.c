/* grad_status_test.c - every status of both phases of unpermute_grad, each with the words that come
 * with it, and that nothing is written when a call fails. */
#include "twin.h"

static void refused(struct grad_call *call, aclnnStatus status, const char *words)
{
    call->executor = NULL;
    assert_fails(grad_call_phase_one(call), status, words);
    assert_null(call->executor);
    grad_call_drop(call);
}

/* A required pointer is null: 161001. */
static void null_pointers(void **state)
{
    (void)state;
    static const struct {
        size_t place;
        const char *name;
    } required[] = {{offsetof(struct grad_call, grad), "unpermutedTokensGrad is NULL"},
                    {offsetof(struct grad_call, out_index), "outIndex is NULL"},
                    {offsetof(struct grad_call, token_id), "permuteTokenId is NULL"},
                    {offsetof(struct grad_call, rows_grad), "permutedTokensGradOut is NULL"}};
    for (size_t i = 0; i < sizeof required / sizeof required[0]; i++) {
        struct grad_call call = grad_call_make();
        struct twin_tensor *tensor = (struct twin_tensor *)((char *)&call + required[i].place);
        twin_drop(tensor);
        refused(&call, ACLNN_ERR_PARAM_NULLPTR, required[i].name);
    }
    struct grad_call call = grad_call_make();
    assert_fails(aclnnMoeTokenUnpermuteWithRoutingMapGradGetWorkspaceSize(
                     call.grad.tensor, call.out_index.tensor, call.token_id.tensor, NULL, NULL,
                     NULL, false, NULL, call.rows_grad.tensor, NULL, NULL, &call.executor),
                 ACLNN_ERR_PARAM_NULLPTR, "workspaceSize is NULL");
    assert_fails(aclnnMoeTokenUnpermuteWithRoutingMapGradGetWorkspaceSize(
                     call.grad.tensor, call.out_index.tensor, call.token_id.tensor, NULL, NULL,
                     NULL, false, NULL, call.rows_grad.tensor, NULL, &call.workspace_bytes, NULL),
                 ACLNN_ERR_PARAM_NULLPTR, "executor is NULL");
    grad_call_drop(&call);
}

/* A type or format that is not supported: 161002. */
static void types(void **state)
{
    (void)state;
    struct grad_call call = grad_call_make();
    twin_replace(&call.grad, twin_make(ACL_DOUBLE, 3, 2, NULL));
    refused(&call, ACLNN_ERR_PARAM_INVALID, "unpermutedTokensGrad has data type 11");
    call = grad_call_make();
    twin_replace(&call.out_index, twin_make(ACL_INT64, 6, -1, NULL));
    refused(&call, ACLNN_ERR_PARAM_INVALID, "outIndex has data type 9, expected ACL_INT32");
    call = grad_call_make();
    twin_replace(&call.token_id, twin_make(ACL_INT64, 6, -1, NULL));
    refused(&call, ACLNN_ERR_PARAM_INVALID, "permuteTokenId has data type 9");
    call = grad_call_make();
    twin_replace(&call.map, twin_make(ACL_UINT8, 3, 3, NULL));
    refused(&call, ACLNN_ERR_PARAM_INVALID, "routingMapOptional has data type 4");
    call = grad_call_make();
    twin_replace(&call.rows, twin_make(ACL_FLOAT16, 5, 2, NULL));
    refused(&call, ACLNN_ERR_PARAM_INVALID, "permutedTokensOptional has data type 1");
    call = grad_call_make();
    twin_replace(&call.probs, twin_make(ACL_INT32, 3, 3, NULL));
    refused(&call, ACLNN_ERR_PARAM_INVALID, "probsOptional has data type 3");
    call = grad_call_make();
    twin_replace(&call.rows_grad, twin_make(ACL_BF16, 5, 2, NULL));
    refused(&call, ACLNN_ERR_PARAM_INVALID, "permutedTokensGradOut has data type 27");
    call = grad_call_make();
    twin_replace(&call.probs_grad, twin_make(ACL_FLOAT16, 3, 3, NULL));
    refused(&call, ACLNN_ERR_PARAM_INVALID, "probsGradOutOptional has data type 1");
}

static struct twin_tensor described(struct twin_tensor of, aclFormat format, int64_t offset)
{
    int64_t shape[] = {EXAMPLE_T, EXAMPLE_H};
    aclDestroyTensor(of.tensor);
    of.tensor = aclCreateTensor(shape, 2, ACL_FLOAT, NULL, offset, format, shape, 2, of.data);
    return of;
}

static void formats(void **state)
{
    (void)state;
    struct grad_call call = grad_call_make();
    call.grad = described(call.grad, ACL_FORMAT_FRACTAL_NZ, 0);
    refused(&call, ACLNN_ERR_PARAM_INVALID, "unpermutedTokensGrad has format 29");
    call = grad_call_make();
    call.grad = described(call.grad, ACL_FORMAT_ND, -1);
    refused(&call, ACLNN_ERR_PARAM_INVALID, "unpermutedTokensGrad has offset -1");
}

/* Ranks and shapes: 561002. */
static void shapes(void **state)
{
    (void)state;
    struct grad_call call = grad_call_make();
    twin_replace(&call.grad, twin_make(ACL_FLOAT, 3, -1, NULL));
    refused(&call, ACLNN_ERR_INNER_TILING_ERROR, "unpermuted_tokens_grad");
    call = grad_call_make();
    twin_replace(&call.out_index, twin_make(ACL_INT32, 5, -1, NULL));
    refused(&call, ACLNN_ERR_INNER_TILING_ERROR, "outIndex");
    call = grad_call_make();
    twin_replace(&call.out_index, twin_make(ACL_INT32, 5, -1, NULL));
    twin_replace(&call.token_id, twin_make(ACL_INT32, 5, -1, NULL));
    refused(&call, ACLNN_ERR_INNER_TILING_ERROR, "multiple"); /* 5 slots, 3 tokens */
    call = grad_call_make();
    twin_replace(&call.rows_grad, twin_make(ACL_FLOAT, 5, 3, NULL));
    refused(&call, ACLNN_ERR_INNER_TILING_ERROR, "permuted_tokens_grad");
    call = grad_call_make();
    twin_replace(&call.probs_grad, twin_make(ACL_FLOAT, 3, 4, NULL));
    refused(&call, ACLNN_ERR_INNER_TILING_ERROR, "probs_grad");
    call = grad_call_make();
    twin_replace(&call.map, twin_make(ACL_INT8, 2, 3, NULL));
    refused(&call, ACLNN_ERR_INNER_TILING_ERROR, "routing_map");
}

static void restore_shape(void **state)
{
    (void)state;
    const int64_t good[] = {3, 2}, bad[] = {3, 3}, three[] = {3, 2, 1};
    aclIntArray *arrays[] = {aclCreateIntArray(good, 2), aclCreateIntArray(bad, 2),
                             aclCreateIntArray(three, 3), aclCreateIntArray(NULL, 0)};
    struct grad_call call = grad_call_make();
    call.restore_shape = arrays[1];
    refused(&call, ACLNN_ERR_INNER_TILING_ERROR, "restore_shape");
    call = grad_call_make();
    call.restore_shape = arrays[2];
    refused(&call, ACLNN_ERR_INNER_TILING_ERROR, "restoreShape has 3 values, expected 2");
    for (int i = 0; i < 4; i += 3) {
        call = grad_call_make();
        call.restore_shape = arrays[i];
        assert_int_equal(grad_call_phase_one(&call), ACLNN_SUCCESS);
        assert_int_equal(aclDestroyAclOpExecutor(call.executor), ACLNN_SUCCESS);
        grad_call_drop(&call);
    }
    for (int i = 0; i < 4; i++)
        assert_int_equal(aclDestroyIntArray(arrays[i]), ACLNN_SUCCESS);
}

/* What probs need, and their type: 561002. */
static void probs(void **state)
{
    (void)state;
    struct grad_call call = grad_call_make();
    twin_drop(&call.map);
    refused(&call, ACLNN_ERR_INNER_TILING_ERROR,
            "routingMapOptional is NULL although probsOptional is given");
    call = grad_call_make();
    twin_drop(&call.rows);
    refused(&call, ACLNN_ERR_INNER_TILING_ERROR, "permutedTokensOptional is NULL");
    call = grad_call_make();
    twin_replace(&call.probs, twin_make(ACL_FLOAT16, 3, 3, NULL));
    twin_replace(&call.probs_grad, twin_make(ACL_FLOAT16, 3, 3, NULL));
    refused(&call, ACLNN_ERR_INNER_TILING_ERROR, "probsOptional has data type 1");
}

/* T tokens, E experts, N slots, H = 1, all with probs. */
static struct grad_call sized(int64_t tokens, int64_t experts, int64_t slots, bool drop_and_pad)
{
    return (struct grad_call){.grad = twin_make(ACL_FLOAT, tokens, 1, NULL),
                              .out_index = twin_make(ACL_INT32, slots, -1, NULL),
                              .token_id = twin_make(ACL_INT32, slots, -1, NULL),
                              .map = twin_make(ACL_BOOL, tokens, experts, NULL),
                              .rows = twin_make(ACL_FLOAT, slots, 1, NULL),
                              .probs = twin_make(ACL_FLOAT, tokens, experts, NULL),
                              .rows_grad = twin_make(ACL_FLOAT, slots, 1, NULL),
                              .probs_grad = twin_make(ACL_FLOAT, tokens, experts, NULL),
                              .drop_and_pad = drop_and_pad};
}

static void accepted(struct grad_call call)
{
    assert_int_equal(grad_call_phase_one(&call), ACLNN_SUCCESS);
    assert_int_equal(aclDestroyAclOpExecutor(call.executor), ACLNN_SUCCESS);
    grad_call_drop(&call);
}

/* K > 512, K > E, C > T: 561002; and the largest that pass. */
static void slots_of_a_token(void **state)
{
    (void)state;
    struct grad_call call = sized(1, 600, 513, false);
    refused(&call, ACLNN_ERR_INNER_TILING_ERROR, "513 / 1 = 513 is above 512");
    accepted(sized(1, 600, 512, false));
    call = sized(2, 3, 8, false);
    refused(&call, ACLNN_ERR_INNER_TILING_ERROR, "8 / 2 = 4 is above experts_num = 3");
    accepted(sized(2, 4, 8, false));
    call = sized(2, 2, 6, true); /* C = 3 */
    refused(&call, ACLNN_ERR_INNER_TILING_ERROR, "3");
    accepted(sized(3, 2, 6, true));
    call = sized(1, 600, 513, false); /* without probs nothing limits K */
    twin_drop(&call.probs);
    twin_drop(&call.probs_grad);
    accepted(call);
}

/* Which bytes of the outputs changed since they were filled with 0xFF. */
static bool untouched(const struct twin_tensor *output)
{
    const unsigned char *bytes = output->data;
    for (size_t i = 0; i < output->bytes; i++)
        if (bytes[i] != 0xFF)
            return false;
    return true;
}

static void bad_values(const int32_t out_index[6], const char *words)
{
    struct grad_call call = grad_call_make();
    twin_replace(&call.out_index, twin_make(ACL_INT32, 6, -1, out_index));
    assert_int_equal(grad_call_phase_one(&call), ACLNN_SUCCESS);
    assert_fails(grad_call_phase_two(&call), ACLNN_ERR_INNER_TILING_ERROR, words);
    assert_true(untouched(&call.rows_grad));
    assert_true(untouched(&call.probs_grad));
    grad_call_drop(&call);
}

/* Values are found wrong in phase two: 561002 and nothing written. */
static void values(void **state)
{
    (void)state;
    bad_values((const int32_t[]){0, 4, 2, -1, 1, 5}, "out_index[5] = 5 is outside [0, 5)");
    bad_values((const int32_t[]){0, -2, 2, -1, 1, 3}, "out_index[1] = -2");
    bad_values((const int32_t[]){0, 4, 2, -1, 1, 4}, "out_index");
    struct grad_call call = sized(3, 3, 6, true);
    const int32_t rows[] = {0, 4, 2, 5, 1, 3}, tokens[] = {0, 0, 1, 1, 2, 3};
    twin_replace(&call.out_index, twin_make(ACL_INT32, 6, -1, rows));
    twin_replace(&call.token_id, twin_make(ACL_INT32, 6, -1, tokens));
    assert_int_equal(grad_call_phase_one(&call), ACLNN_SUCCESS);
    assert_fails(grad_call_phase_two(&call), ACLNN_ERR_INNER_TILING_ERROR,
                 "permute_token_id[5] = 3 is outside [0, 3)");
    grad_call_drop(&call);
}

/* Phase two's own arguments. */
static void phase_two_arguments(void **state)
{
    (void)state;
    struct grad_call call = grad_call_make();
    void *workspace;
    assert_fails(aclnnMoeTokenUnpermuteWithRoutingMapGrad(NULL, 0, NULL, twin_stream),
                 ACLNN_ERR_PARAM_NULLPTR, "executor is NULL");
    assert_int_equal(grad_call_phase_one(&call), ACLNN_SUCCESS);
    uint64_t bytes = call.workspace_bytes;
    assert_true(bytes > 0);
    assert_int_equal(aclrtMalloc(&workspace, bytes, ACL_MEM_MALLOC_HUGE_FIRST), 0);
    assert_fails(aclnnMoeTokenUnpermuteWithRoutingMapGrad(NULL, bytes, call.executor, twin_stream),
                 ACLNN_ERR_PARAM_NULLPTR, "workspace is NULL");
    assert_fails(
        aclnnMoeTokenUnpermuteWithRoutingMapGrad(workspace, bytes - 1, call.executor, twin_stream),
        ACLNN_ERR_PARAM_INVALID, "workspaceSize = 143, expected 144");
    assert_fails(aclnnMoeTokenPermuteWithRoutingMap(workspace, bytes, call.executor, twin_stream),
                 ACLNN_ERR_PARAM_INVALID,
                 "executor is one of aclnnMoeTokenUnpermuteWithRoutingMapGrad");
    int no_stream;
    assert_fails(
        aclnnMoeTokenUnpermuteWithRoutingMapGrad(workspace, bytes, call.executor, &no_stream),
        ACLNN_ERR_RUNTIME_ERROR, "is not a live stream");
    /* None of these was a run; the first run consumes the executor. */
    assert_int_equal(
        aclnnMoeTokenUnpermuteWithRoutingMapGrad(workspace, bytes, call.executor, twin_stream), 0);
    assert_fails(
        aclnnMoeTokenUnpermuteWithRoutingMapGrad(workspace, bytes, call.executor, twin_stream),
        ACLNN_ERR_PARAM_INVALID, "its first run consumes it");
    assert_int_equal(aclrtFree(workspace), ACL_SUCCESS);
    grad_call_drop(&call);
}

/* A tensor may get its data later; without any, phase two refuses. */
static void no_data(void **state)
{
    (void)state;
    struct grad_call call = grad_call_make();
    int64_t shape[] = {3, 2};
    aclTensor *empty_handed =
        aclCreateTensor(shape, 2, ACL_FLOAT, NULL, 0, ACL_FORMAT_ND, shape, 2, NULL);
    aclTensor *with_data = call.grad.tensor;
    call.grad.tensor = empty_handed;
    assert_int_equal(grad_call_phase_one(&call), ACLNN_SUCCESS);
    assert_fails(grad_call_phase_two(&call), ACLNN_ERR_PARAM_NULLPTR, "unpermuted_tokens_grad");
    assert_int_equal(grad_call_phase_one(&call), ACLNN_SUCCESS);
    assert_int_equal(aclSetInputTensorAddr(call.executor, 0, empty_handed, call.grad.data), 0);
    assert_int_equal(grad_call_phase_two(&call), ACLNN_SUCCESS);
    call.grad.tensor = with_data;
    aclDestroyTensor(empty_handed);
    grad_call_drop(&call);
}

/* Outputs that share memory with something else. */
static void overlaps(void **state)
{
    (void)state;
    struct grad_call call = grad_call_make();
    aclTensor *own = call.rows_grad.tensor;
    call.rows_grad.tensor = call.rows.tensor; /* in place: allowed */
    assert_int_equal(grad_call_phase_one(&call), ACLNN_SUCCESS);
    assert_int_equal(grad_call_phase_two(&call), ACLNN_SUCCESS);
    assert_memory_equal(call.rows.data, example_rows_grad, sizeof example_rows_grad);
    call.rows_grad.tensor = own;
    int64_t shape[] = {3, 3};
    aclTensor *probs_grad = call.probs_grad.tensor;
    call.probs_grad.tensor =
        aclCreateTensor(shape, 2, ACL_FLOAT, NULL, 0, ACL_FORMAT_ND, shape, 2, call.rows_grad.data);
    assert_fails(grad_call_phase_one(&call), ACLNN_ERR_INNER_TILING_ERROR, "probs_grad");
    twin_drop(&call.probs); /* the output is only filled with zeros then */
    assert_fails(grad_call_phase_one(&call), ACLNN_ERR_INNER_TILING_ERROR,
                 "probsGradOutOptional shares memory with permutedTokensGradOut");
    aclDestroyTensor(call.probs_grad.tensor);
    call.probs_grad.tensor = probs_grad;
    grad_call_drop(&call);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(null_pointers), cmocka_unit_test(types),
        cmocka_unit_test(formats),       cmocka_unit_test(shapes),
        cmocka_unit_test(restore_shape), cmocka_unit_test(probs),
        cmocka_unit_test(values),        cmocka_unit_test(slots_of_a_token),
        cmocka_unit_test(no_data),       cmocka_unit_test(phase_two_arguments),
        cmocka_unit_test(overlaps),
    };
    return cmocka_run_group_tests(tests, twin_setup, twin_teardown);
}
