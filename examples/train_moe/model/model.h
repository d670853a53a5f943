/* model.h - the language model: bytes in, the loss of the next bytes out, and its gradient.
 *
 * A decoder: embedding; blocks of norm, attention, norm and experts, each added to what came in;
 * norm and a linear head. Over several ranks each rank has a share of the sequences and of every
 * layer's experts; everything else is on all ranks alike. */
#ifndef TRAIN_MOE_MODEL_H
#define TRAIN_MOE_MODEL_H

#include <stdbool.h>
#include <stdint.h>

#include "config.h"
#include "layers.h"
#include "moe.h"
#include "real.h"

#define MAX_TENSORS (3 + 8 * MAX_LAYERS)

/* One named piece of the parameters. */
struct tensor {
    const char *name;
    int layer;             /* -1: of none */
    int64_t offset, count; /* of this rank's parameters */
    bool of_experts;       /* a rank has its experts' part; else every rank has the same */
    double spread;         /* standard deviation at the start; 0: all ones */
    bool zero;             /* all zeros at the start */
    bool decays;           /* under weight decay */
    bool frozen;           /* the optimizer leaves it alone */
};

/* Parameters, or their gradients. */
struct weights {
    real *embedding, *final_norm, *head;
    struct {
        real *attention_norm, *qkv, *projection, *experts_norm;
        struct moe_weights moe;
    } blocks[MAX_LAYERS];
};

/* What a block keeps from forward for backward, and from backward for the gradients of its weights:
 * [tokens, width] unless said otherwise. */
struct block {
    real *input, *attention_normed, *attention_inverse;         /* inverse: [tokens] */
    real *qkv, *mixed;                                          /* qkv: [tokens, 3 * width] */
    real *middle, *experts_normed, *experts_inverse;            /* inverse: [tokens] */
    real *answer;                                               /* of the experts */
    real *dexperts_normed, *dmiddle, *dqkv, *dattention_normed; /* dqkv: [tokens, 3 * width] */
    struct attention attention;
    struct moe moe;
};

struct model {
    struct config config;
    struct tensor tensors[MAX_TENSORS];
    int tensors_count;
    int64_t parameters_count;     /* of this rank */
    real *parameters, *gradients; /* [parameters_count] */
    struct weights weights, weight_gradients;

    struct block blocks[MAX_LAYERS];
    real *output, *normed, *inverse, *logits, *losses;
    real *dx, *dnormed, *dmixed, *scratch;
    struct share sequences;   /* of the last forward pass, this rank's */
    moetoken_options options; /* for the operators; the workspace is the model's */
};

/* Weights drawn from config->seed. `options` gives threads and isa_mask of the operators. */
struct model *model_create(const struct config *config, const moetoken_options *options);
void model_destroy(struct model *model);

/* Mean loss in nats a byte of sequences * context predictions; sequences <= config.batch. Every
 * rank is given all of them and goes through its share, here and in model_backward. */
double model_forward(struct model *model, const uint8_t *bytes, const uint8_t *targets,
                     int64_t sequences);

/* The gradient of that loss plus the balancing losses, right after model_forward on `bytes`; the
 * same bits for any number of ranks. */
void model_backward(struct model *model, const uint8_t *bytes);

/* Balances the experts' loads where the router does so by a bias, after a training step. */
void model_update_biases(const struct model *model);

/* The balancing losses of the last forward pass, weighted. */
double model_aux_loss(const struct model *model);

/* Parameters of all ranks, and those that one token meets. */
int64_t model_all_parameters(const struct model *model);
int64_t model_active_parameters(const struct model *model);

/* A number that `seed` and `counter` decide, all 64 bits alike. */
uint64_t random_bits(uint64_t seed, uint64_t counter);

#endif
