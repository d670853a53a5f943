/* streams_test.c - work on a stream is done in order and truly later; events order streams and
 * measure time; waits end in time; several streams are used from several threads. */
#include "twin.h"

#include <pthread.h>
#include <semaphore.h>
#include <time.h>

/* A host function that holds its stream until the test lets it go. */
struct gate {
    sem_t entered, opened;
};

static void gate_make(struct gate *gate)
{
    sem_init(&gate->entered, 0, 0);
    sem_init(&gate->opened, 0, 0);
}

static void pass_gate(void *argument)
{
    struct gate *gate = argument;
    sem_post(&gate->entered);
    sem_wait(&gate->opened);
}

static void gate_close(struct gate *gate, aclrtStream stream)
{
    assert_int_equal(aclrtLaunchHostFunc(stream, pass_gate, gate), ACL_SUCCESS);
    sem_wait(&gate->entered);
}

/* Copies wait for what is before them, and the waits with a timeout tell so: 507046. */
static void order_and_timeout(void **state)
{
    (void)state;
    struct gate gate;
    struct twin_tensor device = twin_make(ACL_INT32, 2, -1, (const int32_t[]){1, 2});
    int32_t host[2] = {7, 8}, result[2] = {0, 0};
    aclrtStreamStatus status;
    gate_make(&gate);
    gate_close(&gate, twin_stream);
    assert_int_equal(
        aclrtMemcpyAsync(device.data, 8, host, 8, ACL_MEMCPY_HOST_TO_DEVICE, twin_stream), 0);
    assert_int_equal(aclrtMemsetAsync(device.data, 4, 0x101, 4, twin_stream), ACL_SUCCESS);
    assert_int_equal(
        aclrtMemcpyAsync(result, 8, device.data, 8, ACL_MEMCPY_DEVICE_TO_HOST, twin_stream), 0);
    assert_fails(aclrtSynchronizeStreamWithTimeout(twin_stream, 5),
                 ACL_ERROR_RT_STREAM_SYNC_TIMEOUT, "the stream is not done after 5 ms");
    assert_int_equal(aclrtSynchronizeStreamWithTimeout(twin_stream, 0),
                     ACL_ERROR_RT_STREAM_SYNC_TIMEOUT);
    assert_int_equal(aclrtStreamQuery(twin_stream, &status), ACL_SUCCESS);
    assert_int_equal(status, ACL_STREAM_STATUS_NOT_READY);
    assert_int_equal(result[1], 0);
    sem_post(&gate.opened);
    assert_int_equal(aclrtSynchronizeStreamWithTimeout(twin_stream, -1), ACL_SUCCESS);
    assert_int_equal(result[0], 0x01010101);
    assert_int_equal(result[1], 8);
    assert_int_equal(aclrtStreamQuery(twin_stream, &status), ACL_SUCCESS);
    assert_int_equal(status, ACL_STREAM_STATUS_COMPLETE);
    assert_int_equal(aclrtSynchronizeStreamWithTimeout(twin_stream, -2),
                     ACL_ERROR_RT_PARAM_INVALID);
    twin_drop(&device);
}

/* An operator sees the copies that were queued before it. */
static void operator_after_copies(void **state)
{
    (void)state;
    struct grad_call call = grad_call_make();
    float zeros[6] = {0}, result[10];
    twin_replace(&call.grad, twin_make(ACL_FLOAT, 3, 2, zeros));
    assert_int_equal(grad_call_phase_one(&call), ACLNN_SUCCESS);
    void *workspace;
    assert_int_equal(aclrtMalloc(&workspace, call.workspace_bytes, ACL_MEM_MALLOC_HUGE_FIRST), 0);
    assert_int_equal(aclrtMemcpyAsync(call.grad.data, call.grad.bytes, example_grad,
                                      call.grad.bytes, ACL_MEMCPY_HOST_TO_DEVICE, twin_stream),
                     ACL_SUCCESS);
    assert_int_equal(aclnnMoeTokenUnpermuteWithRoutingMapGrad(workspace, call.workspace_bytes,
                                                              call.executor, twin_stream),
                     ACLNN_SUCCESS);
    assert_int_equal(aclrtMemcpyAsync(result, sizeof result, call.rows_grad.data, sizeof result,
                                      ACL_MEMCPY_DEVICE_TO_HOST, twin_stream),
                     ACL_SUCCESS);
    assert_int_equal(aclrtSynchronizeStream(twin_stream), ACL_SUCCESS);
    assert_memory_equal(result, example_rows_grad, sizeof result);
    assert_int_equal(aclrtFree(workspace), ACL_SUCCESS);
    grad_call_drop(&call);
}

