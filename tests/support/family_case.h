/* family_case.h - complete random calls of moetoken_unpermute, moetoken_permute and
 * moetoken_permute_grad, each run and held to the oracle. One struct serves the three: a slot
 * of tensors is what the operator at hand makes of it. */
#ifndef MOETOKEN_TESTS_FAMILY_CASE_H
#define MOETOKEN_TESTS_FAMILY_CASE_H

#include "routing.h"
#include "tensors.h"

enum family_verb {
    FAMILY_UNPERMUTE,
    FAMILY_PERMUTE,
    FAMILY_PERMUTE_GRAD
};

struct family_spec {
    enum family_verb verb;
    struct routing_spec routing;
    int64_t hidden;
    moetoken_type token_type, probs_type, index_type, map_type;
    bool without_probs;
    unsigned absent; /* bit i: output i is not asked for */
    bool random_layouts;
    int special_percent;
};

#define FAMILY_TENSORS 8

struct family_case {
    struct family_spec spec;
    struct routing routing;
    /* inputs: token_rows [T,H] or [R,H], probs [T,E] or [R], indices [N], map [T,E];
     * outputs in the order of the argument struct */
    struct test_tensor token_rows, probs, indices, map, outputs[4];
    int output_count;
    int64_t restore_shape[2];
    moetoken_unpermute_args unpermute;
    moetoken_permute_args permute;
    moetoken_permute_grad_args permute_grad;
};

struct family_spec family_spec_default(enum family_verb verb, bool padded);
void family_case_make(struct family_case *family, const struct family_spec *spec);
void family_case_free(struct family_case *family);
moetoken_status family_case_call(struct family_case *family, const moetoken_options *options);

/* Like grad_case_check and grad_case_refused. */
void family_case_check(struct family_case *family, const moetoken_options *options);
void family_case_refused(struct family_case *family, const moetoken_options *options,
                         moetoken_status status, const char *text, const char *second,
                         const char *third);

#endif
