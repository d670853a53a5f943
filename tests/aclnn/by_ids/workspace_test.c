/* workspace_test.c - phase two of the operators by expert ids: the workspace with the copies in it,
 * memory that is shared, tensors without data, executors that are used again. */
#include "ids_twin.h"

/* permute's call: T = 3, K = 2, H = 2; ids 1 2 | 0 1 | 2 0, so slots have rows 2 4 | 0 3 | 5 1. */
static const int32_t example_ids[] = {1, 2, 0, 1, 2, 0}, example_sorted[] = {2, 4, 0, 3, 5, 1};
static const float example_tokens[] = {1, 2, 3, 4, 5, 6};
static const float all_rows[] = {3, 4, 5, 6, 1, 2, 3, 4, 1, 2, 5, 6};

/* unpermute_grad's, with probs that go through float32: the same routing, g = tokens, x = rows. */
struct call {
    struct twin_tensor x, g, sorted, probs, dx, dp;
};

static struct call make_call(aclDataType probs_type)
{
    struct numbers ones;
    numbers_zero(&ones, 3, 2);
    for (int i = 0; i < 6; i++)
        ones.value[i] = 1;
    return (struct call){.x = twin_make(ACL_FLOAT, 6, 2, all_rows),
                         .g = twin_make(ACL_FLOAT, 3, 2, example_tokens),
                         .sorted = twin_make(ACL_INT32, 6, -1, example_sorted),
                         .probs = numbers_tensor(&ones, probs_type, 2, false),
                         .dx = twin_make(ACL_FLOAT, 6, 2, NULL),
                         .dp = twin_make(probs_type, 3, 2, NULL)};
}

static aclnnStatus phase_one(const struct call *call)
{
    return aclnnMoeTokenUnpermuteGradGetWorkspaceSize(
        call->x.tensor, call->g.tensor, call->sorted.tensor, call->probs.tensor, false, NULL,
        call->dx.tensor, call->dp.tensor, &ids_workspace_bytes, &ids_executor);
}

static void drop_call(struct call *call)
{
    struct twin_tensor *all[] = {&call->x,     &call->g,  &call->sorted,
                                 &call->probs, &call->dx, &call->dp};
    for (size_t i = 0; i < 6; i++)
        twin_drop(all[i]);
}

/* With weights of 1 the rows are the tokens' and the dot products their squares: 5, 25, 61. */
static void expect_results(const struct call *call)
{
    static const struct numbers squares = {3, 2, {5, 5, 25, 25, 61, 61}};
    assert_memory_equal(call->dx.data, all_rows, sizeof all_rows);
    expect_numbers(&call->dp, &squares, "probsGradOut");
}

static void expect_untouched(const struct call *call)
{
    for (size_t i = 0; i < call->dx.bytes; i++)
        assert_int_equal(((unsigned char *)call->dx.data)[i], 0xFF);
    for (size_t i = 0; i < call->dp.bytes; i++)
        assert_int_equal(((unsigned char *)call->dp.data)[i], 0xFF);
}

/* 16 bytes a token and a slot for moetoken.h; 4 a slot for its row, and 4 each for its weight and
 * the weight's gradient where these are converted; permute: 8 a slot for its id. */
static void sizes(void **state)
{
    (void)state;
    struct call call = make_call(ACL_FLOAT);
    assert_int_equal(phase_one(&call), ACLNN_SUCCESS);
    assert_int_equal(ids_workspace_bytes, 16 * 9 + 4 * 6);
    assert_int_equal(ids_phase_two(aclnnMoeTokenUnpermuteGrad), ACLNN_SUCCESS);
    expect_results(&call);
    drop_call(&call);
    call = make_call(ACL_BF16);
    assert_int_equal(phase_one(&call), ACLNN_SUCCESS);
    assert_int_equal(ids_workspace_bytes, 16 * 9 + 3 * 4 * 6);
    assert_int_equal(ids_phase_two(aclnnMoeTokenUnpermuteGrad), ACLNN_SUCCESS);
    expect_results(&call);
    struct twin_tensor ids = twin_make(ACL_INT32, 3, 2, example_ids);
    ids_run(aclnnMoeTokenPermuteGetWorkspaceSize(call.g.tensor, ids.tensor, 0, false,
                                                 call.dx.tensor, call.sorted.tensor,
                                                 &ids_workspace_bytes, &ids_executor),
            aclnnMoeTokenPermute);
    assert_int_equal(ids_workspace_bytes, 16 * 9 + 8 * 6);
    assert_memory_equal(call.sorted.data, example_sorted, sizeof example_sorted);
    twin_drop(&ids);
    drop_call(&call);
}

