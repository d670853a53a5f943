/* resolve.c - describes the routing of a call. */
#include "operators/resolve.h"

static enum moetoken_columns find_columns(const struct moetoken_call *call,
                                          const struct moetoken_routing_arguments *arguments)
{
    bool pairs = moetoken_call_given(call, arguments->probs);
    if (call->facts & FACT_PADDED)
        return pairs || (call->facts & FACT_MASKED) ? MOETOKEN_COLUMNS_OF_ROW : MOETOKEN_NO_COLUMNS;
    if (pairs)
        return MOETOKEN_COLUMNS_OF_MAP;
    return moetoken_call_given(call, arguments->weights) ? MOETOKEN_COLUMNS_COUNTED
                                                         : MOETOKEN_NO_COLUMNS;
}

static const struct moetoken_view *find_tokens(const struct moetoken_call *call,
                                               const struct moetoken_routing_arguments *arguments)
{
    if (arguments->tokens < 0)
        return call->facts & FACT_PADDED ? &call->view[arguments->rows] : NULL;
    const struct moetoken_view *tokens = &call->view[arguments->tokens];
    return tokens->given ? tokens : NULL;
}

moetoken_status moetoken_resolve_routing(const struct moetoken_call *call,
                                         const struct moetoken_routing_arguments *arguments,
                                         bool repeated_rows, struct moetoken_routing *routing)
{
    bool padded = (call->facts & FACT_PADDED) != 0;
    *routing = (struct moetoken_routing){
        .row = padded && arguments->tokens < 0 ? NULL : &call->view[arguments->rows],
        .token = find_tokens(call, arguments),
        .map = &call->view[arguments->map],
        .tokens_num = moetoken_call_size(call, 'T'),
        .slots_num = moetoken_call_size(call, 'N'),
        .rows_num = moetoken_call_size(call, 'R'),
        .experts_num = moetoken_call_size(call, 'E'),
        .columns = find_columns(call, arguments),
        .padded = padded,
        .by_map = (call->facts & call->table->by_map) != 0,
        .repeated_rows = repeated_rows,
        .tolerate_mismatch = (call->options.flags & MOETOKEN_TOLERATE_ROUTING_MISMATCH) != 0,
    };
    moetoken_status status = moetoken_routing_check(routing);
    if (status == MOETOKEN_OK)
        status = moetoken_call_check_memory(call, routing->tokens_num, routing->slots_num);
    return status;
}

const struct moetoken_view *moetoken_either_given(const struct moetoken_call *call, int one,
                                                  int other)
{
    if (call->view[one].given)
        return &call->view[one];
    return call->view[other].given ? &call->view[other] : NULL;
}
