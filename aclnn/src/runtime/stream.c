/* stream.c - streams as turns: each piece of work takes the next number and starts when all lower
 * ones are over. Queued work runs on the stream's thread, operators in their caller's. The calls
 * that programs make of it are in stream_calls.c. */
#include "stream.h"

#include "context.h"
#include "message.h"
#include "registry.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static _Thread_local struct stream *own_stream; /* of a stream's thread */

/* All streams; locked briefly, never while anything waits. */
static pthread_mutex_t all_lock = PTHREAD_MUTEX_INITIALIZER;
static struct stream *all_first, *all_last;
static uint64_t last_number;

static void enter_all_streams(struct stream *stream)
{
    pthread_mutex_lock(&all_lock);
    stream->number = ++last_number;
    stream->previous = all_last;
    if (all_last)
        all_last->next = stream;
    else
        all_first = stream;
    all_last = stream;
    pthread_mutex_unlock(&all_lock);
}

void stream_leave(struct stream *stream)
{
    pthread_mutex_lock(&all_lock);
    if (stream->previous)
        stream->previous->next = stream->next;
    else
        all_first = stream->next;
    if (stream->next)
        stream->next->previous = stream->previous;
    else
        all_last = stream->previous;
    pthread_mutex_unlock(&all_lock);
}

void stream_open(struct stream *stream, const void *owner, uint64_t context)
{
    *stream = (struct stream){.owner = owner, .context = context};
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&stream->changed, &attributes);
    pthread_condattr_destroy(&attributes);
    pthread_mutex_init(&stream->lock, NULL);
    enter_all_streams(stream);
}

void stream_end_of_life(void *stream)
{
    struct stream *ended = stream;
    pthread_cond_destroy(&ended->changed);
    pthread_mutex_destroy(&ended->lock);
}

void stream_drop(const struct stream *stream)
{
    registry_drop(stream->owner);
}

static bool set_closed(struct stream *stream, bool give_up)
{
    pthread_mutex_lock(&stream->lock);
    bool first = !stream->closed;
    stream->closed = true;
    stream->given_up = stream->given_up || give_up;
    pthread_cond_broadcast(&stream->changed);
    pthread_mutex_unlock(&stream->lock);
    return first;
}

/* Waits until all turns up to now are over; false when the deadline (may be NULL) passes before. */
static bool await_all(struct stream *stream, const struct timespec *deadline)
{
    int result = 0;
    pthread_mutex_lock(&stream->lock);
    uint64_t turn = stream->turns;
    while (stream->finished < turn && result != ETIMEDOUT)
        result = deadline ? pthread_cond_timedwait(&stream->changed, &stream->lock, deadline)
                          : pthread_cond_wait(&stream->changed, &stream->lock);
    bool done = stream->finished >= turn;
    pthread_mutex_unlock(&stream->lock);
    return done;
}

void stream_close(struct stream *stream, bool give_up)
{
    bool detach = give_up || own_stream == stream; /* neither waits for work that may never end */
    if (!set_closed(stream, detach))
        return;
    if (!detach)
        await_all(stream, NULL);
    pthread_mutex_lock(&stream->lock);
    stream->stopping = true;
    bool has_thread = stream->has_thread;
    pthread_t thread = stream->thread;
    pthread_cond_broadcast(&stream->changed);
    pthread_mutex_unlock(&stream->lock);
    if (has_thread && detach)
        pthread_detach(thread);
    else if (has_thread)
        pthread_join(thread, NULL);
}

static bool is_orphan(struct stream *stream)
{
    pthread_mutex_lock(&stream->lock);
    bool orphan = stream->orphan;
    pthread_mutex_unlock(&stream->lock);
    return orphan;
}

aclError stream_hold(aclrtStream handle, const char *function, struct stream **stream)
{
    if (handle == NULL)
        return context_hold_default_stream(function, stream);
    if (!registry_hold(RESOURCE_STREAM, handle, function))
        return ACL_ERROR_RT_PARAM_INVALID;
    uint64_t context;
    struct stream *held = handle;
    aclError status = context_current_id(function, &context);
    if (status == ACL_SUCCESS && held->context != context)
        status =
            fail(ACL_ERROR_RT_STREAM_CONTEXT, "%s: the stream %p belongs to a context that is %s",
                 function, handle, is_orphan(held) ? "gone" : "not the thread's current one");
    if (status != ACL_SUCCESS)
        stream_drop(held);
    *stream = held;
    return status;
}

static aclError fail_closed(const struct stream *stream, const char *function)
{
    return fail(ACL_ERROR_RT_PARAM_INVALID, "%s: the stream %p is being destroyed", function,
                (const void *)stream);
}

aclError stream_reserve_turn(struct stream *stream, const char *function, uint64_t *turn)
{
    pthread_mutex_lock(&stream->lock);
    bool closed = stream->closed;
    if (!closed)
        *turn = ++stream->turns;
    pthread_mutex_unlock(&stream->lock);
    return closed ? fail_closed(stream, function) : ACL_SUCCESS;
}

/* With the stream's lock held. */
static void await_turn(struct stream *stream, uint64_t turn)
{
    while (stream->finished != turn - 1)
        pthread_cond_wait(&stream->changed, &stream->lock);
}

void stream_await_turn(struct stream *stream, uint64_t turn)
{
    pthread_mutex_lock(&stream->lock);
    await_turn(stream, turn);
    pthread_mutex_unlock(&stream->lock);
}

void stream_end_turn(struct stream *stream)
{
    pthread_mutex_lock(&stream->lock);
    stream->finished++;
    pthread_cond_broadcast(&stream->changed);
    pthread_mutex_unlock(&stream->lock);
}