/* Nothing to write: no workspace, whatever the inputs are. */
static void no_outputs(void **state)
{
    (void)state;
    struct call call = make_call(ACL_BF16);
    twin_replace(&call.x, twin_make(ACL_FLOAT, 0, 2, NULL));
    twin_replace(&call.dx, twin_make(ACL_FLOAT, 0, 2, NULL));
    twin_replace(&call.g, twin_make(ACL_FLOAT, 0, 2, NULL));
    twin_replace(&call.sorted, twin_make(ACL_INT32, 0, -1, NULL));
    twin_replace(&call.probs, twin_make(ACL_BF16, 0, 2, NULL));
    twin_replace(&call.dp, twin_make(ACL_BF16, 0, 2, NULL));
    assert_int_equal(phase_one(&call), ACLNN_SUCCESS);
    assert_int_equal(ids_workspace_bytes, 0);
    assert_int_equal(ids_phase_two(aclnnMoeTokenUnpermuteGrad), ACLNN_SUCCESS);
    drop_call(&call);
}

/* A workspace that is refused has not been used, and the executor may try another one. */
static void refused_workspaces(void **state)
{
    (void)state;
    struct call call = make_call(ACL_FLOAT16);
    assert_int_equal(phase_one(&call), ACLNN_SUCCESS);
    uint64_t bytes = ids_workspace_bytes;
    char *workspace;
    assert_int_equal(aclrtMalloc((void **)&workspace, bytes + 8, ACL_MEM_MALLOC_HUGE_FIRST), 0);
    assert_fails(aclnnMoeTokenUnpermuteGrad(NULL, bytes, ids_executor, twin_stream),
                 ACLNN_ERR_PARAM_NULLPTR, "workspace is NULL");
    assert_fails(aclnnMoeTokenUnpermuteGrad(workspace, bytes - 1, ids_executor, twin_stream),
                 ACLNN_ERR_PARAM_INVALID, "workspaceSize = 215, expected 216");
    assert_fails(aclnnMoeTokenUnpermuteGrad(workspace + 4, bytes, ids_executor, twin_stream),
                 ACLNN_ERR_PARAM_INVALID, "is not aligned");
    assert_fails(aclnnMoeTokenUnpermute(workspace, bytes, ids_executor, twin_stream),
                 ACLNN_ERR_PARAM_INVALID, "executor is one of aclnnMoeTokenUnpermuteGrad");
    expect_untouched(&call);
    assert_int_equal(aclnnMoeTokenUnpermuteGrad(workspace, bytes, ids_executor, twin_stream),
                     ACLNN_SUCCESS);
    expect_results(&call);
    assert_fails(aclnnMoeTokenUnpermuteGrad(workspace, bytes, ids_executor, twin_stream),
                 ACLNN_ERR_PARAM_INVALID, "its first run consumes it");
    assert_int_equal(aclrtFree(workspace), ACL_SUCCESS);
    drop_call(&call);
}

