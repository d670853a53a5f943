/* gating_top_k_backward.c - aclnnMoeGatingTopKBackward: the gradient of the logits from the scores
 * that the forward call wrote, where moetoken_router_grad wants the logits themselves. In binary64,
 * rounded once. */
#include "../../../include/aclnnop/aclnn_moe_gating_top_k_backward.h"
#include "operators/by_ids/scratch.h"
#include "operators/gating/numbers.h"
#include "operators/gating/rules.h"
#include "operators/product_rules.h"
#include "operators/routing/tensors.h"
#include "runtime/message.h"

#include <float.h>
#include <inttypes.h>

enum {
    SCORES,
    Y_GRAD,
    EXPERT_IDX,
    X_GRAD
};

enum {
    EXPERTS_MIN = 2,
    EXPERTS_MAX = 2048 /* what a product takes */
};

static const struct parameter parameters[] = {
    [SCORES] = {"xNorm", &float_types, false, true},
    [Y_GRAD] = {"gradY", &token_types, false, true},
    [EXPERT_IDX] = {"expertIdx", &index_types, false, true},
    [X_GRAD] = {"out", &token_types, true, true},
};

/* ---- call ----------------------------------------------------------------------------------- */

/* An id of -1 is a slot that never was. */
static aclnnStatus check_ids(const aclOpExecutor *executor)
{
    const int64_t *shape = executor->operands[EXPERT_IDX].shape;
    const int64_t experts_num = executor->operands[SCORES].shape[1];
    for (int64_t t = 0; t < shape[0]; t++)
        for (int64_t k = 0; k < shape[1]; k++) {
            const int64_t id = tensors_load_index(executor, EXPERT_IDX, t, k);
            if (id < -1 || id >= experts_num)
                return fail(ACLNN_ERR_INNER_TILING_ERROR,
                            "expertIdx[%" PRId64 ", %" PRId64 "] = %" PRId64
                            " is outside [-1, %" PRId64 ")",
                            t, k, id, experts_num);
        }
    return ACLNN_SUCCESS;
}

/* Of y[k] = factor * s[k] / D with D = eps + the sum of all s[k]:
 *     grad s[k] = (g[k] - sum over j of s[j] / D * g[j]) / D, where g = factor * grad y. */
static void add_score_grads(const aclOpExecutor *executor, int64_t token, double *grads)
{
    const struct operand *scores = &executor->operands[SCORES];
    const struct operand *y_grad = &executor->operands[Y_GRAD];
    const moetoken_router_config *router = &executor->attributes.router;
    double sum = 0, mean = 0;
    for (int64_t k = 0; k < y_grad->shape[1]; k++) {
        const int64_t id = tensors_load_index(executor, EXPERT_IDX, token, k);
        sum += id < 0 ? 0 : numbers_load(scores, token, id);
    }
    const double divisor = sum + router->eps;
    for (int64_t k = 0; k < y_grad->shape[1]; k++) {
        const int64_t id = tensors_load_index(executor, EXPERT_IDX, token, k);
        if (id >= 0)
            mean += numbers_load(scores, token, id) / divisor *
                    (router->scale * numbers_load(y_grad, token, k));
    }
    for (int64_t k = 0; k < y_grad->shape[1]; k++) {
        const int64_t id = tensors_load_index(executor, EXPERT_IDX, token, k);
        if (id >= 0)
            grads[id] += (router->scale * numbers_load(y_grad, token, k) - mean) / divisor;
    }
}

/* Through the sigmoid where a slot names the expert; zero elsewhere, whatever the score. grads is
 * all zeros before and after. */
static void store_token(const aclOpExecutor *executor, int64_t token, double *grads)
{
    const struct operand *x_grad = &executor->operands[X_GRAD];
    add_score_grads(executor, token, grads);
    for (int64_t e = 0; e < x_grad->shape[1]; e++)
        numbers_store(x_grad, token, e, 0);
    for (int64_t k = 0; k < executor->operands[EXPERT_IDX].shape[1]; k++) {
        const int64_t id = tensors_load_index(executor, EXPERT_IDX, token, k);
        const double score = id < 0 ? 0 : numbers_load(&executor->operands[SCORES], token, id);
        if (id >= 0)
            numbers_store(x_grad, token, id, score * (1 - score) * grads[id]);
    }
    for (int64_t k = 0; k < executor->operands[EXPERT_IDX].shape[1]; k++) {
        const int64_t id = tensors_load_index(executor, EXPERT_IDX, token, k);
        if (id >= 0)
            grads[id] = 0;
    }
}

static aclnnStatus call(const aclOpExecutor *executor, const moetoken_options *options,
                        bool check_only)
{
    const int64_t *shape = executor->operands[X_GRAD].shape;
    double *grads = executor->scratch;
    (void)options;
    if (check_only || executor_outputs_empty(executor))
        return ACLNN_SUCCESS;
    aclnnStatus status = check_ids(executor);
    for (int64_t e = 0; e < shape[1]; e++)
        grads[e] = 0;
    for (int64_t t = 0; t < shape[0] && status == ACLNN_SUCCESS; t++)
        store_token(executor, t, grads);
    return status;
}

