/* safetensors_write.c - lays out a safetensors file and maps it, so that tensors are filled right
 * where they will lie in it. Larger elements come first and the header ends at a multiple of 64
 * bytes, so every tensor is aligned to its elements. */
#include "io/file_error.h"
#include "io/tensor_writer.h"

#include "safetensors_scan.h"
#include <cjson/cJSON.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define HEADER_ALIGNMENT 64
#define LARGEST_ELEMENT  8
#define ARRAY_TEXT_SIZE  (TENSOR_FILE_MAX_NDIM * 18 + 8)

/* Where each tensor begins, counted from the end of the header, and the bytes of all. */
static bool lay_out(struct tensor_writer *writer, int64_t *bytes, char *error)
{
    *bytes = 0;
    for (int size = LARGEST_ELEMENT; size > 0; size /= 2) {
        for (size_t i = 0; i < writer->count; ++i) {
            struct written_tensor *tensor = &writer->tensors[i];
            if (tensor->type->size != size) {
                continue;
            }
            tensor->begin = *bytes;
            *bytes += tensor->bytes;
            if (*bytes > TENSOR_FILE_MAX_SIZE) {
                return file_error(error, writer->output.given,
                                  "the bytes of all tensors do not fit in 53 bits");
            }
        }
    }
    return true;
}

/* ---- the header ----------------------------------------------------------------------------- */

/* As text: cJSON's own numbers would turn into 1e+15. */
static bool add_integers(cJSON *object, const char *key, const int64_t *values, int count)
{
    char text[ARRAY_TEXT_SIZE];
    size_t at = (size_t)snprintf(text, sizeof text, "[");
    for (int i = 0; i < count; ++i) {
        at += (size_t)snprintf(text + at, sizeof text - at, "%s%lld", i == 0 ? "" : ",",
                               (long long)values[i]);
    }
    snprintf(text + at, sizeof text - at, "]");
    return cJSON_AddRawToObject(object, key, text) != NULL;
}

static bool add_tensor(cJSON *root, const struct written_tensor *tensor)
{
    const int64_t offsets[2] = {tensor->begin, tensor->begin + tensor->bytes};
    cJSON *entry = cJSON_AddObjectToObject(root, tensor->name);
    return entry != NULL &&
           cJSON_AddStringToObject(entry, "dtype", tensor->type->safetensors) != NULL &&
           add_integers(entry, "shape", tensor->shape, tensor->tensor.ndim) &&
           add_integers(entry, "data_offsets", offsets, 2);
}

static bool add_metadata(cJSON *root, const struct tensor_writer *writer)
{
    if (writer->metadata_count == 0) {
        return true;
    }
    cJSON *metadata = cJSON_AddObjectToObject(root, "__metadata__");
    bool done = metadata != NULL;
    for (size_t i = 0; done && i < writer->metadata_count; ++i) {
        done = cJSON_AddStringToObject(metadata, writer->metadata[2 * i],
                                       writer->metadata[2 * i + 1]) != NULL;
    }
    return done;
}

/* The JSON text, to be freed with cJSON_free; NULL without memory. */
static char *print_header(const struct tensor_writer *writer)
{
    cJSON *root = cJSON_CreateObject();
    bool done = root != NULL && add_metadata(root, writer);
    for (size_t i = 0; done && i < writer->count; ++i) {
        done = add_tensor(root, &writer->tensors[i]);
    }
    char *text = done ? cJSON_PrintUnformatted(root) : NULL;
    cJSON_Delete(root);
    return text;
}

/* ---- the mapped file ------------------------------------------------------------------------ */

static bool map_output(struct tensor_writer *writer, size_t size, char *error)
{
    if (!output_file_allocate(&writer->output, (int64_t)size, error)) {
        return false;
    }
    void *mapping =
        mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, writer->output.descriptor, 0);
    if (mapping == MAP_FAILED) {
        return file_error(error, writer->output.given, "%zu bytes cannot be mapped: %s", size,
                          strerror(errno));
    }
    writer->mapping = mapping;
    writer->mapping_size = size;
    return true;
}

static void write_header(unsigned char *bytes, const char *text, size_t length, size_t padded)
{
    for (int i = 0; i < 8; ++i) {
        bytes[i] = (unsigned char)((uint64_t)padded >> (8 * i));
    }
    memcpy(bytes + 8, text, length);
    memset(bytes + 8 + length, ' ', padded - length);
}

static bool map_tensors(struct tensor_writer *writer, int64_t bytes, const char *header,
                        char *error)
{
    size_t length = strlen(header);
    size_t start = (8 + length + HEADER_ALIGNMENT - 1) / HEADER_ALIGNMENT * HEADER_ALIGNMENT;
    if (start - 8 > SAFETENSORS_MAX_HEADER) {
        return file_error(error, writer->output.given,
                          "needs a header of %zu bytes, at most %d are allowed", start - 8,
                          SAFETENSORS_MAX_HEADER);
    }
    if (!map_output(writer, start + (size_t)bytes, error)) {
        return false;
    }
    write_header(writer->mapping, header, length, start - 8);
    for (size_t i = 0; i < writer->count; ++i) {
        struct written_tensor *tensor = &writer->tensors[i];
        tensor->tensor.data = (char *)writer->mapping + start + tensor->begin;
    }
    return true;
}

bool safetensors_begin(struct tensor_writer *writer, char *error)
{
    int64_t bytes = 0;
    if (!lay_out(writer, &bytes, error)) {
        return false;
    }
    char *header = print_header(writer);
    bool done = header != NULL ? map_tensors(writer, bytes, header, error)
                               : file_error_memory(error, writer->output.given, "the header");
    cJSON_free(header);
    return done;
}

/* The data are in the file's pages already. */
bool safetensors_finish(struct tensor_writer *writer, char *error)
{
    void *mapping = writer->mapping;
    writer->mapping = NULL;
    if (munmap(mapping, writer->mapping_size) != 0) {
        return file_error(error, writer->output.given, "cannot be unmapped: %s", strerror(errno));
    }
    return true;
}
