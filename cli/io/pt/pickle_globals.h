/* pickle_globals.h - the names that a PyTorch file may refer to, and what each stands for here. */
#ifndef MOETOKEN_CLI_PICKLE_GLOBALS_H
#define MOETOKEN_CLI_PICKLE_GLOBALS_H

#include <moetoken/moetoken.h>
#include <stdbool.h>
#include <stddef.h>

enum pickle_meaning {
    GLOBAL_ORDERED_DICT,      /* () -> dict */
    GLOBAL_SIZE,              /* (tuple) -> tuple */
    GLOBAL_REBUILD_TENSOR_V2, /* (storage, offset, sizes, strides, ...) -> tensor */
    GLOBAL_REBUILD_TENSOR_V3, /* the same with the type behind it */
    GLOBAL_REBUILD_PARAMETER, /* (tensor, ...) -> tensor */
    GLOBAL_STORAGE,           /* the type of a storage */
    GLOBAL_DTYPE              /* the type of a tensor */
};

struct pickle_global {
    const char *module, *name;
    enum pickle_meaning meaning;
    int size;     /* of an element, for types */
    bool is_read; /* whether this tool knows the type: */
    moetoken_type type;
};

/* NULL when the name is not in the list. */
const struct pickle_global *pickle_global_find(const char *module, size_t module_length,
                                               const char *name, size_t name_length);

#endif
