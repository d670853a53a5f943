/* overlap.h - whether two tensors share memory. */
#ifndef MOETOKEN_OVERLAP_H
#define MOETOKEN_OVERLAP_H

#include "tensor.h"

/* MOETOKEN_ERR_STRIDE when elements of an output share memory with each other, MOETOKEN_ERR_OVERLAP
 * when an output shares a byte with an input or another output. Judged exactly where the elements
 * of at least one tensor's rows or columns lie side by side, or both have the same strides; for
 * anything stranger, rows that interleave count as shared. Views without data share nothing.
 * replaced: the input that outputs[0], of the same address, type, shape and strides, may replace;
 * or NULL. */
moetoken_status moetoken_overlap_check_all(const struct moetoken_view *const *outputs,
                                           int outputs_num,
                                           const struct moetoken_view *const *inputs,
                                           int inputs_num, const struct moetoken_view *replaced);

#endif
