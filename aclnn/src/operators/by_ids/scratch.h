/* scratch.h - the operator's own part of the workspace: rows made of sortedIndices, weights made of
 * probs that moetoken.h does not take beside the tokens' type. Phase one needs() what phase two
 * makes, in the same order. */
#ifndef ACLNN_BY_IDS_SCRATCH_H
#define ACLNN_BY_IDS_SCRATCH_H

#include "operators/executor.h"

/* `count` elements of `size` bytes; *next begins as executor->scratch. NULL while that is NULL. */
void *scratch_take(void **next, int64_t count, size_t size);

/* The rows that a call has of those in expert order: [begin, end), of which the permuted tensor
 * holds the first rows_num. */
struct row_window {
    int64_t begin, end, rows_num;
};

/* The operand `place`, sortedIndices, as moetoken.h takes it: the row in the permuted tensor of a
 * slot whose row is in the window, -1 for any other. A value below -1 is an error. The operand is
 * to be set aside; with check_only the tensor is the operand itself. */
aclnnStatus scratch_rows(const aclOpExecutor *executor, int place, const struct row_window *window,
                         bool check_only, void **next, DLTensor *rows);

/* Whether moetoken.h takes probs of that operand's type beside tokens of that one's; if not they
 * have to go through float32, which holds each value of both 16-bit types. */
bool scratch_probs_convert(const aclOpExecutor *executor, int probs, int tokens);

/* [T,K] probs as float32: with their values, or room for those that will be stored. With check_only
 * the operand's shape and strides. */
DLTensor scratch_probs(const aclOpExecutor *executor, int place, bool check_only, void **next);

/* Rounds float32 values to the operand's type, to nearest even. */
void scratch_store_probs(const aclOpExecutor *executor, int place, const DLTensor *values);

#endif
