/* memory.c - device and host memory, copies and fills. "Device" memory is ordinary memory; the
 * registry keeps track of it. */
#include "context.h"
#include "message.h"
#include "registry.h"
#include "stream.h"

#include <string.h>
#include <unistd.h>

static size_t memory_bytes(int which)
{
    long pages = sysconf(which), page_bytes = sysconf(_SC_PAGESIZE);
    return pages > 0 && page_bytes > 0 ? (size_t)pages * (size_t)page_bytes : 0;
}

aclError aclrtGetMemInfo(aclrtMemAttr attr, size_t *freeBytes, size_t *totalBytes)
{
    (void)attr;
    if (freeBytes == NULL || totalBytes == NULL)
        return fail(ACL_ERROR_INVALID_PARAM, "%s: freeBytes or totalBytes is NULL", __func__);
    *freeBytes = memory_bytes(_SC_AVPHYS_PAGES);
    *totalBytes = memory_bytes(_SC_PHYS_PAGES);
    return ACL_SUCCESS;
}

static aclError allocate(enum resource_kind kind, void **pointer, size_t size, const char *function)
{
    if (pointer == NULL || size == 0)
        return fail(ACL_ERROR_INVALID_PARAM, "%s: %s", function,
                    pointer ? "size = 0, expected at least 1" : "the pointer's address is NULL");
    if (!context_required(function))
        return ACL_ERROR_RT_CONTEXT_NULL;
    size_t total = memory_bytes(_SC_PHYS_PAGES);
    void *memory = size <= total ? registry_allocate(kind, size) : NULL;
    if (memory == NULL)
        return fail(ACL_ERROR_RT_MEMORY_ALLOCATION, "%s: no memory for %zu bytes, of %zu in all",
                    function, size, total);
    *pointer = memory;
    return ACL_SUCCESS;
}

static aclError release(enum resource_kind kind, void *memory, const char *function)
{
    bool intact;
    if (memory == NULL)
        return fail(ACL_ERROR_INVALID_PARAM, "%s: the pointer is NULL", function);
    if (!registry_release(kind, memory, function, &intact))
        return ACL_ERROR_RT_PARAM_INVALID;
    return intact ? ACL_SUCCESS : ACL_ERROR_FAILURE;
}

aclError aclrtMalloc(void **devPtr, size_t size, aclrtMemMallocPolicy policy)
{
    (void)policy;
    return allocate(RESOURCE_DEVICE_MEMORY, devPtr, size, __func__);
}

aclError aclrtMallocAlign32(void **devPtr, size_t size, aclrtMemMallocPolicy policy)
{
    (void)policy;
    return allocate(RESOURCE_DEVICE_MEMORY, devPtr, size, __func__);
}

aclError aclrtFree(void *devPtr)
{
    return release(RESOURCE_DEVICE_MEMORY, devPtr, __func__);
}

aclError aclrtMallocHost(void **hostPtr, size_t size)
{
    return allocate(RESOURCE_HOST_MEMORY, hostPtr, size, __func__);
}

aclError aclrtFreeHost(void *hostPtr)
{
    return release(RESOURCE_HOST_MEMORY, hostPtr, __func__);
}

/* With checks on: a side that `kind` calls device memory is device memory. */
static bool sides_agree(const void *dst, const void *src, aclrtMemcpyKind kind,
                        const char *function)
{
    static const bool to_device[ACL_MEMCPY_INTER_DEVICE_TO_DEVICE + 1] = {
        [ACL_MEMCPY_HOST_TO_DEVICE] = true,
        [ACL_MEMCPY_DEVICE_TO_DEVICE] = true,
        [ACL_MEMCPY_HOST_TO_BUF_TO_DEVICE] = true,
        [ACL_MEMCPY_INNER_DEVICE_TO_DEVICE] = true,
        [ACL_MEMCPY_INTER_DEVICE_TO_DEVICE] = true};
    static const bool from_device[ACL_MEMCPY_INTER_DEVICE_TO_DEVICE + 1] = {
        [ACL_MEMCPY_DEVICE_TO_HOST] = true,
        [ACL_MEMCPY_DEVICE_TO_DEVICE] = true,
        [ACL_MEMCPY_INNER_DEVICE_TO_DEVICE] = true,
        [ACL_MEMCPY_INTER_DEVICE_TO_DEVICE] = true};
    if (!registry_checks())
        return true;
    bool wrong_dst = to_device[kind] && !registry_known(RESOURCE_DEVICE_MEMORY, dst);
    bool wrong_src = from_device[kind] && !registry_known(RESOURCE_DEVICE_MEMORY, src);
    if (wrong_dst || wrong_src)
        fail(0, "%s: %s = %p is not in device memory, as kind = %d says", function,
             wrong_dst ? "dst" : "src", wrong_dst ? dst : src, (int)kind);
    return !wrong_dst && !wrong_src;
}

