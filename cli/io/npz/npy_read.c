/* npy_read.c - a single NumPy array (.npy), whose data are used as they lie in the file; and bytes
 * without any header (.bin), of which the caller knows type and shape. Both make a file of one
 * tensor, which is called as the file is, without its folder and ending. */
#include "io/file_error.h"
#include "io/tensor_reader.h"
#include "npy_header.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct named_tensor *add_only_tensor(struct tensor_file *file, char *error)
{
    char name[256];
    tensor_reader_stem(file->path, name, sizeof name);
    return tensor_reader_reserve(file, 1, 0, error) ? tensor_reader_add(file, name, error) : NULL;
}

/* Where the data begin; 0 after an error. */
static size_t read_npy_header(const struct tensor_file *file, struct npy_header *header,
                              enum npy_result *result, char *error)
{
    char reason[NPY_REASON_SIZE];
    int length_size = 0;
    *result = NPY_BROKEN;
    if (file->size < NPY_PREFIX_SIZE + 4) {
        file_error(error, file->path, "array header: ends after %zu bytes", file->size);
        return 0;
    }
    length_size = npy_prefix_length_size(file->bytes, reason);
    if (length_size == 0) {
        file_error(error, file->path, "%s", reason);
        return 0;
    }
    size_t before = NPY_PREFIX_SIZE + (size_t)length_size, length = 0;
    for (int i = length_size - 1; i >= 0; --i) {
        length = length << 8 | file->bytes[NPY_PREFIX_SIZE + i];
    }
    if (length > NPY_MAX_HEADER || length > file->size - before) {
        file_error(error, file->path, "array header of %zu bytes in %zu, expected at most %d",
                   length, file->size, NPY_MAX_HEADER);
        return 0;
    }
    *result = npy_header_parse((const char *)file->bytes + before, length, header, reason);
    if (*result != NPY_OK) {
        file_error(error, file->path, "%s%s", *result == NPY_BROKEN ? "" : "its array ", reason);
    } else if (header->type == NULL) {
        file_error(error, file->path, "holds text, expected numbers");
        *result = NPY_UNSUPPORTED;
    }
    return before + length;
}

bool npy_parse(struct tensor_file *file, char *error)
{
    struct npy_header header;
    enum npy_result result;
    struct named_tensor *tensor = add_only_tensor(file, error);
    if (tensor == NULL) {
        return false;
    }
    size_t begin = read_npy_header(file, &header, &result, error);
    if (result != NPY_OK) {
        return result == NPY_UNSUPPORTED && tensor_reader_set_problem(file, tensor, error);
    }
    if (file->size - begin != (uint64_t)header.bytes) {
        return file_error(error, file->path,
                          "its type and shape take %lld bytes, after the array header are %zu",
                          (long long)header.bytes, file->size - begin);
    }
    const unsigned char *data = file->bytes + begin;
    if (header.fortran_order && header.ndim > 1 && header.bytes > 0) {
        file->buffers[0] = malloc((size_t)header.bytes);
        if (file->buffers[0] == NULL) {
            return file_error_memory(error, file->path, "its array");
        }
        npy_reorder_to_rows(&header, (const char *)data, file->buffers[0]);
        data = file->buffers[0];
    }
    memcpy(tensor->shape, header.shape, sizeof tensor->shape);
    tensor_reader_set_data(tensor, data, header.type->type, header.ndim);
    return true;
}

static void describe_shape(int ndim, const int64_t *shape, char *text, size_t size)
{
    size_t length = 0;
    text[0] = '\0';
    for (int d = 0; d < ndim && length < size; ++d) {
        length += (size_t)snprintf(text + length, size - length, "%s%lld", d == 0 ? "" : ",",
                                   (long long)shape[d]);
    }
}

bool raw_parse(struct tensor_file *file, moetoken_type type, int ndim, const int64_t *shape,
               char *error)
{
    int64_t bytes = 0;
    const struct element_type *element = element_type_find(type);
    bool possible = element_type_bytes(element->size, ndim, shape, &bytes);
    if (!possible || (uint64_t)bytes != file->size) {
        char text[96];
        describe_shape(ndim, shape, text, sizeof text);
        return file_error(error, file->path, "has %zu bytes, expected %lld for %s of shape [%s]",
                          file->size, possible ? (long long)bytes : -1LL, element->safetensors,
                          text);
    }
    struct named_tensor *tensor = add_only_tensor(file, error);
    if (tensor == NULL) {
        return false;
    }
    for (int d = 0; d < ndim; ++d) {
        tensor->shape[d] = shape[d];
    }
    tensor_reader_set_data(tensor, file->bytes, type, ndim);
    return true;
}
