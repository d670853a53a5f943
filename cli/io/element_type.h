/* element_type.h - how each moetoken_type is called in the two file formats, and its size. */
#ifndef MOETOKEN_CLI_ELEMENT_TYPE_H
#define MOETOKEN_CLI_ELEMENT_TYPE_H

#include <moetoken/moetoken.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "both file formats hold little-endian numbers, which are used in place"
#endif

/* Sizes in files stay below 2^53: JSON readers keep numbers in binary64. */
#define TENSOR_FILE_MAX_SIZE ((INT64_C(1) << 53) - 1)

struct element_type {
    moetoken_type type;
    int size;                /* bytes */
    const char *safetensors; /* "BF16" */
    const char *npy;         /* "<f4". NumPy has no bfloat16: arrays of ml_dtypes.bfloat16 are
                                saved as 2-byte void, "<V2" (older versions: "|V2") */
};

/* What every reader lists when a type is none of these. */
#define ELEMENT_TYPES_SAFETENSORS "BOOL, I8, U8, I32, I64, F16, BF16, F32 or F64"
#define ELEMENT_TYPES_NPY         "|b1, |i1, |u1, <i4, <i8, <f2, <V2 (bfloat16), <f4 or <f8"

/* NULL when there is no such type. */
const struct element_type *element_type_find(moetoken_type type);
const struct element_type *element_type_from_safetensors(const char *name);
const struct element_type *element_type_from_npy(const char *descr);

/* The bytes of a contiguous tensor; false when they are more than TENSOR_FILE_MAX_SIZE. The sizes
 * are not negative. */
bool element_type_bytes(int size, int ndim, const int64_t *shape, int64_t *bytes);

#endif
