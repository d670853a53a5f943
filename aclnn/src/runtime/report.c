/* report.c - faults of the program in words: what was found, what it is, where it was allocated and
 * where it was freed. */
#include "report.h"

#include "message.h"

#include <dlfcn.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#ifdef __GLIBC__
#include <execinfo.h>
#endif

enum {
    TEXT_SIZE = 512,
    PRINTED_FRAMES = 4
};

static const char *kind_name(enum resource_kind kind)
{
    static const char *const names[] = {[RESOURCE_DEVICE_MEMORY] = "device memory",
                                        [RESOURCE_HOST_MEMORY] = "host memory",
                                        [RESOURCE_TENSOR] = "tensor",
                                        [RESOURCE_INT_ARRAY] = "int array",
                                        [RESOURCE_FLOAT_ARRAY] = "float array",
                                        [RESOURCE_BOOL_ARRAY] = "bool array",
                                        [RESOURCE_SCALAR] = "scalar",
                                        [RESOURCE_TENSOR_LIST] = "tensor list",
                                        [RESOURCE_SCALAR_LIST] = "scalar list",
                                        [RESOURCE_EXECUTOR] = "executor",
                                        [RESOURCE_CONTEXT] = "context",
                                        [RESOURCE_STREAM] = "stream",
                                        [RESOURCE_EVENT] = "event"};
    return names[kind];
}

void report_trace(struct trace *trace)
{
#ifdef __GLIBC__
    trace->count = backtrace(trace->frames, TRACE_FRAMES);
#else
    trace->frames[0] = __builtin_return_address(0);
    trace->count = 1;
#endif
}

/* The frames outside this layer: "  allocated at main+0x1f (./program+0x13f2)". */
static void print_trace(const char *what, const struct trace *trace)
{
    Dl_info own = {0}, info;
    static const char of_this_layer;
    dladdr(&of_this_layer, &own);
    for (int i = 0, printed = 0; i < trace->count && printed < PRINTED_FRAMES; i++) {
        memset(&info, 0, sizeof info);
        if (!dladdr(trace->frames[i], &info) || info.dli_fname == NULL)
            continue;
        if (info.dli_fbase == own.dli_fbase)
            continue;
        uintptr_t frame = (uintptr_t)trace->frames[i];
        fprintf(stderr, "  %s ", what);
        if (info.dli_sname)
            fprintf(stderr, "%s+0x%" PRIxPTR " ", info.dli_sname,
                    frame - (uintptr_t)info.dli_saddr);
        fprintf(stderr, "(%s+0x%" PRIxPTR ")\n", info.dli_fname, frame - (uintptr_t)info.dli_fbase);
        what = "       from";
        printed++;
    }
}

static void print_history(const struct resource *resource)
{
    print_trace("allocated at", &resource->created);
    if (resource->released)
        print_trace("released at", &resource->destroyed);
}

/* "device memory #3 of 24 bytes at 0x55..": how every message names a resource. */
static void describe(const struct resource *resource, char text[TEXT_SIZE])
{
    snprintf(text, TEXT_SIZE, "%s #%" PRIu64 " of %zu bytes at %p", kind_name(resource->kind),
             resource->order, resource->size, (void *)resource->address);
}

static void print(const char *message, const struct resource *resource)
{
    fprintf(stderr, "moetoken acl check: %s\n", message);
    if (resource)
        print_history(resource);
    fflush(stderr);
}

void report_not_live(enum resource_kind kind, const void *address, const char *name,
                     const struct resource *found, bool print_it)
{
    char text[TEXT_SIZE];
    if (found == NULL) {
        fail(0, "%s: %p is not a live %s", name, address, kind_name(kind));
    } else {
        describe(found, text);
        fail(0, "%s: %p is not a live %s: it is %s%s%s", name, address, kind_name(kind),
             found->address == address ? "" : "inside ", text,
             found->released ? ", released before" : "");
    }
    if (print_it)
        print(recent_message(), found);
}

void report_range(const struct resource *found, const void *address, size_t bytes, const char *name)
{
    char text[TEXT_SIZE];
    describe(found, text);
    size_t offset = (size_t)((const unsigned char *)address - found->address);
    if (found->released)
        fail(0, "%s: %zu bytes at offset %zu of %s, released before", name, bytes, offset, text);
    else
        fail(0, "%s: %zu bytes at offset %zu overrun %s by %zu", name, bytes, offset, text,
             offset + bytes - found->size);
    print(recent_message(), found);
}

void report_damage(const struct resource *resource, const unsigned char *where)
{
    char text[TEXT_SIZE];
    describe(resource, text);
    ptrdiff_t offset = where - resource->address;
    if (offset < 0)
        fail(0, "overrun: offset %td was written, before the begin of %s", offset, text);
    else if (offset < (ptrdiff_t)resource->size)
        fail(0, "written after it was released: offset %td of %s", offset, text);
    else
        fail(0, "overrun: offset %td was written, behind the end of %s", offset, text);
    print(recent_message(), resource);
}

void report_message(const char *message)
{
    print(message, NULL);
}

void report_leak(const struct resource *resource)
{
    char text[TEXT_SIZE];
    describe(resource, text);
    fail(0, "never released: %s", text);
    print(recent_message(), resource);
}
