/* buffers.h - memory that tells when it is written outside, and on request crashes when it is read
 * outside.
 *
 * Every buffer is filled with a pattern first; the pattern around the data must survive. */
#ifndef MOETOKEN_TESTS_BUFFERS_H
#define MOETOKEN_TESTS_BUFFERS_H

#include <stdbool.h>
#include <stddef.h>

enum buffer_placement {
    BUFFER_GUARD_BYTES, /* guard bytes on both sides, data at a chosen misalignment */
    BUFFER_BEFORE_PAGE, /* the byte after the data is in a page that may not be touched */
    BUFFER_AFTER_PAGE   /* the byte before the data is in such a page */
};

struct buffer {
    char *data;
    size_t bytes;
    char *memory; /* all of what was mapped or allocated */
    size_t memory_bytes;
    char *guarded; /* the part that holds data and pattern */
    size_t guarded_bytes;
    enum buffer_placement placement;
};

/* misalignment: bytes past a 64-byte boundary, only for BUFFER_GUARD_BYTES. */
void buffer_make(struct buffer *buffer, size_t bytes, enum buffer_placement placement,
                 size_t misalignment);
void buffer_free(struct buffer *buffer);

/* True while no byte around the data has changed. */
bool buffer_guards_hold(const struct buffer *buffer);

/* Forbids and allows any access to the data's pages; buffer_forbid_from only to those from a byte
 * on, which lies at a page's start. Only for BUFFER_AFTER_PAGE. */
void buffer_forbid(const struct buffer *buffer);
void buffer_forbid_from(const struct buffer *buffer, size_t from);
void buffer_allow(const struct buffer *buffer);

#endif
