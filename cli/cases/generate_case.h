/* generate_case.h - cases with the routing of a real layer, the same bytes for the same seed.
 *
 * settings -> plan (routing map, slots, list of tensors) -> fill, tensor by tensor, into memory
 * that the caller owns: a file that is being written (generate) or buffers (bench).
 *
 * The routing model. Expert popularity follows a power law: the expert of popularity rank k (0 is
 * the most popular; which expert has which rank is drawn from the seed) has weight (k + 1)^-skew.
 * Each token holds a race: expert e needs the time u / weight(e), u uniform in (0, 1] and drawn for
 * every pair; the K fastest experts are set in routing_map. That is close to drawing K experts
 * without replacement with probabilities proportional to the weights. probs[t,e] is 1 / time
 * divided by the token's sum over all experts: positive, peaked like a softmax, not zero for unset
 * pairs. By expert ids a token's experts stand in the order in which they
 * win, weights[t,k] is the share of expert_ids[t,k], and an unused slot (-1) has the weight 0.5,
 * which nothing may use.
 *
 * A router's case has logits [T,E], bell-shaped, of probs_type; a bias [E] of at most 1/16 where
 * the recipe works with one; with holes a token_mask [T] that leaves out one token in 16; and, if H
 * is not 0, tokens [T,H] to go on with. router_grad's experts are drawn as above. */
#ifndef MOETOKEN_CLI_GENERATE_CASE_H
#define MOETOKEN_CLI_GENERATE_CASE_H

#include <stdbool.h>
#include <stdint.h>

#include "io/tensor_file.h"
#include "operators.h"
#include "terminal/progress.h"

struct case_settings {
    enum operator_kind operator_kind;
    int64_t tokens, hidden, experts;
    int64_t topk;       /* K */
    int64_t capacity;   /* C, padded; 0: ceil(T * K / E), at most T */
    int64_t spare_rows; /* dropless: rows that no slot names, as far as R <= N allows */
    int64_t extremes;   /* see random_fill */
    int64_t skew_64ths; /* 64 * skew */
    uint64_t seed;
    bool drop_and_pad;
    bool by_ids; /* dropless: expert_ids and weights [T,K] instead of routing_map and probs [T,E] */
    bool without_probs;
    bool holes;             /* 0..K experts a token; dropless: one slot in 16 is dropped (-1) too */
    bool shuffle;           /* rows and slots in random order */
    bool random_fill_slots; /* padded: fill slots take any token, repeated pairs included */
    moetoken_type token_type, probs_type, index_type, map_type;
    const char *recipe; /* router: the name of its settings, or NULL */
};

#define CASE_TENSORS_MOST  6
#define CASE_METADATA_MOST 8

struct generated_case {
    struct case_settings settings; /* with the capacity that was chosen */
    int64_t slots, rows;           /* N, R */
    struct tensor_spec specs[CASE_TENSORS_MOST];
    size_t count;
    const char *metadata[2 * CASE_METADATA_MOST + 3]; /* NULL-terminated pairs */
    char metadata_text[CASE_METADATA_MOST][48];

    double *slowness; /* [E] 1 / weight of each expert */
    uint8_t *map;     /* [T,E] */
    int64_t *row;     /* [N] out_index */
    int64_t *token;   /* [N] permute_token_id */
    int64_t *by_row;  /* [N] padded: the token of each row */
    int64_t *expert;  /* [N] by ids: the expert of each slot, best first in its token, or -1 */
};

/* Routing, sizes and the list of tensors. false, and the reason in `error`, when the settings are
 * impossible or memory is short; then nothing needs to be freed. */
bool plan_case(struct generated_case *plan, const struct case_settings *settings, char *error,
               size_t error_size);
/* The contents of specs[i]; `tensor` is contiguous and has the spec's shape and type. */
void fill_case_tensor(const struct generated_case *plan, size_t i, DLTensor *tensor,
                      struct progress *progress);
/* The bytes of all tensors. */
int64_t case_bytes(const struct generated_case *plan);
void free_case(struct generated_case *plan);

#endif
