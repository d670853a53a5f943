/* operators.h - the operators and the router as the tool sees them: names of commands and of
 * tensors in files. */
#ifndef MOETOKEN_CLI_OPERATORS_H
#define MOETOKEN_CLI_OPERATORS_H

#include <stdbool.h>

enum operator_kind {
    OPERATOR_UNPERMUTE_GRAD,
    OPERATOR_UNPERMUTE,
    OPERATOR_PERMUTE,
    OPERATOR_PERMUTE_GRAD,
    OPERATOR_ROUTER,
    OPERATOR_ROUTER_GRAD
};
#define OPERATORS_COUNT 6
/* Those that move rows: */
#define ROW_OPERATORS_CHOICES "unpermute-grad|unpermute|permute|permute-grad"
#define OPERATORS_CHOICES     ROW_OPERATORS_CHOICES "|router|router-grad"
#define OUTPUTS_MOST          6

static inline bool is_router(enum operator_kind kind)
{
    return kind == OPERATOR_ROUTER || kind == OPERATOR_ROUTER_GRAD;
}

struct operator_outputs {
    const char *name;                  /* the command, as in OPERATORS_CHOICES */
    const char *outputs[OUTPUTS_MOST]; /* names of the output tensors; NULL beyond the last */
};

extern const struct operator_outputs operator_outputs[OPERATORS_COUNT];

/* The operator of that command name; false when there is none. */
bool find_operator(const char *name, enum operator_kind *kind);

#endif
