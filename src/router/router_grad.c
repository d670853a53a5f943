/* router_grad.c - moetoken_router_grad: from weights and scores back to the logits. */
#include "router/arguments.h"
#include "router/parts.h"
#include "router/scores/sums.h"
#include "status.h"

#include "rows/formats.h"

#include <inttypes.h>

enum {
    LOGITS,
    MASK,
    IDS,
    WEIGHTS_GRAD,
    PROBS_GRAD,
    SCORES_GRAD,
    LOGITS_GRAD,
    TENSORS
};

struct call {
    struct moetoken_view logits, token_mask, expert_ids, weights_grad, probs_grad, scores_grad,
        logits_grad;
    moetoken_options options;
    moetoken_router_config config;
    int64_t tokens_num, experts_num, topk, row_length, bytes;
    const struct moetoken_score_kernels *kernels;
};

/* ---- checks --------------------------------------------------------------------------------- */

static void describe(const moetoken_router_grad_args *args, struct call *call,
                     struct moetoken_router_tensor *tensors)
{
    const unsigned floating = MOETOKEN_TOKEN_LIKE;
    const struct moetoken_router_tensor all[TENSORS] = {
        [LOGITS] = {args->logits, &call->logits, "logits", "TE", floating, ROUTER_REQUIRED, NULL},
        [MASK] = {args->token_mask, &call->token_mask, "token_mask", "T", MOETOKEN_MAP_LIKE,
                  ROUTER_INPUT, NULL},
        [IDS] = {args->expert_ids, &call->expert_ids, "expert_ids", "TK", MOETOKEN_INDEX_LIKE,
                 ROUTER_INPUT, NULL},
        [WEIGHTS_GRAD] = {args->weights_grad, &call->weights_grad, "weights_grad", "TK", floating,
                          ROUTER_INPUT, NULL},
        [PROBS_GRAD] = {args->probs_grad, &call->probs_grad, "probs_grad", "TE", floating,
                        ROUTER_INPUT, NULL},
        [SCORES_GRAD] = {args->scores_grad, &call->scores_grad, "scores_grad", "TE", floating,
                         ROUTER_INPUT, NULL},
        [LOGITS_GRAD] = {args->logits_grad, &call->logits_grad, "logits_grad", "TE", floating,
                         ROUTER_OUTPUT | ROUTER_REQUIRED, NULL},
    };
    memcpy(tensors, all, sizeof all);
}

static moetoken_status check_inputs_given(const moetoken_router_grad_args *args)
{
    if (!args->weights_grad && !args->probs_grad && !args->scores_grad)
        return moetoken_fail(MOETOKEN_ERR_NULL,
                             "weights_grad, probs_grad and scores_grad are NULL, expected at least "
                             "one of them");
    if (!args->expert_ids && (args->weights_grad || args->probs_grad))
        return moetoken_fail(MOETOKEN_ERR_NULL,
                             "expert_ids is NULL, expected a tensor as %s is given",
                             args->weights_grad ? "weights_grad" : "probs_grad");
    return MOETOKEN_OK;
}

static moetoken_status check_types(const struct call *call)
{
    const struct moetoken_view *grads[] = {&call->weights_grad, &call->probs_grad,
                                           &call->scores_grad};
    moetoken_status status = moetoken_view_check_same_type(&call->logits_grad, &call->logits);
    for (int i = 0; i < 3 && status == MOETOKEN_OK; i++)
        status = moetoken_router_check_weights_type(grads[i], &call->logits);
    return status;
}

static moetoken_status check_rest(const struct moetoken_router_tensor *tensors,
                                  const moetoken_router_config *config, struct call *call)
{
    call->tokens_num = call->logits.shape[0];
    call->experts_num = call->logits.shape[1];
    call->topk = call->expert_ids.given ? call->expert_ids.shape[1] : 0;
    call->row_length = call->topk > call->experts_num ? call->topk : call->experts_num;
    call->bytes = moetoken_router_bytes(tensors, TENSORS);
    moetoken_status status = check_types(call);
    if (status == MOETOKEN_OK)
        status = moetoken_router_check_config(config, call->experts_num, false, &call->config);
    if (status == MOETOKEN_OK)
        status = moetoken_router_check_memory(tensors, TENSORS, &call->options,
                                              moetoken_router_least_bytes(call->row_length, 0));
    return status;
}

