/* random.h - random test data from one seed, which is printed and can be given in the environment
 * variable MOETOKEN_TEST_SEED. Not for several threads. */
#ifndef MOETOKEN_TESTS_RANDOM_H
#define MOETOKEN_TESTS_RANDOM_H

#include <moetoken/moetoken.h>

/* Reads or makes the seed and prints it on standard error. Called first in every main. */
void random_start(const char *program);

/* Starts from a known seed without printing: for harnesses with an input of their own. */
void random_seed(uint64_t seed);

uint64_t random_bits(void);

/* Uniform in [0, bound), bound > 0. */
int64_t random_below(int64_t bound);

/* True in about percent of 100 calls. */
bool random_chance(int percent);

/* A floating number with a full mantissa, either sign, and a magnitude in about [2^-6, 2^6]. */
uint64_t random_number(moetoken_type type);

/* One of: NaN with payload, signalling NaN, infinities, zeros, subnormals, largest and smallest
 * normal numbers. */
uint64_t random_special(moetoken_type type);

/* values[0..count) = 0..count-1 in random order. */
void random_permutation(int64_t *values, int64_t count);

#endif
