/* config.h - everything that decides a run's numbers: the shape of the model and its training.
 *
 * A checkpoint holds it whole, so that a resumed run cannot differ from an uninterrupted one. */
#ifndef TRAIN_MOE_CONFIG_H
#define TRAIN_MOE_CONFIG_H

#include <stdbool.h>
#include <stdint.h>

#define MAX_LAYERS  8
#define MAX_EXPERTS 64
#define VOCABULARY  256 /* bytes */

enum router {
    ROUTER_MIXTRAL,  /* softmax; a loss keeps the load even */
    ROUTER_DEEPSEEK, /* sigmoid; a bias on the choice keeps it even */
    ROUTER_FROZEN    /* mixtral's as it was drawn at the start */
};

/* All members have 8 bytes: no padding, the struct goes to the checkpoint as it is. */
struct config {
    int64_t layers, width, heads, context;
    int64_t experts, topk, hidden;
    int64_t batch, steps, warmup, cosine, evaluate_every;
    int64_t bfloat16, router, seed;
    double capacity_factor, aux_weight, bias_rate;
    double learning_rate, weight_decay;
};

struct config config_default(void);

/* Sets the member that belongs to an option such as "--layers". Returns 1 when done, 0 when there
 * is no such option, -1 after a message about a value that is not allowed. */
int config_set(struct config *config, const char *option, const char *value);

/* Whether the members go together; prints what does not. */
bool config_check(const struct config *config);

/* One line for each option, with its default, to standard output. */
void config_print_options(void);

/* A dense model with the same active parameters: one expert as wide as the K chosen ones. */
void config_make_dense(struct config *config);

#endif
