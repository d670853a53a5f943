/* tensor_gather.c - borrowed tensors as a tensor file. See tensor_gather.h. */
#include "tensor_gather.h"

#include "file_error.h"
#include "tensor_reader.h"

#include <stdlib.h>
#include <string.h>

struct tensor_file *tensor_gather_begin(const char *name, char error[TENSOR_FILE_ERROR_SIZE])
{
    struct tensor_file *file = calloc(1, sizeof *file);
    error[0] = '\0';
    if (file == NULL) {
        file_error_memory(error, name, "its tensors");
        return NULL;
    }
    file->path = strdup(name);
    if (file->path == NULL) {
        file_error_memory(error, name, "its tensors");
        free(file);
        return NULL;
    }
    if (!tensor_reader_reserve(file, TENSOR_GATHER_MOST, TENSOR_GATHER_MOST, error)) {
        tensor_file_close(file);
        return NULL;
    }
    return file;
}

bool tensor_gather_add(struct tensor_file *file, const char *name, const DLTensor *tensor,
                       char error[TENSOR_FILE_ERROR_SIZE])
{
    if (file->count == TENSOR_GATHER_MOST) {
        return file_error(error, file->path, "has more than %d tensors", TENSOR_GATHER_MOST);
    }
    struct named_tensor *named = tensor_reader_add(file, name, error);
    if (named == NULL) {
        return false;
    }
    named->tensor = *tensor;
    named->tensor.shape = named->shape;
    for (int d = 0; d < tensor->ndim; ++d) {
        named->shape[d] = tensor->shape[d];
    }
    return true;
}

bool tensor_gather_metadata(struct tensor_file *file, const char *key, const char *value,
                            char error[TENSOR_FILE_ERROR_SIZE])
{
    if (file->metadata_count == TENSOR_GATHER_MOST) {
        return file_error(error, file->path, "has more than %d metadata", TENSOR_GATHER_MOST);
    }
    return tensor_reader_add_metadata(file, key, value, error);
}
