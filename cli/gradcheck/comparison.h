/* comparison.h - one forward operator with its gradients, as gradcheck.c differences them. */
#ifndef MOETOKEN_CLI_COMPARISON_H
#define MOETOKEN_CLI_COMPARISON_H

#include "gradcheck.h"

/* Inputs are the problem's own arrays; `tokens` and `probs` name the variables. */
struct comparison {
    struct gradient_problem *problem;
    moetoken_options options;
    double *tokens_variable, *probs_variable;
    int64_t tokens_count, probs_count;
    double *tokens_gradient, *probs_gradient; /* of the same sizes */
    int64_t output_count[2];                  /* outputs of the forward operator, 0: none */
    double *output[2], *output_plus[2], *cotangent[2];
    int64_t *out_index, *token_id;
    bool with_residuals; /* their gradients are compared too */
    bool (*forward)(struct comparison *comparison);
    bool (*backward)(struct comparison *comparison);
};

/* A contiguous tensor [first, second], or [first] where second is negative; shape: room for two. */
static inline DLTensor comparison_matrix(void *data, moetoken_type type, int64_t *shape,
                                         int64_t first, int64_t second)
{
    shape[0] = first;
    shape[1] = second;
    return moetoken_tensor(data, type, second < 0 ? 1 : 2, shape);
}

/* Routing by expert ids. */
bool unpermute_forward_by_ids(struct comparison *comparison);
bool unpermute_backward_by_ids(struct comparison *comparison);
bool permute_forward_by_ids(struct comparison *comparison);
bool permute_backward_by_ids(struct comparison *comparison);

#endif
