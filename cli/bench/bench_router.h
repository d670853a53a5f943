/* bench_router.h - how fast the router is, beside the loop that one writes by hand.
 *
 * The router is arithmetic: the speed of memory is no measure of it. The plain loop computes the
 * same from the same logits - softmax with the C library's expf in float32, K passes for the
 * largest, a division - on as many threads; without groups, bias, checks, or defined ties. */
#ifndef MOETOKEN_CLI_BENCH_ROUTER_H
#define MOETOKEN_CLI_BENCH_ROUTER_H

#include <moetoken/moetoken.h>

#include "cases/operators.h"

struct bench_router_case {
    const char *name;
    const char *recipe;            /* NULL: softmax, divided by the sum */
    int64_t tokens, experts, topk; /* T, E, K; all above 0 */
    enum operator_kind kind;       /* router or router_grad */
};

void bench_router_begin(const moetoken_options *options, bool json);
/* Measures and prints a case; false after a message on standard error. */
bool bench_router_run(const struct bench_router_case *shape, const moetoken_options *options,
                      int rounds, bool json);
void bench_router_end(bool json);

#endif
