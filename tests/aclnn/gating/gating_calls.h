/* gating_calls.h - the gating operators as calls.h has operators. */
#ifndef TESTS_ACLNN_GATING_CALLS_H
#define TESTS_ACLNN_GATING_CALLS_H

#include "calls.h"

#include "aclnnop/aclnn_moe_compute_expert_tokens.h"
#include "aclnnop/aclnn_moe_gating_top_k.h"
#include "aclnnop/aclnn_moe_gating_top_k_backward.h"
#include "aclnnop/aclnn_moe_gating_top_k_softmax.h"
#include "aclnnop/aclnn_moe_gating_top_k_softmax_v2.h"
#include "aclnnop/aclnn_moe_gating_top_k_v2.h"

/* top_k_v2 with a table of experts, top_k_v2_chosen without. */
extern const struct tested softmax, softmax_v2, top_k, top_k_v2, top_k_v2_chosen, backward,
    expert_tokens;

#endif
