/* moe.h - the mixture-of-experts layer: router, dispatch, experts, combine, and the way back.
 *
 * The dispatch and the combine are the library's four operators; everything else is the model's. */
#ifndef TRAIN_MOE_MOE_H
#define TRAIN_MOE_MOE_H

#include <moetoken/moetoken.h>
#include <stdbool.h>
#include <stdint.h>

#include "real.h"

struct moe_config {
    int64_t tokens; /* at most, in one pass */
    int64_t width, hidden, experts, topk;
    double capacity_factor; /* 0: dropless; else each expert takes this share of an even load */
    double aux_weight;      /* of the load-balancing loss */
    moetoken_type type;     /* of the rows that go through the operators */
};

/* Weights, or their gradients. */
struct moe_weights {
    real *router; /* [width, experts] */
    real *up;     /* [experts, width, hidden] */
    real *down;   /* [experts, hidden, width] */
};

/* What forward leaves for backward, and what a step reports. */
struct moe {
    struct moe_config config;
    int64_t tokens, slots, capacity; /* of the last forward pass; capacity 0: dropless */

    real *probs;   /* [tokens, experts] softmax over all experts */
    real *gates;   /* [tokens, experts] weights of the chosen experts, else 0 */
    real *dgates;  /* [tokens, experts] */
    uint8_t *map;  /* [tokens, experts] 1 where the expert is chosen */
    real *balance; /* [experts] derivative of the balancing loss by the mean probability */

    int32_t *sorted_indices, *out_index, *permute_token_id; /* [slots] */
    int64_t *first_row;                                     /* [experts + 1] */

    void *token_side;  /* [tokens, width] of config.type: what goes in or comes out */
    void *expert_side; /* [slots, width] of config.type: experts' inputs */
    void *answers; /* [slots, width] of config.type: their outputs, then the gradient of those */
    real *rows;    /* [slots, width] experts' inputs as numbers of the model */
    real *rows_scratch;             /* [slots, width] */
    real *before, *after, *dhidden; /* [slots, hidden] around the activation */

    int64_t *load;    /* [experts] choices of the tokens */
    int64_t dropped;  /* choices that found their expert full */
    double aux_loss;  /* weighted */
    const char *dump; /* the next backward pass writes unpermute_grad's inputs there, or NULL */
};

/* The slots of so many tokens. */
int64_t moe_slots(const struct moe_config *config, int64_t tokens);

struct moe moe_create(const struct moe_config *config);
void moe_destroy(struct moe *moe);

/* y [tokens, width] = the weighted sum of what the chosen experts make of x. */
void moe_forward(struct moe *moe, const struct moe_weights *weights, real *y, const real *x,
                 int64_t tokens, const moetoken_options *options);

/* Writes dx, adds to the gradients of the weights. scratch: [width * max(hidden, experts)]. */
void moe_backward(struct moe *moe, const struct moe_weights *weights,
                  const struct moe_weights *gradients, real *dx, const real *dy, const real *x,
                  const moetoken_options *options, real *scratch);

#endif
