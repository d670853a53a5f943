/* report.h - what a resource is and what is said about it: messages for the thread, and reports on
 * stderr when MOETOKEN_ACL_CHECK=1. Used by registry.c alone, under its lock. */
#ifndef ACLNN_REPORT_H
#define ACLNN_REPORT_H

#include "registry.h"

#include <stdint.h>

enum {
    TRACE_FRAMES = 12
};

/* Return addresses, innermost first. */
struct trace {
    void *frames[TRACE_FRAMES];
    int count;
};

struct resource {
    enum resource_kind kind;
    bool guarded, damage_reported, leak_reported;
    bool released;  /* given back by the program: not live any more */
    bool aside;     /* poisoned, and kept so that a late use can be told */
    unsigned holds; /* calls that are using it; its memory stays until the last one ends */
    void (*end)(void *object); /* before the memory goes; NULL: nothing to do */
    unsigned char *address;    /* what the program holds */
    size_t size;               /* bytes the program asked for */
    void *block;               /* what malloc gave: guard, the program's bytes, guard */
    size_t block_size;
    uint64_t order; /* 1 for the first of the process */
    struct trace created, destroyed;
    struct resource *next; /* among the released */
};

/* The calls that led here. */
void report_trace(struct trace *trace);

void report_not_live(enum resource_kind kind, const void *address, const char *name,
                     const struct resource *found, bool print_it);
void report_range(const struct resource *found, const void *address, size_t bytes,
                  const char *name);
void report_damage(const struct resource *resource, const unsigned char *where);
void report_message(const char *message);
void report_leak(const struct resource *resource);

#endif
