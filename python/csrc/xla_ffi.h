/* xla_ffi.h - what XLA's foreign function interface hands to a handler, version 0.1.
 *
 * Only what the handlers read. Structs that cross the interface begin with their size; a newer
 * runtime only appends members, so a struct at least as large as here can be read as here. */
#ifndef MOETOKEN_PYTHON_XLA_FFI_H
#define MOETOKEN_PYTHON_XLA_FFI_H

#include <stddef.h>
#include <stdint.h>

#define XLA_FFI_VERSION_MAJOR 0
#define XLA_FFI_VERSION_MINOR 1

enum {
    XLA_EXTENSION_METADATA = 1
};
struct xla_extension {
    size_t struct_size;
    int type;
    struct xla_extension *next;
};

struct xla_version {
    size_t struct_size;
    struct xla_extension *extension;
    int major, minor;
};

struct xla_metadata {
    size_t struct_size;
    struct xla_version version; /* out */
    uint32_t traits;            /* out */
};
struct xla_metadata_extension {
    struct xla_extension base;
    struct xla_metadata *metadata;
};

enum {
    XLA_ERROR_INVALID_ARGUMENT = 3,
    XLA_ERROR_RESOURCE_EXHAUSTED = 8,
    XLA_ERROR_UNIMPLEMENTED = 12
};
struct xla_error; /* opaque */
struct xla_error_create {
    size_t struct_size;
    struct xla_extension *extension;
    const char *message; /* copied */
    int code;
};

struct xla_api {
    size_t struct_size;
    struct xla_extension *extension;
    struct xla_version version;
    const void *internal;
    struct xla_error *(*create_error)(struct xla_error_create *create);
    /* further functions follow */
};

enum {
    XLA_TYPE_PRED = 1,
    XLA_TYPE_S8 = 2,
    XLA_TYPE_S32 = 4,
    XLA_TYPE_S64 = 5,
    XLA_TYPE_U8 = 6,
    XLA_TYPE_F16 = 10,
    XLA_TYPE_F32 = 11,
    XLA_TYPE_F64 = 12,
    XLA_TYPE_BF16 = 16
};
struct xla_buffer {
    size_t struct_size;
    struct xla_extension *extension;
    int type;
    void *data;
    int64_t rank;
    int64_t *shape;
};

/* Arguments and results; every type is XLA_KIND_BUFFER here. */
enum {
    XLA_KIND_BUFFER = 1
};
struct xla_buffers {
    size_t struct_size;
    struct xla_extension *extension;
    int64_t count;
    int *kinds;
    void **buffers;
};

enum {
    XLA_ATTRIBUTE_SCALAR = 3
};
struct xla_text {
    const char *characters;
    size_t length;
};
struct xla_scalar {
    int type;
    void *value;
};
struct xla_attributes {
    size_t struct_size;
    struct xla_extension *extension;
    int64_t count;
    int *kinds;
    struct xla_text **names;
    void **values;
};

enum {
    XLA_STAGE_EXECUTE = 3
};
struct xla_call_frame {
    size_t struct_size;
    struct xla_extension *extension;
    const struct xla_api *api;
    void *context;
    int stage;
    struct xla_buffers arguments, results;
    struct xla_attributes attributes;
    /* further members follow */
};

#endif
