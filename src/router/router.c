/* router.c - moetoken_router: scores, choice, weights, and the places they are written to. */
#include "router/arguments.h"
#include "router/choice.h"
#include "router/parts.h"
#include "router/scores/sums.h"
#include "status.h"

#include "rows/formats.h"

#include <inttypes.h>

enum {
    LOGITS,
    BIAS,
    MASK,
    IDS,
    WEIGHTS,
    MAP,
    PROBS,
    SCORES,
    COUNTS,
    TENSORS
};

struct call {
    struct moetoken_view logits, bias, token_mask, expert_ids, weights, routing_map, probs, scores,
        rows_per_expert;
    moetoken_options options;
    moetoken_router_config config;
    struct moetoken_groups groups;
    int64_t tokens_num, experts_num, bytes;
    const struct moetoken_score_kernels *kernels;
};

/* ---- checks --------------------------------------------------------------------------------- */

static void describe(const moetoken_router_args *args, struct call *call,
                     struct moetoken_router_tensor *tensors)
{
    const unsigned floating = MOETOKEN_TOKEN_LIKE, map = MOETOKEN_MAP_LIKE;
    const struct moetoken_router_tensor all[TENSORS] = {
        [LOGITS] = {args->logits, &call->logits, "logits", "TE", floating, ROUTER_REQUIRED, NULL},
        [BIAS] = {args->bias, &call->bias, "bias", "E", floating, ROUTER_INPUT, NULL},
        [MASK] = {args->token_mask, &call->token_mask, "token_mask", "T", map, ROUTER_INPUT, NULL},
        [IDS] = {args->expert_ids, &call->expert_ids, "expert_ids", "TK", MOETOKEN_INDEX_LIKE,
                 ROUTER_OUTPUT, NULL},
        [WEIGHTS] = {args->weights, &call->weights, "weights", "TK", floating, ROUTER_OUTPUT, NULL},
        [MAP] = {args->routing_map, &call->routing_map, "routing_map", "TE", map, ROUTER_OUTPUT,
                 NULL},
        [PROBS] = {args->probs, &call->probs, "probs", "TE", floating, ROUTER_OUTPUT, NULL},
        [SCORES] = {args->scores, &call->scores, "scores", "TE", floating, ROUTER_OUTPUT, NULL},
        [COUNTS] = {args->rows_per_expert, &call->rows_per_expert, "rows_per_expert", "E",
                    1u << MOETOKEN_I64, ROUTER_OUTPUT, NULL},
    };
    memcpy(tensors, all, sizeof all);
}

static moetoken_status check_outputs_wanted(const moetoken_router_args *args)
{
    if (args->expert_ids || args->weights || args->routing_map || args->probs || args->scores ||
        args->rows_per_expert)
        return MOETOKEN_OK;
    return moetoken_fail(MOETOKEN_ERR_NULL,
                         "expert_ids, weights, routing_map, probs, scores and rows_per_expert are "
                         "NULL, expected at least one output");
}

static moetoken_status check_types(const struct call *call)
{
    const struct moetoken_view *like_weights[] = {&call->bias, &call->weights, &call->probs,
                                                  &call->scores};
    moetoken_status status = MOETOKEN_OK;
    for (int i = 0; i < 4 && status == MOETOKEN_OK; i++)
        status = moetoken_router_check_weights_type(like_weights[i], &call->logits);
    if (status == MOETOKEN_OK)
        status = moetoken_index_check_holds(&call->expert_ids, call->experts_num);
    return status;
}

/* Everything behind the descriptions. */
static moetoken_status check_rest(const struct moetoken_router_tensor *tensors,
                                  const moetoken_router_config *config, struct call *call)
{
    call->tokens_num = call->logits.shape[0];
    call->experts_num = call->logits.shape[1];
    call->bytes = moetoken_router_bytes(tensors, TENSORS);
    moetoken_status status = check_types(call);
    if (status == MOETOKEN_OK)
        status = moetoken_router_check_config(config, call->experts_num, true, &call->config);
    if (status == MOETOKEN_OK)
        status = moetoken_router_check_memory(tensors, TENSORS, &call->options,
                                              moetoken_router_least_bytes(call->experts_num, 0));
    call->groups = (struct moetoken_groups){call->config.groups_num, call->config.groups_top,
                                            call->config.group_score_count};
    return status;
}

static moetoken_status check(const moetoken_router_args *given, const moetoken_options *options,
                             bool need_data, struct call *call)
{
    moetoken_router_args args;
    struct moetoken_router_tensor tensors[TENSORS];
    struct moetoken_router_sizes sizes = {0};
    moetoken_status status = moetoken_args_take(given, &args, sizeof args);
    if (status == MOETOKEN_OK)
        status = moetoken_options_check(options, 0, &call->options);
    if (status != MOETOKEN_OK)
        return status;
    describe(&args, call, tensors);
    sizes.of['K' - 'A'] = (struct moetoken_size){args.config.topk, "config.topk"};
    if (args.logits)
        status = check_outputs_wanted(&args);
    if (status == MOETOKEN_OK)
        status = moetoken_router_check_tensors(tensors, TENSORS, need_data, &sizes);
    if (status == MOETOKEN_OK)
        status = check_rest(tensors, &args.config, call);
    return status;
}

/* ---- scores and choice ---------------------------------------------------------------------- */

