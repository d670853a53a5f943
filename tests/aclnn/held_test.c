/* held_test.c - handles that another thread gives back while a call uses them, waits that hold
 * nobody else up, and streams of another context. */
#include "twin.h"

#include <pthread.h>
#include <semaphore.h>
#include <time.h>
#include <unistd.h>

/* A host function that holds its stream until the test lets it go. */
struct gate {
    sem_t entered, opened;
};

static void pass_gate(void *argument)
{
    struct gate *gate = argument;
    sem_post(&gate->entered);
    sem_wait(&gate->opened);
}

static void gate_close(struct gate *gate, aclrtStream stream)
{
    sem_init(&gate->entered, 0, 0);
    sem_init(&gate->opened, 0, 0);
    assert_int_equal(aclrtLaunchHostFunc(stream, pass_gate, gate), ACL_SUCCESS);
    sem_wait(&gate->entered);
}

static void pause_briefly(void)
{
    struct timespec time = {0, 20 * 1000 * 1000};
    nanosleep(&time, NULL);
}

/* A call of its own thread. */
struct call {
    pthread_t thread;
    int (*function)(void *argument);
    void *argument;
    int status;
};

static void *run_call(void *argument)
{
    struct call *call = argument;
    call->status = call->function(call->argument);
    return NULL;
}

static void call_begin(struct call *call, int (*function)(void *), void *argument)
{
    call->function = function;
    call->argument = argument;
    assert_int_equal(pthread_create(&call->thread, NULL, run_call, call), 0);
}

static int call_end(struct call *call)
{
    pthread_join(call->thread, NULL);
    return call->status;
}

static int synchronize_device(void *argument)
{
    (void)argument;
    return aclrtSynchronizeDevice();
}

static int synchronize_stream(void *stream)
{
    return aclrtSynchronizeStream(stream);
}

static int destroy_stream(void *stream)
{
    return aclrtDestroyStream(stream);
}

/* One thread waits for the device; meanwhile others make, use and destroy streams. */
static void device_wait_holds_no_lock(void **state)
{
    (void)state;
    struct gate gate;
    struct call waiter;
    aclrtStream other;
    gate_close(&gate, twin_stream);
    call_begin(&waiter, synchronize_device, NULL);
    pause_briefly();
    assert_int_equal(aclrtCreateStream(&other), ACL_SUCCESS);
    assert_int_equal(aclrtSynchronizeStream(other), ACL_SUCCESS);
    assert_int_equal(aclrtDestroyStream(other), ACL_SUCCESS);
    assert_fails(aclrtSynchronizeDeviceWithTimeout(5), ACL_ERROR_RT_STREAM_SYNC_TIMEOUT, "5 ms");
    assert_int_equal(aclrtSynchronizeDeviceWithTimeout(-2), ACL_ERROR_RT_PARAM_INVALID);
    sem_post(&gate.opened);
    assert_int_equal(call_end(&waiter), ACL_SUCCESS);
    assert_int_equal(aclrtSynchronizeDeviceWithTimeout(-1), ACL_SUCCESS);
}

/* A stream destroyed while one thread waits for it and another destroys it, too. */
static void stream_destroyed_in_use(void **state)
{
    (void)state;
    for (int round = 0; round < 50; round++) {
        struct gate gate;
        struct call waiter, first, second;
        aclrtStream stream;
        assert_int_equal(aclrtCreateStream(&stream), ACL_SUCCESS);
        gate_close(&gate, stream);
        call_begin(&waiter, synchronize_stream, stream);
        call_begin(&first, destroy_stream, stream);
        call_begin(&second, destroy_stream, stream);
        if (round % 10 == 0)
            pause_briefly();
        sem_post(&gate.opened);
        int waited = call_end(&waiter), one = call_end(&first), two = call_end(&second);
        assert_true(waited == ACL_SUCCESS || waited == ACL_ERROR_RT_PARAM_INVALID);
        assert_int_equal((one == ACL_SUCCESS) + (two == ACL_SUCCESS), 1);
        assert_int_equal(one == ACL_SUCCESS ? two : one, ACL_ERROR_RT_PARAM_INVALID);
    }
}

static int synchronize_event(void *event)
{
    return aclrtSynchronizeEvent(event);
}

