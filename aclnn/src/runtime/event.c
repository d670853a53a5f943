/* event.c - events: marks in streams, with the time when they were passed. A record takes its place
 * in its stream; a wait holds its own stream back until the record is passed. */
#include "context.h"
#include "message.h"
#include "registry.h"
#include "stream.h"

#include <time.h>

/* Records are numbered, so that a wait means the one that was the latest when it was submitted.
 * Whatever refers to an event, a call or work in a stream, holds it: it may be destroyed meanwhile.
 */
struct event {
    uint64_t recorded, passed;
    struct timespec time; /* of the latest that was passed */
};

/* One lock for all events: they are touched briefly and rarely. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;

aclError aclrtCreateEvent(aclrtEvent *event)
{
    if (event == NULL)
        return fail(ACL_ERROR_INVALID_PARAM, "aclrtCreateEvent: event is NULL");
    if (!context_required("aclrtCreateEvent"))
        return ACL_ERROR_RT_CONTEXT_NULL;
    struct event *created = registry_create(RESOURCE_EVENT, sizeof *created, NULL);
    if (created == NULL)
        return fail(ACL_ERROR_BAD_ALLOC, "aclrtCreateEvent: no memory");
    *event = created;
    return ACL_SUCCESS;
}

aclError aclrtCreateEventWithFlag(aclrtEvent *event, uint32_t flag)
{
    (void)flag;
    return aclrtCreateEvent(event);
}

aclError aclrtCreateEventExWithFlag(aclrtEvent *event, uint32_t flag)
{
    (void)flag;
    return aclrtCreateEvent(event);
}

/* Until registry_drop. */
static aclError hold_event(aclrtEvent event, const char *function)
{
    if (event == NULL)
        return fail(ACL_ERROR_INVALID_PARAM, "%s: event is NULL", function);
    if (!registry_hold(RESOURCE_EVENT, event, function))
        return ACL_ERROR_RT_PARAM_INVALID;
    return ACL_SUCCESS;
}

/* Both, or neither. */
static aclError hold_both(aclrtEvent event, aclrtStream stream, const char *function,
                          struct stream **held)
{
    aclError status = hold_event(event, function);
    if (status != ACL_SUCCESS)
        return status;
    status = stream_hold(stream, function, held);
    if (status != ACL_SUCCESS)
        registry_drop(event);
    return status;
}

aclError aclrtDestroyEvent(aclrtEvent event)
{
    if (event == NULL)
        return fail(ACL_ERROR_INVALID_PARAM, "%s: event is NULL", __func__);
    bool live = registry_release(RESOURCE_EVENT, event, __func__, NULL);
    return live ? ACL_SUCCESS : ACL_ERROR_RT_PARAM_INVALID;
}

static void pass_record(const struct task *task)
{
    struct event *event = task->to;
    pthread_mutex_lock(&lock);
    if (task->value > event->passed) {
        event->passed = task->value;
        clock_gettime(CLOCK_MONOTONIC, &event->time);
    }
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    registry_drop(event);
}

aclError aclrtRecordEvent(aclrtEvent event, aclrtStream stream)
{
    struct stream *target;
    aclError status = hold_both(event, stream, __func__, &target);
    if (status != ACL_SUCCESS)
        return status;
    struct event *recorded = event;
    /* Nobody may wait for ever for a record that is cancelled. */
    struct task task = {.run = pass_record, .cancel = pass_record, .to = event};
    pthread_mutex_lock(&lock);
    task.value = ++recorded->recorded;
    pthread_mutex_unlock(&lock);
    status = stream_submit(target, task, true, __func__);
    stream_drop(target);
    if (status != ACL_SUCCESS)
        pass_record(&task);
    return status;
}

static void let_go(const struct task *task)
{
    registry_drop(task->to);
}

static void await_record(const struct task *task)
{
    struct event *event = task->to;
    pthread_mutex_lock(&lock);
    while (event->passed < task->value)
        pthread_cond_wait(&changed, &lock);
    pthread_mutex_unlock(&lock);
    registry_drop(event);
}

aclError aclrtStreamWaitEvent(aclrtStream stream, aclrtEvent event)
{
    struct stream *target;
    aclError status = hold_both(event, stream, __func__, &target);
    if (status != ACL_SUCCESS)
        return status;
    struct event *awaited = event;
    struct task task = {.run = await_record, .cancel = let_go, .to = event};
    pthread_mutex_lock(&lock);
    task.value = awaited->recorded;
    bool pending = awaited->passed < task.value;
    pthread_mutex_unlock(&lock);
    if (pending)
        status = stream_submit(target, task, false, __func__);
    if (!pending || status != ACL_SUCCESS)
        registry_drop(event);
    stream_drop(target);
    return status;
}

aclError aclrtResetEvent(aclrtEvent event, aclrtStream stream)
{
    struct stream *target;
    aclError status = hold_both(event, stream, __func__, &target);
    if (status != ACL_SUCCESS)
        return status;
    stream_drop(target);
    registry_drop(event);
    return ACL_SUCCESS;
}

aclError aclrtSynchronizeEvent(aclrtEvent event)
{
    aclError status = hold_event(event, __func__);
    if (status != ACL_SUCCESS)
        return status;
    struct event *awaited = event;
    pthread_mutex_lock(&lock);
    uint64_t record = awaited->recorded;
    while (awaited->passed < record)
        pthread_cond_wait(&changed, &lock);
    pthread_mutex_unlock(&lock);
    registry_drop(event);
    return ACL_SUCCESS;
}

/* Whether it was recorded and the latest record was passed; then *time. */
static bool has_passed(struct event *event, struct timespec *time)
{
    pthread_mutex_lock(&lock);
    bool passed = event->recorded > 0 && event->passed == event->recorded;
    *time = event->time;
    pthread_mutex_unlock(&lock);
    return passed;
}

aclError aclrtQueryEventStatus(aclrtEvent event, aclrtEventRecordedStatus *status)
{
    struct timespec time;
    if (status == NULL)
        return fail(ACL_ERROR_INVALID_PARAM, "%s: status is NULL", __func__);
    aclError error = hold_event(event, __func__);
    if (error != ACL_SUCCESS)
        return error;
    *status = has_passed(event, &time) ? ACL_EVENT_RECORDED_STATUS_COMPLETE
                                       : ACL_EVENT_RECORDED_STATUS_NOT_READY;
    registry_drop(event);
    return ACL_SUCCESS;
}

/* The time of the event's latest record, when that is done. */
static aclError time_of(aclrtEvent event, const char *function, struct timespec *time)
{
    aclError status = hold_event(event, function);
    if (status != ACL_SUCCESS)
        return status;
    if (!has_passed(event, time))
        status = fail(ACL_ERROR_RT_PARAM_INVALID,
                      "%s: an event is not recorded, or its record is not done: synchronise before",
                      function);
    registry_drop(event);
    return status;
}

aclError aclrtEventElapsedTime(float *ms, aclrtEvent startEvent, aclrtEvent endEvent)
{
    struct timespec start, end;
    if (ms == NULL)
        return fail(ACL_ERROR_INVALID_PARAM, "%s: ms is NULL", __func__);
    aclError status = time_of(startEvent, __func__, &start);
    if (status == ACL_SUCCESS)
        status = time_of(endEvent, __func__, &end);
    if (status == ACL_SUCCESS)
        *ms = (float)((double)(end.tv_sec - start.tv_sec) * 1e3 +
                      (double)(end.tv_nsec - start.tv_nsec) * 1e-6);
    return status;
}
