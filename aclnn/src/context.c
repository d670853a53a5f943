/* context.c - the one device and the contexts on it. A context here is little more than a default
 * stream; what counts is that programs which set none are told so. */
#include "context.h"

#include "message.h"
#include "products/limits.h"
#include "registry.h"
#include "stream.h"

#include <stdlib.h>
#include <unistd.h>

struct context {
    struct stream default_stream;
};

enum {
    DEVICE_COUNT = 1
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct context *device_context; /* of the device, while it is set */
static unsigned device_set;            /* times it was set and not reset */
static _Thread_local struct context *thread_context;

static struct context *current_context(void)
{
    if (thread_context && registry_known(RESOURCE_CONTEXT, thread_context))
        return thread_context;
    pthread_mutex_lock(&lock);
    struct context *context = device_context;
    pthread_mutex_unlock(&lock);
    return context;
}

bool context_required(const char *function)
{
    if (current_context() != NULL)
        return true;
    fail(ACL_ERROR_RT_CONTEXT_NULL, "%s: the thread has no context: call aclrtSetDevice before",
         function);
    return false;
}

struct stream *context_default_stream(void)
{
    struct context *context = current_context();
    return context ? &context->default_stream : NULL;
}

static struct context *open_context(void)
{
    struct context *context = registry_create(RESOURCE_CONTEXT, sizeof *context);
    if (context)
        stream_open(&context->default_stream);
    return context;
}

static void close_context(struct context *context)
{
    stream_close(&context->default_stream);
    registry_release(RESOURCE_CONTEXT, context, "context", NULL);
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
    device_set += device_context != NULL;
    thread_context = device_context;
    pthread_mutex_unlock(&lock);
    return thread_context ? ACL_SUCCESS : fail(ACL_ERROR_BAD_ALLOC, "%s: no memory", __func__);
}

/* With the lock held. */
static void release_device(void)
{
    if (device_context)
        close_context(device_context);
    device_context = NULL;
    device_set = 0;
}

aclError aclrtResetDevice(int32_t deviceId)
{
    if (!is_device(deviceId, __func__))
        return ACL_ERROR_RT_INVALID_DEVICEID;
    streams_wait();
    pthread_mutex_lock(&lock);
    if (device_set > 1)
        device_set--;
    else
        release_device();
    pthread_mutex_unlock(&lock);
    return ACL_SUCCESS;
}

void context_release_device(void)
{
    pthread_mutex_lock(&lock);
    release_device();
    pthread_mutex_unlock(&lock);
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

aclError aclrtSynchronizeDevice(void)
{
    if (!context_required(__func__))
        return ACL_ERROR_RT_CONTEXT_NULL;
    streams_wait();
    return registry_verify() ? ACL_SUCCESS : ACL_ERROR_FAILURE;
}

aclError aclrtCreateContext(aclrtContext *context, int32_t deviceId)
{
    if (context == NULL)
        return fail(ACL_ERROR_INVALID_PARAM, "%s: context is NULL", __func__);
    if (!is_device(deviceId, __func__))
        return ACL_ERROR_RT_INVALID_DEVICEID;
    struct context *created = open_context();
    if (created == NULL)
        return fail(ACL_ERROR_BAD_ALLOC, "%s: no memory", __func__);
    thread_context = created;
    *context = created;
    return ACL_SUCCESS;
}

static aclError check_context(aclrtContext context, const char *function)
{
    if (context == NULL)
        return fail(ACL_ERROR_INVALID_PARAM, "%s: context is NULL", function);
    if (!registry_live(RESOURCE_CONTEXT, context, function))
        return ACL_ERROR_RT_PARAM_INVALID;
    return ACL_SUCCESS;
}

aclError aclrtDestroyContext(aclrtContext context)
{
    aclError status = check_context(context, __func__);
    if (status != ACL_SUCCESS)
        return status;
    pthread_mutex_lock(&lock);
    bool own = context == device_context;
    pthread_mutex_unlock(&lock);
    if (own)
        return fail(ACL_ERROR_RT_PARAM_INVALID,
                    "%s: the context belongs to the device: aclrtResetDevice gives it back",
                    __func__);
    close_context(context);
    return ACL_SUCCESS;
}

aclError aclrtSetCurrentContext(aclrtContext context)
{
    aclError status = check_context(context, __func__);
    if (status == ACL_SUCCESS)
        thread_context = context;
    return status;
}

aclError aclrtGetCurrentContext(aclrtContext *context)
{
    if (context == NULL)
        return fail(ACL_ERROR_INVALID_PARAM, "%s: context is NULL", __func__);
    if (!context_required(__func__))
        return ACL_ERROR_RT_CONTEXT_NULL;
    *context = current_context();
    return ACL_SUCCESS;
}

aclError aclrtCtxSetSysParamOpt(aclSysParamOpt opt, int64_t value)
{
    (void)opt;
    (void)value;
    return context_required(__func__) ? ACL_SUCCESS : ACL_ERROR_RT_CONTEXT_NULL;
}

aclError aclrtCtxGetSysParamOpt(aclSysParamOpt opt, int64_t *value)
{
    if (value == NULL)
        return fail(ACL_ERROR_INVALID_PARAM, "%s: value is NULL", __func__);
    if (!context_required(__func__))
        return ACL_ERROR_RT_CONTEXT_NULL;
    *value = opt == ACL_OPT_DETERMINISTIC;
    return ACL_SUCCESS;
}
