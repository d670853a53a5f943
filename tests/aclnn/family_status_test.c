/* family_status_test.c - the statuses of permute, permute_grad and unpermute: 161001, 161002
 * (shapes too), 561103, and 561002 for values. */
#include "twin.h"

static uint64_t bytes;
static aclOpExecutor *executor;

/* permute of the worked example; tensors by place. */
struct permute_call {
    struct twin_tensor tokens, map, probs, rows, row_probs, indices;
    int64_t num_out_tokens;
    bool drop_and_pad;
};

static struct permute_call permute_make(void)
{
    return (struct permute_call){.tokens = twin_make(ACL_FLOAT, 3, 2, example_grad),
                                 .map = twin_make(ACL_INT8, 3, 3, example_map),
                                 .probs = twin_make(ACL_FLOAT, 3, 3, example_probs),
                                 .rows = twin_make(ACL_FLOAT, 5, 2, NULL),
                                 .row_probs = twin_make(ACL_FLOAT, 5, -1, NULL),
                                 .indices = twin_make(ACL_INT32, 6, -1, NULL),
                                 .num_out_tokens = 6};
}

static aclnnStatus permute_phase_one(struct permute_call *call)
{
    return aclnnMoeTokenPermuteWithRoutingMapGetWorkspaceSize(
        call->tokens.tensor, call->map.tensor, call->probs.tensor, call->num_out_tokens,
        call->drop_and_pad, call->rows.tensor, call->row_probs.tensor, call->indices.tensor, &bytes,
        &executor);
}

static void permute_drop(struct permute_call *call)
{
    struct twin_tensor *all[] = {&call->tokens, &call->map,       &call->probs,
                                 &call->rows,   &call->row_probs, &call->indices};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        twin_drop(all[i]);
}

static void permute_refused(struct permute_call *call, aclnnStatus status, const char *words)
{
    assert_fails(permute_phase_one(call), status, words);
    permute_drop(call);
}

static void permute_statuses(void **state)
{
    (void)state;
    struct permute_call call = permute_make();
    twin_drop(&call.map);
    permute_refused(&call, ACLNN_ERR_PARAM_NULLPTR, "routingMap is NULL");
    call = permute_make();
    twin_drop(&call.row_probs);
    permute_refused(&call, ACLNN_ERR_PARAM_NULLPTR, "permuteProbsOutOptional is NULL");
    call = permute_make();
    twin_replace(&call.indices, twin_make(ACL_INT64, 6, -1, NULL));
    permute_refused(&call, ACLNN_ERR_PARAM_INVALID, "sortedIndicesOut has data type 9");
    call = permute_make();
    twin_replace(&call.rows, twin_make(ACL_BF16, 5, 2, NULL));
    permute_refused(&call, ACLNN_ERR_PARAM_INVALID, "permuteTokensOut has data type 27");
    call = permute_make();
    twin_replace(&call.rows, twin_make(ACL_FLOAT, 5, 3, NULL));
    permute_refused(&call, ACLNN_ERR_PARAM_INVALID, "permuted_tokens");
    call = permute_make();
    call.num_out_tokens = -6;
    permute_refused(&call, ACLNN_ERR_PARAM_INVALID, "num_out_tokens");
    call = permute_make();
    call.num_out_tokens = 3; /* K = 1, but t0 has two experts */
    twin_replace(&call.rows, twin_make(ACL_FLOAT, 3, 2, NULL));
    twin_replace(&call.row_probs, twin_make(ACL_FLOAT, 3, -1, NULL));
    twin_replace(&call.indices, twin_make(ACL_INT32, 3, -1, NULL));
    assert_int_equal(permute_phase_one(&call), ACLNN_SUCCESS);
    void *workspace;
    assert_int_equal(aclrtMalloc(&workspace, bytes, ACL_MEM_MALLOC_HUGE_FIRST), 0);
    assert_fails(aclnnMoeTokenPermuteWithRoutingMap(workspace, bytes, executor, twin_stream),
                 ACLNN_ERR_INNER_TILING_ERROR, "routing_map");
    aclrtFree(workspace);
    permute_drop(&call);
}

/* unpermute of the worked example. */
struct unpermute_call {
    struct twin_tensor rows, indices, map, probs, tokens, out_index, token_id, row_probs;
    const aclIntArray *restore_shape;
};

static struct unpermute_call unpermute_make(void)
{
    return (struct unpermute_call){.rows = twin_make(ACL_FLOAT, 5, 2, example_rows),
                                   .indices = twin_make(ACL_INT32, 6, -1, example_out_index),
                                   .map = twin_make(ACL_INT8, 3, 3, example_map),
                                   .probs = twin_make(ACL_FLOAT, 3, 3, example_probs),
                                   .tokens = twin_make(ACL_FLOAT, 3, 2, NULL),
                                   .out_index = twin_make(ACL_INT32, 6, -1, NULL),
                                   .token_id = twin_make(ACL_INT32, 6, -1, NULL),
                                   .row_probs = twin_make(ACL_FLOAT, 6, -1, NULL)};
}

static aclnnStatus unpermute_phase_one(struct unpermute_call *call)
{
    return aclnnMoeTokenUnpermuteWithRoutingMapGetWorkspaceSize(
        call->rows.tensor, call->indices.tensor, call->map.tensor, call->probs.tensor, false,
        call->restore_shape, call->tokens.tensor, call->out_index.tensor, call->token_id.tensor,
        call->row_probs.tensor, &bytes, &executor);
}

static void unpermute_drop(struct unpermute_call *call)
{
    struct twin_tensor *all[] = {&call->rows,     &call->indices,  &call->map,
                                 &call->probs,    &call->tokens,   &call->out_index,
                                 &call->token_id, &call->row_probs};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        twin_drop(all[i]);
}

