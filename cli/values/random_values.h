/* random_values.h - counter-based random numbers: element i of a stream is a function of (seed,
 * stream, i) alone, so that any number of threads writes the same bytes on every machine.
 *
 * Integers, and the operations that IEEE 754 rounds correctly (+ * / sqrt), nothing else: no
 * function of libm whose last bit may differ. */
#ifndef MOETOKEN_CLI_RANDOM_VALUES_H
#define MOETOKEN_CLI_RANDOM_VALUES_H

#include <moetoken/moetoken.h>
#include <stdint.h>

#include "terminal/progress.h"

/* The key of a stream: one a tensor or purpose. */
uint64_t random_key(uint64_t seed, uint64_t stream);
/* 64 random bits for place i of the stream. */
uint64_t random_bits(uint64_t key, uint64_t i);
/* In (0, 1]: a multiple of 2^-53. */
double random_unit(uint64_t key, uint64_t i);
/* A random order of `count` numbers: exchanges the elements of `values`. */
void random_shuffle(uint64_t key, int64_t count, int64_t *values);

/* Fills a contiguous floating-point tensor with bell-shaped values of both signs: the sum of four
 * uniform numbers, standard deviation 1.15, every bit of the mantissa in use. Of `extremes`
 * elements one (0: none) is instead subnormal, tiny, huge or zero, a quarter each. */
void random_fill(DLTensor *tensor, moetoken_type type, uint64_t key, int64_t extremes,
                 struct progress *progress);

#endif