/* The next task when its turn has come, and whether it is to be cancelled; NULL at the end. */
static struct task *next_task(struct stream *stream, bool *cancelled)
{
    pthread_mutex_lock(&stream->lock);
    while (stream->first == NULL && !stream->stopping)
        pthread_cond_wait(&stream->changed, &stream->lock);
    struct task *task = stream->first;
    if (task) {
        stream->first = task->next;
        await_turn(stream, task->turn);
    }
    *cancelled = stream->given_up;
    pthread_mutex_unlock(&stream->lock);
    return task;
}

static void *run_tasks(void *argument)
{
    struct stream *stream = argument;
    struct task *task;
    bool cancelled;
    own_stream = stream;
    while ((task = next_task(stream, &cancelled)) != NULL) {
        if (!cancelled)
            task->run(task);
        else if (task->cancel)
            task->cancel(task);
        free(task);
        stream_end_turn(stream);
    }
    stream_drop(stream);
    return NULL;
}

/* With the stream's lock held. The thread holds its stream. */
static bool start_thread(struct stream *stream)
{
    if (stream->has_thread)
        return true;
    registry_hold_again(stream->owner);
    stream->has_thread = pthread_create(&stream->thread, NULL, run_tasks, stream) == 0;
    if (!stream->has_thread)
        stream_drop(stream);
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

aclError stream_submit(struct stream *stream, struct task task, bool at_once, const char *function)
{
    aclError status = ACL_SUCCESS;
    pthread_mutex_lock(&stream->lock);
    bool now = at_once && !stream->closed && stream->finished == stream->turns;
    if (now)
        stream->turns++;
    else if (stream->closed)
        status = fail_closed(stream, function);
    else
        status = enqueue(stream, task);
    pthread_mutex_unlock(&stream->lock);
    if (now) {
        task.run(&task);
        stream_end_turn(stream);
    }
    return status;
}

void stream_set_fault(struct stream *stream, aclError status)
{
    pthread_mutex_lock(&stream->lock);
    if (stream->fault == ACL_SUCCESS)
        snprintf(stream->fault_text, sizeof stream->fault_text, "%s", recent_message());
    stream->fault = status;
    pthread_mutex_unlock(&stream->lock);
}

/* The fault set since the last call; reported once. */
static aclError take_fault(struct stream *stream, const char *function)
{
    char text[STREAM_FAULT_SIZE];
    pthread_mutex_lock(&stream->lock);
    aclError fault = stream->fault;
    stream->fault = ACL_SUCCESS;
    snprintf(text, sizeof text, "%s", stream->fault_text);
    pthread_mutex_unlock(&stream->lock);
    return fault == ACL_SUCCESS ? fault : fail(fault, "%s: %s", function, text);
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

static aclError wait_until(struct stream *stream, const struct timespec *deadline, int32_t timeout,
                           const char *function)
{
    if (!await_all(stream, deadline))
        return fail(ACL_ERROR_RT_STREAM_SYNC_TIMEOUT, "%s: the stream is not done after %d ms",
                    function, (int)timeout);
    return take_fault(stream, function);
}

aclError stream_wait(struct stream *stream, int32_t timeout, const char *function)
{
    struct timespec deadline = deadline_after(timeout < 0 ? 0 : timeout);
    if (own_stream == stream)
        return fail(ACL_ERROR_RT_PARAM_INVALID,
                    "%s: a host function cannot wait for its own stream", function);
    return wait_until(stream, timeout < 0 ? NULL : &deadline, timeout, function);
}

/* The first stream behind `number`, held, or NULL. Those that came later than `last` are not meant.
 */
static struct stream *hold_next(uint64_t number, uint64_t last)
{
    pthread_mutex_lock(&all_lock);
    struct stream *stream = all_first;
    while (stream && stream->number <= number)
        stream = stream->next;
    if (stream && stream->number > last)
        stream = NULL;
    if (stream)
        registry_hold_again(
            stream->owner); /* whoever makes it leave the list holds it until then */
    pthread_mutex_unlock(&all_lock);
    return stream;
}

static uint64_t newest_number(void)
{
    pthread_mutex_lock(&all_lock);
    uint64_t number = last_number;
    pthread_mutex_unlock(&all_lock);
    return number;
}

/* Lets go of the stream and holds the next. */
static struct stream *move_on(struct stream *stream, uint64_t last)
{
    uint64_t number = stream->number;
    stream_drop(stream);
    return hold_next(number, last);
}

aclError streams_wait(int32_t timeout, const char *function)
{
    struct timespec deadline = deadline_after(timeout < 0 ? 0 : timeout);
    uint64_t last = newest_number();
    aclError status = ACL_SUCCESS;
    if (own_stream)
        return status;
    for (struct stream *stream = hold_next(0, last); stream; stream = move_on(stream, last)) {
        aclError one = wait_until(stream, timeout < 0 ? NULL : &deadline, timeout, function);
        if (status == ACL_SUCCESS)
            status = one;
    }
    return status;
}

void streams_orphan(uint64_t context, bool give_up)
{
    uint64_t last = newest_number();
    for (struct stream *stream = hold_next(0, last); stream; stream = move_on(stream, last)) {
        if (stream->context != context || stream->owner != stream)
            continue;
        pthread_mutex_lock(&stream->lock);
        stream->orphan = true;
        pthread_mutex_unlock(&stream->lock);
        stream_close(stream, give_up);
    }
}

void streams_forget_orphans(void)
{
    uint64_t last = newest_number();
    for (struct stream *stream = hold_next(0, last); stream; stream = move_on(stream, last)) {
        if (is_orphan(stream) && registry_take(RESOURCE_STREAM, stream, NULL)) {
            stream_leave(stream);
            registry_drop(stream);
        }
    }
}