static void unpermute_refused(struct unpermute_call *call, aclnnStatus status, const char *words)
{
    assert_fails(unpermute_phase_one(call), status, words);
    unpermute_drop(call);
}

static void unpermute_statuses(void **state)
{
    (void)state;
    struct unpermute_call call = unpermute_make();
    twin_drop(&call.token_id);
    unpermute_refused(&call, ACLNN_ERR_PARAM_NULLPTR, "permuteTokenId is NULL");
    call = unpermute_make();
    twin_replace(&call.probs, twin_make(ACL_BF16, 3, 3, NULL));
    unpermute_refused(&call, ACLNN_ERR_PARAM_INVALID, "probsOptional has data type 27");
    call = unpermute_make();
    twin_replace(&call.tokens, twin_make(ACL_FLOAT, 3, 3, NULL));
    unpermute_refused(&call, ACLNN_ERR_PARAM_INVALID, "unpermuted_tokens");
    call = unpermute_make();
    int32_t indices[] = {0, 4, 2, -1, 1, 9};
    twin_replace(&call.indices, twin_make(ACL_INT32, 6, -1, indices));
    assert_int_equal(unpermute_phase_one(&call), ACLNN_SUCCESS);
    void *workspace;
    assert_int_equal(aclrtMalloc(&workspace, bytes, ACL_MEM_MALLOC_HUGE_FIRST), 0);
    assert_fails(aclnnMoeTokenUnpermuteWithRoutingMap(workspace, bytes, executor, twin_stream),
                 ACLNN_ERR_INNER_TILING_ERROR, "sorted_indices[5] = 9 is outside [0, 5)");
    aclrtFree(workspace);
    unpermute_drop(&call);
}

/* probs null and restoreShape null: 161001; not of length 2: 561103. */
static void unpermute_restore_shape(void **state)
{
    (void)state;
    const int64_t sizes[] = {3, 2, 1}, wrong[] = {2, 2};
    const aclIntArray *arrays[] = {NULL, aclCreateIntArray(NULL, 0), aclCreateIntArray(sizes, 1),
                                   aclCreateIntArray(sizes, 3)};
    for (int i = 0; i < 4; i++) {
        struct unpermute_call call = unpermute_make();
        twin_drop(&call.probs);
        call.restore_shape = arrays[i];
        unpermute_refused(&call, i == 0 ? ACLNN_ERR_PARAM_NULLPTR : ACLNN_ERR_INNER_NULLPTR,
                          "restoreShape");
        aclDestroyIntArray(arrays[i]);
    }
    const aclIntArray *good = aclCreateIntArray(sizes, 2), *bad = aclCreateIntArray(wrong, 2);
    struct unpermute_call call = unpermute_make();
    call.restore_shape = bad;
    unpermute_refused(&call, ACLNN_ERR_PARAM_INVALID, "restore_shape");
    call = unpermute_make();
    twin_drop(&call.probs);
    twin_drop(&call.row_probs);
    call.restore_shape = good;
    assert_int_equal(unpermute_phase_one(&call), ACLNN_SUCCESS);
    aclDestroyAclOpExecutor(executor);
    unpermute_drop(&call);
    aclDestroyIntArray(good);
    aclDestroyIntArray(bad);
}

static aclnnStatus permute_grad_phase_one(aclDataType type, int64_t columns, int64_t experts,
                                          bool with_indices)
{
    struct twin_tensor rows = twin_make(ACL_FLOAT, 5, 2, example_rows);
    struct twin_tensor indices = twin_make(ACL_INT32, 6, -1, example_out_index);
    struct twin_tensor map = twin_make(ACL_INT8, 3, 3, example_map);
    struct twin_tensor row_probs = twin_make(ACL_FLOAT, 5, -1, example_rows);
    struct twin_tensor tokens = twin_make(type, 3, columns, NULL);
    struct twin_tensor probs = twin_make(ACL_FLOAT, 3, 3, NULL);
    aclnnStatus status = aclnnMoeTokenPermuteWithRoutingMapGradGetWorkspaceSize(
        rows.tensor, row_probs.tensor, with_indices ? indices.tensor : NULL, map.tensor, experts, 3,
        false, tokens.tensor, probs.tensor, &bytes, &executor);
    if (status == ACLNN_SUCCESS)
        aclDestroyAclOpExecutor(executor);
    struct twin_tensor *all[] = {&rows, &indices, &map, &row_probs, &tokens, &probs};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        twin_drop(all[i]);
    return status;
}

static void permute_grad_statuses(void **state)
{
    (void)state;
    assert_int_equal(permute_grad_phase_one(ACL_FLOAT, 2, 3, true), ACLNN_SUCCESS);
    assert_fails(permute_grad_phase_one(ACL_FLOAT, 2, 3, false), ACLNN_ERR_PARAM_NULLPTR,
                 "sortedIndices is NULL");
    assert_fails(permute_grad_phase_one(ACL_FLOAT16, 2, 3, true), ACLNN_ERR_PARAM_INVALID,
                 "tokensGradOut has data type 1");
    assert_fails(permute_grad_phase_one(ACL_FLOAT, 3, 3, true), ACLNN_ERR_PARAM_INVALID,
                 "tokens_grad");
    assert_fails(permute_grad_phase_one(ACL_FLOAT, 2, 4, true), ACLNN_ERR_PARAM_INVALID, "4");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(permute_statuses),
        cmocka_unit_test(unpermute_statuses),
        cmocka_unit_test(unpermute_restore_shape),
        cmocka_unit_test(permute_grad_statuses),
    };
    return cmocka_run_group_tests(tests, twin_setup, twin_teardown);
}
