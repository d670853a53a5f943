/* calls.h - a call of each init, finalize and re-routing operator that is right, of which a test
 * changes one thing. */
#ifndef TESTS_ACLNN_ROUTING_CALLS_H
#define TESTS_ACLNN_ROUTING_CALLS_H

#include "support.h"

enum {
    TENSORS_MAX = 8,
    OPTIONS_MAX = 8
};

struct call {
    struct values tensor[TENSORS_MAX]; /* in the order of the prototype */
    int64_t option[OPTIONS_MAX];       /* the numbers of the prototype, in its order */
    const aclIntArray *range;
    uint64_t bytes;
    aclOpExecutor *executor;
};

struct tested {
    struct call (*make)(void);
    aclnnStatus (*phase_one)(struct call *call);
    phase_two phase_two;
    int first_output;
};

/* T = 3, K = 2, H = 2, E = 3. The padded ones have C = 2. */
extern const struct tested init_v1, init_v2, init_v2_padded, init_v3, init_v3_padded, init_grad,
    finalize_v1, finalize_v2, finalize_grad, finalize_grad_padded, re_routing;
extern const double call_x[6];

void call_drop(struct call *call);
/* Another range; what was there is destroyed. */
void call_set_range(struct call *call, const int64_t *values, uint64_t count);
/* Another tensor at `place`; without data: none. */
void call_replace(struct call *call, int place, struct values by);

#endif
