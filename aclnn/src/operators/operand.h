/* operand.h - one tensor of an operator call: from aclTensor to the DLTensor that moetoken.h takes.
 */
#ifndef ACLNN_OPERAND_H
#define ACLNN_OPERAND_H

#include "meta/tensor.h"

#include <moetoken/moetoken.h>

enum {
    OPERAND_RANK = 25
};

/* What an operator takes at one place of its parameter list. */
struct parameter {
    const char *name; /* as in the prototype */
    const struct type_set *types;
    bool output, required;
};

/* A set of element types, as bits 1 << aclDataType. */
struct type_set {
    uint32_t set;
    const char *text;
};

extern const struct type_set token_types, index_types, id_types, long_types, map_types,
    byte_map_types, bool_types, float_types;

struct operand {
    const aclTensor *handle; /* NULL: not given */
    bool used;               /* given, and the operator wants it */
    bool zero_fill;          /* not used: an output without the input it is the gradient of */
    bool set_aside;          /* used, but moetoken.h sees something made of it instead */
    aclDataType type;
    DLTensor tensor;
    int64_t shape[OPERAND_RANK], strides[OPERAND_RANK];
};

/* Copies the description, so that the executor does not depend on the aclTensor. */
void operand_set(struct operand *operand, const aclTensor *tensor);

/* After a copy of the struct: its tensor means the copy's own arrays. */
void operand_own_arrays(struct operand *operand);

/* [T] as [T,1]. Other ranks stay. */
void operand_as_column(struct operand *operand);

/* [T,a,b,...] as [T,a*b*...]; false when one stride cannot go through all of them. */
bool operand_flatten_rows(struct operand *operand);

/* Type, format and offset. ACLNN_SUCCESS or ACLNN_ERR_PARAM_INVALID. */
aclnnStatus operand_check(const aclTensor *tensor, const struct parameter *parameter);

bool operand_is_empty(const struct operand *operand);

/* The bytes from the first to behind the last that the operand's elements have; false when it is
 * empty, has no data, or when that does not fit in 64 bits. */
bool operand_bytes(const struct operand *operand, char **first, size_t *bytes);

/* What moetoken.h asks of strides: none is negative, and no element of an output lies on another
 * one. Where more than two dimensions count, layouts whose dimensions interleave do not fit. The
 * operand's bytes are known to fit in 64 bits. */
bool operand_strides_fit(const struct operand *operand, bool output);

/* Sets every element to zero. */
void operand_fill_zero(const struct operand *operand);

#endif
