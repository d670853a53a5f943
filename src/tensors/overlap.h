/* overlap.h - whether two tensors share memory. */
#ifndef MOETOKEN_OVERLAP_H
#define MOETOKEN_OVERLAP_H

#include "tensors/tensor.h"

/* MOETOKEN_ERR_OVERLAP when two tensors share a byte. Judged exactly where the elements of at least
 * one tensor's rows or columns lie side by side, or both have the same strides; for anything
 * stranger, rows that interleave count as shared. Views without data share nothing. */
moetoken_status moetoken_overlap_check(const struct moetoken_view *one,
                                       const struct moetoken_view *other);

/* The same memory seen in the same way: address, type, shape and strides. */
bool moetoken_views_are_same(const struct moetoken_view *a, const struct moetoken_view *b);

#endif
