/* tensor_writer.h - a tensor file being written, from the inside: what the two formats share. */
#ifndef MOETOKEN_CLI_TENSOR_WRITER_H
#define MOETOKEN_CLI_TENSOR_WRITER_H

#include "element_type.h"
#include "output_file.h"
#include "tensor_file.h"

struct written_tensor {
    char *name;
    const struct element_type *type;
    int64_t bytes;
    int64_t begin; /* safetensors: its place in the data */
    int64_t shape[TENSOR_FILE_MAX_NDIM];
    DLTensor tensor;
    void *buffer; /* .npz: the memory of the data */
};

struct tensor_writer {
    enum tensor_file_format format;
    struct output_file output;
    struct written_tensor *tensors;
    size_t count;
    char **metadata; /* keys and values in turn */
    size_t metadata_count;
    void *mapping; /* safetensors: the whole file */
    size_t mapping_size;
};

/* Lay out the file and point each tensor to memory of its own, zero at first. */
bool safetensors_begin(struct tensor_writer *writer, char *error);
bool npz_begin(struct tensor_writer *writer, char *error);

/* Bring everything into the output file, which only needs its name then. */
bool safetensors_finish(struct tensor_writer *writer, char *error);
bool npz_finish(struct tensor_writer *writer, char *error);

#endif
