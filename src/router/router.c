/* router.c - moetoken_router: scores, choice, weights, and the places they are written to. */
#include "router/choice.h"
#include "router/config.h"
#include "router/parts.h"
#include "router/scores/sums.h"
#include "status.h"

#include "rows/formats.h"

#include <inttypes.h>

#define IN(field, letters, types)  INPUT(moetoken_router_args, field, letters, types)
#define OUT(field, letters, types) OUTPUT(moetoken_router_args, field, letters, types)

/* clang-format off: a line or two per argument */
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
    ARGUMENTS
};

static const struct moetoken_argument arguments[ARGUMENTS] = {
    [LOGITS] = {IN(logits, "TE", MOETOKEN_TOKEN_LIKE), .required = {FACT_ALWAYS},
                .read = {FACT_ALWAYS}},
    [BIAS] = {IN(bias, "E", MOETOKEN_TOKEN_LIKE), .read = {FACT_ALWAYS},
              .weights_of = FACT(LOGITS)},
    [MASK] = {IN(token_mask, "T", MOETOKEN_MAP_LIKE), .read = {FACT_ALWAYS}},
    [IDS] = {OUT(expert_ids, "TK", MOETOKEN_INDEX_LIKE)},
    [WEIGHTS] = {OUT(weights, "TK", MOETOKEN_TOKEN_LIKE), .weights_of = FACT(LOGITS)},
    [MAP] = {OUT(routing_map, "TE", MOETOKEN_MAP_LIKE)},
    [PROBS] = {OUT(probs, "TE", MOETOKEN_TOKEN_LIKE), .weights_of = FACT(LOGITS)},
    [SCORES] = {OUT(scores, "TE", MOETOKEN_TOKEN_LIKE), .weights_of = FACT(LOGITS)},
    [COUNTS] = {OUT(rows_per_expert, "E", 1u << MOETOKEN_I64)},
};
/* clang-format on */

static const struct moetoken_table table = {
    .arguments = arguments,
    .count = ARGUMENTS,
    .args_size = sizeof(moetoken_router_args),
};

struct call {
    struct moetoken_call known; /* first: what the table says of the call */
    moetoken_router_args args;
    moetoken_router_config config;
    struct moetoken_groups groups;
    int64_t tokens_num, experts_num;
    const struct moetoken_score_kernels *kernels;
};

/* ---- check ---------------------------------------------------------------------------------- */

static moetoken_status check(const moetoken_router_args *args, const moetoken_options *options,
                             bool need_data, struct call *call)
{
    struct moetoken_call *known = &call->known;
    moetoken_status status =
        moetoken_call_read(known, &table, args, &call->args, options, need_data);
    if (status == MOETOKEN_OK)
        status = moetoken_call_set_size(known, 'K', call->args.config.topk, "config.topk");
    if (status == MOETOKEN_OK)
        status = moetoken_call_check_sizes(known);
    if (status != MOETOKEN_OK)
        return status;
    call->tokens_num = moetoken_call_size(known, 'T');
    call->experts_num = moetoken_call_size(known, 'E');
    status = moetoken_index_check_holds(&known->view[IDS], call->experts_num);
    if (status == MOETOKEN_OK)
        status = moetoken_router_check_config(&call->args.config, call->experts_num, true,
                                              &call->config);
    if (status == MOETOKEN_OK)
        status =
            moetoken_router_check_memory(known, moetoken_router_least_bytes(call->experts_num, 0));
    call->groups = (struct moetoken_groups){call->config.groups_num, call->config.groups_top,
                                            call->config.group_score_count};
    return status;
}

/* ---- scores and choice ---------------------------------------------------------------------- */

/* Only the scores of the chosen experts are needed, and all of them are compared with each other:
 * dividing the others by their sum can be left out. */
static bool divide_late(const struct call *call)
{
    const struct moetoken_view *view = call->known.view;
    return call->config.score == MOETOKEN_SCORE_SOFTMAX && !view[SCORES].given &&
           !view[BIAS].given && call->groups.num <= 1 && call->kernels->best;
}

/* Scores are part->scores divided by what this returns. */
static double score(const struct call *call, const struct moetoken_router_part *part)
{
    const struct moetoken_score_kernels *kernels = call->kernels;
    int64_t count = call->experts_num;
    if (divide_late(call))
        return kernels->exps(part->logits, count, part->scores);
    if (call->config.score == MOETOKEN_SCORE_SIGMOID)
        kernels->sigmoid(part->logits, count, part->scores, NULL);
    else if (call->config.score == MOETOKEN_SCORE_SQRTSOFTPLUS)
        kernels->sqrtsoftplus(part->logits, count, part->scores);
    else if (call->config.score == MOETOKEN_SCORE_SOFTMAX || call->known.view[SCORES].given)
        kernels->softmax(part->logits, count, part->scores, NULL);
    return 1;
}

