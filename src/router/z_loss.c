/* z_loss.c - moetoken_router_z_loss: keeps the logits small. */
#include "router/arguments.h"
#include "router/parts.h"
#include "router/scores/sums.h"
#include "status.h"

#include "rows/formats.h"

struct call {
    struct moetoken_view logits, token_mask, loss_grad, loss, logits_grad;
    moetoken_options options;
    int64_t tokens_num, experts_num, bytes;
    double coeff, routed_num;
    double grad; /* 2 * coeff / routed_num times the loss's own gradient */
    double *per_token;
    const struct moetoken_score_kernels *kernels;
};

static moetoken_status check(const moetoken_router_z_loss_args *given,
                             const moetoken_options *options, bool need_data, struct call *call)
{
    moetoken_router_z_loss_args args;
    struct moetoken_router_sizes sizes = {0};
    moetoken_status status = moetoken_args_take(given, &args, sizeof args);
    if (status == MOETOKEN_OK)
        status = moetoken_options_check(options, 0, &call->options);
    if (status != MOETOKEN_OK)
        return status;
    const unsigned floating = MOETOKEN_TOKEN_LIKE;
    const struct moetoken_router_tensor tensors[] = {
        {args.logits, &call->logits, "logits", "TE", floating, ROUTER_REQUIRED, NULL},
        {args.token_mask, &call->token_mask, "token_mask", "T", MOETOKEN_MAP_LIKE, ROUTER_INPUT,
         NULL},
        {args.loss_grad, &call->loss_grad, "loss_grad", "1", floating, ROUTER_INPUT, NULL},
        {args.loss, &call->loss, "loss", "1", floating, ROUTER_OUTPUT, NULL},
        {args.logits_grad, &call->logits_grad, "logits_grad", "TE", floating, ROUTER_OUTPUT, NULL},
    };
    if (args.logits && !args.loss && !args.logits_grad)
        return moetoken_fail(MOETOKEN_ERR_NULL,
                             "loss and logits_grad are NULL, expected at least one output");
    status = moetoken_router_check_tensors(tensors, 5, need_data, &sizes);
    if (status != MOETOKEN_OK)
        return status;
    call->tokens_num = call->logits.shape[0];
    call->experts_num = call->logits.shape[1];
    call->bytes = moetoken_router_bytes(tensors, 5);
    call->coeff = args.coeff;
    status = moetoken_view_check_same_type(&call->logits_grad, &call->logits);
    if (status == MOETOKEN_OK)
        status = moetoken_router_check_finite(args.coeff, "coeff");
    if (status == MOETOKEN_OK)
        status = moetoken_router_check_memory(
            tensors, 5, &call->options,
            moetoken_router_least_bytes(call->experts_num, call->tokens_num));
    return status;
}

static bool is_routed(const struct call *call, int64_t t)
{
    return !call->token_mask.given || *moetoken_view_at(&call->token_mask, t, 0) != 0;
}

static void loss_of_token(const void *context, const struct moetoken_router_part *part, int64_t t)
{
    const struct call *call = context;
    int64_t count = call->experts_num;
    call->per_token[t] = 0;
    if (!is_routed(call, t)) {
        if (call->logits_grad.given)
            moetoken_view_zero_row(&call->logits_grad, t);
        return;
    }
    call->kernels->load(call->logits.type, moetoken_view_at(&call->logits, t, 0),
                        call->logits.stride[1], count, part->logits);
    double log_sum = call->kernels->softmax(part->logits, count, part->scores);
    call->per_token[t] = log_sum * log_sum;
    if (!call->logits_grad.given)
        return;
    for (int64_t e = 0; e < count; e++)
        part->values[e] = call->grad * log_sum * part->scores[e];
    call->kernels->store(call->logits_grad.type, part->values, count,
                         moetoken_view_at(&call->logits_grad, t, 0), call->logits_grad.stride[1]);
}

/* On the calling thread as one range, for the floating-point mode. */
static void begin_loss(const void *context, int64_t first, int64_t end)
{
    struct call *call = *(struct call *const *)context;
    (void)first, (void)end;
    int64_t routed = 0;
    double grad = 1;
    for (int64_t t = 0; t < call->tokens_num; t++)
        routed += is_routed(call, t);
    if (call->loss_grad.given)
        grad = element_load((int)call->loss_grad.type, call->loss_grad.data);
    call->routed_num = routed > 0 ? (double)routed : 1;
    call->grad = 2 * call->coeff / call->routed_num * grad;
}

static void end_loss(const void *context, int64_t first, int64_t end)
{
    const struct call *call = *(struct call *const *)context;
    (void)first, (void)end;
    double mean = sum_of(call->per_token, call->tokens_num) / call->routed_num;
    element_store((int)call->loss.type, call->loss.data, call->coeff * mean);
}

moetoken_status moetoken_router_z_loss_check(const moetoken_router_z_loss_args *args,
                                             const moetoken_options *options)
{
    struct call call = {0};
    return check(args, options, false, &call);
}

moetoken_status moetoken_router_z_loss(const moetoken_router_z_loss_args *args,
                                       const moetoken_options *options)
{
    struct call call = {0}, *pointer = &call;
    struct moetoken_router_parts parts;
    moetoken_status status = check(args, options, true, &call);
    if (status == MOETOKEN_OK)
        status = moetoken_router_parts_open(&call.options, call.bytes, call.tokens_num,
                                            call.experts_num, call.tokens_num, &parts);
    if (status != MOETOKEN_OK)
        return status;
    call.kernels = parts.kernels;
    call.per_token = parts.tail;
    moetoken_run_ranges(&parts.run, 1, begin_loss, &pointer);
    moetoken_router_parts_run(&parts, loss_of_token, &call);
    if (call.loss.given)
        moetoken_run_ranges(&parts.run, 1, end_loss, &pointer);
    moetoken_router_parts_close(&parts);
    return MOETOKEN_OK;
}