static int64_t load_id(const struct call *call, int64_t t, int64_t k)
{
    struct moetoken_view at = call->expert_ids;
    at.data = moetoken_view_at(&call->expert_ids, t, k);
    return moetoken_index_load(&at, 0);
}

static moetoken_status check_ids(const struct call *call)
{
    for (int64_t t = 0; t < call->tokens_num; t++)
        for (int64_t k = 0; k < call->topk; k++) {
            int64_t id = load_id(call, t, k);
            if (id < -1 || id >= call->experts_num)
                return moetoken_fail(MOETOKEN_ERR_INDEX,
                                     "expert_ids[%" PRId64 ",%" PRId64 "] = %" PRId64
                                     " is outside [-1, %" PRId64 ")",
                                     t, k, id, call->experts_num);
        }
    return MOETOKEN_OK;
}

static moetoken_status check(const moetoken_router_grad_args *given,
                             const moetoken_options *options, bool need_data, struct call *call)
{
    moetoken_router_grad_args args;
    struct moetoken_router_tensor tensors[TENSORS];
    struct moetoken_router_sizes sizes = {0};
    moetoken_status status = moetoken_args_take(given, &args, sizeof args);
    if (status == MOETOKEN_OK)
        status = moetoken_options_check(options, 0, &call->options);
    if (status != MOETOKEN_OK)
        return status;
    describe(&args, call, tensors);
    if (args.logits && args.logits_grad)
        status = check_inputs_given(&args);
    if (status == MOETOKEN_OK)
        status = moetoken_router_check_tensors(tensors, TENSORS, need_data, &sizes);
    if (status == MOETOKEN_OK)
        status = check_rest(tensors, &args.config, call);
    if (status == MOETOKEN_OK && need_data)
        status = check_ids(call);
    return status;
}

/* ---- the chain ------------------------------------------------------------------------------ */

/* Through w = a / (sum of a + eps): grads become those of a. */
static void through_division(const double *values, int64_t count, double eps, double *grads)
{
    double divisor = sum_of(values, count) + eps;
    double shared = sum_of_products(grads, values, count) / divisor;
    for (int64_t i = 0; i < count; i++)
        grads[i] = (grads[i] - shared) / divisor;
}

/* part->values: the gradient of the scores as they come from the losses. */
static void begin_with_scores_grad(const struct call *call, const struct moetoken_router_part *part,
                                   int64_t t)
{
    int64_t count = call->experts_num;
    for (int64_t e = 0; e < count && !call->scores_grad.given; e++)
        part->values[e] = 0;
    if (!call->scores_grad.given)
        return;
    call->kernels->load(call->scores_grad.type, moetoken_view_at(&call->scores_grad, t, 0),
                        call->scores_grad.stride[1], count, part->values);
    if (call->config.normalize_scores)
        through_division(part->scores, count, call->config.eps, part->values);
}

/* The token's used slots: part->chosen, their scores or logits in part->weights, the gradients of
 * their weights in part->grads. */
static int64_t gather_slots(const struct call *call, const struct moetoken_router_part *part,
                            const double *from, int64_t t)
{
    int64_t count = 0;
    for (int64_t k = 0; k < call->topk; k++) {
        int64_t id = load_id(call, t, k);
        if (id < 0)
            continue;
        double grad = 0;
        if (call->weights_grad.given)
            grad = element_load((int)call->weights_grad.type,
                                moetoken_view_at(&call->weights_grad, t, k));
        if (call->probs_grad.given)
            grad += element_load((int)call->probs_grad.type,
                                 moetoken_view_at(&call->probs_grad, t, id));
        part->chosen[count] = id;
        part->weights[count] = from[id];
        part->grads[count++] = grad * call->config.scale;
    }
    return count;
}

static void add_slots(const struct moetoken_router_part *part, int64_t count)
{
    for (int64_t k = 0; k < count; k++)
        part->values[part->chosen[k]] += part->grads[k];
}

