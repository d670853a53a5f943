/* stream.c - streams as turns: each piece of work takes the next number and starts when all lower
 * ones are over. Queued work runs on the stream's thread, operators in their caller's. */
#include "stream.h"

#include "context.h"
#include "message.h"
#include "registry.h"

#include <errno.h>
#include <stdlib.h>
#include <time.h>

static pthread_mutex_t all_lock = PTHREAD_MUTEX_INITIALIZER;
static struct stream *all_streams;
static _Thread_local bool is_stream_thread;

void stream_open(struct stream *stream)
{
    *stream = (struct stream){0};
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&stream->changed, &attributes);
    pthread_condattr_destroy(&attributes);
    pthread_mutex_init(&stream->lock, NULL);
    pthread_mutex_lock(&all_lock);
    stream->next = all_streams;
    if (all_streams)
        all_streams->previous = stream;
    all_streams = stream;
    pthread_mutex_unlock(&all_lock);
}

static void leave_all_streams(struct stream *stream)
{
    pthread_mutex_lock(&all_lock);
    if (stream->previous)
        stream->previous->next = stream->next;
    else
        all_streams = stream->next;
    if (stream->next)
        stream->next->previous = stream->previous;
    pthread_mutex_unlock(&all_lock);
}

void stream_close(struct stream *stream)
{
    leave_all_streams(stream);
    stream_wait(stream, -1, "");
    if (stream->has_thread) {
        pthread_mutex_lock(&stream->lock);
        stream->stopping = true;
        pthread_cond_broadcast(&stream->changed);
        pthread_mutex_unlock(&stream->lock);
        pthread_join(stream->thread, NULL);
    }
    pthread_cond_destroy(&stream->changed);
    pthread_mutex_destroy(&stream->lock);
}

aclError stream_of(aclrtStream handle, const char *function, struct stream **stream)
{
    if (handle != NULL) {
        *stream = handle;
        return registry_live(RESOURCE_STREAM, handle, function) ? ACL_SUCCESS
                                                                : ACL_ERROR_RT_PARAM_INVALID;
    }
    *stream = context_default_stream();
    if (*stream == NULL)
        return fail(ACL_ERROR_RT_CONTEXT_NULL,
                    "%s: the thread has no context: call aclrtSetDevice before", function);
    return ACL_SUCCESS;
}

/* With the stream's lock held. */
static void await_turn(struct stream *stream, uint64_t turn)
{
    while (stream->finished != turn - 1)
        pthread_cond_wait(&stream->changed, &stream->lock);
}

void stream_begin(struct stream *stream)
{
    pthread_mutex_lock(&stream->lock);
    await_turn(stream, ++stream->turns);
    pthread_mutex_unlock(&stream->lock);
}

void stream_end(struct stream *stream)
{
    pthread_mutex_lock(&stream->lock);
    stream->finished++;
    pthread_cond_broadcast(&stream->changed);
    pthread_mutex_unlock(&stream->lock);
}

static struct task *next_task(struct stream *stream)
{
    pthread_mutex_lock(&stream->lock);
    while (stream->first == NULL && !stream->stopping)
        pthread_cond_wait(&stream->changed, &stream->lock);
    struct task *task = stream->first;
    if (task) {
        stream->first = task->next;
        await_turn(stream, task->turn);
    }
    pthread_mutex_unlock(&stream->lock);
    return task;
}

static void *run_tasks(void *argument)
{
    struct stream *stream = argument;
    struct task *task;
    is_stream_thread = true;
    while ((task = next_task(stream)) != NULL) {
        task->run(task);
        free(task);
        stream_end(stream);
    }
    return NULL;
}

/* With the stream's lock held. */
static bool start_thread(struct stream *stream)
{
    if (!stream->has_thread)
        stream->has_thread = pthread_create(&stream->thread, NULL, run_tasks, stream) == 0;
    return stream->has_thread;
}

/* With the stream's lock held. */
static aclError enqueue(struct stream *stream, struct task task)
{
    struct task *queued = malloc(sizeof *queued);
    if (queued == NULL || !start_thread(stream)) {
        free(queued);
        return fail(ACL_ERROR_BAD_ALLOC, "no memory for work on a stream");
    }
    *queued = task;
    queued->next = NULL;
    queued->turn = ++stream->turns;
    if (stream->first)
        stream->last->next = queued;
    else
        stream->first = queued;
    stream->last = queued;
    pthread_cond_broadcast(&stream->changed);
    return ACL_SUCCESS;
}

aclError stream_submit(struct stream *stream, struct task task, bool at_once)
{
    aclError status = ACL_SUCCESS;
    pthread_mutex_lock(&stream->lock);
    bool now = at_once && stream->finished == stream->turns;
    if (now)
        stream->turns++;
    else
        status = enqueue(stream, task);
    pthread_mutex_unlock(&stream->lock);
    if (now) {
        task.run(&task);
        stream_end(stream);
    }
    return status;
}

