/* arguments.h - the router's functions describe their tensors in a table; here it is checked. */
#ifndef MOETOKEN_ROUTER_ARGUMENTS_H
#define MOETOKEN_ROUTER_ARGUMENTS_H

#include "tensors/arguments.h"
#include "threads/run.h"

#include <moetoken/router.h>

/* How a tensor is used. */
#define ROUTER_INPUT    0u
#define ROUTER_OUTPUT   1u
#define ROUTER_REQUIRED 2u

struct moetoken_router_tensor {
    const DLTensor *tensor;
    struct moetoken_view *view;
    const char *name;
    const char *sizes; /* a letter a dimension; '1' is the number */
    unsigned types;
    unsigned use;
    const struct moetoken_view *replaces; /* the input that this output may share memory with */
};

struct moetoken_router_sizes {
    struct moetoken_size of['Z' - 'A' + 1];
};

/* Presence, descriptions, sizes: a letter not yet known has the size of the first tensor that has
 * it. */
moetoken_status moetoken_router_check_tensors(const struct moetoken_router_tensor *tensors,
                                              int count, bool need_data,
                                              struct moetoken_router_sizes *sizes);

/* Outputs against themselves, all other tensors and the caller's workspace, which must have
 * `workspace_needed` bytes if there is one. */
moetoken_status moetoken_router_check_memory(const struct moetoken_router_tensor *tensors,
                                             int count, const moetoken_options *options,
                                             size_t workspace_needed);

/* MOETOKEN_ERR_TYPE unless a given view is float32, float64 or of the type of `logits`. */
moetoken_status moetoken_router_check_weights_type(const struct moetoken_view *view,
                                                   const struct moetoken_view *logits);

/* MOETOKEN_ERR_OPTION unless `value` is finite. */
moetoken_status moetoken_router_check_finite(double value, const char *name);

/* The config with its zeros replaced by what they stand for. topk is not looked at unless
 * with_choice. */
moetoken_status moetoken_router_check_config(const moetoken_router_config *config,
                                             int64_t experts_num, bool with_choice,
                                             moetoken_router_config *resolved);

/* The bytes of all given tensors. */
int64_t moetoken_router_bytes(const struct moetoken_router_tensor *tensors, int count);

#endif