static void *open_later(void *argument)
{
    struct timespec time = {0, 20 * 1000 * 1000};
    nanosleep(&time, NULL);
    sem_post(&((struct gate *)argument)->opened);
    return NULL;
}

/* aclrtFree of memory that no stream uses, while a stream is at work. */
static void free_does_not_wait(void **state)
{
    (void)state;
    struct gate gate;
    struct twin_tensor device = twin_make(ACL_INT32, 2, -1, NULL);
    gate_make(&gate);
    gate_close(&gate, twin_stream);
    twin_drop(&device);
    sem_post(&gate.opened);
    assert_int_equal(aclrtSynchronizeStream(twin_stream), ACL_SUCCESS);
}

static void event_statuses(void **state)
{
    (void)state;
    aclrtEvent event, other;
    aclrtEventRecordedStatus status;
    float ms;
    assert_int_equal(aclrtCreateEvent(NULL), ACL_ERROR_INVALID_PARAM);
    assert_int_equal(aclrtCreateEvent(&event), ACL_SUCCESS);
    assert_int_equal(aclrtCreateEventWithFlag(&other, ACL_EVENT_TIME_LINE), ACL_SUCCESS);
    assert_int_equal(aclrtQueryEventStatus(event, &status), ACL_SUCCESS);
    assert_int_equal(status, ACL_EVENT_RECORDED_STATUS_NOT_READY);
    assert_fails(aclrtEventElapsedTime(&ms, event, other), ACL_ERROR_RT_PARAM_INVALID,
                 "not recorded");
    assert_int_equal(aclrtEventElapsedTime(NULL, event, other), ACL_ERROR_INVALID_PARAM);
    assert_int_equal(aclrtSynchronizeEvent(event), ACL_SUCCESS);
    assert_int_equal(aclrtStreamWaitEvent(twin_stream, event), ACL_SUCCESS);
    assert_int_equal(aclrtResetEvent(event, twin_stream), ACL_SUCCESS);
    assert_int_equal(aclrtDestroyEvent(event), ACL_SUCCESS);
    assert_fails(aclrtRecordEvent(event, twin_stream), ACL_ERROR_RT_PARAM_INVALID,
                 "is not a live event");
    assert_int_equal(aclrtDestroyEvent(event), ACL_ERROR_RT_PARAM_INVALID);
    assert_int_equal(aclrtDestroyEvent(NULL), ACL_ERROR_INVALID_PARAM);
    assert_int_equal(aclrtDestroyEvent(other), ACL_SUCCESS);
}

/* The time between two records holds what the stream did between them. */
static void elapsed_time(void **state)
{
    (void)state;
    aclrtEvent begin, end;
    aclrtEventRecordedStatus status;
    struct gate gate;
    pthread_t opener;
    float ms = -1;
    gate_make(&gate);
    assert_int_equal(aclrtCreateEvent(&begin), ACL_SUCCESS);
    assert_int_equal(aclrtCreateEventExWithFlag(&end, ACL_EVENT_TIME_LINE), ACL_SUCCESS);
    assert_int_equal(aclrtRecordEvent(begin, twin_stream), ACL_SUCCESS);
    gate_close(&gate, twin_stream);
    assert_int_equal(aclrtRecordEvent(end, twin_stream), ACL_SUCCESS);
    assert_int_equal(aclrtQueryEventStatus(begin, &status), ACL_SUCCESS);
    assert_int_equal(status, ACL_EVENT_RECORDED_STATUS_COMPLETE);
    assert_int_equal(aclrtQueryEventStatus(end, &status), ACL_SUCCESS);
    assert_int_equal(status, ACL_EVENT_RECORDED_STATUS_NOT_READY);
    assert_int_equal(aclrtEventElapsedTime(&ms, begin, end), ACL_ERROR_RT_PARAM_INVALID);
    assert_int_equal(pthread_create(&opener, NULL, open_later, &gate), 0);
    assert_int_equal(aclrtSynchronizeEvent(end), ACL_SUCCESS);
    assert_int_equal(aclrtEventElapsedTime(&ms, begin, end), ACL_SUCCESS);
    assert_true(ms >= 20 && ms < 60000);
    pthread_join(opener, NULL);
    assert_int_equal(aclrtDestroyEvent(begin), ACL_SUCCESS);
    assert_int_equal(aclrtDestroyEvent(end), ACL_SUCCESS);
}

