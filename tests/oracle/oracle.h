/* oracle.h - what the four operators must answer, straight from docs/contract.md, slow and plain.
 *
 * Shares no code with the library. Reads the inputs of an argument struct, writes no tensor, and
 * returns the expected bits of every output that was asked for. Inputs are expected to have
 * passed the checks of shape and type; faults in index values are found and told. */
#ifndef MOETOKEN_TESTS_ORACLE_H
#define MOETOKEN_TESTS_ORACLE_H

#include <moetoken/moetoken.h>

/* The bits of one output, row-major; bits NULL: the output was not asked for. */
struct expected {
    const char *name;
    const DLTensor *output;
    int64_t rows, columns;
    uint64_t *bits;
};

struct oracle {
    moetoken_status fault; /* MOETOKEN_OK, or the status that the index values deserve */
    struct expected outputs[4];
    int count;
    /* Dot products: the largest |documented order - exact| / (H * 2^-53 * sum |x*g|), which
     * docs/contract.md wants at most 1. Exact is a sum in twice binary64's precision. */
    double worst_dot_error;
};

struct oracle *oracle_unpermute_grad(const moetoken_unpermute_grad_args *args, uint32_t flags);
struct oracle *oracle_unpermute(const moetoken_unpermute_args *args, uint32_t flags);
struct oracle *oracle_permute(const moetoken_permute_args *args);
struct oracle *oracle_permute_grad(const moetoken_permute_grad_args *args, uint32_t flags);
void oracle_free(struct oracle *oracle);

/* Where an output first differs from what is expected, as a line for people ("" if nowhere):
 * output, row, column, both bit patterns. */
const char *oracle_difference(const struct oracle *oracle, char *line, size_t line_bytes);

#endif
