/* bench_row_copy.h - "row copy": the rows of a call, read and written in the operator's own order
 * and without its arithmetic. Beside the ceiling, which goes through memory in order, it tells what
 * the order of the rows costs from what the arithmetic costs.
 *
 * unpermute_grad with probs: each row of permuted_tokens to its gradient's row, after a look at the
 * token's row; without probs, and permute: the token's row to each of its rows. unpermute and
 * permute_grad: the token's first row to the sum's, the others are read, all a piece at a time. */
#ifndef MOETOKEN_CLI_BENCH_ROW_COPY_H
#define MOETOKEN_CLI_BENCH_ROW_COPY_H

#include "bench_case.h"

struct row_copy {
    enum operator_kind operator_kind;
    bool from_rows; /* unpermute_grad with probs: rows are copied to rows */
    int64_t tokens;
    size_t row_bytes;
    int64_t *start;          /* [tokens + 1] the slots of token t are */
    int64_t *row;            /* row[start[t]] .. row[start[t + 1] - 1], unused ones left out */
    const char *token_side;  /* [T,H], read by unpermute_grad and permute */
    const char *expert_side; /* [R,H], read where from_rows, and by the sums */
    char *out;
};

/* From the index tensors of a case whose operator has run. false without memory. */
bool row_copy_make(struct row_copy *copy, const struct bench_case *bench);
void row_copy_free(struct row_copy *copy);

/* Once through all tokens, shared out among the threads. */
void row_copy_run(const struct row_copy *copy, int threads, enum ceiling_stores stores);

#endif
