/* z_loss.c - moetoken_router_z_loss: keeps the logits small. */
#include "router/config.h"
#include "router/parts.h"
#include "router/scores/sums.h"
#include "status.h"

#include "rows/formats.h"

#define IN(field, letters, types)  INPUT(moetoken_router_z_loss_args, field, letters, types)
#define OUT(field, letters, types) OUTPUT(moetoken_router_z_loss_args, field, letters, types)

/* clang-format off: a line or two per argument */
enum {
    LOGITS,
    MASK,
    LOSS_GRAD,
    LOSS,
    LOGITS_GRAD,
    ARGUMENTS
};

static const struct moetoken_argument arguments[ARGUMENTS] = {
    [LOGITS] = {IN(logits, "TE", MOETOKEN_TOKEN_LIKE), .required = {FACT_ALWAYS},
                .read = {FACT_ALWAYS}},
    [MASK] = {IN(token_mask, "T", MOETOKEN_MAP_LIKE), .read = {FACT_ALWAYS}},
    [LOSS_GRAD] = {IN(loss_grad, "1", MOETOKEN_TOKEN_LIKE), .read = {FACT_ALWAYS}},
    [LOSS] = {OUT(loss, "1", MOETOKEN_TOKEN_LIKE)},
    [LOGITS_GRAD] = {OUT(logits_grad, "TE", MOETOKEN_TOKEN_LIKE), .same_type = FACT(LOGITS)},
};
/* clang-format on */

static const struct moetoken_table table = {
    .arguments = arguments,
    .count = ARGUMENTS,
    .args_size = sizeof(moetoken_router_z_loss_args),
};

struct call {
    struct moetoken_call known; /* first: what the table says of the call */
    moetoken_router_z_loss_args args;
    int64_t tokens_num, experts_num;
    double routed_num;
    double grad; /* 2 * coeff / routed_num times the loss's own gradient */
    double *per_token;
    const struct moetoken_score_kernels *kernels;
};

static moetoken_status check(const moetoken_router_z_loss_args *args,
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
    status = moetoken_router_check_finite(call->args.coeff, "coeff");
    if (status == MOETOKEN_OK)
        status = moetoken_router_check_memory(
            known, moetoken_router_least_bytes(call->experts_num, call->tokens_num));
    return status;
}

static void loss_of_token(const void *context, const struct moetoken_router_part *part, int64_t t)
{
    const struct call *call = context;
    int64_t count = call->experts_num;
    call->per_token[t] = 0;
    if (!is_routed(&call->known.view[MASK], t)) {
        if (call->known.view[LOGITS_GRAD].given)
            moetoken_view_zero_row(&call->known.view[LOGITS_GRAD], t);
        return;
    }
    load_row(call->kernels, &call->known.view[LOGITS], t, count, part->logits);
    double log_sum;
    call->kernels->softmax(part->logits, count, part->scores, &log_sum);
    call->per_token[t] = log_sum * log_sum;
    if (!call->known.view[LOGITS_GRAD].given)
        return;
    for (int64_t e = 0; e < count; e++)
        part->values[e] = call->grad * log_sum * part->scores[e];
    store_row(call->kernels, &call->known.view[LOGITS_GRAD], t, count, part->values);
}

/* On the calling thread as one range, for the floating-point mode. */
static void begin_loss(const void *context, int64_t first, int64_t end)
{
    struct call *call = *(struct call *const *)context;
    (void)first, (void)end;
    int64_t routed = 0;
    double grad = 1;
    for (int64_t t = 0; t < call->tokens_num; t++)
        routed += is_routed(&call->known.view[MASK], t);
    if (call->known.view[LOSS_GRAD].given)
        grad =
            element_load((int)call->known.view[LOSS_GRAD].type, call->known.view[LOSS_GRAD].data);
    call->routed_num = routed > 0 ? (double)routed : 1;
    call->grad = 2 * call->args.coeff / call->routed_num * grad;
}

static void end_loss(const void *context, int64_t first, int64_t end)
{
    const struct call *call = *(struct call *const *)context;
    (void)first, (void)end;
    double mean = sum_of(call->per_token, call->tokens_num) / call->routed_num;
    element_store((int)call->known.view[LOSS].type, call->known.view[LOSS].data,
                  call->args.coeff * mean);
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
        status = moetoken_router_parts_open(&call.known, call.tokens_num, call.experts_num,
                                            call.tokens_num, &parts);
    if (status != MOETOKEN_OK)
        return status;
    call.kernels = parts.kernels;
    call.per_token = parts.tail;
    moetoken_run_ranges(&parts.run, 1, begin_loss, &pointer);
    moetoken_router_parts_run(&parts, loss_of_token, &call);
    if (call.known.view[LOSS].given)
        moetoken_run_ranges(&parts.run, 1, end_loss, &pointer);
    moetoken_router_parts_close(&parts);
    return MOETOKEN_OK;
}
