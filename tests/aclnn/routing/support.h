/* support.h - what the tests of the init, finalize and re-routing operators share: tensors of any
 * type made of doubles and read as doubles, phase two with a workspace of just the size asked for,
 * random numbers, and the order that a stable sort by expert gives, in plain loops. */
#ifndef TESTS_ACLNN_ROUTING_SUPPORT_H
#define TESTS_ACLNN_ROUTING_SUPPORT_H

#include "twin.h"

#include "aclnnop/aclnn_moe_finalize_routing.h"
#include "aclnnop/aclnn_moe_finalize_routing_v2.h"
#include "aclnnop/aclnn_moe_finalize_routing_v2_grad.h"
#include "aclnnop/aclnn_moe_init_routing.h"
#include "aclnnop/aclnn_moe_init_routing_v2.h"
#include "aclnnop/aclnn_moe_init_routing_v2_grad.h"
#include "aclnnop/aclnn_moe_init_routing_v3.h"
#include "aclnnop/aclnn_moe_re_routing.h"

enum {
    VALUES_MAX = 512 /* of a tensor in these tests */
};

struct values {
    struct twin_tensor twin;
    aclDataType type;
    int64_t count;
};

/* A device tensor with those values; NULL: every byte is 0xFF. Values must be exact in the type. */
struct values values_make(aclDataType type, int rank, const int64_t *shape, const double *from);
#define VALUES(type, from, ...)                                                                    \
    values_make(type, (int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)),                   \
                (int64_t[]){__VA_ARGS__}, from)
/* The same memory, of `elements` elements, with that shape and those strides from `offset` on. */
void values_set_view(struct values *values, const int64_t *shape, int rank, const int64_t *strides,
                     int64_t offset, int64_t elements);
void values_drop(struct values *values);
/* Fails, and names `what`, unless the tensor holds exactly these. */
void values_expect(const struct values *values, const double *expected, const char *what);
/* The tensor's values. */
void values_read(const struct values *values, double *into);
/* Fails unless every byte is still 0xFF. */
void values_expect_untouched(const struct values *values, const char *what);

typedef aclnnStatus (*phase_two)(void *, uint64_t, aclOpExecutor *, aclrtStream);
/* With a workspace of `bytes`, exactly. */
aclnnStatus run(phase_two function, uint64_t bytes, aclOpExecutor *executor);

/* The three types of tokens, in turn. */
aclDataType token_type(int number);

/* A number in [least, most]; the same sequence in every run. */
int64_t draw(int64_t least, int64_t most);
/* `count` of them, times `unit`. */
void draw_values(double *into, int64_t count, int64_t least, int64_t most, double unit);

/* rank[i]: how many slots come before slot i in a stable sort by key. */
void sorted_places(const double *key, int64_t count, int64_t *rank);

#endif
