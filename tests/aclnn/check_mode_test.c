/* check_mode_test.c - MOETOKEN_ACL_CHECK=1: each fault of a program is reported, with what was
 * allocated where, on stderr and as a status. Runs the faults in this process; CTest sets the
 * variable. */
#include "twin.h"

#include <unistd.h>

/* Sends stderr into a file, and looks for words in it. */
static FILE *report;
static int own_stderr;

static int begin_report(void **state)
{
    (void)state;
    report = tmpfile();
    assert_non_null(report);
    fflush(stderr);
    own_stderr = dup(STDERR_FILENO);
    dup2(fileno(report), STDERR_FILENO);
    assert_int_equal(aclInit(NULL), ACL_SUCCESS);
    assert_int_equal(aclrtSetDevice(0), ACL_SUCCESS);
    assert_int_equal(aclrtCreateStream(&twin_stream), ACL_SUCCESS);
    return 0;
}

static void reported(const char *words)
{
    static char text[1 << 16];
    fflush(stderr);
    rewind(report);
    size_t length = fread(text, 1, sizeof text - 1, report);
    text[length] = '\0';
    if (strstr(text, words) == NULL)
        fail_msg("no \"%s\" in the report:\n%s", words, text);
}

static void end_with(aclError expected)
{
    assert_int_equal(aclrtDestroyStream(twin_stream), ACL_SUCCESS);
    assert_int_equal(aclrtResetDevice(0), ACL_SUCCESS);
    assert_int_equal(aclFinalize(), expected);
}

static int end_report(void **state)
{
    (void)state;
    fflush(stderr);
    dup2(own_stderr, STDERR_FILENO);
    close(own_stderr);
    fclose(report);
    return 0;
}

/* A whole call without a fault says nothing. */
static void no_fault(void **state)
{
    (void)state;
    struct grad_call call = grad_call_make();
    assert_int_equal(grad_call_phase_one(&call), ACLNN_SUCCESS);
    assert_int_equal(grad_call_phase_two(&call), ACLNN_SUCCESS);
    assert_memory_equal(call.rows_grad.data, example_rows_grad, sizeof example_rows_grad);
    grad_call_drop(&call);
    end_with(ACL_SUCCESS);
    fflush(stderr);
    fseek(report, 0, SEEK_END);
    assert_int_equal(ftell(report), 0);
}

static unsigned char *allocate(size_t size)
{
    void *memory;
    assert_int_equal(aclrtMalloc(&memory, size, ACL_MEM_MALLOC_HUGE_FIRST), ACL_SUCCESS);
    return memory;
}

/* Writes beyond either end, found at free and at the next synchronisation. */
static void overruns(void **state)
{
    (void)state;
    unsigned char *memory = allocate(40);
    for (int i = 0; i < 40; i++)
        assert_int_equal(memory[i], 0xFF); /* fresh memory is NaN and -1 */
    memory[40] = 0;
    assert_int_equal(aclrtFree(memory), ACL_ERROR_FAILURE);
    reported("overrun: offset 40 was written, behind the end of device memory #");
    reported("of 40 bytes");
    reported("allocated at");
    memory = allocate(40);
    memory[-1] = 0;
    assert_int_equal(aclrtSynchronizeStream(twin_stream), ACL_ERROR_FAILURE);
    reported("overrun: offset -1 was written, before the begin of device memory #");
    assert_int_equal(aclrtSynchronizeStream(twin_stream), ACL_SUCCESS); /* once each */
    assert_int_equal(aclrtFree(memory), ACL_SUCCESS);
    end_with(ACL_SUCCESS);
}

/* Copies that leave their block although destMax allows them. */
static void copy_overruns(void **state)
{
    (void)state;
    unsigned char *memory = allocate(8);
    char host[16] = "";
    assert_fails(aclrtMemcpy(memory, 16, host, 16, ACL_MEMCPY_HOST_TO_DEVICE),
                 ACL_ERROR_RT_PARAM_INVALID, "16 bytes at offset 0 overrun device memory #");
    assert_fails(aclrtMemcpy(host, 16, memory + 4, 8, ACL_MEMCPY_DEVICE_TO_HOST),
                 ACL_ERROR_RT_PARAM_INVALID, "8 bytes at offset 4 overrun");
    assert_fails(aclrtMemset(memory, 9, 0, 9), ACL_ERROR_RT_PARAM_INVALID, "by 1");
    assert_fails(aclrtMemcpy(host, 8, host + 8, 8, ACL_MEMCPY_HOST_TO_DEVICE),
                 ACL_ERROR_RT_PARAM_INVALID, "is not in device memory, as kind = 1 says");
    assert_int_equal(aclrtFree(memory), ACL_SUCCESS);
    assert_fails(aclrtMemcpy(host, 16, memory, 8, ACL_MEMCPY_DEVICE_TO_HOST),
                 ACL_ERROR_RT_PARAM_INVALID, "released before");
    reported("released at");
    end_with(ACL_SUCCESS);
}

