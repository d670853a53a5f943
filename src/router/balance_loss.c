/* balance_loss.c - moetoken_router_balance_loss and moetoken_router_update_bias: two ways to keep
 * the experts equally busy. */
#include "router/config.h"
#include "router/parts.h"
#include "router/scores/sums.h"
#include "status.h"

#include "rows/formats.h"

#include <inttypes.h>

/* ---- the loss ------------------------------------------------------------------------------- */

#define IN(field, letters, types)  INPUT(moetoken_router_balance_loss_args, field, letters, types)
#define OUT(field, letters, types) OUTPUT(moetoken_router_balance_loss_args, field, letters, types)

/* clang-format off: a line or two per argument */
enum {
    SCORES,
    COUNTS,
    LOSS_GRAD,
    LOSS,
    SCORES_GRAD,
    ARGUMENTS
};

static const struct moetoken_argument arguments[ARGUMENTS] = {
    [SCORES] = {IN(scores, "TE", MOETOKEN_TOKEN_LIKE), .required = {FACT_ALWAYS},
                .read = {FACT(LOSS)}},
    [COUNTS] = {IN(rows_per_expert, "E", 1u << MOETOKEN_I64), .required = {FACT_ALWAYS},
                .read = {FACT_ALWAYS}},
    [LOSS_GRAD] = {IN(loss_grad, "1", MOETOKEN_TOKEN_LIKE), .read = {FACT_ALWAYS}},
    [LOSS] = {OUT(loss, "1", MOETOKEN_TOKEN_LIKE)},
    [SCORES_GRAD] = {OUT(scores_grad, "TE", MOETOKEN_TOKEN_LIKE), .same_type = FACT(SCORES)},
};
/* clang-format on */

static const struct moetoken_table table = {
    .arguments = arguments,
    .count = ARGUMENTS,
    .args_size = sizeof(moetoken_router_balance_loss_args),
};

struct call {
    struct moetoken_call known; /* first: what the table says of the call */
    moetoken_router_balance_loss_args args;
    int64_t tokens_num, experts_num;
    double factor; /* E * coeff / (topk * N^2) */
    double grad;   /* factor times the loss's own gradient */
    double *per_token, *counts;
    const struct moetoken_score_kernels *kernels;
};

static moetoken_status check_numbers(struct call *call)
{
    const moetoken_router_balance_loss_args *args = &call->args;
    int64_t total = args->total_tokens == 0 ? call->tokens_num : args->total_tokens;
    if (args->topk < 1 || total < 0)
        return moetoken_fail(MOETOKEN_ERR_OPTION,
                             "topk = %" PRId64 ", total_tokens = %" PRId64
                             ", expected at least 1 and 0",
                             args->topk, args->total_tokens);
    if (total > 0)
        call->factor = (double)call->experts_num * args->coeff /
                       ((double)args->topk * (double)total * (double)total);
    return moetoken_router_check_finite(args->coeff, "coeff");
}

static moetoken_status check(const moetoken_router_balance_loss_args *args,
                             const moetoken_options *options, bool need_data, struct call *call)
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
    status = check_numbers(call);
    if (status == MOETOKEN_OK)
        status = moetoken_router_check_memory(
            known,
            moetoken_router_least_bytes(call->experts_num, call->tokens_num + call->experts_num));
    return status;
}

static void loss_of_token(const void *context, const struct moetoken_router_part *part, int64_t t)
{
    const struct call *call = context;
    int64_t count = call->experts_num;
    if (call->known.view[LOSS].given) {
        load_row(call->kernels, &call->known.view[SCORES], t, count, part->scores);
        call->per_token[t] = sum_of_products(part->scores, call->counts, count);
    }
    if (call->known.view[SCORES_GRAD].given) {
        for (int64_t e = 0; e < count; e++)
            part->values[e] = call->grad * call->counts[e];
        store_row(call->kernels, &call->known.view[SCORES_GRAD], t, count, part->values);
    }
}

/* On the calling thread as one range, for the floating-point mode. */
static void begin_loss(const void *context, int64_t first, int64_t end)
{
    struct call *call = *(struct call *const *)context;
    (void)first, (void)end;
    double grad = 1;
    if (call->known.view[LOSS_GRAD].given)
        grad =
            element_load((int)call->known.view[LOSS_GRAD].type, call->known.view[LOSS_GRAD].data);
    call->grad = call->factor * grad;
    for (int64_t e = 0; e < call->experts_num; e++)
        call->counts[e] = (double)moetoken_index_load(&call->known.view[COUNTS], e);
}

static void end_loss(const void *context, int64_t first, int64_t end)
{
    const struct call *call = *(struct call *const *)context;
    (void)first, (void)end;
    double sum = sum_of(call->per_token, call->tokens_num);
    element_store((int)call->known.view[LOSS].type, call->known.view[LOSS].data,
                  call->factor * sum);
}

moetoken_status moetoken_router_balance_loss_check(const moetoken_router_balance_loss_args *args,
                                                   const moetoken_options *options)
{
    struct call call = {0};
    return check(args, options, false, &call);
}

moetoken_status moetoken_router_balance_loss(const moetoken_router_balance_loss_args *args,
                                             const moetoken_options *options)
{
    struct call call = {0}, *pointer = &call;
    struct moetoken_router_parts parts;
    moetoken_status status = check(args, options, true, &call);
    if (status == MOETOKEN_OK)
        status = moetoken_router_parts_open(&call.known, call.tokens_num, call.experts_num,
                                            call.tokens_num + call.experts_num, &parts);
    if (status != MOETOKEN_OK)
        return status;
    call.kernels = parts.kernels;
    call.per_token = parts.tail;
    call.counts = parts.tail + call.tokens_num;
    moetoken_run_ranges(&parts.run, 1, begin_loss, &pointer);
    moetoken_router_parts_run(&parts, loss_of_token, &call);
    if (call.known.view[LOSS].given)
        moetoken_run_ranges(&parts.run, 1, end_loss, &pointer);
    moetoken_router_parts_close(&parts);
    return MOETOKEN_OK;
}