/* The scores in part->scores, and what their derivative needs in part->rests. */
static void score(const struct call *call, const struct moetoken_router_part *part)
{
    const struct moetoken_score_kernels *kernels = call->kernels;
    int64_t count = call->experts_num;
    if (call->config.score == MOETOKEN_SCORE_SIGMOID) {
        kernels->sigmoid(part->logits, count, part->scores, part->rests);
    } else if (call->config.score == MOETOKEN_SCORE_SQRTSOFTPLUS) {
        kernels->sqrtsoftplus(part->logits, count, part->scores);
        kernels->sigmoid(part->logits, count, part->rests, NULL);
    } else if (call->config.score == MOETOKEN_SCORE_SOFTMAX || call->scores_grad.given) {
        kernels->softmax(part->logits, count, part->scores);
    }
}

/* From the gradient of the scores to that of the logits, in part->values. */
static void through_score(const struct call *call, const struct moetoken_router_part *part)
{
    int64_t count = call->experts_num;
    switch (call->config.score) {
    case MOETOKEN_SCORE_SIGMOID:
        for (int64_t e = 0; e < count; e++)
            part->values[e] = part->values[e] * (part->scores[e] * part->rests[e]);
        break;
    case MOETOKEN_SCORE_SQRTSOFTPLUS: /* sigmoid / (2 * score); 0 where exp underflows */
        for (int64_t e = 0; e < count; e++)
            part->values[e] *= part->scores[e] == 0 ? 0 : part->rests[e] / (2 * part->scores[e]);
        break;
    case MOETOKEN_SCORE_SOFTMAX:
        call->kernels->softmax_grad(part->scores, count, part->values);
        break;
    default:
        if (call->scores_grad.given)
            call->kernels->softmax_grad(part->scores, count, part->values);
        break;
    }
}

static void grad_token(const void *context, const struct moetoken_router_part *part, int64_t t)
{
    const struct call *call = context;
    if (call->token_mask.given && *moetoken_view_at(&call->token_mask, t, 0) == 0) {
        moetoken_view_zero_row(&call->logits_grad, t);
        return;
    }
    bool after = call->config.score == MOETOKEN_SCORE_SOFTMAX_AFTER;
    call->kernels->load(call->logits.type, moetoken_view_at(&call->logits, t, 0),
                        call->logits.stride[1], call->experts_num, part->logits);
    score(call, part);
    begin_with_scores_grad(call, part, t);
    int64_t count = gather_slots(call, part, after ? part->logits : part->scores, t);
    if (after && count > 0) {
        memcpy(part->spare, part->weights, (size_t)count * sizeof *part->spare);
        call->kernels->softmax(part->spare, count, part->weights);
    }
    if (call->config.normalize)
        through_division(part->weights, count, call->config.eps, part->grads);
    if (!after)
        add_slots(part, count);
    through_score(call, part);
    if (after) {
        call->kernels->softmax_grad(part->weights, count, part->grads);
        add_slots(part, count);
    }
    call->kernels->store(call->logits_grad.type, part->values, call->experts_num,
                         moetoken_view_at(&call->logits_grad, t, 0), call->logits_grad.stride[1]);
}

/* ---- the operator --------------------------------------------------------------------------- */

moetoken_status moetoken_router_grad_check(const moetoken_router_grad_args *args,
                                           const moetoken_options *options)
{
    struct call call = {0};
    return check(args, options, false, &call);
}

moetoken_status moetoken_router_grad(const moetoken_router_grad_args *args,
                                     const moetoken_options *options)
{
    struct call call = {0};
    struct moetoken_router_parts parts;
    moetoken_status status = check(args, options, true, &call);
    if (status == MOETOKEN_OK)
        status = moetoken_router_parts_open(&call.options, call.bytes, call.tokens_num,
                                            call.row_length, 0, &parts);
    if (status != MOETOKEN_OK)
        return status;
    call.kernels = parts.kernels;
    moetoken_router_parts_run(&parts, grad_token, &call);
    moetoken_router_parts_close(&parts);
    return MOETOKEN_OK;
}
