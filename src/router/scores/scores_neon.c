/* scores_neon.c - the router's kernels, for AArch64. */
#if defined(__aarch64__)

#include "router/scores/best_body.h"
#include "router/scores/scores_body.h"

const struct moetoken_score_kernels moetoken_scores_neon = {
    load, store, softmax, exps, divide, scale, sigmoid, sqrtsoftplus, softmax_grad, best, best_two,
};
#else

typedef int moetoken_scores_is_empty; /* an ISO C file holds at least one declaration */

#endif
