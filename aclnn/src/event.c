/* event.c - events: marks in streams, with the time when they were passed. A record takes its place
 * in its stream; a wait holds its own stream back until the record is passed. */
#include "context.h"
#include "message.h"
#include "registry.h"
#include "stream.h"

#include <time.h>

/* Records are numbered, so that a wait means the one that was the latest when it was submitted. */
struct event {
    uint64_t recorded, passed;
    struct timespec time; /* of the latest that was passed */
    unsigned users;       /* pieces of work in streams that refer to it */
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
    struct event *created = registry_create(RESOURCE_EVENT, sizeof *created);
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

static aclError check_event(aclrtEvent event, const char *function)
{
    if (event == NULL)
        return fail(ACL_ERROR_INVALID_PARAM, "%s: event is NULL", function);
    if (!registry_live(RESOURCE_EVENT, event, function))
        return ACL_ERROR_RT_PARAM_INVALID;
    return ACL_SUCCESS;
}

aclError aclrtDestroyEvent(aclrtEvent event)
{
    aclError status = check_event(event, __func__);
    if (status != ACL_SUCCESS)
        return status;
    struct event *destroyed = event;
    pthread_mutex_lock(&lock);
    while (destroyed->users > 0)
        pthread_cond_wait(&changed, &lock);
    pthread_mutex_unlock(&lock);
    registry_release(RESOURCE_EVENT, event, __func__, NULL);
    return ACL_SUCCESS;
}

static void pass_record(const struct task *task)
{
    struct event *event = task->to;
    pthread_mutex_lock(&lock);
    if (task->value > event->passed) {
        event->passed = task->value;
        clock_gettime(CLOCK_MONOTONIC, &event->time);
    }
    event->users--;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

aclError aclrtRecordEvent(aclrtEvent event, aclrtStream stream)
{
    struct stream *target;
    aclError status = check_event(event, __func__);
    if (status == ACL_SUCCESS)
        status = stream_of(stream, __func__, &target);
    if (status != ACL_SUCCESS)
        return status;
    struct event *recorded = event;
    struct task task = {.run = pass_record, .to = event};
    pthread_mutex_lock(&lock);
    task.value = ++recorded->recorded;
    recorded->users++;
    pthread_mutex_unlock(&lock);
    status = stream_submit(target, task, true);
    if (status != ACL_SUCCESS) /* nobody may wait for it for ever */
        pass_record(&task);
    return status;
}

static void await_record(const struct task *task)
{
    struct event *event = task->to;
    pthread_mutex_lock(&lock);
    while (event->passed < task->value)
        pthread_cond_wait(&changed, &lock);
    event->users--;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

aclError aclrtStreamWaitEvent(aclrtStream stream, aclrtEvent event)
{
    struct stream *target;
    aclError status = check_event(event, __func__);
    if (status == ACL_SUCCESS)
        status = stream_of(stream, __func__, &target);
    if (status != ACL_SUCCESS)
        return status;
    struct event *awaited = event;
    struct task task = {.run = await_record, .to = event};
    pthread_mutex_lock(&lock);
    task.value = awaited->recorded;
    bool pending = awaited->passed < task.value;
    awaited->users += pending;
    pthread_mutex_unlock(&lock);
    if (!pending)
        return ACL_SUCCESS;
    status = stream_submit(target, task, false);
    if (status != ACL_SUCCESS) {
        pthread_mutex_lock(&lock);
        awaited->users--;
        pthread_mutex_unlock(&lock);
    }
    return status;
}

aclError aclrtResetEvent(aclrtEvent event, aclrtStream stream)
{
    struct stream *target;
    aclError status = check_event(event, __func__);
    return status == ACL_SUCCESS ? stream_of(stream, __func__, &target) : status;
}

aclError aclrtSynchronizeEvent(aclrtEvent event)
{
    aclError status = check_event(event, __func__);
    if (status != ACL_SUCCESS)
        return status;
    struct event *awaited = event;
    pthread_mutex_lock(&lock);
    uint64_t record = awaited->recorded;
    while (awaited->passed < record)
        pthread_cond_wait(&changed, &lock);
    pthread_mutex_unlock(&lock);
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
    aclError error = check_event(event, __func__);
    if (error != ACL_SUCCESS)
        return error;
    *status = has_passed(event, &time) ? ACL_EVENT_RECORDED_STATUS_COMPLETE
                                       : ACL_EVENT_RECORDED_STATUS_NOT_READY;
    return ACL_SUCCESS;
}

aclError aclrtEventElapsedTime(float *ms, aclrtEvent startEvent, aclrtEvent endEvent)
{
    struct timespec start, end;
    if (ms == NULL)
        return fail(ACL_ERROR_INVALID_PARAM, "%s: ms is NULL", __func__);
    aclError status = check_event(startEvent, __func__);
    if (status == ACL_SUCCESS)
        status = check_event(endEvent, __func__);
    if (status != ACL_SUCCESS)
        return status;
    if (!has_passed(startEvent, &start) || !has_passed(endEvent, &end))
        return fail(ACL_ERROR_RT_PARAM_INVALID,
                    "%s: an event is not recorded, or its record is not done: synchronise before",
                    __func__);
    *ms = (float)((double)(end.tv_sec - start.tv_sec) * 1e3 +
                  (double)(end.tv_nsec - start.tv_nsec) * 1e-6);
    return ACL_SUCCESS;
}
