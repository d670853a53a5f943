/* stream_calls.c - the calls of acl_rt.h that make, use and destroy streams, over stream.c. */
#include "context.h"
#include "message.h"
#include "registry.h"
#include "stream.h"

aclError aclrtCreateStream(aclrtStream *stream)
{
    uint64_t context;
    if (stream == NULL)
        return fail(ACL_ERROR_INVALID_PARAM, "%s: stream is NULL", __func__);
    aclError status = context_current_id(__func__, &context);
    if (status != ACL_SUCCESS)
        return status;
    struct stream *created = registry_create(RESOURCE_STREAM, sizeof *created, stream_end_of_life);
    if (created == NULL)
        return fail(ACL_ERROR_BAD_ALLOC, "%s: no memory", __func__);
    stream_open(created, created, context);
    *stream = created;
    return ACL_SUCCESS;
}

aclError aclrtCreateStreamWithConfig(aclrtStream *stream, uint32_t priority, uint32_t flag)
{
    (void)priority;
    (void)flag;
    return aclrtCreateStream(stream);
}

static aclError destroy(aclrtStream handle, bool give_up, const char *function)
{
    struct stream *stream;
    if (handle == NULL)
        return fail(ACL_ERROR_INVALID_PARAM, "%s: stream is NULL", function);
    aclError status = stream_hold(handle, function, &stream);
    if (status != ACL_SUCCESS)
        return status;
    if (registry_take(RESOURCE_STREAM, stream, function)) {
        stream_close(stream, give_up);
        stream_leave(stream);
        registry_drop(stream);
    } else { /* another thread was faster */
        status = ACL_ERROR_RT_PARAM_INVALID;
    }
    stream_drop(stream);
    return status;
}

aclError aclrtDestroyStream(aclrtStream stream)
{
    return destroy(stream, false, __func__);
}

aclError aclrtDestroyStreamForce(aclrtStream stream)
{
    return destroy(stream, true, __func__);
}

static aclError synchronize(aclrtStream handle, int32_t timeout, const char *function)
{
    struct stream *stream;
    aclError status = stream_hold(handle, function, &stream);
    if (status != ACL_SUCCESS)
        return status;
    status = stream_wait(stream, timeout, function);
    stream_drop(stream);
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
    aclError error = stream_hold(stream, __func__, &queried);
    if (error != ACL_SUCCESS)
        return error;
    pthread_mutex_lock(&queried->lock);
    bool done = queried->finished == queried->turns;
    pthread_mutex_unlock(&queried->lock);
    stream_drop(queried);
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
    aclError status = stream_hold(stream, __func__, &target);
    if (status != ACL_SUCCESS)
        return status;
    struct task task = {.run = call_host_function, .function = fn, .to = args};
    status = stream_submit(target, task, false, __func__);
    stream_drop(target);
    return status;
}
