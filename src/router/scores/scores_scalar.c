/* scores_scalar.c - the router's kernels, plain C, as written, on every CPU: the specification. */
#define MOETOKEN_PLAIN_LANES
#include "router/scores/scores_body.h"

const struct moetoken_score_kernels moetoken_scores_scalar = {
    load, store, softmax, exps, divide, scale, sigmoid, sqrtsoftplus, softmax_grad, NULL, NULL,
};
