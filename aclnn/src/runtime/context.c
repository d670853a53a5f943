/* context.c - the one device and the contexts on it. A context here is little more than a default
 * stream; what counts is that programs which set none are told so. */
#include "context.h"

#include "message.h"
#include "products/limits.h"
#include "registry.h"
#include "stream.h"

#include <stdlib.h>
#include <unistd.h>

/* Handles may come again at the same address, ids do not. */
struct context {
    uint64_t id;
    struct stream default_stream;
};

enum {
    DEVICE_COUNT = 1
};

/* Held for the few lines that look at these; never while anything waits. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct context *device_context; /* of the device, while it is set */
static unsigned device_set;            /* times it was set and not reset */
static uint64_t last_id;
static _Thread_local struct context *thread_context;
static _Thread_local uint64_t thread_context_id;

static bool hold_thread_context(void)
{
    if (thread_context == NULL || !registry_hold_quietly(RESOURCE_CONTEXT, thread_context))
        return false;
    if (thread_context->id == thread_context_id)
        return true;
    registry_drop(thread_context); /* another one at the same address */
    return false;
}

/* The calling thread's context, held; NULL when it has none. */
static struct context *hold_current(void)
{
    if (hold_thread_context())
        return thread_context;
    pthread_mutex_lock(&lock);
    struct context *context = device_context;
    if (context)
        registry_hold_again(context);
    pthread_mutex_unlock(&lock);
    return context;
}

static aclError fail_without_context(const char *function)
{
    return fail(ACL_ERROR_RT_CONTEXT_NULL,
                "%s: the thread has no context: call aclrtSetDevice before", function);
}

aclError context_current_id(const char *function, uint64_t *id)
{
    struct context *context = hold_current();
    if (context == NULL)
        return fail_without_context(function);
    *id = context->id;
    registry_drop(context);
    return ACL_SUCCESS;
}

bool context_required(const char *function)
{
    uint64_t id;
    return context_current_id(function, &id) == ACL_SUCCESS;
}

aclError context_hold_default_stream(const char *function, struct stream **stream)
{
    struct context *context = hold_current();
    if (context == NULL)
        return fail_without_context(function);
    *stream = &context->default_stream;
    return ACL_SUCCESS;
}

static void end_of_life(void *context)
{
    stream_end_of_life(&((struct context *)context)->default_stream);
}

/* With the lock held. */
static struct context *open_context(void)
{
    struct context *context = registry_create(RESOURCE_CONTEXT, sizeof *context, end_of_life);
    if (context == NULL)
        return NULL;
    context->id = ++last_id;
    stream_open(&context->default_stream, context, context->id);
    return context;
}

/* Of a context that was taken from the registry. */
static void close_context(struct context *context, bool give_up)
{
    streams_orphan(context->id, give_up);
    stream_close(&context->default_stream, give_up);
    stream_leave(&context->default_stream);
    registry_drop(context);
}

static void set_thread_context(struct context *context, uint64_t id)
{
    thread_context = context;
    thread_context_id = id;
}

static bool is_device(int32_t device, const char *function)
{
    if (device >= 0 && device < DEVICE_COUNT)
        return true;
    fail(ACL_ERROR_RT_INVALID_DEVICEID, "%s: deviceId = %d is outside [0, %d)", function,
         (int)device, DEVICE_COUNT);
    return false;
}

aclError aclrtSetDevice(int32_t deviceId)
{
    if (!is_device(deviceId, __func__))
        return ACL_ERROR_RT_INVALID_DEVICEID;
    pthread_mutex_lock(&lock);
    if (device_context == NULL)
        device_context = open_context();
    bool opened = device_context != NULL;
    if (opened) {
        device_set++;
        set_thread_context(device_context, device_context->id);
    }
    pthread_mutex_unlock(&lock);
    return opened ? ACL_SUCCESS : fail(ACL_ERROR_BAD_ALLOC, "%s: no memory", __func__);
}

/* The device's context when this ends it: taken from the registry; else NULL. */
static struct context *take_device_context(bool whatever_the_count)
{
    struct context *taken = NULL;
    pthread_mutex_lock(&lock);
    if (device_set > 1 && !whatever_the_count) {
        device_set--;
    } else {
        taken = device_context;
        device_context = NULL;
        device_set = 0;
    }
    if (taken)
        registry_take(RESOURCE_CONTEXT, taken, "context");
    pthread_mutex_unlock(&lock);
    return taken;
}

aclError aclrtResetDevice(int32_t deviceId)
{
    if (!is_device(deviceId, __func__))
        return ACL_ERROR_RT_INVALID_DEVICEID;
    struct context *context = take_device_context(false);
    if (context)
        close_context(context, false);
    return ACL_SUCCESS;
}

aclError aclrtResetDeviceForce(int32_t deviceId)
{
    if (!is_device(deviceId, __func__))
        return ACL_ERROR_RT_INVALID_DEVICEID;
    struct context *context = take_device_context(true);
    if (context)
        close_context(context, true);
    return ACL_SUCCESS;
}

void context_release_device(void)
{
    struct context *context = take_device_context(true);
    if (context)
        close_context(context, false);
}

aclError aclrtGetDevice(int32_t *deviceId)
{
    if (deviceId == NULL)
        return fail(ACL_ERROR_INVALID_PARAM, "%s: deviceId is NULL", __func__);
    if (!context_required(__func__))
        return ACL_ERROR_RT_CONTEXT_NULL;
    *deviceId = 0;
    return ACL_SUCCESS;
}

