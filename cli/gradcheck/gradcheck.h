/* gradcheck.h - gradients against central differences of the forward operator, in float64.
 *
 * A problem (routing and values in memory) -> for each gradient the worst relative error. The loss
 * is a random projection of the forward operator's outputs; as it is linear in each input on its
 * own, a difference with a step of the size of the values is exact but for rounding. */
#ifndef MOETOKEN_CLI_GRADCHECK_H
#define MOETOKEN_CLI_GRADCHECK_H

#include <moetoken/moetoken.h>
#include <stdbool.h>
#include <stdint.h>

#include "cases/case_files.h"
#include "cases/generate_case.h"

/* One routing with float64 values. Arrays belong to the problem. */
struct gradient_problem {
    int64_t tokens, hidden, experts, slots, rows; /* T, H, E, N, R */
    bool drop_and_pad, with_probs;
    uint32_t flags;  /* MOETOKEN_MASK_FILL_SLOTS, MOETOKEN_TOLERATE_ROUTING_MISMATCH */
    double *x;       /* [R,H] permuted tokens */
    double *token;   /* [T,H] */
    double *probs;   /* [T,E] */
    uint8_t *map;    /* [T,E] */
    int64_t *sorted; /* [N] sorted_indices */

    /* By expert ids: probs is then weights [T,K], K = N / T, and map is not used. */
    bool by_ids, with_residuals, with_bias;
    int64_t expert_begin, expert_end, capacity;
    int64_t *ids;                        /* [T,K] */
    double *residual, *residual2, *bias; /* [T,H], [T,H], [E,H] */
    uint64_t seed;
    int64_t samples; /* elements of each input to look at; 0: all */
};

struct gradient_result {
    const char *operator_name, *gradient;
    int64_t checked;
    double worst; /* |difference - gradient| / max(both, a thousandth of the largest gradient) */
};
#define GRADIENT_RESULTS 4 /* of each operator: for tokens, for probs, for two residuals */

/* Fill results[0..*count). false with a reason in `error`. */
bool check_unpermute_gradients(struct gradient_problem *problem, struct gradient_result *results,
                               int *count, char *error);
bool check_permute_gradients(struct gradient_problem *problem, struct gradient_result *results,
                             int *count, char *error);

/* The built-in modes: what is special about a routing and its weights. */
struct gradient_mode {
    const char *name;
    bool drop_and_pad, without_probs, holes, random_fill;
    bool empty;          /* experts without tokens, tokens without experts */
    bool odd_probs;      /* a third 0, a third negative */
    bool mismatch;       /* slots without an expert and experts without a slot, tolerated */
    bool mask;           /* mask_fill_slots */
    bool unpermute_only; /* a routing that permute does not make */
    bool by_ids;         /* expert ids, some of them twice in a token */
    bool extras;         /* residuals and biases */
    bool range, capacity;
};
extern const struct gradient_mode gradient_modes[];
extern const int gradient_modes_count;

/* A problem of that mode and shape; false with a reason. Free it in any case. */
bool make_mode_problem(const struct gradient_mode *mode, const struct case_settings *shape,
                       struct gradient_problem *problem, char *error);
/* The problem that a case on file states; false after printing a line. */
bool load_problem(const struct case_files *files, uint64_t seed, struct gradient_problem *problem);
void free_problem(struct gradient_problem *problem);
/* The elements of probs: [T,E], or [T,K] by expert ids. */
int64_t problem_weights(const struct gradient_problem *problem);
/* Ids, rows and values of a mode by expert ids; false with a reason. */
bool fill_problem_by_ids(const struct gradient_mode *mode, const struct case_settings *shape,
                         struct gradient_problem *problem, char *error);
/* Memory for all arrays; sizes are set. */
bool allocate_problem(struct gradient_problem *problem, char *error);

#endif