static aclError check_copy(const void *dst, size_t room, const void *src, size_t count,
                           aclrtMemcpyKind kind, const char *function)
{
    if (dst == NULL || src == NULL)
        return fail(ACL_ERROR_INVALID_PARAM, "%s: %s is NULL", function, dst ? "src" : "dst");
    if (count > room)
        return fail(ACL_ERROR_RT_PARAM_INVALID, "%s: count = %zu is above destMax = %zu", function,
                    count, room);
    if ((int)kind < ACL_MEMCPY_HOST_TO_HOST || (int)kind > ACL_MEMCPY_INTER_DEVICE_TO_DEVICE)
        return fail(ACL_ERROR_INVALID_PARAM, "%s: kind = %d is unknown", function, (int)kind);
    if (!registry_range(dst, count, function) || !registry_range(src, count, function) ||
        !sides_agree(dst, src, kind, function))
        return ACL_ERROR_RT_PARAM_INVALID;
    return ACL_SUCCESS;
}

aclError aclrtMemcpy(void *dst, size_t destMax, const void *src, size_t count, aclrtMemcpyKind kind)
{
    if (count == 0)
        return ACL_SUCCESS;
    aclError status = check_copy(dst, destMax, src, count, kind, __func__);
    if (status == ACL_SUCCESS)
        memmove(dst, src, count);
    return status;
}

static void run_copy(const struct task *task)
{
    if (task->count > 0)
        memmove(task->to, task->from, task->count);
}

/* Queues the task for the stream that is held, and lets go of it. */
static aclError submit(struct stream *stream, struct task task, const char *function)
{
    aclError status = stream_submit(stream, task, false, function);
    stream_drop(stream);
    return status;
}

aclError aclrtMemcpyAsync(void *dst, size_t destMax, const void *src, size_t count,
                          aclrtMemcpyKind kind, aclrtStream stream)
{
    struct stream *target;
    aclError status =
        count > 0 ? check_copy(dst, destMax, src, count, kind, __func__) : ACL_SUCCESS;
    if (status == ACL_SUCCESS)
        status = stream_hold(stream, __func__, &target);
    if (status != ACL_SUCCESS)
        return status;
    struct task task = {.run = run_copy, .to = dst, .from = src, .count = count};
    return submit(target, task, __func__);
}

static aclError check_fill(const void *memory, size_t room, size_t count, const char *function)
{
    if (count == 0)
        return ACL_SUCCESS;
    if (memory == NULL)
        return fail(ACL_ERROR_INVALID_PARAM, "%s: devPtr is NULL", function);
    if (count > room)
        return fail(ACL_ERROR_RT_PARAM_INVALID, "%s: count = %zu is above maxCount = %zu", function,
                    count, room);
    return registry_range(memory, count, function) ? ACL_SUCCESS : ACL_ERROR_RT_PARAM_INVALID;
}

aclError aclrtMemset(void *devPtr, size_t maxCount, int32_t value, size_t count)
{
    aclError status = check_fill(devPtr, maxCount, count, __func__);
    if (status == ACL_SUCCESS && count > 0)
        memset(devPtr, value, count);
    return status;
}

static void run_fill(const struct task *task)
{
    if (task->count > 0)
        memset(task->to, (int)task->value, task->count);
}

aclError aclrtMemsetAsync(void *devPtr, size_t maxCount, int32_t value, size_t count,
                          aclrtStream stream)
{
    struct stream *target;
    aclError status = check_fill(devPtr, maxCount, count, __func__);
    if (status == ACL_SUCCESS)
        status = stream_hold(stream, __func__, &target);
    if (status != ACL_SUCCESS)
        return status;
    struct task task = {
        .run = run_fill, .to = devPtr, .count = count, .value = (unsigned char)value};
    return submit(target, task, __func__);
}
