/* router_grad.c - moetoken_router_grad: from weights and scores back to the logits. */
#include "router/config.h"
#include "router/parts.h"
#include "router/scores/sums.h"
#include "status.h"

#include "rows/formats.h"

#include <inttypes.h>

#define IN(field, letters, types)  INPUT(moetoken_router_grad_args, field, letters, types)
#define OUT(field, letters, types) OUTPUT(moetoken_router_grad_args, field, letters, types)

/* clang-format off: a line or two per argument */
enum {
    LOGITS,
    MASK,
    IDS,
    WEIGHTS_GRAD,
    PROBS_GRAD,
    SCORES_GRAD,
    LOGITS_GRAD,
    ARGUMENTS
};

static const struct moetoken_argument arguments[ARGUMENTS] = {
    [LOGITS] = {IN(logits, "TE", MOETOKEN_TOKEN_LIKE), .required = {FACT_ALWAYS},
                .read = {FACT_ALWAYS}},
    [MASK] = {IN(token_mask, "T", MOETOKEN_MAP_LIKE), .read = {FACT_ALWAYS}},
    [IDS] = {IN(expert_ids, "TK", MOETOKEN_INDEX_LIKE),
             .required = {FACT(WEIGHTS_GRAD), FACT(PROBS_GRAD)}, .read = {FACT_ALWAYS}},
    [WEIGHTS_GRAD] = {IN(weights_grad, "TK", MOETOKEN_TOKEN_LIKE), .read = {FACT_ALWAYS},
                      .weights_of = FACT(LOGITS)},
    [PROBS_GRAD] = {IN(probs_grad, "TE", MOETOKEN_TOKEN_LIKE), .read = {FACT_ALWAYS},
                    .weights_of = FACT(LOGITS)},
    [SCORES_GRAD] = {IN(scores_grad, "TE", MOETOKEN_TOKEN_LIKE), .read = {FACT_ALWAYS},
                     .weights_of = FACT(LOGITS)},
    [LOGITS_GRAD] = {OUT(logits_grad, "TE", MOETOKEN_TOKEN_LIKE), .required = {FACT_ALWAYS},
                     .same_type = FACT(LOGITS)},
};
/* clang-format on */

static const struct moetoken_table table = {
    .arguments = arguments,
    .count = ARGUMENTS,
    .args_size = sizeof(moetoken_router_grad_args),
    .one_of = FACT(WEIGHTS_GRAD) | FACT(PROBS_GRAD) | FACT(SCORES_GRAD),
};

struct call {
    struct moetoken_call known; /* first: what the table says of the call */
    moetoken_router_grad_args args;
    moetoken_router_config config;
    int64_t tokens_num, experts_num, topk, row_length;
    const struct moetoken_score_kernels *kernels;
};

/* ---- check ---------------------------------------------------------------------------------- */