/* A stream that waits for another's event copies what that one has written. */
static void wait_across_streams(void **state)
{
    (void)state;
    aclrtStream second;
    aclrtEvent event;
    struct gate gate;
    int32_t host[2] = {5, 6}, result[2] = {0, 0};
    struct twin_tensor device = twin_make(ACL_INT32, 2, -1, NULL);
    gate_make(&gate);
    assert_int_equal(aclrtCreateStreamWithConfig(&second, 0, ACL_STREAM_FAST_SYNC), ACL_SUCCESS);
    assert_int_equal(aclrtCreateEvent(&event), ACL_SUCCESS);
    gate_close(&gate, twin_stream);
    assert_int_equal(
        aclrtMemcpyAsync(device.data, 8, host, 8, ACL_MEMCPY_HOST_TO_DEVICE, twin_stream), 0);
    assert_int_equal(aclrtRecordEvent(event, twin_stream), ACL_SUCCESS);
    assert_int_equal(aclrtStreamWaitEvent(second, event), ACL_SUCCESS);
    assert_int_equal(aclrtMemcpyAsync(result, 8, device.data, 8, ACL_MEMCPY_DEVICE_TO_HOST, second),
                     0);
    assert_int_equal(aclrtSynchronizeStreamWithTimeout(second, 5),
                     ACL_ERROR_RT_STREAM_SYNC_TIMEOUT);
    sem_post(&gate.opened);
    assert_int_equal(aclrtSynchronizeStream(second), ACL_SUCCESS);
    assert_true(result[0] == 5 && result[1] == 6);
    assert_int_equal(aclrtDestroyEvent(event), ACL_SUCCESS);
    assert_int_equal(aclrtDestroyStream(second), ACL_SUCCESS);
    twin_drop(&device);
}

static void stream_statuses(void **state)
{
    (void)state;
    aclrtStream stream;
    char byte = 0;
    assert_int_equal(aclrtCreateStream(NULL), ACL_ERROR_INVALID_PARAM);
    assert_int_equal(aclrtCreateStream(&stream), ACL_SUCCESS);
    assert_int_equal(aclrtDestroyStream(stream), ACL_SUCCESS);
    assert_fails(aclrtSynchronizeStream(stream), ACL_ERROR_RT_PARAM_INVALID,
                 "is not a live stream");
    assert_int_equal(aclrtDestroyStream(stream), ACL_ERROR_RT_PARAM_INVALID);
    assert_int_equal(aclrtDestroyStream(NULL), ACL_ERROR_INVALID_PARAM);
    assert_int_equal(aclrtMemcpyAsync(&byte, 1, &byte, 1, ACL_MEMCPY_HOST_TO_HOST, stream),
                     ACL_ERROR_RT_PARAM_INVALID);
    assert_int_equal(aclrtMemcpyAsync(&byte, 1, &byte, 2, ACL_MEMCPY_HOST_TO_HOST, NULL),
                     ACL_ERROR_RT_PARAM_INVALID);
    assert_int_equal(aclrtMemcpyAsync(NULL, 1, &byte, 1, ACL_MEMCPY_HOST_TO_HOST, NULL),
                     ACL_ERROR_INVALID_PARAM);
    assert_int_equal(aclrtMemcpyAsync(NULL, 0, NULL, 0, ACL_MEMCPY_HOST_TO_HOST, NULL),
                     ACL_SUCCESS);
    assert_int_equal(aclrtMemsetAsync(NULL, 1, 0, 1, NULL), ACL_ERROR_INVALID_PARAM);
    assert_int_equal(aclrtLaunchHostFunc(NULL, NULL, NULL), ACL_ERROR_INVALID_PARAM);
    assert_int_equal(aclrtStreamQuery(NULL, NULL), ACL_ERROR_INVALID_PARAM);
    assert_int_equal(aclrtSynchronizeStream(NULL), ACL_SUCCESS); /* the default stream */
}

