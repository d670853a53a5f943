/* tensor_writer.c - declares, fills and commits a tensor file. What the bytes look like is in
 * safetensors_write.c and npz_write.c, how the file gets its name in output_file.c. */
#include "tensor_writer.h"

#include "file_error.h"
#include "temporary_file.h"
#include "tensor_reader.h"
#include "utf8.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define RESERVED_NAME "__metadata__" /* with what follows it, metadata in both formats */

/* ---- checks --------------------------------------------------------------------------------- */

static bool check_text(const char *path, const char *what, const char *text, char *error)
{
    return utf8_is_valid(text) || file_error(error, path, "%s '%.100s' is not UTF-8", what, text);
}

static bool check_spec(const char *path, const struct tensor_spec *spec, char *error)
{
    if (spec->name == NULL || spec->name[0] == '\0') {
        return file_error(error, path, "a tensor to be written has no name");
    }
    if (strncmp(spec->name, RESERVED_NAME, strlen(RESERVED_NAME)) == 0) {
        return file_error(error, path,
                          "tensor '%.100s': names that begin with " RESERVED_NAME
                          " are for metadata",
                          spec->name);
    }
    if (element_type_find(spec->type) == NULL) {
        return file_error(error, path, "tensor '%.100s' has the unknown type %d", spec->name,
                          (int)spec->type);
    }
    if (spec->ndim < 0 || spec->ndim > TENSOR_FILE_MAX_NDIM) {
        return file_error(error, path, "tensor '%.100s' has %d dimensions, expected 0 to %d",
                          spec->name, spec->ndim, TENSOR_FILE_MAX_NDIM);
    }
    for (int i = 0; i < spec->ndim; ++i) {
        if (spec->shape[i] < 0 || spec->shape[i] > TENSOR_FILE_MAX_SIZE) {
            return file_error(error, path,
                              "tensor '%.100s': size %d is %lld, expected 0 to 2^53 - 1",
                              spec->name, i, (long long)spec->shape[i]);
        }
    }
    return check_text(path, "tensor", spec->name, error);
}

static bool check_unique(const char *path, const char *what, const char *const *names, size_t count,
                         char *error)
{
    const char **sorted = calloc(count + 1, sizeof *sorted);
    if (sorted == NULL) {
        return file_error_memory(error, path, "names");
    }
    memcpy((void *)sorted, (const void *)names, count * sizeof *sorted);
    const char *duplicate = find_duplicate_name(sorted, count);
    free((void *)sorted);
    return duplicate == NULL ||
           file_error(error, path, "two %s to be written are named '%.100s'", what, duplicate);
}

/* ---- copies --------------------------------------------------------------------------------- */

static bool copy_spec(struct tensor_writer *writer, const struct tensor_spec *spec, char *error)
{
    const char *path = writer->output.given;
    struct written_tensor *tensor = &writer->tensors[writer->count];
    if (!check_spec(path, spec, error)) {
        return false;
    }
    tensor->type = element_type_find(spec->type);
    memcpy(tensor->shape, spec->shape, (size_t)spec->ndim * sizeof *spec->shape);
    if (!element_type_bytes(tensor->type->size, spec->ndim, tensor->shape, &tensor->bytes)) {
        return file_error(error, path, "tensor '%.100s': its bytes do not fit in 53 bits",
                          spec->name);
    }
    tensor->name = strdup(spec->name);
    if (tensor->name == NULL) {
        return file_error_memory(error, path, "the name of a tensor");
    }
    tensor->tensor = moetoken_tensor(NULL, spec->type, spec->ndim, tensor->shape);
    ++writer->count;
    return true;
}

static bool copy_specs(struct tensor_writer *writer, const struct tensor_spec *specs, size_t count,
                       char *error)
{
    const char **names = calloc(count + 1, sizeof *names);
    writer->tensors = calloc(count + 1, sizeof *writer->tensors);
    bool done = names != NULL && writer->tensors != NULL;
    if (!done) {
        file_error_memory(error, writer->output.given, "the list of tensors");
    }
    for (size_t i = 0; done && i < count; ++i) {
        done = copy_spec(writer, &specs[i], error);
        names[i] = specs[i].name;
    }
    done = done && check_unique(writer->output.given, "tensors", names, count, error);
    free((void *)names);
    return done;
}

