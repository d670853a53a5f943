/* ids_case.h - random routings by expert ids, what contract.md section 8 says of them, worked out
 * slot by slot, and the tensors of a layer around them. */
#ifndef MOETOKEN_TESTS_IDS_CASE_H
#define MOETOKEN_TESTS_IDS_CASE_H

#include "tensors.h"

struct ids_spec {
    int64_t tokens, slots_per_token, experts, hidden;
    int64_t begin, end, capacity;
    int64_t rows; /* -1: as many as there are slots to fill; ignored with a capacity */
    int unused_percent;
    bool repeat_experts; /* a token may name one expert twice */
    bool skewed;         /* half of all slots go to one expert */
    moetoken_type token_type, weights_type, index_type;
};

struct ids_case {
    struct ids_spec spec;
    int64_t slots, rows;                            /* N, R */
    int64_t *id;                                    /* [N] */
    int64_t *row, *slot_of_row, *count;             /* expected: [N], [R], [E'] */
    struct test_tensor tokens, expert_ids, weights; /* in  [T,H], [T,K], [T,K] */
    struct test_tensor residual, residual2, bias;   /* in  [T,H], [T,H], [E,H] */
    struct test_tensor expert_rows, grad, row_grad; /* in  [R,H], [T,H], [R] */
    struct test_tensor sorted;                      /* in  [N] what permute is to write */
};

/* Sizes of 1 to about 40, every mode, types that go together. */
struct ids_spec ids_spec_random(void);

void ids_case_make(struct ids_case *ids, const struct ids_spec *spec);
void ids_case_free(struct ids_case *ids);

/* An output of the case's types, full of NaN (-1 for indices), in a layout of its own. */
void ids_output(struct test_tensor *tensor, moetoken_type type, int ndim, int64_t rows,
                int64_t columns);

/* The bits that the operators must give. */
uint64_t ids_expect_combined(const struct ids_case *ids, int64_t token, int64_t h, bool weighted,
                             int residuals, bool biased);
uint64_t ids_expect_tokens_grad(const struct ids_case *ids, int64_t token, int64_t h);
uint64_t ids_expect_scaled(const struct ids_case *ids, int64_t row, int64_t h, bool weighted);
uint64_t ids_expect_weight_grad(const struct ids_case *ids, int64_t slot, bool biased);

#endif
