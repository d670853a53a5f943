/* no_memory_test.c - what every call answers when the process has no memory left: linked with the
 * layer's objects, whose allocations come by here. */
#include "aclnnop/aclnn_moe_token_unpermute_grad.h"
#include "twin.h"

void *__real_malloc(size_t bytes);
void *__real_calloc(size_t count, size_t bytes);
void *__real_aligned_alloc(size_t alignment, size_t bytes);
void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes);
void *__wrap_aligned_alloc(size_t alignment, size_t bytes);

static int allocations_left = -1; /* negative: no end */

static bool allowed(void)
{
    if (allocations_left < 0)
        return true;
    return allocations_left > 0 && allocations_left-- > 0;
}

void *__wrap_malloc(size_t bytes)
{
    return allowed() ? __real_malloc(bytes) : NULL;
}

void *__wrap_calloc(size_t count, size_t bytes)
{
    return allowed() ? __real_calloc(count, bytes) : NULL;
}

void *__wrap_aligned_alloc(size_t alignment, size_t bytes)
{
    return allowed() ? __real_aligned_alloc(alignment, bytes) : NULL;
}

/* An object takes two allocations, itself and its entry among the live ones: either may fail. */
#define assert_without_memory(call, expected)                                                      \
    do {                                                                                           \
        for (int left = 0; left < 2; left++) {                                                     \
            allocations_left = left;                                                               \
            long long found = (long long)(call);                                                   \
            allocations_left = -1;                                                                 \
            assert_int_equal(found, expected);                                                     \
        }                                                                                          \
    } while (0)

static void run_time(void **state)
{
    (void)state;
    aclrtStream stream;
    aclrtEvent event;
    aclrtContext context;
    void *memory = NULL;
    assert_without_memory(aclrtCreateStream(&stream), ACL_ERROR_BAD_ALLOC);
    assert_without_memory(aclrtCreateEvent(&event), ACL_ERROR_BAD_ALLOC);
    assert_without_memory(aclrtCreateContext(&context, 0), ACL_ERROR_BAD_ALLOC);
    assert_without_memory(aclrtMalloc(&memory, 8, ACL_MEM_MALLOC_HUGE_FIRST),
                          ACL_ERROR_RT_MEMORY_ALLOCATION);
    assert_without_memory(aclrtMallocHost(&memory, 8), ACL_ERROR_RT_MEMORY_ALLOCATION);
    assert_null(memory);
}

static void device(void **state)
{
    (void)state;
    assert_without_memory(aclrtSetDevice(0), ACL_ERROR_BAD_ALLOC);
}

static void queued_work(void **state)
{
    (void)state;
    char from = 1, to = 0;
    allocations_left = 0;
    aclError status = aclrtMemcpyAsync(&to, 1, &from, 1, ACL_MEMCPY_HOST_TO_HOST, twin_stream);
    allocations_left = -1;
    assert_fails(status, ACL_ERROR_BAD_ALLOC, "no memory for work on a stream");
    assert_int_equal(aclrtSynchronizeStream(twin_stream), ACL_SUCCESS);
    assert_int_equal(to, 0);
}

static void objects(void **state)
{
    (void)state;
    const int64_t shape[] = {2, 3};
    int64_t *dims = NULL;
    uint64_t rank = 0;
    assert_without_memory(
        (uintptr_t)aclCreateTensor(shape, 2, ACL_FLOAT, NULL, 0, ACL_FORMAT_ND, shape, 2, NULL), 0);
    assert_without_memory((uintptr_t)aclCreateIntArray(shape, 2), 0);
    aclTensor *tensor =
        aclCreateTensor(shape, 2, ACL_FLOAT, NULL, 0, ACL_FORMAT_ND, shape, 2, NULL);
    allocations_left = 0;
    aclnnStatus status = aclGetViewShape(tensor, &dims, &rank);
    allocations_left = -1;
    assert_int_equal(status, ACLNN_ERR_INNER_NULLPTR);
    assert_int_equal(aclDestroyTensor(tensor), ACLNN_SUCCESS);
}

