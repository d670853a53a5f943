/* dlpack_exchange.h - what DLPack 1.0 and 1.3 say beyond the headers that Debian has.
 *
 * A type with an exchange table lends its objects' memory, and makes objects over others', without
 * any Python code in between. */
#ifndef MOETOKEN_PYTHON_DLPACK_EXCHANGE_H
#define MOETOKEN_PYTHON_DLPACK_EXCHANGE_H

#include <dlpack/dlpack.h>

#include "cpython_abi.h"

/* DLPack since 1.0: what a "dltensor_versioned" capsule points to. */
struct dlpack_version {
    uint32_t major, minor;
};
struct dlpack_versioned_tensor {
    struct dlpack_version version;
    void *manager;
    void (*deleter)(struct dlpack_versioned_tensor *self);
    uint64_t flags;
    DLTensor tensor;
};
#define DLPACK_READ_ONLY 1u

/* DLPack since 1.3: a table of C functions, found at the type's __dlpack_c_exchange_api__. */
struct dlpack_exchange_header {
    struct dlpack_version version;
    struct dlpack_exchange_header *previous;
};
struct dlpack_exchange_table {
    struct dlpack_exchange_header header;
    int (*allocate)(void);
    int (*to_managed)(void);
    int (*from_managed)(struct dlpack_versioned_tensor *managed, void **object); /* takes it over */
    int (*to_tensor)(void *object, DLTensor *tensor); /* may be NULL; borrowed from the object */
};

/* The table of the object's type, or of a type, or NULL without an exception. */
const struct dlpack_exchange_table *dlpack_exchange_table_of(PyObject *object);
const struct dlpack_exchange_table *dlpack_exchange_table_of_type(PyObject *type);

#endif