static struct timespec deadline_after(int32_t milliseconds)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    time.tv_sec += milliseconds / 1000;
    time.tv_nsec += milliseconds % 1000 * 1000000L;
    if (time.tv_nsec >= 1000000000L) {
        time.tv_sec++;
        time.tv_nsec -= 1000000000L;
    }
    return time;
}

aclError stream_wait(struct stream *stream, int32_t timeout, const char *function)
{
    struct timespec deadline = deadline_after(timeout < 0 ? 0 : timeout);
    int result = 0;
    pthread_mutex_lock(&stream->lock);
    uint64_t turn = stream->turns;
    while (stream->finished < turn && result != ETIMEDOUT)
        result = timeout < 0 ? pthread_cond_wait(&stream->changed, &stream->lock)
                             : pthread_cond_timedwait(&stream->changed, &stream->lock, &deadline);
    bool done = stream->finished >= turn;
    pthread_mutex_unlock(&stream->lock);
    if (!done)
        return fail(ACL_ERROR_RT_STREAM_SYNC_TIMEOUT, "%s: the stream is not done after %d ms",
                    function, (int)timeout);
    return ACL_SUCCESS;
}

void streams_wait(void)
{
    if (is_stream_thread)
        return;
    pthread_mutex_lock(&all_lock);
    for (struct stream *stream = all_streams; stream; stream = stream->next)
        stream_wait(stream, -1, "");
    pthread_mutex_unlock(&all_lock);
}

aclError aclrtCreateStream(aclrtStream *stream)
{
    if (stream == NULL)
        return fail(ACL_ERROR_INVALID_PARAM, "aclrtCreateStream: stream is NULL");
    if (!context_required("aclrtCreateStream"))
        return ACL_ERROR_RT_CONTEXT_NULL;
    struct stream *created = registry_create(RESOURCE_STREAM, sizeof *created);
    if (created == NULL)
        return fail(ACL_ERROR_BAD_ALLOC, "aclrtCreateStream: no memory");
    stream_open(created);
    *stream = created;
    return ACL_SUCCESS;
}

aclError aclrtCreateStreamWithConfig(aclrtStream *stream, uint32_t priority, uint32_t flag)
{
    (void)priority;
    (void)flag;
    return aclrtCreateStream(stream);
}

aclError aclrtDestroyStream(aclrtStream stream)
{
    if (stream == NULL)
        return fail(ACL_ERROR_INVALID_PARAM, "aclrtDestroyStream: stream is NULL");
    if (!registry_live(RESOURCE_STREAM, stream, "aclrtDestroyStream"))
        return ACL_ERROR_RT_PARAM_INVALID;
    stream_close(stream);
    registry_release(RESOURCE_STREAM, stream, "aclrtDestroyStream", NULL);
    return ACL_SUCCESS;
}

static aclError synchronize(aclrtStream handle, int32_t timeout, const char *function)
{
    struct stream *stream;
    aclError status = stream_of(handle, function, &stream);
    if (status == ACL_SUCCESS)
        status = stream_wait(stream, timeout, function);
    if (status == ACL_SUCCESS && !registry_verify())
        status = ACL_ERROR_FAILURE;
    return status;
}

aclError aclrtSynchronizeStream(aclrtStream stream)
{
    return synchronize(stream, -1, __func__);
}

aclError aclrtSynchronizeStreamWithTimeout(aclrtStream stream, int32_t timeout)
{
    if (timeout < -1)
        return fail(ACL_ERROR_RT_PARAM_INVALID, "%s: timeout = %d is below -1", __func__,
                    (int)timeout);
    return synchronize(stream, timeout, __func__);
}

aclError aclrtStreamQuery(aclrtStream stream, aclrtStreamStatus *status)
{
    struct stream *queried;
    if (status == NULL)
        return fail(ACL_ERROR_INVALID_PARAM, "%s: status is NULL", __func__);
    aclError error = stream_of(stream, __func__, &queried);
    if (error != ACL_SUCCESS)
        return error;
    pthread_mutex_lock(&queried->lock);
    bool done = queried->finished == queried->turns;
    pthread_mutex_unlock(&queried->lock);
    *status = done ? ACL_STREAM_STATUS_COMPLETE : ACL_STREAM_STATUS_NOT_READY;
    return ACL_SUCCESS;
}

static void call_host_function(const struct task *task)
{
    task->function(task->to);
}

aclError aclrtLaunchHostFunc(aclrtStream stream, aclrtHostFunc fn, void *args)
{
    struct stream *target;
    if (fn == NULL)
        return fail(ACL_ERROR_INVALID_PARAM, "%s: fn is NULL", __func__);
    aclError status = stream_of(stream, __func__, &target);
    if (status != ACL_SUCCESS)
        return status;
    struct task task = {.run = call_host_function, .function = fn, .to = args};
    return stream_submit(target, task, false);
}