static void score(const struct call *call, const struct moetoken_router_part *part)
{
    const struct moetoken_score_kernels *kernels = call->kernels;
    int64_t count = call->experts_num;
    if (call->config.score == MOETOKEN_SCORE_SIGMOID)
        kernels->sigmoid(part->logits, count, part->scores, NULL);
    else if (call->config.score == MOETOKEN_SCORE_SQRTSOFTPLUS)
        kernels->sqrtsoftplus(part->logits, count, part->scores);
    else if (call->config.score == MOETOKEN_SCORE_SOFTMAX || call->scores.given)
        kernels->softmax(part->logits, count, part->scores);
}

static void choose(const struct call *call, const struct moetoken_router_part *part)
{
    const double *values =
        call->config.score == MOETOKEN_SCORE_SOFTMAX_AFTER ? part->logits : part->scores;
    if (call->bias.given) {
        call->kernels->load(call->bias.type, call->bias.data, call->bias.stride[0],
                            call->experts_num, part->values);
        for (int64_t e = 0; e < call->experts_num; e++)
            part->values[e] = values[e] + part->values[e];
        values = part->values;
    }
    const struct moetoken_choice_scratch scratch = {part->rests, part->spare, part->order};
    moetoken_choose(values, call->experts_num, &call->groups, call->config.topk, &scratch,
                    part->chosen);
}

static void weigh(const struct call *call, const struct moetoken_router_part *part)
{
    int64_t count = call->config.topk;
    bool after = call->config.score == MOETOKEN_SCORE_SOFTMAX_AFTER;
    const double *from = after ? part->logits : part->scores;
    double *gathered = after ? part->rests : part->weights;
    for (int64_t k = 0; k < count; k++)
        gathered[k] = from[part->chosen[k]];
    if (after)
        call->kernels->softmax(part->rests, count, part->weights);
    double divisor = call->config.normalize ? sum_of(part->weights, count) + call->config.eps : 1;
    for (int64_t k = 0; k < count; k++)
        part->weights[k] = part->weights[k] / divisor * call->config.scale;
}

/* ---- outputs -------------------------------------------------------------------------------- */

static void store_index(const struct moetoken_view *view, int64_t t, int64_t k, int64_t value)
{
    struct moetoken_view row = *view;
    row.data = moetoken_view_at(view, t, k);
    moetoken_index_store(&row, 0, value);
}

static void store_choice(const struct call *call, const struct moetoken_router_part *part,
                         int64_t t)
{
    if (call->routing_map.given)
        moetoken_view_zero_row(&call->routing_map, t);
    if (call->probs.given)
        moetoken_view_zero_row(&call->probs, t);
    for (int64_t k = 0; k < call->config.topk; k++) {
        int64_t e = part->chosen[k];
        part->counts[e]++;
        if (call->expert_ids.given)
            store_index(&call->expert_ids, t, k, e);
        if (call->routing_map.given)
            *moetoken_view_at(&call->routing_map, t, e) = 1;
        if (call->probs.given)
            element_store((int)call->probs.type, moetoken_view_at(&call->probs, t, e),
                          part->weights[k]);
    }
    if (call->weights.given && call->config.topk > 0)
        call->kernels->store(call->weights.type, part->weights, call->config.topk,
                             moetoken_view_at(&call->weights, t, 0), call->weights.stride[1]);
}

static void store_scores(const struct call *call, const struct moetoken_router_part *part,
                         int64_t t)
{
    int64_t count = call->experts_num;
    if (call->config.normalize_scores) {
        double divisor = sum_of(part->scores, count) + call->config.eps;
        for (int64_t e = 0; e < count; e++)
            part->scores[e] /= divisor;
    }
    call->kernels->store(call->scores.type, part->scores, count,
                         moetoken_view_at(&call->scores, t, 0), call->scores.stride[1]);
}

static void store_masked(const struct call *call, int64_t t)
{
    const struct moetoken_view *zeros[] = {&call->weights, &call->routing_map, &call->probs,
                                           &call->scores};
    for (int i = 0; i < 4; i++)
        if (zeros[i]->given)
            moetoken_view_zero_row(zeros[i], t);
    for (int64_t k = 0; k < call->config.topk && call->expert_ids.given; k++)
        store_index(&call->expert_ids, t, k, -1);
}

static void route_token(const void *context, const struct moetoken_router_part *part, int64_t t)
{
    const struct call *call = context;
    if (call->token_mask.given && *moetoken_view_at(&call->token_mask, t, 0) == 0) {
        store_masked(call, t);
        return;
    }
    call->kernels->load(call->logits.type, moetoken_view_at(&call->logits, t, 0),
                        call->logits.stride[1], call->experts_num, part->logits);
    score(call, part);
    choose(call, part);
    weigh(call, part);
    store_choice(call, part, t);
    if (call->scores.given)
        store_scores(call, part, t);
}

/* ---- the operator --------------------------------------------------------------------------- */

moetoken_status moetoken_router_check(const moetoken_router_args *args,
                                      const moetoken_options *options)
{
    struct call call = {0};
    return check(args, options, false, &call);
}

moetoken_status moetoken_router(const moetoken_router_args *args, const moetoken_options *options)
{
    struct call call = {0};
    struct moetoken_router_parts parts;
    moetoken_status status = check(args, options, true, &call);
    if (status == MOETOKEN_OK)
        status = moetoken_router_parts_open(&call.options, call.bytes, call.tokens_num,
                                            call.experts_num, 0, &parts);
    if (status != MOETOKEN_OK)
        return status;
    call.kernels = parts.kernels;
    moetoken_router_parts_run(&parts, route_token, &call);
    for (int64_t e = 0; e < call.experts_num && call.rows_per_expert.given; e++)
        moetoken_index_store(&call.rows_per_expert, e, moetoken_router_parts_count(&parts, e));
    moetoken_router_parts_close(&parts);
    return MOETOKEN_OK;
}
