/* bench_ceiling.h - the speed of memory: the same bytes read and written as an operator's rows, in
 * the same buffers, by the same number of threads, but in order and without arithmetic. */
#ifndef MOETOKEN_CLI_BENCH_CEILING_H
#define MOETOKEN_CLI_BENCH_CEILING_H

#include <stdbool.h>
#include <stddef.h>

/* The rows that a call reads and writes. */
struct traffic {
    const char *read[2]; /* or NULL; read[0] may be `write`: rewritten in place */
    size_t read_bytes[2];
    char *write;
    size_t write_bytes;
};

enum ceiling_stores {
    CEILING_CACHED,
    CEILING_STREAMING, /* past the caches */
    CEILING_STORES_COUNT
};

size_t traffic_bytes(const struct traffic *traffic);

/* Moves everything once. The bytes written mean nothing; in place they are those read. */
void ceiling_run(const struct traffic *traffic, int threads, enum ceiling_stores stores);

/* The same loops over one piece, of any size and alignment; whole lines are moved as in the
 * ceiling. After streaming stores a thread issues the fence. */
void ceiling_copy(const char *from, char *to, size_t bytes, bool streaming);
void ceiling_read(const char *from, size_t bytes);
void ceiling_fence(void);

#endif
