/* calls.c - a right call of each gating operator. T = 3, E = 4, k = 2. */
#include "gating_calls.h"

static const double logit_values[] = {1, 2, 3, 4, 4, 3, 2, 1, 0, 0, 1, 0};
static const double score_values[] = {0.5, 0.25, 0.5, 0.75, 0.5, 0.5, 0.5, 0.25, 1, 0.5, 0.25, 0.5};
static const double grad_values[] = {1, 2, 3, 4, 5, 6}, id_values[] = {0, 1, 3, 2, 1, 0};
static const double mark_values[] = {0, 1, 0}, bias_values[] = {0, 0.5, 1, 0};

static aclTensor *at(const struct call *call, int place)
{
    return call->tensor[place].twin.tensor;
}

/* ---- softmax alone -------------------------------------------------------------------------- */

static struct call softmax_make(void)
{
    return (struct call){.tensor = {VALUES(ACL_FLOAT, logit_values, 3, 4),
                                    VALUES(ACL_BOOL, mark_values, 3), VALUES(ACL_FLOAT, NULL, 3, 2),
                                    VALUES(ACL_INT32, NULL, 3, 2), VALUES(ACL_INT32, NULL, 3, 2)},
                         .option = {2}};
}

static aclnnStatus softmax_phase_one(struct call *call)
{
    return aclnnMoeGatingTopKSoftmaxGetWorkspaceSize(at(call, 0), at(call, 1), call->option[0],
                                                     at(call, 2), at(call, 3), at(call, 4),
                                                     &call->bytes, &call->executor);
}

const struct tested softmax = {softmax_make, softmax_phase_one, aclnnMoeGatingTopKSoftmax, 2};

static struct call softmax_v2_make(void)
{
    struct call call = softmax_make();
    call.option[2] = 1;
    call_replace(&call, 4, VALUES(ACL_FLOAT, NULL, 3, 4));
    return call;
}

static aclnnStatus softmax_v2_phase_one(struct call *call)
{
    return aclnnMoeGatingTopKSoftmaxV2GetWorkspaceSize(
        at(call, 0), at(call, 1), call->option[0], call->option[1], call->option[2] != 0,
        at(call, 2), at(call, 3), at(call, 4), &call->bytes, &call->executor);
}

const struct tested softmax_v2 = {softmax_v2_make, softmax_v2_phase_one,
                                  aclnnMoeGatingTopKSoftmaxV2, 2};

/* ---- all scores ----------------------------------------------------------------------------- */

static struct call top_k_make(void)
{
    return (struct call){.tensor = {VALUES(ACL_FLOAT, logit_values, 3, 4),
                                    VALUES(ACL_FLOAT, bias_values, 4),
                                    VALUES(ACL_FLOAT, NULL, 3, 2), VALUES(ACL_INT32, NULL, 3, 2),
                                    VALUES(ACL_FLOAT, NULL, 3, 4)},
                         .option = {2, 1, 2, 1, 0, 1, 1},
                         .number = {2.5, 1e-20}};
}

static aclnnStatus top_k_phase_one(struct call *call)
{
    const int64_t *option = call->option;
    return aclnnMoeGatingTopKGetWorkspaceSize(
        at(call, 0), at(call, 1), option[0], option[1], option[2], option[3], option[4], option[5],
        option[6] != 0, call->number[0], call->number[1], at(call, 2), at(call, 3), at(call, 4),
        &call->bytes, &call->executor);
}

const struct tested top_k = {top_k_make, top_k_phase_one, aclnnMoeGatingTopK, 2};

static struct call top_k_v2_make(void)
{
    struct call call = top_k_make();
    call_replace(&call, 1, (struct values){.count = 0}); /* a table leaves no choice to a bias */
    const struct values y = call.tensor[2], ids = call.tensor[3], out = call.tensor[4];
    call.tensor[2] = VALUES(ACL_INT64, mark_values, 3);
    call.tensor[3] = VALUES(ACL_INT32, id_values, 2, 2);
    call.tensor[4] = y;
    call.tensor[5] = ids;
    call.tensor[6] = out;
    return call;
}

static aclnnStatus top_k_v2_phase_one(struct call *call)
{
    const int64_t *option = call->option;
    return aclnnMoeGatingTopKV2GetWorkspaceSize(
        at(call, 0), at(call, 1), at(call, 2), at(call, 3), option[0], option[1], option[2],
        option[3], option[4], option[5], option[6] != 0, call->number[0], call->number[1],
        at(call, 4), at(call, 5), at(call, 6), &call->bytes, &call->executor);
}

const struct tested top_k_v2 = {top_k_v2_make, top_k_v2_phase_one, aclnnMoeGatingTopKV2, 4};

static struct call top_k_v2_chosen_make(void)
{
    struct call call = top_k_v2_make();
    call_replace(&call, 1, VALUES(ACL_FLOAT, bias_values, 4));
    call_replace(&call, 2, (struct values){.count = 0});
    call_replace(&call, 3, (struct values){.count = 0});
    return call;
}

const struct tested top_k_v2_chosen = {top_k_v2_chosen_make, top_k_v2_phase_one,
                                       aclnnMoeGatingTopKV2, 4};

/* ---- gradient, ends ------------------------------------------------------------------------- */

static struct call backward_make(void)
{
    return (struct call){
        .tensor = {VALUES(ACL_FLOAT, score_values, 3, 4), VALUES(ACL_FLOAT, grad_values, 3, 2),
                   VALUES(ACL_INT32, id_values, 3, 2), VALUES(ACL_FLOAT, NULL, 3, 4)},
        .option = {0, 1},
        .number = {2.5, 1e-20}};
}

static aclnnStatus backward_phase_one(struct call *call)
{
    return aclnnMoeGatingTopKBackwardGetWorkspaceSize(
        at(call, 0), at(call, 1), at(call, 2), call->option[0], call->option[1], call->number[0],
        call->number[1], at(call, 3), &call->bytes, &call->executor);
}

const struct tested backward = {backward_make, backward_phase_one, aclnnMoeGatingTopKBackward, 3};

static struct call expert_tokens_make(void)
{
    const double sorted[] = {0, 0, 2, 3, 3};
    return (struct call){.tensor = {VALUES(ACL_INT32, sorted, 5), VALUES(ACL_INT32, NULL, 4)},
                         .option = {4}};
}

static aclnnStatus expert_tokens_phase_one(struct call *call)
{
    return aclnnMoeComputeExpertTokensGetWorkspaceSize(at(call, 0), call->option[0], at(call, 1),
                                                       &call->bytes, &call->executor);
}

const struct tested expert_tokens = {expert_tokens_make, expert_tokens_phase_one,
                                     aclnnMoeComputeExpertTokens, 1};

const struct tested *const all_operators[] = {
    &softmax, &softmax_v2, &top_k, &top_k_v2, &top_k_v2_chosen, &backward, &expert_tokens};
const int operators_num = sizeof all_operators / sizeof all_operators[0];
