/* update_bias.c - moetoken_router_update_bias: balances the experts without a loss. */
#include "router/config.h"
#include "router/parts.h"
#include "rows/formats.h"

#define IN(field, letters, types)  INPUT(moetoken_router_update_bias_args, field, letters, types)
#define OUT(field, letters, types) OUTPUT(moetoken_router_update_bias_args, field, letters, types)

/* clang-format off: a line or two per argument */
enum {
    BIAS,
    COUNTS,
    UPDATED_BIAS,
    ARGUMENTS
};

static const struct moetoken_argument arguments[ARGUMENTS] = {
    [BIAS] = {IN(bias, "E", MOETOKEN_TOKEN_LIKE), .required = {FACT_ALWAYS}, .read = {FACT_ALWAYS}},
    [COUNTS] = {IN(rows_per_expert, "E", 1u << MOETOKEN_I64), .required = {FACT_ALWAYS},
                .read = {FACT_ALWAYS}},
    [UPDATED_BIAS] = {OUT(updated_bias, "E", MOETOKEN_TOKEN_LIKE), .required = {FACT_ALWAYS},
                      .same_type = FACT(BIAS), .may_replace = FACT(BIAS)},
};
/* clang-format on */

static const struct moetoken_table table = {
    .arguments = arguments,
    .count = ARGUMENTS,
    .args_size = sizeof(moetoken_router_update_bias_args),
};

struct call {
    struct moetoken_call known; /* first: what the table says of the call */
    moetoken_router_update_bias_args args;
    __extension__ __int128 total;
};

static moetoken_status check(const moetoken_router_update_bias_args *args,
                             const moetoken_options *options, bool need_data, struct call *call)
{
    moetoken_status status =
        moetoken_call_read(&call->known, &table, args, &call->args, options, need_data);
    if (status == MOETOKEN_OK)
        status = moetoken_call_check_sizes(&call->known);
    if (status == MOETOKEN_OK)
        status = moetoken_router_check_finite(call->args.rate, "rate");
    if (status == MOETOKEN_OK)
        status = moetoken_router_check_memory(&call->known, 0);
    return status;
}

static void update_range(const void *context, int64_t first, int64_t end)
{
    const struct call *call = context;
    const struct moetoken_view *bias = &call->known.view[BIAS],
                               *updated = &call->known.view[UPDATED_BIAS];
    for (int64_t e = first; e < end; e++) {
        __extension__ __int128 share = moetoken_index_load(&call->known.view[COUNTS], e);
        share *= moetoken_call_size(&call->known, 'E');
        double sign = (share < call->total) - (share > call->total);
        double value = element_load((int)bias->type, moetoken_view_at(bias, e, 0));
        element_store((int)updated->type, moetoken_view_at(updated, e, 0),
                      value + call->args.rate * sign);
    }
}

moetoken_status moetoken_router_update_bias_check(const moetoken_router_update_bias_args *args,
                                                  const moetoken_options *options)
{
    struct call call = {0};
    return check(args, options, false, &call);
}

moetoken_status moetoken_router_update_bias(const moetoken_router_update_bias_args *args,
                                            const moetoken_options *options)
{
    struct call call = {0};
    struct moetoken_run run;
    moetoken_status status = check(args, options, true, &call);
    if (status != MOETOKEN_OK)
        return status;
    int64_t experts_num = moetoken_call_size(&call.known, 'E');
    for (int64_t e = 0; e < experts_num; e++)
        call.total += moetoken_index_load(&call.known.view[COUNTS], e);
    moetoken_call_plan(&call.known, &run);
    moetoken_run_ranges(&run, experts_num, update_range, &call);
    return MOETOKEN_OK;
}
