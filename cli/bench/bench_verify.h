/* bench_verify.h - whether the call that bench measures computes the right thing: rows of
 * unpermute_grad's outputs against the tool's own oracle, which shares no code with the library.
 *
 * A case with fresh inputs -> verification_begin (what must come out) -> one call of the operator
 * -> verification_compare. The expected values are computed before the call, because in place it
 * destroys an input. */
#ifndef MOETOKEN_CLI_BENCH_VERIFY_H
#define MOETOKEN_CLI_BENCH_VERIFY_H

#include "bench_case.h"
#include "oracle/oracle.h"
#include "oracle/oracle_sums.h"

#define VERIFY_ROWS 1000

/* The rows to look at, ascending: the first, the last, those where an offset in elements or in
 * bytes passes 2^31 or 2^32, with their neighbours, and `wanted` (more than 0) others, spread
 * evenly at random. All rows when there are not more. Returns how many; `sample` has room for
 * sample_rows_most(wanted). */
int64_t sample_rows_most(int64_t wanted);
int64_t sample_rows(int64_t rows, int64_t hidden, size_t element_size, int64_t wanted, uint64_t key,
                    int64_t *sample);

struct verification {
    struct oracle_case oracle;
    struct oracle_slots slots;
    int64_t *sample;           /* [count] row numbers */
    struct accurate_sum *sums; /* [count] probs_grad of the row's pair, before rounding */
    int64_t count;
    char error[TENSOR_FILE_ERROR_SIZE];
};

/* Fills the outputs that have a buffer of their own with NaN, so that what is not written is seen.
 * false with the reason in verification->error: the indices are wrong, or memory is short. Free in
 * any case. */
bool verification_begin(struct verification *verification, const struct bench_case *bench,
                        int64_t wanted);
/* The sampled rows of permuted_tokens_grad (reports[0]) and, with probs, the probs_grad of their
 * pairs and every entry that no slot reaches (reports[1]). false: no memory. */
bool verification_compare(struct verification *verification, const struct bench_case *bench,
                          struct output_report reports[OUTPUTS_MOST]);
/* What is wrong, for a report that has something wrong: the first place, got and expected, and how
 * many. */
void verification_describe(const struct output_report *report, char *text, size_t size);
void verification_free(struct verification *verification);

/* What a case's first call shows besides its outputs. */
struct first_call {
    int64_t rows, elements; /* verified */
    double worst_ulp;
    int64_t grown_bytes; /* memory that the process held during the call, over what it held before;
                            -1: not known */
};

/* One call of the operator, on inputs that no call has seen yet; verified on `wanted` rows, if that
 * is not 0. false with a message in `error`: refused, or wrong results. */
bool bench_first_call(const struct bench_case *bench, int64_t wanted, struct first_call *first,
                      char *error, size_t error_size);

#endif
