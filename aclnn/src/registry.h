/* registry.h - everything the program holds of this layer: which handles and device blocks are
 * live, and, with MOETOKEN_ACL_CHECK=1, which were and where they came from.
 *
 * Every public function that takes a handle asks here first, so that a stale handle is an error
 * instead of undefined behaviour. */
#ifndef ACLNN_REGISTRY_H
#define ACLNN_REGISTRY_H

#include <stdbool.h>
#include <stddef.h>

enum resource_kind {
    RESOURCE_DEVICE_MEMORY,
    RESOURCE_HOST_MEMORY,
    RESOURCE_TENSOR,
    RESOURCE_INT_ARRAY,
    RESOURCE_EXECUTOR,
    RESOURCE_CONTEXT,
    RESOURCE_STREAM,
    RESOURCE_EVENT
};

/* Whether MOETOKEN_ACL_CHECK asks for checks. Read by aclInit, or at the first use before it. */
bool registry_checks(void);
void registry_read_environment(void);

/* Zeroed memory for an object, registered; NULL without memory. */
void *registry_create(enum resource_kind kind, size_t bytes);

/* Memory of `bytes` bytes for the program, between guards when checks are on. */
void *registry_allocate(enum resource_kind kind, size_t bytes);

/* Whether `address` is what registry_create or registry_allocate gave and is not released. If not,
 * the message says what it is instead, beginning with `name`; with checks also a report on stderr.
 */
bool registry_live(enum resource_kind kind, const void *address, const char *name);

/* Whether `address` lies in a live object or live memory of that kind. Says nothing. */
bool registry_known(enum resource_kind kind, const void *address);

/* Releases the object or memory: freed at once, or kept aside and poisoned when checks are on.
 * False when it is not live (as registry_live says). *intact: no guard byte had changed. */
bool registry_release(enum resource_kind kind, void *address, const char *name, bool *intact);

/* With checks on: false, and a report, when [address, address + bytes) begins in memory of this
 * layer and leaves it, or when that memory has been freed. */
bool registry_range(const void *address, size_t bytes, const char *name);

/* With checks on: false, and a report, when a guard byte of live memory, or a byte of freed memory
 * has changed. Each fault is reported once. */
bool registry_verify(void);

/* With checks on: reports what is still live, once each, and frees what was kept aside; returns
 * how many are still live. */
size_t registry_report_leaks(void);

#endif
