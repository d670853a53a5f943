/* limits_by_ids.h - what each product's operators take of a routing by expert ids. */
#ifndef ACLNN_LIMITS_BY_IDS_H
#define ACLNN_LIMITS_BY_IDS_H

#include "limits.h"

/* Slots and ids that the sort of Atlas A2 and A3 takes: it counts in float32. */
#define LIMITS_SORT_MAX 16777214
/* Experts of aclnnMoeInitRoutingV3; and when it writes pairs of expert and number. */
#define LIMITS_EXPERTS_MAX          10240
#define LIMITS_EXPERTS_IN_PAIRS_MAX 5120

enum limits_step {
    LIMITS_PERMUTE,
    LIMITS_PERMUTE_GRAD,
    LIMITS_UNPERMUTE,
    LIMITS_UNPERMUTE_GRAD
};

struct limits_ids_call {
    enum limits_step step;
    int64_t tokens_num, topk, experts_num, capacity;
    bool range;        /* of experts, not all of them */
    bool unused_slots; /* an id that is none of the experts' */
    bool wide_ids;     /* int64 */
    bool weights, weights_of_token_type, weights_float32, tokens_bfloat16;
    bool residual, expert_bias;
};

/* CANN's operators for the step, in the order in which its programs prefer them; NULL behind the
 * last. */
const char *limits_ids_operator(enum limits_step step, size_t index);

/* True when that operator of the product takes the call. If not, why, in reason[size]. */
bool limits_ids_accept(const struct product *product, size_t index,
                       const struct limits_ids_call *call, char *reason, size_t size);

#endif
