/* grad_case.h - a complete random call of moetoken_unpermute_grad: tensors in guarded memory, the
 * argument struct, and one function that runs it and holds every output to the oracle. */
#ifndef MOETOKEN_TESTS_GRAD_CASE_H
#define MOETOKEN_TESTS_GRAD_CASE_H

#include "routing.h"
#include "tensors.h"

struct grad_spec {
    struct routing_spec routing;
    int64_t hidden;
    moetoken_type token_type, probs_type, index_type, map_type;
    bool without_probs;
    bool null_token_id;
    bool in_place;
    bool without_tokens_grad, without_probs_grad;
    bool random_layouts;
    int special_percent; /* of elements that are NaN, Inf, zero or subnormal */
};

struct grad_case {
    struct grad_spec spec;
    struct routing routing;
    struct test_tensor grad, out_index, token_id, map, rows, probs, rows_grad, probs_grad;
    int64_t restore_shape[2];
    moetoken_unpermute_grad_args args;
};

/* float32 everywhere, int32, uint8 map; T=7, H=19, E=5, three slots a token or expert. */
struct grad_spec grad_spec_default(bool padded);

void grad_case_make(struct grad_case *grad, const struct grad_spec *spec);
void grad_case_free(struct grad_case *grad);

/* Fills the outputs with NaN, calls, and fails the running test unless the call succeeds, every
 * output has the oracle's bits, and nothing else has changed. */
void grad_case_check(struct grad_case *grad, const moetoken_options *options);

/* Calls and fails unless the status is `status`, the message holds every one of the up to three
 * texts (NULL: not looked for), and no byte of any tensor has changed. */
void grad_case_refused(struct grad_case *grad, const moetoken_options *options,
                       moetoken_status status, const char *text, const char *second,
                       const char *third);

#endif
