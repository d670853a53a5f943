/* number_formats.h - the tool's own reading and writing of numbers: bits <-> binary64.
 *
 * For generate and verify. Nothing here comes from the library: verify must be able to find a wrong
 * conversion there. 16-bit types are rounded to nearest even in integers; float32 and binary64 are
 * those of the C implementation. */
#ifndef MOETOKEN_CLI_NUMBER_FORMATS_H
#define MOETOKEN_CLI_NUMBER_FORMATS_H

#include <moetoken/moetoken.h>
#include <stdbool.h>
#include <stdint.h>

/* The moetoken_type of a DLPack type; false when it is none of them. */
bool type_of_tensor(const DLTensor *tensor, moetoken_type *type);
size_t type_size(moetoken_type type);
/* "float32", "int64", ... */
const char *type_name(moetoken_type type);
bool type_is_float(moetoken_type type);

/* The bytes of an element as an unsigned integer, and back. */
uint64_t load_bits(const void *element, size_t size);
void store_bits(void *element, size_t size, uint64_t bits);

/* The value of a floating-point element; exact. */
double bits_to_double(moetoken_type type, uint64_t bits);
/* The nearest value of the type, ties to even; overflow gives infinity. One rounding. NaN gives the
 * positive quiet NaN without payload. */
uint64_t double_to_bits(moetoken_type type, double value);

/* The element `i` of a contiguous tensor: floating-point value, integer, set or not. */
double float_at(const DLTensor *tensor, int64_t i);
int64_t integer_at(const DLTensor *tensor, int64_t i);
bool set_at(const DLTensor *tensor, int64_t i);
uint64_t bits_at(const DLTensor *tensor, int64_t i);
/* A run of elements, as values. */
void floats_at(const DLTensor *tensor, int64_t first, int64_t count, double *values);

/* The next value of the type above (direction > 0) or below; finite input. Infinity beyond the
 * largest. */
double next_value(moetoken_type type, double value, int direction);
/* The distance between the values of the type around `value`. */
double unit_in_last_place(moetoken_type type, double value);

#endif
