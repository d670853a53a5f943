/* registry.h - everything the program holds of this layer: which handles and device blocks are
 * live, and, with MOETOKEN_ACL_CHECK=1, which were and where they came from.
 *
 * Every public function that takes a handle holds it here from the check to its last use, so that a
 * stale handle is an error instead of undefined behaviour, and one that another thread gives back
 * meanwhile stays in memory until the call has ended. */
#ifndef ACLNN_REGISTRY_H
#define ACLNN_REGISTRY_H

#include <stdbool.h>
#include <stddef.h>

enum resource_kind {
    RESOURCE_DEVICE_MEMORY,
    RESOURCE_HOST_MEMORY,
    RESOURCE_TENSOR,
    RESOURCE_INT_ARRAY,
    RESOURCE_FLOAT_ARRAY,
    RESOURCE_BOOL_ARRAY,
    RESOURCE_SCALAR,
    RESOURCE_TENSOR_LIST,
    RESOURCE_SCALAR_LIST,
    RESOURCE_EXECUTOR,
    RESOURCE_CONTEXT,
    RESOURCE_STREAM,
    RESOURCE_EVENT
};

/* Whether MOETOKEN_ACL_CHECK asks for checks. Read by aclInit, or at the first use before it. */
bool registry_checks(void);
void registry_read_environment(void);

/* Zeroed memory for an object, registered; NULL without memory. `end` (may be NULL) is called with
 * the object right before its memory goes, and must not come back here. */
void *registry_create(enum resource_kind kind, size_t bytes, void (*end)(void *object));

/* Memory of `bytes` bytes for the program, between guards when checks are on. */
void *registry_allocate(enum resource_kind kind, size_t bytes);

/* Holds the object that registry_create gave, when it is live. If it is not, the message says what
 * it is instead, beginning with `name`; with checks also a report on stderr. */
bool registry_hold(enum resource_kind kind, const void *address, const char *name);

/* The same, without a message. */
bool registry_hold_quietly(enum resource_kind kind, const void *address);

/* Adds a hold to an object that is known to be held. */
void registry_hold_again(const void *address);

/* Ends one hold. What was given back meanwhile goes with the last one. */
void registry_drop(const void *address);

/* Gives an object back and holds it: exactly one caller gets true, and from then on nobody else can
 * hold it anew. False, as registry_hold, when it is not live. */
bool registry_take(enum resource_kind kind, const void *address, const char *name);

/* Whether `address` lies in a live object or live memory of that kind. Says nothing. */
bool registry_known(enum resource_kind kind, const void *address);

/* Gives the object or memory back: freed, or kept aside and poisoned when checks are on, as soon as
 * nobody holds it. False, as registry_hold, when it is not live. *intact: no guard byte had
 * changed.
 */
bool registry_release(enum resource_kind kind, void *address, const char *name, bool *intact);

/* With checks on: false, and a report, when [address, address + bytes) begins in memory of this
 * layer and leaves it, or when that memory has been freed. */
bool registry_range(const void *address, size_t bytes, const char *name);

/* With checks on: false, and a report, when a guard byte of live memory, or a byte of freed memory
 * has changed. Each fault is reported once. */
bool registry_verify(void);

/* A fault of the program that somebody else has found, on stderr. */
void registry_report(const char *message);

/* With checks on: reports what is still live, once each, and frees what was kept aside; returns
 * how many are still live. */
size_t registry_report_leaks(void);

#endif