/* Each tensor once inside the workspace: at its begin, and at the end, where the copies are. */
static void workspace_over_tensors(void **state)
{
    (void)state;
    static const char *const names[] = {"permutedTokensOptional", "unpermutedTokensGrad",
                                        "sortedIndices",          "probsOptional",
                                        "permutedTokensGradOut",  "probsGradOut"};
    for (int place = 0; place < 6; place++)
        for (int at_end = 0; at_end < 2; at_end++) {
            struct call call = make_call(ACL_BF16);
            struct twin_tensor *all[] = {&call.x,     &call.g,  &call.sorted,
                                         &call.probs, &call.dx, &call.dp};
            char *memory, words[80];
            assert_int_equal(phase_one(&call), ACLNN_SUCCESS);
            uint64_t bytes = ids_workspace_bytes;
            assert_int_equal(aclrtMalloc((void **)&memory, bytes, ACL_MEM_MALLOC_HUGE_FIRST), 0);
            assert_int_equal(aclrtMemset(memory, bytes, 0, bytes), 0);
            char *moved = at_end ? memory + bytes - all[place]->bytes : memory;
            assert_int_equal(
                aclSetTensorAddr(ids_executor, (size_t)place, all[place]->tensor, moved),
                ACLNN_SUCCESS);
            snprintf(words, sizeof words, "workspace shares memory with %s", names[place]);
            assert_fails(aclnnMoeTokenUnpermuteGrad(memory, bytes, ids_executor, twin_stream),
                         ACLNN_ERR_PARAM_INVALID, words);
            aclDestroyAclOpExecutor(ids_executor);
            assert_int_equal(aclrtFree(memory), ACL_SUCCESS);
            drop_call(&call);
        }
}

/* An output over a tensor of which moetoken.h sees a copy: 561002, in phase one, or in phase two
 * when the address came later. */
static void outputs_over_copies(void **state)
{
    (void)state;
    struct call call = make_call(ACL_BF16);
    static const char *const words[] = {"sortedIndices shares memory with probsGradOut",
                                        "probsOptional shares memory with probsGradOut",
                                        "probsOptional shares memory with probsGradOut",
                                        "probsGradOut shares memory with permutedTokensGradOut",
                                        "probsGradOut shares memory with permutedTokensOptional",
                                        "probsGradOut shares memory with unpermutedTokensGrad"};
    const struct twin_tensor *under[] = {&call.sorted, &call.probs, &call.probs,
                                         &call.dx,     &call.x,     &call.g};
    int64_t shape[] = {3, 2};
    for (int i = 0; i < 6; i++) {
        aclTensor *own = call.dp.tensor;
        call.dp.tensor =
            aclCreateTensor(shape, 2, ACL_BF16, NULL, 0, ACL_FORMAT_ND, shape, 2, under[i]->data);
        ids_refused(phase_one(&call), ACLNN_ERR_INNER_TILING_ERROR, words[i]);
        aclDestroyTensor(call.dp.tensor);
        call.dp.tensor = own;
        assert_int_equal(phase_one(&call), ACLNN_SUCCESS);
        assert_int_equal(aclSetOutputTensorAddr(ids_executor, 1, call.dp.tensor, under[i]->data),
                         ACLNN_SUCCESS);
        assert_fails(ids_phase_two(aclnnMoeTokenUnpermuteGrad), ACLNN_ERR_INNER_TILING_ERROR,
                     words[i]);
        assert_int_equal(aclSetRawTensorAddr(call.dp.tensor, call.dp.data), ACLNN_SUCCESS);
        expect_untouched(&call);
    }
    assert_memory_equal(call.sorted.data, example_sorted, sizeof example_sorted);
    drop_call(&call);
}