static moetoken_status check(const moetoken_router_grad_args *args, const moetoken_options *options,
                             bool need_data, struct call *call)
{
    struct moetoken_call *known = &call->known;
    moetoken_status status =
        moetoken_call_read(known, &table, args, &call->args, options, need_data);
    if (status == MOETOKEN_OK)
        status = moetoken_call_check_sizes(known);
    if (status != MOETOKEN_OK)
        return status;
    call->tokens_num = moetoken_call_size(known, 'T');
    call->experts_num = moetoken_call_size(known, 'E');
    call->topk = moetoken_call_size(known, 'K'); /* 0 without expert_ids */
    call->row_length = call->topk > call->experts_num ? call->topk : call->experts_num;
    status =
        moetoken_router_check_config(&call->args.config, call->experts_num, false, &call->config);
    if (status == MOETOKEN_OK)
        status =
            moetoken_router_check_memory(known, moetoken_router_least_bytes(call->row_length, 0));
    if (status == MOETOKEN_OK && need_data)
        status = moetoken_router_check_ids(&known->view[IDS], call->experts_num);
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
    if (!call->known.view[SCORES_GRAD].given) {
        memset(part->values, 0, (size_t)count * sizeof *part->values); /* 0.0 */
        return;
    }
    load_row(call->kernels, &call->known.view[SCORES_GRAD], t, count, part->values);
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
        int64_t id = moetoken_index_load_at(&call->known.view[IDS], t, k);
        if (id < 0)
            continue;
        double grad = 0;
        if (call->known.view[WEIGHTS_GRAD].given)
            grad = element_load((int)call->known.view[WEIGHTS_GRAD].type,
                                moetoken_view_at(&call->known.view[WEIGHTS_GRAD], t, k));
        if (call->known.view[PROBS_GRAD].given)
            grad += element_load((int)call->known.view[PROBS_GRAD].type,
                                 moetoken_view_at(&call->known.view[PROBS_GRAD], t, id));
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
    } else if (call->config.score == MOETOKEN_SCORE_SOFTMAX ||
               call->known.view[SCORES_GRAD].given) {
        kernels->softmax(part->logits, count, part->scores, NULL);
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
        if (call->known.view[SCORES_GRAD].given)
            call->kernels->softmax_grad(part->scores, count, part->values);
        break;
    }
}

/* Softmax where only the slots have gradients: those of all other scores are 0, and the scores
 * themselves, exp(logit) / sum, are needed for the chosen experts alone. */
static void through_softmax_of_slots(const struct call *call,
                                     const struct moetoken_router_part *part, int64_t t)
{
    double *exps = part->scores, sum = call->kernels->exps(part->logits, call->experts_num, exps);
    int64_t count = gather_slots(call, part, exps, t);
    call->kernels->divide(part->weights, count, sum, 1);
    if (call->config.normalize)
        through_division(part->weights, count, call->config.eps, part->grads);
    double mean = sum_of_products(part->weights, part->grads, count);
    for (int64_t k = 0; k < count; k++)
        part->values[part->chosen[k]] = 0;
    add_slots(part, count);
    call->kernels->scale(exps, call->experts_num, (0 - mean) / sum);
    for (int64_t k = 0; k < count; k++) {
        int64_t e = part->chosen[k];
        exps[e] = part->weights[k] * (part->values[e] - mean);
    }
    store_row(call->kernels, &call->known.view[LOGITS_GRAD], t, call->experts_num, exps);
}

static void grad_token(const void *context, const struct moetoken_router_part *part, int64_t t)
{
    const struct call *call = context;
    if (!is_routed(&call->known.view[MASK], t)) {
        moetoken_view_zero_row(&call->known.view[LOGITS_GRAD], t);
        return;
    }
    bool after = call->config.score == MOETOKEN_SCORE_SOFTMAX_AFTER;
    load_row(call->kernels, &call->known.view[LOGITS], t, call->experts_num, part->logits);
    if (call->config.score == MOETOKEN_SCORE_SOFTMAX && !call->known.view[SCORES_GRAD].given) {
        through_softmax_of_slots(call, part, t);
        return;
    }
    score(call, part);
    begin_with_scores_grad(call, part, t);
    int64_t count = gather_slots(call, part, after ? part->logits : part->scores, t);
    if (after && count > 0) {
        memcpy(part->spare, part->weights, (size_t)count * sizeof *part->spare);
        call->kernels->softmax(part->spare, count, part->weights, NULL);
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
    store_row(call->kernels, &call->known.view[LOGITS_GRAD], t, call->experts_num, part->values);
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
        status =
            moetoken_router_parts_open(&call.known, call.tokens_num, call.row_length, 0, &parts);
    if (status != MOETOKEN_OK)
        return status;
    call.kernels = parts.kernels;
    moetoken_router_parts_run(&parts, grad_token, &call);
    moetoken_router_parts_close(&parts);
    return MOETOKEN_OK;
}
