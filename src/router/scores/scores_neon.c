/* scores_neon.c - the router's kernels, for AArch64. */
#if defined(__aarch64__)

#include "router/scores/scores_body.h"

const struct moetoken_score_kernels moetoken_scores_neon = {
    load, store, softmax, sigmoid, sqrtsoftplus, softmax_grad,
};
#else

typedef int moetoken_scores_is_empty; /* an ISO C file holds at least one declaration */

#endif