static void sums_over_copies(void **state)
{
    (void)state;
    struct call call = make_call(ACL_FLOAT16);
    struct twin_tensor x = twin_make(ACL_FLOAT, 6, 1, all_rows);
    struct twin_tensor out = twin_make(ACL_FLOAT, 3, 1, NULL);
    void *const under[] = {call.sorted.data, call.probs.data};
    static const char *const words[] = {"sortedIndices shares memory with out",
                                        "probsOptional shares memory with out"};
    for (int i = 0; i < 2; i++) {
        assert_int_equal(aclnnMoeTokenUnpermuteGetWorkspaceSize(
                             x.tensor, call.sorted.tensor, call.probs.tensor, false, NULL,
                             out.tensor, &ids_workspace_bytes, &ids_executor),
                         ACLNN_SUCCESS);
        assert_int_equal(aclSetOutputTensorAddr(ids_executor, 0, out.tensor, under[i]),
                         ACLNN_SUCCESS);
        assert_fails(ids_phase_two(aclnnMoeTokenUnpermute), ACLNN_ERR_INNER_TILING_ERROR, words[i]);
        assert_int_equal(aclSetRawTensorAddr(out.tensor, out.data), ACLNN_SUCCESS);
    }
    twin_drop(&out);
    twin_drop(&x);
    drop_call(&call);
}

/* Every pair of permute's tensors, of which its two inner calls see some each. */
static void permute_outputs_apart(void **state)
{
    (void)state;
    static const char *const words[] = {"tokens shares memory with sortedIndicesOut",
                                        "indices shares memory with sortedIndicesOut",
                                        "permuteTokensOut shares memory with sortedIndicesOut"};
    struct twin_tensor in = twin_make(ACL_FLOAT, 3, 2, example_tokens);
    struct twin_tensor ids = twin_make(ACL_INT32, 3, 2, example_ids);
    struct twin_tensor out = twin_make(ACL_FLOAT, 4, 2, NULL);
    struct twin_tensor sorted = twin_make(ACL_INT32, 6, -1, NULL);
    void *const under[] = {in.data, ids.data, out.data};
    for (int i = 0; i < 3; i++) {
        assert_int_equal(aclnnMoeTokenPermuteGetWorkspaceSize(in.tensor, ids.tensor, 4, false,
                                                              out.tensor, sorted.tensor,
                                                              &ids_workspace_bytes, &ids_executor),
                         ACLNN_SUCCESS);
        assert_int_equal(aclSetOutputTensorAddr(ids_executor, 1, sorted.tensor, under[i]),
                         ACLNN_SUCCESS);
        assert_fails(ids_phase_two(aclnnMoeTokenPermute), ACLNN_ERR_INNER_TILING_ERROR, words[i]);
        assert_int_equal(aclSetRawTensorAddr(sorted.tensor, sorted.data), ACLNN_SUCCESS);
    }
    assert_memory_equal(in.data, example_tokens, sizeof example_tokens);
    assert_memory_equal(ids.data, example_ids, sizeof example_ids);
    struct twin_tensor *all[] = {&in, &ids, &out, &sorted};
    for (size_t i = 0; i < 4; i++)
        twin_drop(all[i]);
}

/* The gradient may take the place of the rows, as in moetoken.h. */
static void gradient_in_place(void **state)
{
    (void)state;
    struct call call = make_call(ACL_BF16);
    static const struct numbers squares = {3, 2, {5, 5, 25, 25, 61, 61}};
    ids_run(aclnnMoeTokenUnpermuteGradGetWorkspaceSize(
                call.x.tensor, call.g.tensor, call.sorted.tensor, call.probs.tensor, false, NULL,
                call.x.tensor, call.dp.tensor, &ids_workspace_bytes, &ids_executor),
            aclnnMoeTokenUnpermuteGrad);
    assert_memory_equal(call.x.data, all_rows, sizeof all_rows);
    expect_numbers(&call.dp, &squares, "probsGradOut");
    drop_call(&call);
}

