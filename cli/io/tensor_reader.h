/* tensor_reader.h - an open tensor file from the inside: what the parsers fill in. */
#ifndef MOETOKEN_CLI_TENSOR_READER_H
#define MOETOKEN_CLI_TENSOR_READER_H

#include "element_type.h"
#include "tensor_file.h"

struct metadata_entry {
    char *key;
    char *value;
};

struct tensor_file {
    enum tensor_file_format format;
    char *path;                 /* for messages */
    const unsigned char *bytes; /* the whole file */
    size_t size;
    bool mapped; /* bytes is our own mapping, not the caller's memory */
    struct named_tensor *tensors;
    size_t count;
    void **buffers; /* the memory of each tensor that is not in `bytes`, else NULL */
    struct metadata_entry *metadata;
    size_t metadata_count;
    struct zip *zip;             /* both of: */
    struct npz_archive *archive; /* .npz: where tensors that nobody asked for yet still are */
    struct pt_archive *torch;    /* the same for PyTorch's files */
};

/* Each fills a file whose bytes are in place. After a failure, too, tensor_file_close frees all. */
bool safetensors_parse(struct tensor_file *file, char *error);
bool npz_parse(struct tensor_file *file, char *error);
bool npy_parse(struct tensor_file *file, char *error);
bool pt_parse(struct tensor_file *file, char *error);
/* Bytes without a header, of that type and shape, which are possible. */
bool raw_parse(struct tensor_file *file, moetoken_type type, int ndim, const int64_t *shape,
               char *error);

/* Reads the data of tensor i into file->buffers[i]; npz_parse reads no more than headers. */
bool npz_read_tensor(struct tensor_file *file, size_t i, char *error);
/* The same for PyTorch's files, whose tensors may also lie in a storage that they share. */
bool pt_read_tensor(struct tensor_file *file, size_t i, char *error);
/* NULL is fine. */
void npz_close(struct npz_archive *archive);
void pt_close(struct pt_archive *torch);

/* Room for so many tensors and metadata entries, once, before the first of them is added. */
bool tensor_reader_reserve(struct tensor_file *file, size_t tensors, size_t metadata, char *error);
/* Copies key and value. */
bool tensor_reader_add_metadata(struct tensor_file *file, const char *key, const char *value,
                                char *error);
/* Adds a tensor of that name which holds nothing yet; NULL when there is no memory. */
struct named_tensor *tensor_reader_add(struct tensor_file *file, const char *name, char *error);
/* Makes the added tensor one that cannot be used, for the reason that is in `error`. */
bool tensor_reader_set_problem(struct tensor_file *file, struct named_tensor *tensor, char *error);
void tensor_reader_free_problem(struct named_tensor *tensor);
/* Makes the added tensor, whose shape is in place, one of that type over `data`. */
void tensor_reader_set_data(struct named_tensor *tensor, const void *data, moetoken_type type,
                            int ndim);
/* Fails when two tensors have one name. */
bool tensor_reader_check_names(const struct tensor_file *file, char *error);

/* The name of a file without its folder and ending, for a tensor that has no name of its own. */
void tensor_reader_stem(const char *path, char *name, size_t size);

/* One of `count` strings that is there twice, or NULL; sorts them. */
const char *find_duplicate_name(const char **names, size_t count);

#endif
