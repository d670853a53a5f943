/* oracle_router.h - recomputes what the router or its gradient wrote, in long double, and compares.
 *
 * The C library's expl and logl instead of the library's own functions, and selection by comparing
 * instead of the library's. Where the format of long double is wider than binary64 (x86-64,
 * AArch64) its error is far below the one that is allowed. */
#ifndef MOETOKEN_CLI_ORACLE_ROUTER_H
#define MOETOKEN_CLI_ORACLE_ROUTER_H

#include <moetoken/router.h>

#include "cases/router_options.h"
#include "oracle.h"

/* The inputs of one call. Tensors that it does not take are NULL. */
struct router_case {
    bool is_grad;
    moetoken_router_config config; /* zeros resolved */
    int64_t tokens, experts, topk; /* T, E, K */
    const DLTensor *logits, *bias, *token_mask, *expert_ids, *weights_grad, *probs_grad,
        *scores_grad;
    const DLTensor *output[OUTPUTS_MOST]; /* as found in OUT, NULL when missing */
};

/* The scores of `count` logits. */
void router_scores(int32_t score, const long double *logits, int64_t count, long double *scores);
/* The weights of the experts ids[0..topk); scores are those of all. */
void router_weights(const moetoken_router_config *config, const long double *logits,
                    const long double *scores, const int64_t *ids, int64_t topk,
                    long double *weights);
/* Divides by (the sum + eps). */
void router_normalize(long double *values, int64_t count, double eps);

/* Compares every output that `wanted` asks for with what OUT has; false after printing a line. */
bool oracle_router_verify(enum operator_kind kind, const struct router_options *options,
                          const struct case_files *inputs, const struct case_files *output,
                          const struct case_files *attributes, const bool wanted[OUTPUTS_MOST],
                          struct output_report reports[OUTPUTS_MOST]);

/* ---- between the files of the oracle --------------------------------------------------------- */

/* One token: all in long double, max(E, K) of each. */
struct router_token {
    const struct router_case *router;
    int64_t t;
    long double *logits, *scores, *tolerance; /* of scores: the error that binary64 may have */
    long double *choice, *choice_tolerance;   /* choice values */
    long double *grads, *magnitude;           /* of the gradient */
    long double *weights;                     /* [K] */
    long double *group, *group_tolerance;     /* [groups] */
    int64_t *ids, *own_ids;                   /* [K] as OUT has them, and as they should be */
    bool *taken;                              /* [E] */
};

/* CASE and OUT -> the checked inputs; false after printing a line. */
bool oracle_router_load(enum operator_kind kind, const struct router_options *options,
                        const struct case_files *inputs, const struct case_files *output,
                        const struct case_files *attributes, struct router_case *router);
/* Which outputs can be compared; what is wrong with the form of the others goes to their reports.
 */
void oracle_router_shapes(const struct router_case *router, const bool wanted[OUTPUTS_MOST],
                          struct output_report *reports, bool checked[OUTPUTS_MOST]);

bool router_token_allocate(struct router_token *token, const struct router_case *router);
void router_token_free(struct router_token *token);

/* Whether the experts ids[0..K) of the token are a right choice, and which are the oracle's own, in
 * own_ids. Experts whose values differ by less than the error that binary64 may have are right in
 * either order. */
bool router_choice_is_right(const struct router_token *token);
/* An element that may be any rounding of a number within `error` of `want`. */
void report_near(struct output_report *report, int64_t place, uint64_t got, long double want,
                 long double error);

#endif
