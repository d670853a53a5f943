/* oracle.h - what the gating operators are to compute, in long double and by plain definitions; and
 * the comparison with numbers that were rounded once. */
#ifndef TESTS_ACLNN_GATING_ORACLE_H
#define TESTS_ACLNN_GATING_ORACLE_H

#include "support.h"

enum gate_norm {
    GATE_SOFTMAX,
    GATE_SIGMOID,
    GATE_SQRTSOFTPLUS
};

enum {
    GATE_EXPERTS_MAX = 16
};

struct gate_problem {
    int64_t experts, topk, groups, groups_top;
    enum gate_norm norm;
    bool best_two; /* a group's value: the sum of its two best; else its best */
    bool divide;   /* the weights by their sum + eps */
    bool softmax_after;
    double factor, eps;
};

/* One token: logits and, or NULL, bias [experts]. */
void gate_scores(const struct gate_problem *problem, const double *logits, long double *scores);
void gate_choose(const struct gate_problem *problem, const double *logits, const double *bias,
                 int64_t *chosen);
void gate_weights(const struct gate_problem *problem, const double *logits, const int64_t *chosen,
                  long double *weights);

/* Fails unless `found` is `exact` rounded once to the type: off by half a unit in the last place at
 * most, and by what binary64 itself may be off. */
void expect_rounded(aclDataType type, double found, long double exact, const char *what,
                    int64_t place);

#endif
