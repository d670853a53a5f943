/* interface_verbs.h - every function of the C interface that takes tensors, as fuzz_interface.c
 * calls it: its tensors, their sizes and kinds, and its numbers. A new function is an entry of
 * `verbs` and a line in the union. */
#ifndef MOETOKEN_FUZZ_INTERFACE_VERBS_H
#define MOETOKEN_FUZZ_INTERFACE_VERBS_H

#include <moetoken/moetoken.h>
#include <moetoken/router.h>

#include <stddef.h>
#include <stdint.h>

#define FIELDS_MOST 13

enum kind {
    TOKENS,
    WEIGHTS,
    INDEX,
    MAP,
    COUNTS
};

/* A tensor of an argument struct: where, its sizes as letters, and what it holds. */
struct field {
    size_t offset;
    const char *sizes;
    enum kind kind;
    bool output, by_map, by_ids; /* belongs to one spelling alone */
};

struct verb {
    moetoken_status (*run)(const void *args, const moetoken_options *options);
    moetoken_status (*check)(const void *args, const moetoken_options *options);
    size_t args_size;
    int count;
    struct field fields[FIELDS_MOST];
};

#define VERB(name)                                                                                 \
    static moetoken_status run_##name(const void *args, const moetoken_options *options)           \
    {                                                                                              \
        return moetoken_##name(args, options);                                                     \
    }                                                                                              \
    static moetoken_status check_##name(const void *args, const moetoken_options *options)         \
    {                                                                                              \
        return moetoken_##name##_check(args, options);                                             \
    }
VERB(permute)
VERB(permute_grad)
VERB(unpermute)
VERB(unpermute_grad)
VERB(router)
VERB(router_grad)
VERB(router_balance_loss)
VERB(router_z_loss)
VERB(router_update_bias)
VERB(router_drop)

#define P(field)  offsetof(moetoken_permute_args, field)
#define PG(field) offsetof(moetoken_permute_grad_args, field)
#define U(field)  offsetof(moetoken_unpermute_args, field)
#define UG(field) offsetof(moetoken_unpermute_grad_args, field)

#define R(field)  offsetof(moetoken_router_args, field)
#define RG(field) offsetof(moetoken_router_grad_args, field)
#define BL(field) offsetof(moetoken_router_balance_loss_args, field)
#define ZL(field) offsetof(moetoken_router_z_loss_args, field)
#define UB(field) offsetof(moetoken_router_update_bias_args, field)
#define D(field)  offsetof(moetoken_router_drop_args, field)

enum verb_number {
    PERMUTE,
    PERMUTE_GRAD,
    UNPERMUTE,
    UNPERMUTE_GRAD,
    ROUTER, /* from here on there is one spelling of a routing */
    ROUTER_GRAD,
    BALANCE_LOSS,
    Z_LOSS,
    UPDATE_BIAS,
    DROP,
    VERBS
};