static void double_free(void **state)
{
    (void)state;
    unsigned char *memory = allocate(24);
    assert_int_equal(aclrtFree(memory), ACL_SUCCESS);
    assert_fails(aclrtFree(memory), ACL_ERROR_RT_PARAM_INVALID,
                 "it is device memory #"); /* at that very address */
    reported("of 24 bytes");
    reported("released before");
    memory = allocate(24);
    assert_fails(aclrtFree(memory + 8), ACL_ERROR_RT_PARAM_INVALID, "it is inside device memory");
    assert_int_equal(aclrtFree(memory), ACL_SUCCESS);
    end_with(ACL_SUCCESS);
}

/* Freed memory is poisoned, and a write into it is found. */
static void use_after_free(void **state)
{
    (void)state;
    unsigned char *memory = allocate(24);
    assert_int_equal(aclrtFree(memory), ACL_SUCCESS);
    assert_int_equal(memory[0], 0xDF);
    memory[3] = 0;
    assert_int_equal(aclrtSynchronizeDevice(), ACL_ERROR_FAILURE);
    reported("written after it was released: offset 3 of device memory #");
    end_with(ACL_SUCCESS);
}

/* Tensors that were destroyed, before either phase. */
static void destroyed_tensors(void **state)
{
    (void)state;
    struct grad_call call = grad_call_make();
    assert_int_equal(grad_call_phase_one(&call), ACLNN_SUCCESS);
    const aclTensor *destroyed = call.out_index.tensor;
    assert_int_equal(aclDestroyTensor(destroyed), ACLNN_SUCCESS);
    assert_fails(grad_call_phase_two(&call), ACLNN_ERR_PARAM_INVALID, "outIndex: ");
    reported("released before");
    assert_fails(grad_call_phase_one(&call), ACLNN_ERR_PARAM_INVALID, "is not a live tensor");
    int64_t shape[] = {6};
    call.out_index.tensor =
        aclCreateTensor(shape, 1, ACL_INT32, NULL, 0, ACL_FORMAT_ND, shape, 1, call.out_index.data);
    grad_call_drop(&call);
    end_with(ACL_SUCCESS);
}

/* Memory that a device cannot reach is not computed with: an exception when the stream is
 * synchronised, once. */
static void tensor_over_host_memory(void **state)
{
    (void)state;
    struct grad_call call = grad_call_make();
    float host[10];
    memset(host, 0xFF, sizeof host);
    aclTensor *own = call.rows_grad.tensor;
    int64_t shape[] = {EXAMPLE_R, EXAMPLE_H};
    call.rows_grad.tensor =
        aclCreateTensor(shape, 2, ACL_FLOAT, NULL, 0, ACL_FORMAT_ND, shape, 2, host);
    assert_int_equal(grad_call_phase_one(&call), ACLNN_SUCCESS);
    assert_int_equal(grad_call_phase_two(&call), ACLNN_SUCCESS);
    reported("permutedTokensGradOut is not in device memory");
    for (size_t i = 0; i < sizeof host; i++)
        assert_int_equal(((unsigned char *)host)[i], 0xFF);
    assert_fails(aclrtSynchronizeStream(twin_stream), ACL_ERROR_RT_AICORE_EXCEPTION,
                 "permutedTokensGradOut is not in device memory");
    assert_int_equal(aclrtSynchronizeStream(twin_stream), ACL_SUCCESS);
    assert_int_equal(grad_call_phase_one(&call), ACLNN_SUCCESS);
    assert_int_equal(grad_call_phase_two(&call), ACLNN_SUCCESS);
    assert_int_equal(aclrtSynchronizeDevice(), ACL_ERROR_RT_AICORE_EXCEPTION);
    aclDestroyTensor(call.rows_grad.tensor);
    call.rows_grad.tensor = own;
    grad_call_drop(&call);
    end_with(ACL_SUCCESS);
}

/* Executors after their run and after their end. */
static void destroyed_executors(void **state)
{
    (void)state;
    struct grad_call call = grad_call_make();
    assert_int_equal(grad_call_phase_one(&call), ACLNN_SUCCESS);
    assert_int_equal(grad_call_phase_two(&call), ACLNN_SUCCESS);
    assert_fails(grad_call_phase_two(&call), ACLNN_ERR_PARAM_INVALID, "it is executor #");
    reported("released before");
    assert_int_equal(aclDestroyAclOpExecutor(call.executor), ACLNN_ERR_PARAM_INVALID);
    grad_call_drop(&call);
    end_with(ACL_SUCCESS);
}

