/* buffer_cache.c - a list of mappings that wait for their next use, bounded, under one lock.
 *
 * Mappings are made and unmapped outside of the lock, so that nobody waits for the system. */
#define _DEFAULT_SOURCE /* MAP_ANONYMOUS, madvise */
#include "buffer_cache.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/mman.h>

#define HUGE_PAGE_BYTES  ((size_t)2 << 20)
#define SMALL_STEP_BYTES ((size_t)256 << 10) /* sizes of buffers that hold no huge page */

static struct {
    pthread_mutex_t lock;
    struct buffer *waiting;
    size_t waiting_bytes, limit;
    struct buffer_stats stats;
} cache = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* A child of fork() has one thread, and whatever lock another one held would stay locked. */
static void lock_cache(void)
{
    pthread_mutex_lock(&cache.lock);
}

static void unlock_cache(void)
{
    pthread_mutex_unlock(&cache.lock);
}

__attribute__((constructor)) static void watch_forks(void)
{
    pthread_atfork(lock_cache, unlock_cache, unlock_cache);
}

static void gain(struct buffer_count *count, size_t amount)
{
    count->current += (int64_t)amount;
    count->gained += (int64_t)amount;
    if (count->peak < count->current)
        count->peak = count->current;
}

static void lose(struct buffer_count *count, size_t amount)
{
    count->current -= (int64_t)amount;
    count->lost += (int64_t)amount;
}

static size_t rounded(size_t bytes)
{
    size_t step = bytes < 2 * HUGE_PAGE_BYTES ? SMALL_STEP_BYTES : HUGE_PAGE_BYTES;
    return (bytes + step - 1) / step * step;
}

/* A mapping that begins with a huge page where it can hold one. */
static void *map(size_t size)
{
    size_t extra = size < HUGE_PAGE_BYTES ? 0 : HUGE_PAGE_BYTES;
    char *begin =
        mmap(NULL, size + extra, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (begin == MAP_FAILED)
        return NULL;
    if (!extra)
        return begin;
    size_t before = (HUGE_PAGE_BYTES - (uintptr_t)begin % HUGE_PAGE_BYTES) % HUGE_PAGE_BYTES;
    if (before)
        munmap(begin, before);
    if (extra - before)
        munmap(begin + before + size, extra - before);
#ifdef MADV_HUGEPAGE
    madvise(begin + before, size, MADV_HUGEPAGE); /* advice: a refusal is none of our business */
#endif
    return begin + before;
}

static void unmap_all(struct buffer *buffer)
{
    while (buffer) {
        struct buffer *next = buffer->next;
        munmap(buffer->data, buffer->size);
        free(buffer);
        buffer = next;
    }
}

/* Takes the smallest waiting buffer that holds `size` bytes and wastes at most a quarter of itself
 * out of the list; NULL: none. */
static struct buffer *find_waiting(size_t size)
{
    struct buffer **best = NULL;
    for (struct buffer **place = &cache.waiting; *place; place = &(*place)->next)
        if ((*place)->size >= size && (*place)->size - size <= (*place)->size / 4 &&
            (!best || (*place)->size < (*best)->size))
            best = place;
    if (!best)
        return NULL;
    struct buffer *found = *best;
    *best = found->next;
    cache.waiting_bytes -= found->size;
    return found;
}

/* Takes those that waited longest out of the list, until the rest holds `bytes` at most. */
static struct buffer *shrink_to(size_t bytes)
{
    struct buffer **place = &cache.waiting;
    size_t kept = 0;
    while (*place && kept + (*place)->size <= bytes) {
        kept += (*place)->size;
        place = &(*place)->next;
    }
    struct buffer *surplus = *place;
    *place = NULL;
    cache.waiting_bytes = kept;
    for (struct buffer *one = surplus; one; one = one->next) {
        lose(&cache.stats.segment, 1);
        lose(&cache.stats.reserved_bytes, one->size);
    }
    return surplus;
}

static struct buffer *make_buffer(size_t size)
{
    struct buffer *buffer = malloc(sizeof *buffer);
    if (!buffer)
        return NULL;
    *buffer = (struct buffer){.data = map(size), .size = size};
    if (!buffer->data) { /* what waits may be what is missing */
        buffer_cache_empty();
        buffer->data = map(size);
    }
    if (buffer->data)
        return buffer;
    free(buffer);
    return NULL;
}

struct buffer *buffer_take(size_t bytes)
{
    if (bytes > PTRDIFF_MAX / 2)
        return NULL;
    size_t size = rounded(bytes);
    lock_cache();
    bool is_on = cache.limit > 0;
    struct buffer *buffer = is_on ? find_waiting(size) : NULL;
    unlock_cache();
    bool is_new = !buffer;
    if (is_on && is_new)
        buffer = make_buffer(size);
    if (!buffer)
        return NULL;
    buffer->used = bytes;
    lock_cache();
    if (is_new) {
        gain(&cache.stats.segment, 1);
        gain(&cache.stats.reserved_bytes, buffer->size);
    }
    gain(&cache.stats.allocation, 1);
    gain(&cache.stats.allocated_bytes, bytes);
    unlock_cache();
    return buffer;
}

void buffer_give(struct buffer *buffer)
{
    lock_cache();
    lose(&cache.stats.allocation, 1);
    lose(&cache.stats.allocated_bytes, buffer->used);
    buffer->next = cache.waiting;
    cache.waiting = buffer;
    cache.waiting_bytes += buffer->size;
    struct buffer *surplus = cache.waiting_bytes > cache.limit ? shrink_to(cache.limit) : NULL;
    unlock_cache();
    unmap_all(surplus);
}

void buffer_cache_empty(void)
{
    lock_cache();
    struct buffer *surplus = shrink_to(0);
    unlock_cache();
    unmap_all(surplus);
}

void buffer_cache_limit(size_t bytes)
{
    lock_cache();
    cache.limit = bytes;
    struct buffer *surplus = shrink_to(bytes);
    unlock_cache();
    unmap_all(surplus);
}

struct buffer_stats buffer_cache_stats(void)
{
    lock_cache();
    struct buffer_stats stats = cache.stats;
    unlock_cache();
    return stats;
}