static const struct verb verbs[VERBS] = {
    {run_permute,
     check_permute,
     sizeof(moetoken_permute_args),
     10,
     {{P(tokens), "TH", TOKENS, false, false, false},
      {P(routing_map), "TE", MAP, false, true, false},
      {P(probs), "TE", WEIGHTS, false, true, false},
      {P(expert_ids), "TK", INDEX, false, false, true},
      {P(weights), "TK", WEIGHTS, false, false, true},
      {P(permuted_tokens), "RH", TOKENS, true, false, false},
      {P(permuted_probs), "R", WEIGHTS, true, false, false},
      {P(sorted_indices), "N", INDEX, true, false, false},
      {P(source_slots), "R", INDEX, true, false, true},
      {P(rows_per_expert), "L", COUNTS, true, false, true}}},
    {run_permute_grad,
     check_permute_grad,
     sizeof(moetoken_permute_grad_args),
     7,
     {{PG(permuted_tokens_grad), "RH", TOKENS, false, false, false},
      {PG(permuted_probs_grad), "R", WEIGHTS, false, false, false},
      {PG(sorted_indices), "N", INDEX, false, false, false},
      {PG(routing_map), "TE", MAP, false, true, false},
      {PG(tokens_grad), "TH", TOKENS, true, false, false},
      {PG(probs_grad), "TE", WEIGHTS, true, true, false},
      {PG(weights_grad), "TK", WEIGHTS, true, false, true}}},
    {run_unpermute,
     check_unpermute,
     sizeof(moetoken_unpermute_args),
     13,
     {{U(permuted_tokens), "RH", TOKENS, false, false, false},
      {U(sorted_indices), "N", INDEX, false, false, false},
      {U(routing_map), "TE", MAP, false, true, false},
      {U(probs), "TE", WEIGHTS, false, true, false},
      {U(unpermuted_tokens), "TH", TOKENS, true, false, false},
      {U(out_index), "N", INDEX, true, false, false},
      {U(permute_token_id), "N", INDEX, true, false, false},
      {U(permuted_probs), "N", WEIGHTS, true, false, false},
      {U(weights), "TK", WEIGHTS, false, false, true},
      {U(residual), "TH", TOKENS, false, false, false},
      {U(residual2), "TH", TOKENS, false, false, false},
      {U(expert_bias), "EH", TOKENS, false, false, true},
      {U(expert_ids), "TK", INDEX, false, false, true}}},
    {run_unpermute_grad,
     check_unpermute_grad,
     sizeof(moetoken_unpermute_grad_args),
     12,
     {{UG(unpermuted_tokens_grad), "TH", TOKENS, false, false, false},
      {UG(out_index), "N", INDEX, false, false, false},
      {UG(permute_token_id), "N", INDEX, false, true, false},
      {UG(routing_map), "TE", MAP, false, true, false},
      {UG(permuted_tokens), "RH", TOKENS, false, false, false},
      {UG(probs), "TE", WEIGHTS, false, true, false},
      {UG(permuted_tokens_grad), "RH", TOKENS, true, false, false},
      {UG(probs_grad), "TE", WEIGHTS, true, true, false},
      {UG(weights), "TK", WEIGHTS, false, false, true},
      {UG(expert_bias), "EH", TOKENS, false, false, true},
      {UG(expert_ids), "TK", INDEX, false, false, true},
      {UG(weights_grad), "TK", WEIGHTS, true, false, true}}},
    {run_router,
     check_router,
     sizeof(moetoken_router_args),
     9,
     {{R(logits), "TE", TOKENS, false, false, false},
      {R(bias), "E", WEIGHTS, false, false, false},
      {R(token_mask), "T", MAP, false, false, false},
      {R(expert_ids), "TK", INDEX, true, false, false},
      {R(weights), "TK", WEIGHTS, true, false, false},
      {R(routing_map), "TE", MAP, true, false, false},
      {R(probs), "TE", WEIGHTS, true, false, false},
      {R(scores), "TE", WEIGHTS, true, false, false},
      {R(rows_per_expert), "E", COUNTS, true, false, false}}},
    {run_router_grad,
     check_router_grad,
     sizeof(moetoken_router_grad_args),
     7,
     {{RG(logits), "TE", TOKENS, false, false, false},
      {RG(token_mask), "T", MAP, false, false, false},
      {RG(expert_ids), "TK", INDEX, false, false, false},
      {RG(weights_grad), "TK", WEIGHTS, false, false, false},
      {RG(probs_grad), "TE", WEIGHTS, false, false, false},
      {RG(scores_grad), "TE", WEIGHTS, false, false, false},
      {RG(logits_grad), "TE", TOKENS, true, false, false}}},
    {run_router_balance_loss,
     check_router_balance_loss,
     sizeof(moetoken_router_balance_loss_args),
     5,
     {{BL(scores), "TE", TOKENS, false, false, false},
      {BL(rows_per_expert), "E", COUNTS, false, false, false},
      {BL(loss_grad), "O", WEIGHTS, false, false, false},
      {BL(loss), "O", WEIGHTS, true, false, false},
      {BL(scores_grad), "TE", TOKENS, true, false, false}}},
    {run_router_z_loss,
     check_router_z_loss,
     sizeof(moetoken_router_z_loss_args),
     5,
     {{ZL(logits), "TE", TOKENS, false, false, false},
      {ZL(token_mask), "T", MAP, false, false, false},
      {ZL(loss_grad), "O", WEIGHTS, false, false, false},
      {ZL(loss), "O", WEIGHTS, true, false, false},
      {ZL(logits_grad), "TE", TOKENS, true, false, false}}},
    {run_router_update_bias,
     check_router_update_bias,
     sizeof(moetoken_router_update_bias_args),
     3,
     {{UB(bias), "E", TOKENS, false, false, false},
      {UB(rows_per_expert), "E", COUNTS, false, false, false},
      {UB(updated_bias), "E", TOKENS, true, false, false}}},
    {run_router_drop,
     check_router_drop,
     sizeof(moetoken_router_drop_args),
     5,
     {{D(expert_ids), "TK", INDEX, false, false, false},
      {D(weights), "TK", WEIGHTS, false, false, false},
      {D(kept_ids), "TK", INDEX, true, false, false},
      {D(kept_weights), "TK", WEIGHTS, true, false, false},
      {D(rows_per_expert), "E", COUNTS, true, false, false}}},
};

union verb_args {
    size_t struct_size;
    moetoken_permute_args permute;
    moetoken_permute_grad_args permute_grad;
    moetoken_unpermute_args unpermute;
    moetoken_unpermute_grad_args unpermute_grad;
    moetoken_router_args router;
    moetoken_router_grad_args router_grad;
    moetoken_router_balance_loss_args balance_loss;
    moetoken_router_z_loss_args z_loss;
    moetoken_router_update_bias_args update_bias;
    moetoken_router_drop_args drop;
};

#endif