static void choose(const struct call *call, const struct moetoken_router_part *part,
                   double *divisor)
{
    if (divide_late(call) && call->kernels->best(part->scores, call->experts_num, *divisor,
                                                 call->config.topk, part->chosen))
        return;
    if (*divisor != 1)
        call->kernels->divide(part->scores, call->experts_num, *divisor, 1);
    *divisor = 1;
    const double *values =
        call->config.score == MOETOKEN_SCORE_SOFTMAX_AFTER ? part->logits : part->scores;
    if (call->known.view[BIAS].given) {
        call->kernels->load(call->known.view[BIAS].type, call->known.view[BIAS].data,
                            call->known.view[BIAS].stride[0], call->experts_num, part->values);
        for (int64_t e = 0; e < call->experts_num; e++)
            part->values[e] = values[e] + part->values[e];
        values = part->values;
    }
    const struct moetoken_choice_scratch scratch = {part->rests, part->spare, part->order,
                                                    part->grads, call->kernels};
    moetoken_choose(values, call->experts_num, &call->groups, call->config.topk, &scratch,
                    part->chosen);
}

static void weigh(const struct call *call, const struct moetoken_router_part *part,
                  double score_divisor)
{
    int64_t count = call->config.topk;
    bool after = call->config.score == MOETOKEN_SCORE_SOFTMAX_AFTER;
    const double *from = after ? part->logits : part->scores;
    double *gathered = after ? part->rests : part->weights;
    for (int64_t k = 0; k < count; k++)
        gathered[k] = from[part->chosen[k]];
    if (score_divisor != 1)
        call->kernels->divide(gathered, count, score_divisor, 1);
    if (after)
        call->kernels->softmax(part->rests, count, part->weights, NULL);
    double divisor = call->config.normalize ? sum_of(part->weights, count) + call->config.eps : 1;
    call->kernels->divide(part->weights, count, divisor, call->config.scale);
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
    if (call->known.view[MAP].given)
        moetoken_view_zero_row(&call->known.view[MAP], t);
    if (call->known.view[PROBS].given)
        moetoken_view_zero_row(&call->known.view[PROBS], t);
    for (int64_t k = 0; k < call->config.topk; k++) {
        int64_t e = part->chosen[k];
        part->counts[e]++;
        if (call->known.view[IDS].given)
            store_index(&call->known.view[IDS], t, k, e);
        if (call->known.view[MAP].given)
            *moetoken_view_at(&call->known.view[MAP], t, e) = 1;
        if (call->known.view[PROBS].given)
            element_store((int)call->known.view[PROBS].type,
                          moetoken_view_at(&call->known.view[PROBS], t, e), part->weights[k]);
    }
    if (call->known.view[WEIGHTS].given && call->config.topk > 0)
        call->kernels->store(call->known.view[WEIGHTS].type, part->weights, call->config.topk,
                             moetoken_view_at(&call->known.view[WEIGHTS], t, 0),
                             call->known.view[WEIGHTS].stride[1]);
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
    store_row(call->kernels, &call->known.view[SCORES], t, count, part->scores);
}

static void store_masked(const struct call *call, int64_t t)
{
    const struct moetoken_view *zeros[] = {&call->known.view[WEIGHTS], &call->known.view[MAP],
                                           &call->known.view[PROBS], &call->known.view[SCORES]};
    for (int i = 0; i < 4; i++)
        if (zeros[i]->given)
            moetoken_view_zero_row(zeros[i], t);
    for (int64_t k = 0; k < call->config.topk && call->known.view[IDS].given; k++)
        store_index(&call->known.view[IDS], t, k, -1);
}

static void route_token(const void *context, const struct moetoken_router_part *part, int64_t t)
{
    const struct call *call = context;
    if (!is_routed(&call->known.view[MASK], t)) {
        store_masked(call, t);
        return;
    }
    load_row(call->kernels, &call->known.view[LOGITS], t, call->experts_num, part->logits);
    double divisor = score(call, part);
    choose(call, part, &divisor);
    weigh(call, part, divisor);
    store_choice(call, part, t);
    if (call->known.view[SCORES].given)
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
        status =
            moetoken_router_parts_open(&call.known, call.tokens_num, call.experts_num, 0, &parts);
    if (status != MOETOKEN_OK)
        return status;
    call.kernels = parts.kernels;
    moetoken_router_parts_run(&parts, route_token, &call);
    for (int64_t e = 0; e < call.experts_num && call.known.view[COUNTS].given; e++)
        moetoken_index_store(&call.known.view[COUNTS], e, moetoken_router_parts_count(&parts, e));
    moetoken_router_parts_close(&parts);
    return MOETOKEN_OK;
}
