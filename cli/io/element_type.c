/* element_type.c - the table of element types and the size of tensors, for both file formats. */
#include "element_type.h"

#include <string.h>

static const struct element_type element_types[] = {
    {MOETOKEN_F32, 4, "F32", "<f4"},   {MOETOKEN_F16, 2, "F16", "<f2"},
    {MOETOKEN_BF16, 2, "BF16", "<V2"}, {MOETOKEN_F64, 8, "F64", "<f8"},
    {MOETOKEN_I32, 4, "I32", "<i4"},   {MOETOKEN_I64, 8, "I64", "<i8"},
    {MOETOKEN_BOOL, 1, "BOOL", "|b1"}, {MOETOKEN_I8, 1, "I8", "|i1"},
    {MOETOKEN_U8, 1, "U8", "|u1"},
};
static const size_t element_types_count = sizeof element_types / sizeof element_types[0];

const struct element_type *element_type_find(moetoken_type type)
{
    for (size_t i = 0; i < element_types_count; ++i) {
        if (element_types[i].type == type) {
            return &element_types[i];
        }
    }
    return NULL;
}

const struct element_type *element_type_from_safetensors(const char *name)
{
    for (size_t i = 0; i < element_types_count; ++i) {
        if (strcmp(element_types[i].safetensors, name) == 0) {
            return &element_types[i];
        }
    }
    return NULL;
}

const struct element_type *element_type_from_npy(const char *descr)
{
    if (strcmp(descr, "|V2") == 0) {
        return element_type_find(MOETOKEN_BF16);
    }
    for (size_t i = 0; i < element_types_count; ++i) {
        if (strcmp(element_types[i].npy, descr) == 0) {
            return &element_types[i];
        }
    }
    return NULL;
}

bool element_type_bytes(int size, int ndim, const int64_t *shape, int64_t *bytes)
{
    *bytes = size;
    for (int i = 0; i < ndim; ++i) {
        if (shape[i] == 0) {
            *bytes = 0;
            return true;
        }
    }
    for (int i = 0; i < ndim; ++i) {
        if (shape[i] > TENSOR_FILE_MAX_SIZE / *bytes) {
            return false;
        }
        *bytes *= shape[i];
    }
    return true;
}
