/* config.h - what the router's functions check besides their tables. */
#ifndef MOETOKEN_ROUTER_CONFIG_H
#define MOETOKEN_ROUTER_CONFIG_H

#include "tensors/arguments.h"

#include <moetoken/router.h>

/* The config with its zeros replaced by what they stand for. topk is not looked at unless
 * with_choice. */
moetoken_status moetoken_router_check_config(const moetoken_router_config *config,
                                             int64_t experts_num, bool with_choice,
                                             moetoken_router_config *resolved);

/* MOETOKEN_ERR_OPTION unless `value` is finite. */
moetoken_status moetoken_router_check_finite(double value, const char *name);

/* MOETOKEN_ERR_INDEX unless every expert id, if they are given, is in [-1, experts_num). */
moetoken_status moetoken_router_check_ids(const struct moetoken_view *ids, int64_t experts_num);

#endif
