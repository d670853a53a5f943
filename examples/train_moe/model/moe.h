/* moe.h - the mixture-of-experts layer: router, dispatch, experts, combine, and the way back.
 *
 * Router, dispatch and combine are the library's; everything else is the model's. Over several
 * ranks each has some of the tokens and some of the experts. */
#ifndef TRAIN_MOE_MOE_H
#define TRAIN_MOE_MOE_H

#include <moetoken/router.h>
#include <stdbool.h>
#include <stdint.h>

#include "real.h"

struct moe_config {
    int64_t tokens, all_tokens; /* of this rank and of all, at most, in one pass */
    int64_t width, hidden, experts, topk;
    int64_t own_experts;    /* of this rank */
    double capacity_factor; /* 0: dropless; else each expert takes this share of an even load */
    bool balance_by_bias;   /* deepseek-v3's router: sigmoid scores, and a bias on the choice */
    double aux_weight;      /* mixtral's router: of the load-balancing loss */
    double bias_rate;       /* deepseek-v3's router: what a step changes of the bias */
    moetoken_type type;     /* of the rows that go through the operators */
};

/* Weights, or their gradients. */
struct moe_weights {
    real *router; /* [width, experts] */
    real *bias; /* [experts], balance_by_bias: no gradient, moe_update_bias changes it; else NULL */
    real *up;   /* [own_experts, width, hidden] */
    real *down; /* [own_experts, hidden, width] */
};

struct exchange; /* exchange.h */

/* What forward leaves for backward, and what a step reports. */
struct moe {
    struct moe_config config;
    int64_t tokens, rows;         /* of the last forward pass: of this rank and its experts */
    int64_t all_tokens, capacity; /* of all ranks; of an expert, 0: dropless */

    real *logits, *scores;     /* [tokens, experts] */
    real *dlogits, *dscores;   /* [tokens, experts]; dscores: of the balancing loss */
    int32_t *expert_ids;       /* [tokens, topk] the experts of each token, best first */
    real *gates, *dgates;      /* [tokens, topk] their weights */
    struct exchange *exchange; /* which row each slot has, and where */
    int64_t *first_row;        /* [own_experts + 1] of each expert's rows */

    void *token_side;  /* [tokens, width] of config.type: what goes in or comes out */
    void *expert_side; /* [rows, width] of config.type: experts' inputs */
    void *answers;     /* [rows, width] of config.type: their outputs, then the gradient of those */
    real *inputs;      /* [rows, width] experts' inputs as numbers of the model */
    real *rows_scratch;             /* [rows, width] */
    real *before, *after, *dhidden; /* [rows, hidden] around the activation */

    int64_t *load;    /* [experts] choices of all ranks' tokens */
    int64_t dropped;  /* of those, that found their expert full */
    double aux_loss;  /* of this rank's tokens, weighted */
    const char *dump; /* the next backward pass writes unpermute_grad's inputs there, or NULL */
};

/* The bytes of workspace that forward and backward need. */
size_t moe_workspace_bytes(const struct moe_config *config, int32_t threads);

/* The rows that an expert takes when there are so many tokens; 0: all that come. */
int64_t moe_capacity(const struct moe_config *config, int64_t all_tokens);

struct moe moe_create(const struct moe_config *config, const moetoken_options *options);
void moe_destroy(struct moe *moe);

/* y [tokens, width] = the weighted sum of what the chosen experts make of x; all_tokens: those of
 * all ranks together. */
void moe_forward(struct moe *moe, const struct moe_weights *weights, real *y, const real *x,
                 int64_t tokens, int64_t all_tokens, const moetoken_options *options);

/* Writes dx, adds to the gradients of the experts, and leaves what the router's is made of in
 * dlogits. scratch: [width * max(hidden, experts)]. */
void moe_backward(struct moe *moe, const struct moe_weights *weights,
                  const struct moe_weights *gradients, real *dx, const real *dy,
                  const moetoken_options *options, real *scratch);

/* After a training step, with balance_by_bias: experts with less than the mean load of the last
 * forward pass are chosen more easily from now on, those with more less. */
void moe_update_bias(const struct moe *moe, const struct moe_weights *weights,
                     const moetoken_options *options);

#endif