enum {
    THREADS = 4,
    ROUNDS = 25
};

/* One thread: own tensors, a stream of its own, every round with copies in, operator, copies out.
 */
static const char *rounds(int number, aclrtStream stream)
{
    float grad[6], result[10], expected[10];
    struct grad_call call = grad_call_make();
    const char *fault = NULL;
    void *workspace = NULL;
    if (grad_call_phase_one(&call) || aclSetAclOpExecutorRepeatable(call.executor) ||
        aclrtMalloc(&workspace, call.workspace_bytes, ACL_MEM_MALLOC_HUGE_FIRST))
        return "could not begin";
    for (int round = 0; round < ROUNDS && fault == NULL; round++) {
        float factor = (float)(number * ROUNDS + round + 1); /* exact products */
        for (int i = 0; i < 6; i++)
            grad[i] = factor * example_grad[i];
        for (int i = 0; i < 10; i++)
            expected[i] = factor * example_rows_grad[i];
        if (aclrtMemcpyAsync(call.grad.data, sizeof grad, grad, sizeof grad,
                             ACL_MEMCPY_HOST_TO_DEVICE, stream) ||
            aclnnMoeTokenUnpermuteWithRoutingMapGrad(workspace, call.workspace_bytes, call.executor,
                                                     stream) ||
            aclrtMemcpyAsync(result, sizeof result, call.rows_grad.data, sizeof result,
                             ACL_MEMCPY_DEVICE_TO_HOST, stream) ||
            aclrtSynchronizeStream(stream))
            fault = "a call failed";
        for (int i = 0; i < 10 && fault == NULL; i++)
            if (result[i] != expected[i])
                fault = "a result is wrong";
    }
    aclDestroyAclOpExecutor(call.executor);
    aclrtFree(workspace);
    grad_call_drop(&call);
    return fault;
}

struct worker {
    pthread_t thread;
    int number;
    const char *fault;
};

static void *thread_rounds(void *argument)
{
    struct worker *worker = argument;
    aclrtStream stream;
    worker->fault = "no stream";
    if (aclrtSetDevice(0) || aclrtCreateStream(&stream))
        return NULL;
    worker->fault = rounds(worker->number, stream);
    if (aclrtDestroyStream(stream) || aclrtResetDevice(0))
        worker->fault = "no end";
    /* A message belongs to the thread that got it. */
    if (aclrtFree(NULL) != ACL_ERROR_INVALID_PARAM ||
        strstr(aclGetRecentErrMsg(), "aclrtFree") == NULL)
        worker->fault = "wrong message";
    return NULL;
}

static void threads(void **state)
{
    (void)state;
    struct worker workers[THREADS];
    assert_fails(aclrtFreeHost(NULL), ACL_ERROR_INVALID_PARAM, "aclrtFreeHost");
    for (int i = 0; i < THREADS; i++) {
        workers[i].number = i;
        assert_int_equal(pthread_create(&workers[i].thread, NULL, thread_rounds, &workers[i]), 0);
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(workers[i].thread, NULL);
        if (workers[i].fault)
            fail_msg("thread %d: %s", i, workers[i].fault);
    }
    assert_non_null(strstr(aclGetRecentErrMsg(), "aclrtFreeHost"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(order_and_timeout),  cmocka_unit_test(operator_after_copies),
        cmocka_unit_test(free_does_not_wait), cmocka_unit_test(event_statuses),
        cmocka_unit_test(elapsed_time),       cmocka_unit_test(wait_across_streams),
        cmocka_unit_test(stream_statuses),    cmocka_unit_test(threads),
    };
    return cmocka_run_group_tests(tests, twin_setup, twin_teardown);
}