/* A tensor that describes more than its block holds, and one whose memory is gone. */
static void tensors_beyond_memory(void **state)
{
    (void)state;
    struct grad_call call = grad_call_make();
    unsigned char *small = allocate(20);
    int64_t shape[] = {EXAMPLE_R, EXAMPLE_H};
    aclTensor *own = call.rows_grad.tensor;
    call.rows_grad.tensor =
        aclCreateTensor(shape, 2, ACL_FLOAT, NULL, 0, ACL_FORMAT_ND, shape, 2, small);
    assert_int_equal(grad_call_phase_one(&call), ACLNN_SUCCESS);
    assert_fails(grad_call_phase_two(&call), ACLNN_ERR_RUNTIME_ERROR,
                 "permutedTokensGradOut: 40 bytes at offset 0 overrun device memory #");
    assert_int_equal(small[0], 0xFF);
    assert_int_equal(grad_call_phase_one(&call), ACLNN_SUCCESS);
    assert_int_equal(aclrtFree(small), ACL_SUCCESS);
    assert_fails(grad_call_phase_two(&call), ACLNN_ERR_RUNTIME_ERROR, "released before");
    aclDestroyTensor(call.rows_grad.tensor);
    call.rows_grad.tensor = own;
    assert_int_equal(grad_call_phase_one(&call), ACLNN_SUCCESS);
    small = allocate(20);
    assert_fails(aclnnMoeTokenUnpermuteWithRoutingMapGrad(small, call.workspace_bytes,
                                                          call.executor, twin_stream),
                 ACLNN_ERR_RUNTIME_ERROR, "workspace: 144 bytes at offset 0 overrun");
    assert_int_equal(aclrtFree(small), ACL_SUCCESS);
    assert_int_equal(aclDestroyAclOpExecutor(call.executor), ACLNN_SUCCESS);
    grad_call_drop(&call);
    end_with(ACL_SUCCESS);
}

static void leaks(void **state)
{
    (void)state;
    int64_t shape[] = {3};
    aclrtEvent event;
    aclrtContext own, context;
    void *host;
    unsigned char *memory = allocate(77);
    aclTensor *tensor =
        aclCreateTensor(shape, 1, ACL_FLOAT, NULL, 0, ACL_FORMAT_ND, shape, 1, memory);
    aclIntArray *array = aclCreateIntArray(shape, 1);
    assert_int_equal(aclrtCreateEvent(&event), ACL_SUCCESS);
    assert_int_equal(aclrtMallocHost(&host, 5), ACL_SUCCESS);
    assert_int_equal(aclrtGetCurrentContext(&own), ACL_SUCCESS);
    assert_int_equal(aclrtCreateContext(&context, 0), ACL_SUCCESS);
    assert_int_equal(aclrtSetCurrentContext(own), ACL_SUCCESS);
    end_with(ACL_ERROR_FAILURE);
    assert_string_equal(aclGetRecentErrMsg(),
                        "aclFinalize: 6 objects or blocks were never released");
    reported("never released: device memory #");
    reported("of 77 bytes");
    reported("never released: tensor #");
    reported("never released: int array #");
    reported("never released: event #");
    reported("never released: host memory #");
    reported("never released: context #");
    /* They can still be given back. */
    assert_int_equal(aclrtFree(memory), ACL_SUCCESS);
    assert_int_equal(aclDestroyTensor(tensor), ACLNN_SUCCESS);
    assert_int_equal(aclDestroyIntArray(array), ACLNN_SUCCESS);
    assert_int_equal(aclrtDestroyEvent(event), ACL_SUCCESS);
    assert_int_equal(aclrtFreeHost(host), ACL_SUCCESS);
    assert_int_equal(aclrtDestroyContext(context), ACL_SUCCESS);
}

/* More freed memory than is kept aside: the oldest goes, the newest is still known. */
static void many_frees(void **state)
{
    (void)state;
    enum {
        BLOCK = 4 << 20
    };
    unsigned char *first = allocate(BLOCK), *last = NULL;
    assert_int_equal(aclrtFree(first), ACL_SUCCESS);
    for (int i = 0; i < 20; i++) {
        last = allocate(BLOCK);
        assert_int_equal(aclrtFree(last), ACL_SUCCESS);
    }
    assert_fails(aclrtFree(last), ACL_ERROR_RT_PARAM_INVALID, "released before");
    end_with(ACL_SUCCESS);
}

int main(void)
{
    if (getenv("MOETOKEN_ACL_CHECK") == NULL) {
        fprintf(stderr, "MOETOKEN_ACL_CHECK=1 must be set for this test\n");
        return 2;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(no_fault, begin_report, end_report),
        cmocka_unit_test_setup_teardown(overruns, begin_report, end_report),
        cmocka_unit_test_setup_teardown(copy_overruns, begin_report, end_report),
        cmocka_unit_test_setup_teardown(double_free, begin_report, end_report),
        cmocka_unit_test_setup_teardown(use_after_free, begin_report, end_report),
        cmocka_unit_test_setup_teardown(destroyed_tensors, begin_report, end_report),
        cmocka_unit_test_setup_teardown(destroyed_executors, begin_report, end_report),
        cmocka_unit_test_setup_teardown(tensors_beyond_memory, begin_report, end_report),
        cmocka_unit_test_setup_teardown(tensor_over_host_memory, begin_report, end_report),
        cmocka_unit_test_setup_teardown(leaks, begin_report, end_report),
        cmocka_unit_test_setup_teardown(many_frees, begin_report, end_report),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
