/* registry.c - one tree of all handles and blocks, ordered by address. With MOETOKEN_ACL_CHECK=1
 * released ones stay in it for a while: their memory is poisoned and their addresses are not given
 * out again, so that a late use can be told. */
#include "registry.h"

#include "message.h"
#include "report.h"

#include <pthread.h>
#include <search.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum {
    BLOCK_ALIGNMENT = 64,
    GUARD_BYTES = 64,
    SPARE_BYTES = 32, /* a device block is rounded up to 32 bytes and has 32 more */
    GUARD_BYTE = 0xA7,
    FRESH_BYTE = 0xFF, /* NaN in every floating-point type, -1 in every index type */
    FREED_BYTE = 0xDF
};

/* Freed memory is kept aside up to so many bytes, then the oldest goes. */
static const size_t ASIDE_BYTES = (size_t)64 << 20;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static void *tree;                                /* of struct resource, by address */
static struct resource *aside_first, *aside_last; /* released, oldest first */
static size_t aside_bytes;
static uint64_t last_order;
static int checks = -1; /* not read yet */

static int compare(const void *first, const void *second)
{
    const struct resource *a = first, *b = second;
    if (a->address + (a->size ? a->size : 1) <= b->address)
        return -1;
    return b->address + (b->size ? b->size : 1) <= a->address;
}

static struct resource *find_at(const void *address)
{
    struct resource key = {.address = (unsigned char *)address, .size = 1};
    struct resource **node = tfind(&key, &tree, compare);
    return node ? *node : NULL;
}

static bool checks_locked(void)
{
    if (checks < 0) {
        const char *value = getenv("MOETOKEN_ACL_CHECK");
        checks = value != NULL && value[0] != '\0' && strcmp(value, "0") != 0;
    }
    return checks > 0;
}

bool registry_checks(void)
{
    pthread_mutex_lock(&lock);
    bool on = checks_locked();
    pthread_mutex_unlock(&lock);
    return on;
}

void registry_read_environment(void)
{
    pthread_mutex_lock(&lock);
    checks = -1;
    checks_locked();
    pthread_mutex_unlock(&lock);
}

/* Enters a block into the tree; frees it and returns NULL when there is no memory for that. */
static void *add(const struct resource *new_resource)
{
    struct resource *resource = calloc(1, sizeof *resource);
    if (resource == NULL) {
        free(new_resource->block);
        return NULL;
    }
    *resource = *new_resource;
    pthread_mutex_lock(&lock);
    resource->order = ++last_order;
    if (checks_locked())
        report_trace(&resource->created);
    void *node = tsearch(resource, &tree, compare);
    pthread_mutex_unlock(&lock);
    if (node == NULL) {
        free(resource->block);
        free(resource);
        return NULL;
    }
    return resource->address;
}

void *registry_create(enum resource_kind kind, size_t bytes, void (*end)(void *object))
{
    void *block = calloc(1, bytes);
    if (block == NULL)
        return NULL;
    struct resource created = {.kind = kind,
                               .address = block,
                               .size = bytes,
                               .block = block,
                               .block_size = bytes,
                               .end = end};
    return add(&created);
}

void *registry_allocate(enum resource_kind kind, size_t bytes)
{
    bool guarded = registry_checks();
    size_t guard = guarded ? GUARD_BYTES : 0;
    size_t block_size = bytes + SPARE_BYTES + 2 * guard + BLOCK_ALIGNMENT;
    block_size = block_size / BLOCK_ALIGNMENT * BLOCK_ALIGNMENT;
    unsigned char *block = bytes < block_size ? aligned_alloc(BLOCK_ALIGNMENT, block_size) : NULL;
    if (block == NULL)
        return NULL;
    if (guarded) {
        memset(block, GUARD_BYTE, block_size);
        memset(block + guard, FRESH_BYTE, bytes);
    }
    struct resource created = {.kind = kind,
                               .guarded = guarded,
                               .address = block + guard,
                               .size = bytes,
                               .block = block,
                               .block_size = block_size};
    return add(&created);
}

/* The first of the bytes [begin, end) that is not `expected`, or end. */
static const unsigned char *first_change(const unsigned char *begin, const unsigned char *end,
                                         unsigned char expected)
{
    while (begin < end && *begin == expected)
        begin++;
    return begin;
}

/* Where the memory of a resource was written although it must not be, or NULL. */
static const unsigned char *damage(const struct resource *resource)
{
    if (!resource->guarded)
        return NULL;
    const unsigned char *block = resource->block, *address = resource->address;
    const unsigned char *end = block + resource->block_size;
    const unsigned char *change = first_change(block, address, GUARD_BYTE);
    if (change < address)
        return change;
    const unsigned char *after = address + resource->size;
    if (resource->aside) {
        change = first_change(address, after, FREED_BYTE);
        if (change < after)
            return change;
    }
    change = first_change(after, end, GUARD_BYTE);
    return change < end ? change : NULL;
}

static bool is_intact(struct resource *resource)
{
    if (resource->damage_reported)
        return true;
    const unsigned char *change = damage(resource);
    if (change == NULL)
        return true;
    resource->damage_reported = true;
    report_damage(resource, change);
    return false;
}