/* Two streams and a thread wait for an event that is destroyed before it comes. */
static void event_destroyed_in_use(void **state)
{
    (void)state;
    struct gate gate;
    struct call waiter;
    aclrtStream second;
    aclrtEvent event;
    assert_int_equal(aclrtCreateStream(&second), ACL_SUCCESS);
    assert_int_equal(aclrtCreateEvent(&event), ACL_SUCCESS);
    gate_close(&gate, twin_stream);
    assert_int_equal(aclrtRecordEvent(event, twin_stream), ACL_SUCCESS);
    assert_int_equal(aclrtStreamWaitEvent(second, event), ACL_SUCCESS);
    assert_int_equal(aclrtStreamWaitEvent(second, event), ACL_SUCCESS);
    call_begin(&waiter, synchronize_event, event);
    pause_briefly();
    assert_int_equal(aclrtDestroyEvent(event), ACL_SUCCESS); /* waits for nobody */
    assert_int_equal(aclrtDestroyEvent(event), ACL_ERROR_RT_PARAM_INVALID);
    assert_int_equal(aclrtSynchronizeStreamWithTimeout(second, 5),
                     ACL_ERROR_RT_STREAM_SYNC_TIMEOUT);
    sem_post(&gate.opened);
    int waited = call_end(&waiter); /* on a busy machine it may have come too late */
    assert_true(waited == ACL_SUCCESS || waited == ACL_ERROR_RT_PARAM_INVALID);
    assert_int_equal(aclrtSynchronizeStream(second), ACL_SUCCESS);
    assert_int_equal(aclrtDestroyStream(second), ACL_SUCCESS);
}

static void add_one(void *number)
{
    ++*(int *)number;
}

/* What a stream had not begun is not done, and nobody waits for its records for ever. */
static void destroyed_by_force(void **state)
{
    (void)state;
    struct gate gate;
    aclrtStream stream;
    aclrtEvent event;
    int number = 0;
    assert_int_equal(aclrtCreateStream(&stream), ACL_SUCCESS);
    assert_int_equal(aclrtCreateEvent(&event), ACL_SUCCESS);
    gate_close(&gate, stream);
    assert_int_equal(aclrtLaunchHostFunc(stream, add_one, &number), ACL_SUCCESS);
    assert_int_equal(aclrtRecordEvent(event, stream), ACL_SUCCESS);
    assert_int_equal(aclrtDestroyStreamForce(stream), ACL_SUCCESS);
    sem_post(&gate.opened);
    assert_int_equal(aclrtSynchronizeEvent(event), ACL_SUCCESS);
    assert_int_equal(number, 0);
    assert_int_equal(aclrtDestroyEvent(event), ACL_SUCCESS);
    assert_int_equal(aclrtDestroyStreamForce(NULL), ACL_ERROR_INVALID_PARAM);
}

/* Streams belong to their context: 107003 in another one and when theirs is gone. */
static void streams_of_contexts(void **state)
{
    (void)state;
    aclrtContext own, second;
    aclrtStream stream;
    aclrtEvent event;
    char byte = 0;
    assert_int_equal(aclrtGetCurrentContext(&own), ACL_SUCCESS);
    assert_int_equal(aclrtCreateEvent(&event), ACL_SUCCESS);
    assert_int_equal(aclrtCreateContext(&second, 0), ACL_SUCCESS);
    assert_int_equal(aclrtCreateStream(&stream), ACL_SUCCESS);
    assert_int_equal(aclrtSynchronizeStream(stream), ACL_SUCCESS);
    assert_int_equal(aclrtSynchronizeStream(twin_stream), ACL_ERROR_RT_STREAM_CONTEXT);
    assert_int_equal(aclrtSetCurrentContext(own), ACL_SUCCESS);
    for (int gone = 0; gone < 2; gone++) {
        assert_fails(aclrtSynchronizeStream(stream), ACL_ERROR_RT_STREAM_CONTEXT,
                     gone ? "gone" : "not the thread's current one");
        assert_int_equal(aclrtDestroyStream(stream), ACL_ERROR_RT_STREAM_CONTEXT);
        assert_int_equal(aclrtMemcpyAsync(&byte, 1, &byte, 1, ACL_MEMCPY_HOST_TO_HOST, stream),
                         ACL_ERROR_RT_STREAM_CONTEXT);
        assert_int_equal(aclrtRecordEvent(event, stream), ACL_ERROR_RT_STREAM_CONTEXT);
        if (!gone)
            assert_int_equal(aclrtDestroyContext(second), ACL_SUCCESS);
    }
    struct grad_call call = grad_call_make();
    void *workspace;
    assert_int_equal(grad_call_phase_one(&call), ACLNN_SUCCESS);
    assert_int_equal(aclrtMalloc(&workspace, call.workspace_bytes, ACL_MEM_MALLOC_HUGE_FIRST), 0);
    assert_fails(aclnnMoeTokenUnpermuteWithRoutingMapGrad(workspace, call.workspace_bytes,
                                                          call.executor, stream),
                 ACLNN_ERR_RUNTIME_ERROR, "belongs to a context that is gone");
    aclrtFree(workspace);
    assert_int_equal(grad_call_phase_two(&call), ACLNN_SUCCESS); /* that was no run */
    grad_call_drop(&call);
    assert_int_equal(aclrtDestroyEvent(event), ACL_SUCCESS);
}

