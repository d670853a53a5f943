/* ranks_case.h - a layer's tensors for all ranks together, and what the core library makes of them
 * in one process: what each rank must get of it. Every rank makes the same case from the same seed.
 */
#ifndef MOETOKEN_TESTS_RANKS_CASE_H
#define MOETOKEN_TESTS_RANKS_CASE_H

#include "support/random.h"
#include "support/tensors.h"

#include <moetoken/mpi.h>

struct ranks_spec {
    int ranks;
    int64_t slots_per_token, own_experts, hidden; /* K, E', H */
    int64_t most_tokens;                          /* of a rank; each has 0 to this many */
    int unused_percent;
    int empty_rank;  /* has no tokens; -1: none chosen */
    bool one_expert; /* every slot goes to the last expert */
    bool repeat;     /* a token may name one expert twice */
    moetoken_type token_type, weights_type, index_type;
};

/* Whole tensors, of all ranks' tokens one after another. */
struct ranks_case {
    struct ranks_spec spec;
    int64_t experts, tokens, rows;
    int64_t token_begin[17], row_begin[17]; /* by rank */
    int64_t *per_expert;                    /* [E] */
    struct test_tensor ids, weights, x, residual, residual2, sorted;
    struct test_tensor rows_x, rows_weights;                  /* dispatch */
    struct test_tensor answers, y_plain, y_weighted, y_added; /* combine */
    struct test_tensor g, rows_grad, rows_grad_plain, weights_grad;
    struct test_tensor row_weights_grad, tokens_grad, home_weights_grad; /* dispatch_grad */
};

struct ranks_spec ranks_spec_random(int ranks);
void ranks_case_make(struct ranks_case *all, const struct ranks_spec *spec);
void ranks_case_free(struct ranks_case *all);

/* Rows [begin, end) of a whole tensor as a tensor of a random layout. */
void ranks_part(struct test_tensor *part, const struct test_tensor *whole, int64_t begin,
                int64_t end);

/* The same shape and type, full of NaN, in a layout of its own. */
void ranks_output(struct test_tensor *part, const struct test_tensor *whole, int64_t begin,
                  int64_t end);

/* Ends all ranks unless the part holds the bits of the whole's rows from `begin` on, and nothing
 * outside its elements was written. */
void ranks_expect(const char *what, const struct test_tensor *part, const struct test_tensor *whole,
                  int64_t begin);

/* Ends all ranks, with a message, unless the condition holds. */
void ranks_require(bool condition, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