static moetoken_status no_workspace(const aclOpExecutor *executor, size_t *bytes)
{
    (void)executor;
    *bytes = 0;
    return MOETOKEN_OK;
}

static const struct operator_description description = {.name = "aclnnMoeGatingTopKBackward",
                                                        .parameters = parameters,
                                                        .count = sizeof parameters /
                                                                 sizeof parameters[0],
                                                        .shape_status = ACLNN_ERR_PARAM_INVALID,
                                                        .absent_from = "Ascend950",
                                                        .workspace_bytes = no_workspace,
                                                        .call = call};

/* ---- check ---------------------------------------------------------------------------------- */

static aclnnStatus check_sizes(const aclOpExecutor *executor)
{
    const int64_t *scores = executor->operands[SCORES].shape;
    const int64_t *y_grad = executor->operands[Y_GRAD].shape;
    const int64_t least = product_named() ? EXPERTS_MIN : 0;
    const int64_t most = product_named() ? EXPERTS_MAX : INT32_MAX;
    if (scores[1] < least || scores[1] > most)
        return fail(ACLNN_ERR_PARAM_INVALID,
                    "xNorm has %" PRId64 " experts, expected %" PRId64 " to %" PRId64, scores[1],
                    least, most);
    if (y_grad[1] > scores[1])
        return fail(ACLNN_ERR_PARAM_INVALID,
                    "gradY has K = %" PRId64 ", expected at most %" PRId64 ", the experts of xNorm",
                    y_grad[1], scores[1]);
    return ACLNN_SUCCESS;
}

static aclnnStatus check_shapes(const aclOpExecutor *executor)
{
    const int64_t *scores = executor->operands[SCORES].shape;
    const int64_t *y_grad = executor->operands[Y_GRAD].shape;
    aclnnStatus status = tensors_expect(executor, SCORES, 2, (int64_t[]){-1, -1}, "[T,E]");
    if (status == ACLNN_SUCCESS)
        status = tensors_expect(executor, Y_GRAD, 2, (int64_t[]){scores[0], -1}, "[T,K]");
    if (status == ACLNN_SUCCESS)
        status = tensors_expect(executor, EXPERT_IDX, 2, y_grad, "[T,K]");
    if (status == ACLNN_SUCCESS)
        status = tensors_expect(executor, X_GRAD, 2, scores, "[T,E]");
    return status == ACLNN_SUCCESS ? check_sizes(executor) : status;
}

/* renorm belongs to softmax and is not looked at. */
static aclnnStatus check(aclOpExecutor *executor, int64_t norm_type)
{
    const moetoken_router_config *router = &executor->attributes.router;
    aclnnStatus status = executor_same_type(executor, X_GRAD, Y_GRAD);
    if (status == ACLNN_SUCCESS)
        status = check_shapes(executor);
    if (status == ACLNN_SUCCESS && norm_type != 1)
        status =
            fail(ACLNN_ERR_INNER_TILING_ERROR,
                 "normType = %" PRId64 ", expected 1: the gradient is that of sigmoid", norm_type);
    if (status == ACLNN_SUCCESS)
        status = gating_check_number("routedScalingFactor", router->scale, -DBL_MAX);
    if (status == ACLNN_SUCCESS)
        status = gating_check_number("eps", router->eps, 0);
    if (status == ACLNN_SUCCESS)
        status =
            executor_need_scratch(executor, executor->operands[SCORES].shape[1], sizeof(double));
    for (size_t i = 0; i < executor->description->count; i++)
        executor->operands[i].set_aside = executor->operands[i].used;
    return status == ACLNN_SUCCESS ? executor_check(executor) : status;
}

aclnnStatus aclnnMoeGatingTopKBackwardGetWorkspaceSize(
    const aclTensor *xNorm, const aclTensor *gradY, const aclTensor *expertIdx, int64_t renorm,
    int64_t normType, double routedScalingFactor, double eps, const aclTensor *out,
    uint64_t *workspaceSize, aclOpExecutor **executor)
{
    const aclTensor *const tensors[] = {
        [SCORES] = xNorm,
        [Y_GRAD] = gradY,
        [EXPERT_IDX] = expertIdx,
        [X_GRAD] = out,
    };
    aclOpExecutor *opened;
    (void)renorm;
    aclnnStatus status = executor_open(&description, tensors, workspaceSize, executor, &opened);
    if (status != ACLNN_SUCCESS)
        return status;
    opened->attributes.router = (moetoken_router_config){.scale = routedScalingFactor, .eps = eps};
    status = check(opened, normType);
    return executor_finish(opened, status, 0, 0, workspaceSize, executor);
}

aclnnStatus aclnnMoeGatingTopKBackward(void *workspace, uint64_t workspaceSize,
                                       aclOpExecutor *executor, aclrtStream stream)
{
    return executor_run(&description, workspace, workspaceSize, executor, stream);
}
