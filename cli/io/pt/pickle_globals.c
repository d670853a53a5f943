/* pickle_globals.c - the list of names, which is all that a PyTorch file can refer to. */
#include "pickle_globals.h"

#include <string.h>

#define STORAGE(prefix, bytes, known)                                                              \
    {                                                                                              \
        "torch", prefix "Storage", GLOBAL_STORAGE, bytes, true, known                              \
    }
#define UNREAD_STORAGE(prefix, bytes)                                                              \
    {                                                                                              \
        "torch", prefix "Storage", GLOBAL_STORAGE, bytes, false, MOETOKEN_U8                       \
    }
#define DTYPE(name, bytes, known)                                                                  \
    {                                                                                              \
        "torch", name, GLOBAL_DTYPE, bytes, true, known                                            \
    }
#define UNREAD_DTYPE(name, bytes)                                                                  \
    {                                                                                              \
        "torch", name, GLOBAL_DTYPE, bytes, false, MOETOKEN_U8                                     \
    }

static const struct pickle_global globals[] = {
    {"collections", "OrderedDict", GLOBAL_ORDERED_DICT, 0, false, MOETOKEN_U8},
    {"torch", "Size", GLOBAL_SIZE, 0, false, MOETOKEN_U8},
    {"torch._utils", "_rebuild_tensor_v2", GLOBAL_REBUILD_TENSOR_V2, 0, false, MOETOKEN_U8},
    {"torch._utils", "_rebuild_tensor_v3", GLOBAL_REBUILD_TENSOR_V3, 0, false, MOETOKEN_U8},
    {"torch._utils", "_rebuild_parameter", GLOBAL_REBUILD_PARAMETER, 0, false, MOETOKEN_U8},
    STORAGE("Float", 4, MOETOKEN_F32),
    STORAGE("Half", 2, MOETOKEN_F16),
    STORAGE("BFloat16", 2, MOETOKEN_BF16),
    STORAGE("Double", 8, MOETOKEN_F64),
    STORAGE("Int", 4, MOETOKEN_I32),
    STORAGE("Long", 8, MOETOKEN_I64),
    STORAGE("Bool", 1, MOETOKEN_BOOL),
    STORAGE("Char", 1, MOETOKEN_I8),
    STORAGE("Byte", 1, MOETOKEN_U8),
    UNREAD_STORAGE("Short", 2),
    UNREAD_STORAGE("ComplexFloat", 8),
    UNREAD_STORAGE("ComplexDouble", 16),
    /* Bytes without a type of their own; the tensor has it. */
    {"torch.storage", "UntypedStorage", GLOBAL_STORAGE, 1, true, MOETOKEN_U8},
    {"torch.storage", "_UntypedStorage", GLOBAL_STORAGE, 1, true, MOETOKEN_U8},
    DTYPE("float32", 4, MOETOKEN_F32),
    DTYPE("float16", 2, MOETOKEN_F16),
    DTYPE("bfloat16", 2, MOETOKEN_BF16),
    DTYPE("float64", 8, MOETOKEN_F64),
    DTYPE("int32", 4, MOETOKEN_I32),
    DTYPE("int64", 8, MOETOKEN_I64),
    DTYPE("bool", 1, MOETOKEN_BOOL),
    DTYPE("int8", 1, MOETOKEN_I8),
    DTYPE("uint8", 1, MOETOKEN_U8),
    UNREAD_DTYPE("int16", 2),
    UNREAD_DTYPE("uint16", 2),
    UNREAD_DTYPE("uint32", 4),
    UNREAD_DTYPE("uint64", 8),
    UNREAD_DTYPE("float8_e4m3fn", 1),
    UNREAD_DTYPE("float8_e5m2", 1),
    UNREAD_DTYPE("float8_e4m3fnuz", 1),
    UNREAD_DTYPE("float8_e5m2fnuz", 1),
    UNREAD_DTYPE("float8_e8m0fnu", 1),
    UNREAD_DTYPE("complex64", 8),
    UNREAD_DTYPE("complex128", 16),
};
enum {
    GLOBALS_COUNT = sizeof globals / sizeof globals[0]
};

static bool equal(const char *known, const char *text, size_t length)
{
    return strlen(known) == length && memcmp(known, text, length) == 0;
}

const struct pickle_global *pickle_global_find(const char *module, size_t module_length,
                                               const char *name, size_t name_length)
{
    for (int i = 0; i < GLOBALS_COUNT; i++) {
        if (equal(globals[i].module, module, module_length) &&
            equal(globals[i].name, name, name_length)) {
            return &globals[i];
        }
    }
    return NULL;
}
