/* exchange.h - a layer's tokens to their experts and back, and the gradients on the same ways.
 *
 * exchange_single.c has all experts in this process: permute and unpermute. exchange_mpi.c has them
 * spread over the ranks: libmoetoken-mpi. A program links one of them. */
#ifndef TRAIN_MOE_EXCHANGE_H
#define TRAIN_MOE_EXCHANGE_H

#include "moe.h"

struct exchange *exchange_create(const struct moe_config *config, const moetoken_options *options);
void exchange_destroy(struct exchange *exchange);

/* The rows of this process's experts for that many tokens of all ranks, at most. */
int64_t exchange_most_rows(const struct moe_config *config, int64_t all_tokens);

/* Whether moe->dump is heeded. */
bool exchange_dumps(void);

/* token_side -> expert_side. Sets `rows`, and first_row of this process's experts. */
void exchange_dispatch(struct moe *moe, const moetoken_options *options);
/* answers -> token_side */
void exchange_combine(struct moe *moe, const moetoken_options *options);
/* token_side (gradient) -> answers (the gradient replaces them in place) and dgates */
void exchange_combine_backward(struct moe *moe, const moetoken_options *options);
/* expert_side (gradient) -> token_side */
void exchange_dispatch_backward(struct moe *moe, const moetoken_options *options);

#endif
