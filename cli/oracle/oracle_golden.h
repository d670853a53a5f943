/* oracle_golden.h - what an output should hold: the golden result in binary64, and a benchmark, the
 * same computed as devices do, which stands for the third party of a standard.
 *
 * The golden result has one rounding at its end, whatever the operator's own arithmetic is. The
 * benchmark takes float32 for all types but float64: products rounded, sums one slot after another,
 * dot products in 64 lanes that are added up in halves; one rounding to the output's type. */
#ifndef MOETOKEN_CLI_ORACLE_GOLDEN_H
#define MOETOKEN_CLI_ORACLE_GOLDEN_H

#include "oracle.h"

struct golden_output {
    const char *name;
    bool written;      /* the operator writes it in this case */
    char problem[256]; /* why OUT's tensor is none that could be right, or "" */
    int64_t shape[2];
    DLTensor golden, benchmark; /* float64, or int64; the output's type */
};

/* Computes output i. false with a reason in oracle->error when there is no memory. */
bool golden_output_make(const struct oracle_case *oracle, const struct oracle_slots *slots, int i,
                        struct golden_output *output);
void golden_output_free(struct golden_output *output);

/* Which token, slot, expert and row an element of output i belongs to: "token 3, slot 7, expert 2,
 * row 5". */
void golden_describe_place(const struct oracle_case *oracle, const struct oracle_slots *slots,
                           int i, int64_t element, char *text, size_t size);

#endif
