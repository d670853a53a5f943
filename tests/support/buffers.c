/* buffers.c - guarded memory for the tests' tensors. */
#include "buffers.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define GUARD_BYTES   256
#define GUARD_PATTERN 0xa5

static void *need(void *memory)
{
    if (memory == NULL || memory == MAP_FAILED) {
        perror("test buffer");
        exit(99);
    }
    return memory;
}

static void make_guard_bytes(struct buffer *buffer, size_t misalignment)
{
    buffer->memory_bytes = (buffer->bytes + misalignment + 2 * GUARD_BYTES + 63) / 64 * 64;
    buffer->memory = need(aligned_alloc(64, buffer->memory_bytes));
    buffer->guarded = buffer->memory;
    buffer->guarded_bytes = buffer->memory_bytes;
    buffer->data = buffer->memory + GUARD_BYTES + misalignment;
}

static void make_pages(struct buffer *buffer)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    buffer->guarded_bytes = (buffer->bytes + page) / page * page;
    buffer->memory_bytes = buffer->guarded_bytes + 2 * page;
    buffer->memory = need(mmap(NULL, buffer->memory_bytes, PROT_READ | PROT_WRITE,
                               MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    buffer->guarded = buffer->memory + page;
    mprotect(buffer->memory, page, PROT_NONE);
    mprotect(buffer->guarded + buffer->guarded_bytes, page, PROT_NONE);
    buffer->data = buffer->guarded;
    if (buffer->placement == BUFFER_BEFORE_PAGE) {
        buffer->data += buffer->guarded_bytes - buffer->bytes;
    }
}

void buffer_make(struct buffer *buffer, size_t bytes, enum buffer_placement placement,
                 size_t misalignment)
{
    *buffer = (struct buffer){.bytes = bytes, .placement = placement};
    if (placement == BUFFER_GUARD_BYTES) {
        make_guard_bytes(buffer, misalignment);
    } else {
        make_pages(buffer);
    }
    memset(buffer->guarded, GUARD_PATTERN, buffer->guarded_bytes);
}

void buffer_free(struct buffer *buffer)
{
    if (buffer->placement == BUFFER_GUARD_BYTES) {
        free(buffer->memory);
    } else if (buffer->memory != NULL) {
        munmap(buffer->memory, buffer->memory_bytes);
    }
    *buffer = (struct buffer){0};
}

static bool all_pattern(const char *from, const char *to)
{
    while (from < to && (unsigned char)*from == GUARD_PATTERN) {
        from++;
    }
    return from == to;
}

bool buffer_guards_hold(const struct buffer *buffer)
{
    return all_pattern(buffer->guarded, buffer->data) &&
           all_pattern(buffer->data + buffer->bytes, buffer->guarded + buffer->guarded_bytes);
}

void buffer_forbid_from(const struct buffer *buffer, size_t from)
{
    mprotect(buffer->guarded + from, buffer->guarded_bytes - from, PROT_NONE);
}

void buffer_forbid(const struct buffer *buffer)
{
    buffer_forbid_from(buffer, 0);
}

void buffer_allow(const struct buffer *buffer)
{
    mprotect(buffer->guarded, buffer->guarded_bytes, PROT_READ | PROT_WRITE);
}
