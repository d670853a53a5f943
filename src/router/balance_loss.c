/* balance_loss.c - moetoken_router_balance_loss and moetoken_router_update_bias: two ways to keep
 * the experts equally busy. */
#include "router/arguments.h"
#include "router/parts.h"
#include "router/scores/sums.h"
#include "status.h"

#include "rows/formats.h"

#include <inttypes.h>

/* ---- the loss ------------------------------------------------------------------------------- */

struct call {
    struct moetoken_view scores, rows_per_expert, loss_grad, loss, scores_grad;
    moetoken_options options;
    int64_t tokens_num, experts_num, bytes;
    double factor; /* E * coeff / (topk * N^2) */
    double grad;   /* factor times the loss's own gradient */
    double *per_token, *counts;
    const struct moetoken_score_kernels *kernels;
};

static moetoken_status check_numbers(const moetoken_router_balance_loss_args *args,
                                     struct call *call)
{
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

static moetoken_status check(const moetoken_router_balance_loss_args *given,
                             const moetoken_options *options, bool need_data, struct call *call)
{
    moetoken_router_balance_loss_args args;
    struct moetoken_router_sizes sizes = {0};
    moetoken_status status = moetoken_args_take(given, &args, sizeof args);
    if (status == MOETOKEN_OK)
        status = moetoken_options_check(options, 0, &call->options);
    if (status != MOETOKEN_OK)
        return status;
    const unsigned floating = MOETOKEN_TOKEN_LIKE;
    const struct moetoken_router_tensor tensors[] = {
        {args.scores, &call->scores, "scores", "TE", floating, ROUTER_REQUIRED, NULL},
        {args.rows_per_expert, &call->rows_per_expert, "rows_per_expert", "E", 1u << MOETOKEN_I64,
         ROUTER_REQUIRED, NULL},
        {args.loss_grad, &call->loss_grad, "loss_grad", "1", floating, ROUTER_INPUT, NULL},
        {args.loss, &call->loss, "loss", "1", floating, ROUTER_OUTPUT, NULL},
        {args.scores_grad, &call->scores_grad, "scores_grad", "TE", floating, ROUTER_OUTPUT, NULL},
    };
    if (args.scores && args.rows_per_expert && !args.loss && !args.scores_grad)
        return moetoken_fail(MOETOKEN_ERR_NULL,
                             "loss and scores_grad are NULL, expected at least one output");
    status = moetoken_router_check_tensors(tensors, 5, need_data, &sizes);
    if (status != MOETOKEN_OK)
        return status;
    call->tokens_num = call->scores.shape[0];
    call->experts_num = call->scores.shape[1];
    call->bytes = moetoken_router_bytes(tensors, 5);
    status = moetoken_view_check_same_type(&call->scores_grad, &call->scores);
    if (status == MOETOKEN_OK)
        status = check_numbers(&args, call);
    size_t needed =
        moetoken_router_least_bytes(call->experts_num, call->tokens_num + call->experts_num);
    if (status == MOETOKEN_OK)
        status = moetoken_router_check_memory(tensors, 5, &call->options, needed);
    return status;
}

static void loss_of_token(const void *context, const struct moetoken_router_part *part, int64_t t)
{
    const struct call *call = context;
    int64_t count = call->experts_num;
    if (call->loss.given) {
        call->kernels->load(call->scores.type, moetoken_view_at(&call->scores, t, 0),
                            call->scores.stride[1], count, part->scores);
        call->per_token[t] = sum_of_products(part->scores, call->counts, count);
    }
    if (call->scores_grad.given) {
        for (int64_t e = 0; e < count; e++)
            part->values[e] = call->grad * call->counts[e];
        call->kernels->store(call->scores_grad.type, part->values, count,
                             moetoken_view_at(&call->scores_grad, t, 0),
                             call->scores_grad.stride[1]);
    }
}

/* On the calling thread as one range, for the floating-point mode. */
static void begin_loss(const void *context, int64_t first, int64_t end)
{
    struct call *call = *(struct call *const *)context;
    (void)first, (void)end;
    double grad = 1;
    if (call->loss_grad.given)
        grad = element_load((int)call->loss_grad.type, call->loss_grad.data);
    call->grad = call->factor * grad;
    for (int64_t e = 0; e < call->experts_num; e++)
        call->counts[e] = (double)moetoken_index_load(&call->rows_per_expert, e);
}

static void end_loss(const void *context, int64_t first, int64_t end)
{
    const struct call *call = *(struct call *const *)context;
    (void)first, (void)end;
    double sum = sum_of(call->per_token, call->tokens_num);
    element_store((int)call->loss.type, call->loss.data, call->factor * sum);
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
        status =
            moetoken_router_parts_open(&call.options, call.bytes, call.tokens_num, call.experts_num,
                                       call.tokens_num + call.experts_num, &parts);
    if (status != MOETOKEN_OK)
        return status;
    call.kernels = parts.kernels;
    call.per_token = parts.tail;
    call.counts = parts.tail + call.tokens_num;
    moetoken_run_ranges(&parts.run, 1, begin_loss, &pointer);
    moetoken_router_parts_run(&parts, loss_of_token, &call);
    if (call.loss.given)
        moetoken_run_ranges(&parts.run, 1, end_loss, &pointer);
    moetoken_router_parts_close(&parts);
    return MOETOKEN_OK;
}

/* ---- the bias ------------------------------------------------------------------------------- */

struct update {
    struct moetoken_view bias, rows_per_expert, updated_bias;
    moetoken_options options;
    double rate;
    __extension__ __int128 total;
};

static moetoken_status check_update(const moetoken_router_update_bias_args *given,
                                    const moetoken_options *options, bool need_data,
                                    struct update *update)
{
    moetoken_router_update_bias_args args;
    struct moetoken_router_sizes sizes = {0};
    moetoken_status status = moetoken_args_take(given, &args, sizeof args);
    if (status == MOETOKEN_OK)
        status = moetoken_options_check(options, 0, &update->options);
    if (status != MOETOKEN_OK)
        return status;
    const unsigned floating = MOETOKEN_TOKEN_LIKE;
    const struct moetoken_router_tensor tensors[] = {
        {args.bias, &update->bias, "bias", "E", floating, ROUTER_REQUIRED, NULL},
        {args.rows_per_expert, &update->rows_per_expert, "rows_per_expert", "E", 1u << MOETOKEN_I64,
         ROUTER_REQUIRED, NULL},
        {args.updated_bias, &update->updated_bias, "updated_bias", "E", floating,
         ROUTER_OUTPUT | ROUTER_REQUIRED, &update->bias},
    };
    update->rate = args.rate;
    status = moetoken_router_check_tensors(tensors, 3, need_data, &sizes);
    if (status == MOETOKEN_OK)
        status = moetoken_view_check_same_type(&update->updated_bias, &update->bias);
    if (status == MOETOKEN_OK)
        status = moetoken_router_check_finite(args.rate, "rate");
    if (status == MOETOKEN_OK)
        status = moetoken_router_check_memory(tensors, 3, &update->options, 0);
    return status;
}

static void update_range(const void *context, int64_t first, int64_t end)
{
    const struct update *update = context;
    int64_t experts = update->bias.shape[0];
    for (int64_t e = first; e < end; e++) {
        __extension__ __int128 share = moetoken_index_load(&update->rows_per_expert, e);
        share *= experts;
        double sign = (share < update->total) - (share > update->total);
        double bias = element_load((int)update->bias.type, moetoken_view_at(&update->bias, e, 0));
        element_store((int)update->bias.type, moetoken_view_at(&update->updated_bias, e, 0),
                      bias + update->rate * sign);
    }
}

moetoken_status moetoken_router_update_bias_check(const moetoken_router_update_bias_args *args,
                                                  const moetoken_options *options)
{
    struct update update = {0};
    return check_update(args, options, false, &update);
}

moetoken_status moetoken_router_update_bias(const moetoken_router_update_bias_args *args,
                                            const moetoken_options *options)
{
    struct update update = {0};
    struct moetoken_run run;
    moetoken_status status = check_update(args, options, true, &update);
    if (status != MOETOKEN_OK)
        return status;
    for (int64_t e = 0; e < update.bias.shape[0]; e++)
        update.total += moetoken_index_load(&update.rows_per_expert, e);
    moetoken_run_plan(&update.options, 0, 0, true, false, &run);
    moetoken_run_ranges(&run, update.bias.shape[0], update_range, &update);
    return MOETOKEN_OK;
}
