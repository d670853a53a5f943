/* tensor_reader.c - what both parsers need to fill in an open tensor file. */
#include "tensor_reader.h"

#include "file_error.h"

#include <stdlib.h>
#include <string.h>

bool tensor_reader_reserve(struct tensor_file *file, size_t tensors, size_t metadata, char *error)
{
    /* One more than needed: malloc(0) may return NULL. */
    file->tensors = calloc(tensors + 1, sizeof *file->tensors);
    file->buffers = calloc(tensors + 1, sizeof *file->buffers);
    file->metadata = calloc(metadata + 1, sizeof *file->metadata);
    if (file->tensors == NULL || file->buffers == NULL || file->metadata == NULL) {
        return file_error_memory(error, file->path, "its list of tensors");
    }
    return true;
}

bool tensor_reader_add_metadata(struct tensor_file *file, const char *key, const char *value,
                                char *error)
{
    struct metadata_entry *entry = &file->metadata[file->metadata_count++];
    entry->key = strdup(key);
    entry->value = strdup(value);
    if (entry->key == NULL || entry->value == NULL) {
        return file_error_memory(error, file->path, "its metadata");
    }
    return true;
}

struct named_tensor *tensor_reader_add(struct tensor_file *file, const char *name, char *error)
{
    struct named_tensor *tensor = &file->tensors[file->count];
    tensor->name = strdup(name);
    if (tensor->name == NULL) {
        file_error_memory(error, file->path, "the name of a tensor");
        return NULL;
    }
    tensor->tensor.device.device_type = kDLCPU;
    tensor->tensor.shape = tensor->shape;
    ++file->count;
    return tensor;
}

/* For a tensor that is read late there is nobody to tell that memory for the message is short. */
static char no_memory[] = "no memory to say why a tensor cannot be used";

bool tensor_reader_set_problem(struct tensor_file *file, struct named_tensor *tensor, char *error)
{
    char *copy = strdup(error);
    if (copy == NULL) {
        tensor->problem = no_memory;
        return file_error_memory(error, file->path, "a message");
    }
    tensor->problem = copy;
    error[0] = '\0';
    return true;
}

void tensor_reader_free_problem(struct named_tensor *tensor)
{
    if (tensor->problem != no_memory) {
        free(tensor->problem);
    }
    tensor->problem = NULL;
}

void tensor_reader_set_data(struct named_tensor *tensor, const void *data, moetoken_type type,
                            int ndim)
{
    tensor->tensor = moetoken_tensor((void *)data, type, ndim, tensor->shape);
}

void tensor_reader_stem(const char *path, char *name, size_t size)
{
    const char *slash = strrchr(path, '/');
    const char *begin = slash == NULL ? path : slash + 1;
    const char *dot = strrchr(begin, '.');
    size_t length = dot == NULL || dot == begin ? strlen(begin) : (size_t)(dot - begin);
    length = length < size ? length : size - 1;
    memcpy(name, begin, length);
    name[length] = '\0';
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

const char *find_duplicate_name(const char **names, size_t count)
{
    qsort(names, count, sizeof *names, compare_names);
    for (size_t i = 1; i < count; ++i) {
        if (strcmp(names[i - 1], names[i]) == 0) {
            return names[i];
        }
    }
    return NULL;
}

static bool check_unique(const struct tensor_file *file, const char **names, size_t count,
                         const char *what, char *error)
{
    const char *duplicate = find_duplicate_name(names, count);
    if (duplicate != NULL) {
        return file_error(error, file->path, "has two %s named '%.100s'", what, duplicate);
    }
    return true;
}

bool tensor_reader_check_names(const struct tensor_file *file, char *error)
{
    size_t longer = file->count > file->metadata_count ? file->count : file->metadata_count;
    const char **names = calloc(longer + 1, sizeof *names);
    if (names == NULL) {
        return file_error_memory(error, file->path, "its names");
    }
    for (size_t i = 0; i < file->count; ++i) {
        names[i] = file->tensors[i].name;
    }
    bool unique = check_unique(file, names, file->count, "tensors", error);
    for (size_t i = 0; i < file->metadata_count; ++i) {
        names[i] = file->metadata[i].key;
    }
    unique = unique && check_unique(file, names, file->metadata_count, "metadata entries", error);
    free((void *)names);
    return unique;
}
