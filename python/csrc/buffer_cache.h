/* buffer_cache.h - memory for large outputs, kept when it is freed: fresh memory costs more than
 * what the operators do with it.
 *
 * The system clears every page that it hands out. A buffer that comes back is kept here, in huge
 * pages, for the next output of about its size. No function needs the GIL; any thread may call. */
#ifndef MOETOKEN_PYTHON_BUFFER_CACHE_H
#define MOETOKEN_PYTHON_BUFFER_CACHE_H

#include <stddef.h>
#include <stdint.h>

#define BUFFER_CACHE_LEAST_BYTES (1u << 20) /* below, malloc keeps freed memory by itself */

struct buffer {
    void *data;
    size_t size;         /* of the mapping, at least what was asked for */
    size_t used;         /* what was asked for */
    struct buffer *next; /* of those that wait, the one that came back last first */
};

struct buffer_count {
    int64_t current, peak, gained, lost;
};

/* What memory_stats() shows: numbers of buffers, and their bytes. */
struct buffer_stats {
    struct buffer_count allocation, allocated_bytes; /* in use by arrays and tensors */
    struct buffer_count segment, reserved_bytes;     /* those, and what waits */
};

/* At least `bytes` of memory whose content is anything, or NULL: no memory, or the cache is off. */
struct buffer *buffer_take(size_t bytes);

/* Nobody uses it any more. */
void buffer_give(struct buffer *buffer);

/* Everything that waits goes back to the system. */
void buffer_cache_empty(void);

/* The most bytes that may wait; 0 turns the cache off, buffers in use stay as they are. */
void buffer_cache_limit(size_t bytes);

struct buffer_stats buffer_cache_stats(void);

#endif
