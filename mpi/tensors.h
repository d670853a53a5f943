/* tensors.h - the arguments of a call: checked before the ranks agree, by the rules of moetoken.h.
 */
#ifndef MOETOKEN_MPI_TENSORS_H
#define MOETOKEN_MPI_TENSORS_H

#include <moetoken/mpi.h>

/* Sets of types, as bits 1 << moetoken_type. */
#define MOETOKEN_MPI_FLOATS                                                                        \
    (1u << MOETOKEN_F32 | 1u << MOETOKEN_F16 | 1u << MOETOKEN_BF16 | 1u << MOETOKEN_F64)
#define MOETOKEN_MPI_INDICES (1u << MOETOKEN_I32 | 1u << MOETOKEN_I64)

/* A tensor of one or two dimensions whose description has been checked. */
struct moetoken_mpi_tensor {
    const char *name;
    char *data;
    moetoken_type type;
    int64_t size;      /* bytes of an element */
    int64_t shape[2];  /* the second is 1 for a list */
    int64_t stride[2]; /* bytes */
    int64_t extent;    /* bytes from the first element's start to the last one's end */
};

moetoken_status moetoken_mpi_tensor_make(struct moetoken_mpi_tensor *made, const char *name,
                                         const DLTensor *tensor, unsigned types, int ndim);

int64_t moetoken_mpi_tensor_index(const struct moetoken_mpi_tensor *indices, int64_t i, int64_t j);

static inline char *moetoken_mpi_tensor_at(const struct moetoken_mpi_tensor *tensor, int64_t i,
                                           int64_t j)
{
    return tensor->data + i * tensor->stride[0] + j * tensor->stride[1];
}

/* An argument of a call, and what is expected of it. */
struct moetoken_mpi_argument {
    const char *name;
    const DLTensor *tensor;
    bool weights_like; /* else token-like */
    bool output;
    int ndim;
    int64_t rows, columns;           /* columns are H for a token-like one */
    struct moetoken_mpi_tensor view; /* filled where the tensor is given */
};

/* What the arguments have in common; -1 where no argument says it. */
struct moetoken_mpi_common {
    int64_t hidden, type, weights_type;
};

/* Checks all arguments that are given. `replaced`, an input, may be the very buffer of `by`, an
 * output; both are places in the list, or -1. */
moetoken_status moetoken_mpi_check_arguments(struct moetoken_mpi_argument *arguments, int count,
                                             int replaced, int by,
                                             struct moetoken_mpi_common *common);

#endif