static void forget(struct resource *resource)
{
    tdelete(resource, &tree, compare);
    free(resource->block);
    free(resource);
}

static void forget_oldest(void)
{
    struct resource *resource = aside_first;
    aside_first = resource->next;
    if (aside_first == NULL)
        aside_last = NULL;
    aside_bytes -= resource->block_size;
    is_intact(resource);
    forget(resource);
}

static void put_aside(struct resource *resource)
{
    resource->aside = true;
    memset(resource->address, FREED_BYTE, resource->size);
    if (aside_last)
        aside_last->next = resource;
    else
        aside_first = resource;
    aside_last = resource;
    aside_bytes += resource->block_size;
    while (aside_bytes > ASIDE_BYTES)
        forget_oldest();
}

/* Nobody can reach the resource any more. */
static void dispose(struct resource *resource)
{
    if (resource->end)
        resource->end(resource->address);
    if (checks_locked())
        put_aside(resource);
    else
        forget(resource);
}

/* The resource when it is live; else NULL, and the message unless `name` is NULL. */
static struct resource *find_live(enum resource_kind kind, const void *address, const char *name)
{
    struct resource *found = find_at(address);
    if (found && found->kind == kind && found->address == address && !found->released)
        return found;
    if (name)
        report_not_live(kind, address, name, found, checks_locked());
    return NULL;
}

static struct resource *give_back(enum resource_kind kind, const void *address, const char *name)
{
    struct resource *resource = find_live(kind, address, name);
    if (resource) {
        resource->released = true;
        if (checks_locked())
            report_trace(&resource->destroyed);
    }
    return resource;
}

bool registry_known(enum resource_kind kind, const void *address)
{
    pthread_mutex_lock(&lock);
    struct resource *found = find_at(address);
    bool known = found && found->kind == kind && !found->released;
    pthread_mutex_unlock(&lock);
    return known;
}

bool registry_hold(enum resource_kind kind, const void *address, const char *name)
{
    pthread_mutex_lock(&lock);
    struct resource *resource = find_live(kind, address, name);
    if (resource)
        resource->holds++;
    pthread_mutex_unlock(&lock);
    return resource != NULL;
}

bool registry_hold_quietly(enum resource_kind kind, const void *address)
{
    return registry_hold(kind, address, NULL);
}

void registry_hold_again(const void *address)
{
    pthread_mutex_lock(&lock);
    find_at(address)->holds++;
    pthread_mutex_unlock(&lock);
}

void registry_drop(const void *address)
{
    pthread_mutex_lock(&lock);
    struct resource *resource = find_at(address);
    if (--resource->holds == 0 && resource->released)
        dispose(resource);
    pthread_mutex_unlock(&lock);
}

bool registry_take(enum resource_kind kind, const void *address, const char *name)
{
    pthread_mutex_lock(&lock);
    struct resource *resource = give_back(kind, address, name);
    if (resource)
        resource->holds++;
    pthread_mutex_unlock(&lock);
    return resource != NULL;
}

bool registry_release(enum resource_kind kind, void *address, const char *name, bool *intact)
{
    pthread_mutex_lock(&lock);
    struct resource *resource = give_back(kind, address, name);
    if (resource) {
        bool whole = is_intact(resource);
        if (intact)
            *intact = whole;
        if (resource->holds == 0)
            dispose(resource);
    }
    pthread_mutex_unlock(&lock);
    return resource != NULL;
}

bool registry_range(const void *address, size_t bytes, const char *name)
{
    pthread_mutex_lock(&lock);
    bool good = true;
    if (checks_locked() && bytes > 0) {
        struct resource *found = find_at(address);
        size_t room = found ? (size_t)(found->address + found->size - (unsigned char *)address) : 0;
        good = found == NULL || (!found->released && bytes <= room);
        if (!good)
            report_range(found, address, bytes, name);
    }
    pthread_mutex_unlock(&lock);
    return good;
}

/* twalk hands no context to its callback; the lock makes these the walk's own. */
static size_t walk_damaged, walk_live;

static void verify_one(const void *node, VISIT visit, int depth)
{
    (void)depth;
    if (visit == postorder || visit == leaf)
        walk_damaged += !is_intact(*(struct resource *const *)node);
}

static void leak_one(const void *node, VISIT visit, int depth)
{
    (void)depth;
    struct resource *resource = *(struct resource *const *)node;
    if ((visit != postorder && visit != leaf) || resource->released || resource->leak_reported)
        return;
    resource->leak_reported = true;
    walk_live++;
    report_leak(resource);
}

bool registry_verify(void)
{
    pthread_mutex_lock(&lock);
    walk_damaged = 0;
    if (checks_locked())
        twalk(tree, verify_one);
    bool intact = walk_damaged == 0;
    pthread_mutex_unlock(&lock);
    return intact;
}

void registry_report(const char *message)
{
    pthread_mutex_lock(&lock);
    report_message(message);
    pthread_mutex_unlock(&lock);
}

size_t registry_report_leaks(void)
{
    pthread_mutex_lock(&lock);
    walk_live = 0;
    if (checks_locked()) {
        twalk(tree, leak_one);
        while (aside_first)
            forget_oldest();
    }
    size_t live = walk_live;
    pthread_mutex_unlock(&lock);
    return live;
}
