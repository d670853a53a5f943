/* gradcheck_router.h - the router's gradient against central differences of its outputs.
 *
 * The differences are those of the oracle's own router in long double, at the choice that the
 * library made: no line of the library is in them. */
#ifndef MOETOKEN_CLI_GRADCHECK_ROUTER_H
#define MOETOKEN_CLI_GRADCHECK_ROUTER_H

#include "cases/router_options.h"
#include "gradcheck.h"

/* Settings and values of one call, as float64; arrays belong to it. */
struct router_problem {
    moetoken_router_config config;
    int64_t tokens, experts, topk;                   /* T, E, K */
    double *logits, *bias;                           /* [T,E], [E] or NULL */
    double *weights_grad, *probs_grad, *scores_grad; /* [T,K], [T,E], [T,E], or NULL */
    double *logits_grad;                             /* [T,E] */
    uint8_t *mask;                                   /* [T] or NULL */
    int64_t *ids;                                    /* [T,K] */
    bool has_ids;                                    /* else the library chooses */
    uint64_t seed;
    int64_t samples; /* logits to look at; 0: all */
};

struct router_mode {
    const char *name;
    moetoken_router_config config; /* topk is the shape's */
    bool groups, bias, mask, by_map, weights, scores;
};
extern const struct router_mode router_modes[];
extern const int router_modes_count;

/* A problem of that mode and shape; false with a reason. Free it in any case. */
bool make_router_problem(const struct router_mode *mode, const struct case_settings *shape,
                         struct router_problem *problem, char *error);
/* The problem that a case with logits states; false after printing a line. */
bool load_router_problem(const struct case_files *files, uint64_t seed,
                         struct router_problem *problem);
void free_router_problem(struct router_problem *problem);

bool check_router_gradient(struct router_problem *problem, struct gradient_result *result,
                           char *error);

#endif
