/* numbers.h - the tests' own number formats: bits <-> binary64, done with integers.
 *
 * Shares nothing with the library: a wrong conversion there must not be able to hide here. */
#ifndef MOETOKEN_TESTS_NUMBERS_H
#define MOETOKEN_TESTS_NUMBERS_H

#include <moetoken/moetoken.h>

/* Bytes of an element. */
size_t number_size(moetoken_type type);

/* The value of an element's bits, exact for every type but large int64. */
double number_decode(uint64_t bits, moetoken_type type);

/* The bits of a value rounded once to the type: to nearest even, overflow to infinity, NaN to the
 * positive quiet NaN without payload. Integer types take whole numbers. */
uint64_t number_encode(double value, moetoken_type type);

/* A value as it comes back from number_encode. */
double number_round(double value, moetoken_type type);

/* Elements in memory, at any alignment. */
uint64_t number_load_bits(const void *at, moetoken_type type);
void number_store_bits(void *at, moetoken_type type, uint64_t bits);
double number_load(const void *at, moetoken_type type);
void number_store(void *at, moetoken_type type, double value);

/* Bit patterns of a floating type. */
bool number_is_nan(uint64_t bits, moetoken_type type);
uint64_t number_quiet_nan(moetoken_type type);
uint64_t number_infinity(moetoken_type type);
uint64_t number_sign_bit(moetoken_type type);

/* "f32", "bf16", ... for messages. */
const char *number_type_name(moetoken_type type);

#endif
