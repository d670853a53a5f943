/* router_functions.h - a table of the router's functions, so that one test covers all of them, and
 * calls of them on random tensors in any layout. */
#ifndef MOETOKEN_TESTS_ROUTER_FUNCTIONS_H
#define MOETOKEN_TESTS_ROUTER_FUNCTIONS_H

#include "support/tensors.h"

#include <moetoken/router.h>

enum {
    ROUTER,
    ROUTER_GRAD,
    Z_LOSS,
    BALANCE_LOSS,
    UPDATE_BIAS,
    DROP,
    FUNCTIONS
};

/* What a tensor holds: any floating type; that of the first tensor; that one or float32 or float64;
 * and the others. */
enum kind {
    FLOATING,
    LIKE_FIRST,
    WEIGHTS,
    INDEX,
    MAP,
    COUNTS
};

struct field {
    const char *name;
    size_t offset;     /* in the argument struct */
    const char *sizes; /* letters; 1 is the number */
    enum kind kind;
    bool output, required;
    int replaces; /* the field whose memory an output may have, plus 1 */
};

#define FIELDS_MOST 9

struct function {
    const char *name;
    moetoken_status (*run)(const void *args, const moetoken_options *options);
    moetoken_status (*try_it)(const void *args, const moetoken_options *options);
    int count;
    struct field fields[FIELDS_MOST];
};

extern const struct function functions[FUNCTIONS];

union any_args {
    size_t struct_size;
    moetoken_router_args router;
    moetoken_router_grad_args grad;
    moetoken_router_z_loss_args z_loss;
    moetoken_router_balance_loss_args balance_loss;
    moetoken_router_update_bias_args update_bias;
    moetoken_router_drop_args drop;
};

struct any_call {
    const struct function *function;
    struct test_tensor tensors[FIELDS_MOST];
    union any_args args;
    moetoken_type type; /* of the first tensor */
    int64_t tokens, experts, topk;
};

/* A call of functions[which] with every tensor given, in plain layouts or random ones. */
void any_call_make(struct any_call *call, int which, int64_t tokens, int64_t experts, int64_t topk,
                   moetoken_type type, bool layouts);
/* The same call, the same numbers in it, in other layouts. */
void any_call_copy(struct any_call *call, const struct any_call *from);
void any_call_free(struct any_call *call);

/* Gives a tensor to the call, or takes it away. */
void any_call_set(struct any_call *call, int field, const DLTensor *tensor);

/* Fills outputs with what no call writes and remembers all memory. */
void any_call_poison(struct any_call *call);

#endif