/* A tensor that was described without data, and never given any. */
static void tensors_without_data(void **state)
{
    (void)state;
    static const char *const names[] = {"tokens", "indices", "permuteTokensOut",
                                        "sortedIndicesOut"};
    struct twin_tensor in = twin_make(ACL_FLOAT, 3, 2, example_tokens);
    struct twin_tensor ids = twin_make(ACL_INT32, 3, 2, example_ids);
    struct twin_tensor out = twin_make(ACL_FLOAT, 2, 2, NULL);
    struct twin_tensor sorted = twin_make(ACL_INT32, 6, -1, NULL);
    aclTensor *const all[] = {in.tensor, ids.tensor, out.tensor, sorted.tensor};
    for (size_t i = 0; i < 4; i++) {
        char words[64];
        assert_int_equal(aclnnMoeTokenPermuteGetWorkspaceSize(in.tensor, ids.tensor, 2, false,
                                                              out.tensor, sorted.tensor,
                                                              &ids_workspace_bytes, &ids_executor),
                         ACLNN_SUCCESS);
        assert_int_equal(aclSetTensorAddr(ids_executor, i, all[i], NULL), ACLNN_SUCCESS);
        snprintf(words, sizeof words, "%s has no data", names[i]);
        assert_fails(ids_phase_two(aclnnMoeTokenPermute), ACLNN_ERR_PARAM_NULLPTR, words);
        void *const own[] = {in.data, ids.data, out.data, sorted.data};
        assert_int_equal(aclSetRawTensorAddr(all[i], own[i]), ACLNN_SUCCESS);
    }
    for (size_t i = 0; i < sorted.bytes; i++)
        assert_int_equal(((unsigned char *)sorted.data)[i], 0xFF);
    struct twin_tensor *made[] = {&in, &ids, &out, &sorted};
    for (size_t i = 0; i < 4; i++)
        twin_drop(made[i]);
}

/* A repeatable executor, run again with other ids. */
static void repeated_runs(void **state)
{
    (void)state;
    const int32_t other_ids[] = {0, 0, 0, 0, 0, -5}, other_sorted[] = {1, 2, 3, 4, 5, 0};
    struct twin_tensor in = twin_make(ACL_FLOAT, 3, 2, example_tokens);
    struct twin_tensor ids = twin_make(ACL_INT32, 3, 2, example_ids);
    struct twin_tensor other = twin_make(ACL_INT32, 3, 2, other_ids);
    struct twin_tensor out = twin_make(ACL_FLOAT, 2, 2, NULL);
    struct twin_tensor sorted = twin_make(ACL_INT32, 6, -1, NULL);
    assert_int_equal(aclnnMoeTokenPermuteGetWorkspaceSize(in.tensor, ids.tensor, 2, false,
                                                          out.tensor, sorted.tensor,
                                                          &ids_workspace_bytes, &ids_executor),
                     ACLNN_SUCCESS);
    assert_int_equal(aclSetAclOpExecutorRepeatable(ids_executor), ACLNN_SUCCESS);
    assert_int_equal(ids_phase_two(aclnnMoeTokenPermute), ACLNN_SUCCESS);
    assert_memory_equal(sorted.data, example_sorted, sizeof example_sorted);
    assert_memory_equal(out.data, all_rows, 4 * sizeof all_rows[0]);
    assert_int_equal(aclSetInputTensorAddr(ids_executor, 1, ids.tensor, other.data), ACLNN_SUCCESS);
    assert_int_equal(ids_phase_two(aclnnMoeTokenPermute), ACLNN_SUCCESS);
    assert_memory_equal(sorted.data, other_sorted, sizeof other_sorted);
    assert_true(((float *)out.data)[0] == 5 && ((float *)out.data)[2] == 1);
    aclDestroyAclOpExecutor(ids_executor);
    struct twin_tensor *made[] = {&in, &ids, &other, &out, &sorted};
    for (size_t i = 0; i < 5; i++)
        twin_drop(made[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sizes),
        cmocka_unit_test(no_outputs),
        cmocka_unit_test(refused_workspaces),
        cmocka_unit_test(workspace_over_tensors),
        cmocka_unit_test(outputs_over_copies),
        cmocka_unit_test(sums_over_copies),
        cmocka_unit_test(permute_outputs_apart),
        cmocka_unit_test(gradient_in_place),
        cmocka_unit_test(tensors_without_data),
        cmocka_unit_test(repeated_runs),
    };
    return cmocka_run_group_tests(tests, twin_setup, twin_teardown);
}