struct two_runs {
    struct grad_call *call;
    void *workspace;
};

static int run_executor(void *argument)
{
    struct two_runs *runs = argument;
    return aclnnMoeTokenUnpermuteWithRoutingMapGrad(runs->workspace, runs->call->workspace_bytes,
                                                    runs->call->executor, twin_stream);
}

/* Two threads run one executor while its stream is busy: one success, one 161002. The same with
 * aclDestroyAclOpExecutor in place of the second run. */
static void executor_after_its_turn(void **state)
{
    (void)state;
    for (int round = 0; round < 20; round++) {
        struct gate gate;
        struct call first, second;
        struct grad_call call = grad_call_make();
        struct two_runs runs = {&call, NULL};
        assert_int_equal(grad_call_phase_one(&call), ACLNN_SUCCESS);
        assert_int_equal(
            aclrtMalloc(&runs.workspace, call.workspace_bytes, ACL_MEM_MALLOC_HUGE_FIRST), 0);
        gate_close(&gate, twin_stream);
        call_begin(&first, run_executor, &runs);
        int other;
        if (round % 2 == 0) {
            call_begin(&second, run_executor, &runs);
            if (round % 4 == 0)
                pause_briefly();
            sem_post(&gate.opened);
            other = call_end(&second);
        } else {
            other = aclDestroyAclOpExecutor(call.executor);
            sem_post(&gate.opened);
        }
        int one = call_end(&first);
        assert_int_equal(aclrtSynchronizeStream(twin_stream), ACL_SUCCESS); /* the gate's end */
        assert_int_equal((one == ACLNN_SUCCESS) + (other == ACLNN_SUCCESS), 1);
        assert_int_equal(one == ACLNN_SUCCESS ? other : one, ACLNN_ERR_PARAM_INVALID);
        assert_int_equal(aclrtFree(runs.workspace), ACL_SUCCESS);
        grad_call_drop(&call);
    }
}

/* Workspaces that phase two refuses do not consume the executor, and nothing is written. */
static void refused_workspaces(void **state)
{
    (void)state;
    struct grad_call call = grad_call_make();
    float before[10], after[10];
    char *workspace;
    assert_int_equal(grad_call_phase_one(&call), ACLNN_SUCCESS);
    assert_int_equal(
        aclrtMalloc((void **)&workspace, call.workspace_bytes + 8, ACL_MEM_MALLOC_HUGE_FIRST), 0);
    assert_fails(aclnnMoeTokenUnpermuteWithRoutingMapGrad(workspace + 4, call.workspace_bytes,
                                                          call.executor, twin_stream),
                 ACLNN_ERR_PARAM_INVALID, "is not aligned to 8 bytes");
    /* Which tensor is named depends on what lies behind that one in memory. */
    const struct twin_tensor *const overlapped[] = {&call.rows_grad, &call.grad, &call.out_index,
                                                    &call.map, &call.probs_grad};
    twin_read(&call.rows_grad, before);
    for (size_t i = 0; i < sizeof overlapped / sizeof overlapped[0]; i++)
        assert_fails(aclnnMoeTokenUnpermuteWithRoutingMapGrad(
                         overlapped[i]->data, call.workspace_bytes, call.executor, twin_stream),
                     ACLNN_ERR_PARAM_INVALID, "workspace shares memory with ");
    twin_read(&call.rows_grad, after);
    assert_memory_equal(before, after, sizeof before);
    assert_int_equal(aclnnMoeTokenUnpermuteWithRoutingMapGrad(workspace, call.workspace_bytes,
                                                              call.executor, twin_stream),
                     ACLNN_SUCCESS);
    assert_memory_equal(call.rows_grad.data, example_rows_grad, sizeof example_rows_grad);
    assert_int_equal(aclrtFree(workspace), ACL_SUCCESS);
    grad_call_drop(&call);
}

int main(void)
{
    alarm(50); /* a hang ends the test */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(device_wait_holds_no_lock), cmocka_unit_test(stream_destroyed_in_use),
        cmocka_unit_test(event_destroyed_in_use),    cmocka_unit_test(destroyed_by_force),
        cmocka_unit_test(streams_of_contexts),       cmocka_unit_test(executor_after_its_turn),
        cmocka_unit_test(refused_workspaces),
    };
    return cmocka_run_group_tests(tests, twin_setup, twin_teardown);
}