aclError aclrtGetDeviceCount(uint32_t *count)
{
    if (count == NULL)
        return fail(ACL_ERROR_INVALID_PARAM, "%s: count is NULL", __func__);
    *count = DEVICE_COUNT;
    return ACL_SUCCESS;
}

aclError aclrtGetRunMode(aclrtRunMode *runMode)
{
    if (runMode == NULL)
        return fail(ACL_ERROR_INVALID_PARAM, "%s: runMode is NULL", __func__);
    *runMode = ACL_HOST;
    return ACL_SUCCESS;
}

const char *aclrtGetSocName(void)
{
    const char *name = getenv("MOETOKEN_SOC");
    return name && name[0] ? name : limits_product(0)->name;
}

static aclError synchronize_device(int32_t timeout, const char *function)
{
    if (!context_required(function))
        return ACL_ERROR_RT_CONTEXT_NULL;
    aclError status = streams_wait(timeout, function);
    if (status == ACL_SUCCESS && !registry_verify())
        status = ACL_ERROR_FAILURE;
    return status;
}

aclError aclrtSynchronizeDevice(void)
{
    return synchronize_device(-1, __func__);
}

aclError aclrtSynchronizeDeviceWithTimeout(int32_t timeout)
{
    if (timeout < -1)
        return fail(ACL_ERROR_RT_PARAM_INVALID, "%s: timeout = %d is below -1", __func__,
                    (int)timeout);
    return synchronize_device(timeout, __func__);
}

aclError aclrtCreateContext(aclrtContext *context, int32_t deviceId)
{
    if (context == NULL)
        return fail(ACL_ERROR_INVALID_PARAM, "%s: context is NULL", __func__);
    if (!is_device(deviceId, __func__))
        return ACL_ERROR_RT_INVALID_DEVICEID;
    pthread_mutex_lock(&lock);
    struct context *created = open_context();
    if (created)
        set_thread_context(created, created->id);
    pthread_mutex_unlock(&lock);
    if (created == NULL)
        return fail(ACL_ERROR_BAD_ALLOC, "%s: no memory", __func__);
    *context = created;
    return ACL_SUCCESS;
}

aclError aclrtDestroyContext(aclrtContext context)
{
    if (context == NULL)
        return fail(ACL_ERROR_INVALID_PARAM, "%s: context is NULL", __func__);
    pthread_mutex_lock(&lock);
    bool of_device = context == device_context;
    bool taken = !of_device && registry_take(RESOURCE_CONTEXT, context, __func__);
    pthread_mutex_unlock(&lock);
    if (of_device)
        fail(0, "%s: the context belongs to the device: aclrtResetDevice gives it back", __func__);
    if (!taken)
        return ACL_ERROR_RT_PARAM_INVALID;
    close_context(context, false);
    return ACL_SUCCESS;
}

aclError aclrtSetCurrentContext(aclrtContext context)
{
    struct context *held = context;
    if (context == NULL)
        return fail(ACL_ERROR_INVALID_PARAM, "%s: context is NULL", __func__);
    if (!registry_hold(RESOURCE_CONTEXT, context, __func__))
        return ACL_ERROR_RT_PARAM_INVALID;
    set_thread_context(held, held->id);
    registry_drop(context);
    return ACL_SUCCESS;
}

aclError aclrtGetCurrentContext(aclrtContext *context)
{
    if (context == NULL)
        return fail(ACL_ERROR_INVALID_PARAM, "%s: context is NULL", __func__);
    struct context *current = hold_current();
    if (current == NULL)
        return fail_without_context(__func__);
    *context = current;
    registry_drop(current);
    return ACL_SUCCESS;
}

static bool is_option(aclSysParamOpt opt, const char *function)
{
    if ((int)opt >= ACL_OPT_DETERMINISTIC && (int)opt <= ACL_OPT_STRONG_CONSISTENCY)
        return true;
    fail(0, "%s: opt = %d is unknown", function, (int)opt);
    return false;
}

/* Accepted and ignored: results are deterministic whatever the setting. */
aclError aclrtSetSysParamOpt(aclSysParamOpt opt, int64_t value)
{
    (void)value;
    return is_option(opt, __func__) ? ACL_SUCCESS : ACL_ERROR_INVALID_PARAM;
}

aclError aclrtGetSysParamOpt(aclSysParamOpt opt, int64_t *value)
{
    if (value == NULL)
        return fail(ACL_ERROR_INVALID_PARAM, "%s: value is NULL", __func__);
    if (!is_option(opt, __func__))
        return ACL_ERROR_INVALID_PARAM;
    *value = opt == ACL_OPT_DETERMINISTIC;
    return ACL_SUCCESS;
}

aclError aclrtCtxSetSysParamOpt(aclSysParamOpt opt, int64_t value)
{
    aclError status = aclrtSetSysParamOpt(opt, value);
    if (status == ACL_SUCCESS && !context_required(__func__))
        status = ACL_ERROR_RT_CONTEXT_NULL;
    return status;
}

aclError aclrtCtxGetSysParamOpt(aclSysParamOpt opt, int64_t *value)
{
    if (value != NULL && is_option(opt, __func__) && !context_required(__func__))
        return ACL_ERROR_RT_CONTEXT_NULL;
    return aclrtGetSysParamOpt(opt, value);
}