static void phase_one(void **state)
{
    (void)state;
    struct grad_call call = grad_call_make();
    assert_without_memory(grad_call_phase_one(&call), ACLNN_ERR_INNER);
    assert_non_null(strstr(aclGetRecentErrMsg(), "no memory"));
    /* Phase two allocates nothing: the workspace is the program's. */
    assert_int_equal(grad_call_phase_one(&call), ACLNN_SUCCESS);
    void *workspace;
    assert_int_equal(aclrtMalloc(&workspace, call.workspace_bytes, ACL_MEM_MALLOC_HUGE_FIRST), 0);
    allocations_left = 0;
    aclnnStatus status = aclnnMoeTokenUnpermuteWithRoutingMapGrad(workspace, call.workspace_bytes,
                                                                  call.executor, twin_stream);
    allocations_left = -1;
    assert_int_equal(status, ACLNN_SUCCESS);
    assert_memory_equal(call.rows_grad.data, example_rows_grad, sizeof example_rows_grad);
    assert_int_equal(aclrtFree(workspace), ACL_SUCCESS);
    grad_call_drop(&call);
}

/* By expert ids, with probs that go through a copy: that, too, is in the workspace. */
static void phase_two_by_ids(void **state)
{
    (void)state;
    const int32_t indices[] = {1, 0}, no_probs[] = {0};
    struct twin_tensor rows = twin_make(ACL_FLOAT, 2, 2, example_rows);
    struct twin_tensor sorted = twin_make(ACL_INT32, 2, -1, indices);
    struct twin_tensor grad = twin_make(ACL_FLOAT, 1, 2, example_grad);
    struct twin_tensor probs = twin_make(ACL_BF16, 1, 2, no_probs);
    struct twin_tensor rows_grad = twin_make(ACL_FLOAT, 2, 2, NULL);
    struct twin_tensor probs_grad = twin_make(ACL_BF16, 1, 2, NULL);
    uint64_t bytes;
    aclOpExecutor *executor;
    void *workspace;
    assert_int_equal(aclnnMoeTokenUnpermuteGradGetWorkspaceSize(
                         rows.tensor, grad.tensor, sorted.tensor, probs.tensor, false, NULL,
                         rows_grad.tensor, probs_grad.tensor, &bytes, &executor),
                     ACLNN_SUCCESS);
    assert_int_equal(aclrtMalloc(&workspace, bytes, ACL_MEM_MALLOC_HUGE_FIRST), 0);
    allocations_left = 0;
    aclnnStatus status = aclnnMoeTokenUnpermuteGrad(workspace, bytes, executor, twin_stream);
    allocations_left = -1;
    assert_int_equal(status, ACLNN_SUCCESS);
    /* <(5, 6), (1, -1)> = -1 and <(1, 2), (1, -1)> = -1 */
    const uint16_t expected[] = {0xBF80, 0xBF80};
    assert_memory_equal(probs_grad.data, expected, sizeof expected);
    assert_int_equal(aclrtFree(workspace), ACL_SUCCESS);
    struct twin_tensor *all[] = {&rows, &sorted, &grad, &probs, &rows_grad, &probs_grad};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        twin_drop(all[i]);
}

int main(void)
{
    const struct CMUnitTest first[] = {cmocka_unit_test(device)};
    const struct CMUnitTest tests[] = {cmocka_unit_test(run_time), cmocka_unit_test(queued_work),
                                       cmocka_unit_test(objects), cmocka_unit_test(phase_one),
                                       cmocka_unit_test(phase_two_by_ids)};
    int failed = cmocka_run_group_tests(first, NULL, NULL);
    return failed + cmocka_run_group_tests(tests, twin_setup, twin_teardown);
}