static bool copy_text(const char *path, const char *text, char **copy, char *error)
{
    if (!check_text(path, "metadata", text, error)) {
        return false;
    }
    *copy = strdup(text);
    return *copy != NULL || file_error_memory(error, path, "metadata");
}

static bool copy_metadata(struct tensor_writer *writer, const char *const *metadata, char *error)
{
    const char *path = writer->output.given;
    size_t pairs = 0;
    while (metadata != NULL && metadata[2 * pairs] != NULL) {
        ++pairs;
    }
    const char **keys = calloc(pairs + 1, sizeof *keys);
    writer->metadata = calloc(2 * pairs + 1, sizeof *writer->metadata);
    if (keys == NULL || writer->metadata == NULL) {
        free((void *)keys);
        return file_error_memory(error, path, "metadata");
    }
    writer->metadata_count = pairs;
    bool done = true;
    for (size_t i = 0; done && i < 2 * pairs; ++i) {
        keys[i / 2] = metadata[i / 2 * 2];
        done = copy_text(path, metadata[i], &writer->metadata[i], error);
    }
    done = done && check_unique(path, "metadata entries", keys, pairs, error);
    free((void *)keys);
    return done;
}

/* ---- the life of a writer ------------------------------------------------------------------- */

static bool ends_with(const char *text, const char *suffix)
{
    size_t length = strlen(text);
    size_t wanted = strlen(suffix);
    return length >= wanted && strcmp(text + length - wanted, suffix) == 0;
}

static bool begin(struct tensor_writer *writer, const char *path, const struct tensor_spec *specs,
                  size_t count, const char *const *metadata, char *error)
{
    writer->format = ends_with(path, ".npz") ? TENSOR_FILE_NPZ : TENSOR_FILE_SAFETENSORS;
    return output_file_open(&writer->output, path, error) &&
           copy_specs(writer, specs, count, error) && copy_metadata(writer, metadata, error) &&
           (writer->format == TENSOR_FILE_NPZ ? npz_begin(writer, error)
                                              : safetensors_begin(writer, error));
}

struct tensor_writer *tensor_writer_open(const char *path, const struct tensor_spec *specs,
                                         size_t count, const char *const *metadata,
                                         char error[TENSOR_FILE_ERROR_SIZE])
{
    error[0] = '\0';
    struct tensor_writer *writer = calloc(1, sizeof *writer);
    if (writer == NULL) {
        file_error_memory(error, path, "a writer");
        return NULL;
    }
    if (!begin(writer, path, specs, count, metadata, error)) {
        tensor_writer_abandon(writer);
        writer = NULL;
    }
    return writer;
}

DLTensor *tensor_writer_tensor(struct tensor_writer *writer, size_t i)
{
    return i < writer->count ? &writer->tensors[i].tensor : NULL;
}

bool tensor_writer_commit(struct tensor_writer *writer, char error[TENSOR_FILE_ERROR_SIZE])
{
    error[0] = '\0';
    bool done = (writer->format == TENSOR_FILE_NPZ ? npz_finish(writer, error)
                                                   : safetensors_finish(writer, error)) &&
                output_file_commit(&writer->output, error);
    tensor_writer_abandon(writer);
    return done;
}

void tensor_writer_abandon(struct tensor_writer *writer)
{
    if (writer == NULL) {
        return;
    }
    if (writer->mapping != NULL) {
        munmap(writer->mapping, writer->mapping_size);
    }
    output_file_close(&writer->output);
    for (size_t i = 0; i < writer->count; ++i) {
        free(writer->tensors[i].name);
        free(writer->tensors[i].buffer);
    }
    for (size_t i = 0; i < 2 * writer->metadata_count; ++i) {
        free(writer->metadata[i]);
    }
    free(writer->tensors);
    free((void *)writer->metadata);
    free(writer);
}

void tensor_writer_remove_temporary(void)
{
    output_file_remove_temporary();
}

void tensor_writer_handle_signals(void)
{
    temporary_file_handle_signals();
}
