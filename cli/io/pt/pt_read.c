/* pt_read.c - a PyTorch file (.pt): a zip archive of a pickle, which says how tensors are views of
 * storages, and of the storages. Opening it runs the pickle (see pickle.h: nothing of it is ever
 * executed); a storage is read when a tensor of it is asked for. A tensor that is no run of its
 * storage is copied into one. */
#include "pt_read.h"

#include "io/file_error.h"
#include "io/zip_archive.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PROGRAM_NAME "data.pkl"
/* Bytes that views may take in all beyond what the file has: a tensor of strides 0 can ask for any
 * number of them. */
#define COPIES_MOST (UINT64_C(1) << 28)

/* ---- members -------------------------------------------------------------------------------- */

static bool fail(const struct tensor_file *file, char *error, const char *member,
                 const char *reason)
{
    return file_error(error, file->path, "member '%.100s': %s", member, reason);
}

/* The whole of a member; NULL after an error. */
static unsigned char *read_stream(const struct tensor_file *file, const char *member,
                                  const zip_stat_t *status, char *error)
{
    zip_file_t *stream = zip_fopen_index(file->zip, status->index, 0);
    if (stream == NULL) {
        fail(file, error, member, zip_strerror(file->zip));
        return NULL;
    }
    unsigned char *bytes = malloc(status->size + 1);
    uint64_t done = 0;
    zip_int64_t step = 1;
    /* One byte more than there should be: at the end libzip compares the checksum. */
    while (bytes != NULL && step > 0 && done <= status->size) {
        step = zip_fread(stream, bytes + done, status->size + 1 - done);
        done += step > 0 ? (uint64_t)step : 0;
    }
    if (bytes == NULL) {
        file_error(error, file->path, "no memory for member '%.100s' (%llu bytes)", member,
                   (unsigned long long)status->size);
    } else if (step < 0) {
        fail(file, error, member, zip_file_strerror(stream));
    } else if (done != status->size) {
        file_error(error, file->path, "member '%.100s' %s its %llu bytes", member,
                   done < status->size ? "ends before" : "goes on after",
                   (unsigned long long)status->size);
    }
    if (bytes != NULL && (step < 0 || done != status->size)) {
        free(bytes);
        bytes = NULL;
    }
    zip_fclose(stream);
    return bytes;
}

/* Finds a member and looks at what the archive claims of it. */
static bool find_member(const struct tensor_file *file, const char *member, zip_stat_t *status,
                        char *error)
{
    char reason[ZIP_REASON_SIZE];
    const zip_uint64_t needed = ZIP_STAT_INDEX | ZIP_STAT_SIZE | ZIP_STAT_COMP_SIZE |
                                ZIP_STAT_COMP_METHOD | ZIP_STAT_ENCRYPTION_METHOD;
    if (zip_stat(file->zip, member, 0, status) != 0 || (status->valid & needed) != needed) {
        return fail(file, error, member, "is missing");
    }
    if (!zip_claims_are_possible(status, reason)) {
        return fail(file, error, member, reason);
    }
    return true;
}

static void member_name(const struct pt_archive *torch, const char *name, char *text, size_t size)
{
    snprintf(text, size, "%s%s", torch->folder, name);
}

/* ---- opening -------------------------------------------------------------------------------- */

/* "archive/" of the first member called data.pkl. */
static bool find_folder(struct tensor_file *file, char *error)
{
    zip_int64_t count = zip_get_num_entries(file->zip, 0);
    for (zip_int64_t i = 0; i < count; ++i) {
        const char *name = zip_get_name(file->zip, (zip_uint64_t)i, 0);
        size_t length = name == NULL ? 0 : strlen(name);
        size_t end = strlen("/" PROGRAM_NAME);
        if (length > end && strcmp(name + length - end, "/" PROGRAM_NAME) == 0) {
            file->torch->folder = strndup(name, length - end + 1);
            return file->torch->folder != NULL ||
                   file_error_memory(error, file->path, "the name of a member");
        }
    }
    return file_error(error, file->path, "has no member " PROGRAM_NAME);
}

/* Members that share bytes of the archive are how small files claim a lot. */
static bool check_sizes(const struct tensor_file *file, char *error)
{
    zip_int64_t count = zip_get_num_entries(file->zip, 0);
    uint64_t compressed = 0;
    for (zip_int64_t i = 0; i < count; ++i) {
        zip_stat_t status;
        if (zip_stat_index(file->zip, (zip_uint64_t)i, 0, &status) != 0 ||
            (status.valid & (ZIP_STAT_COMP_SIZE | ZIP_STAT_NAME)) !=
                (ZIP_STAT_COMP_SIZE | ZIP_STAT_NAME)) {
            return file_error(error, file->path, "member %lld has no name or no size",
                              (long long)i);
        }
        if (status.comp_size > file->size - compressed) {
            return file_error(
                error, file->path,
                "member '%.100s' claims %llu bytes, more than are left in the archive", status.name,
                (unsigned long long)status.comp_size);
        }
        compressed += status.comp_size;
    }
    return true;
}

/* Files since PyTorch 2.1 say it; those before are little-endian where this tool runs. */
static bool check_byte_order(const struct tensor_file *file, char *error)
{
    char name[512];
    zip_stat_t status;
    member_name(file->torch, "byteorder", name, sizeof name);
    if (zip_name_locate(file->zip, name, 0) < 0) {
        return true;
    }
    if (!find_member(file, name, &status, error)) {
        return false;
    }
    if (status.size != strlen("little")) {
        return fail(file, error, name, "expected little");
    }
    unsigned char *text = read_stream(file, name, &status, error);
    if (text == NULL) {
        return false;
    }
    bool little = memcmp(text, "little", status.size) == 0;
    free(text);
    return little || fail(file, error, name, "is not little, which is all that can be read");
}

static bool run_program(struct tensor_file *file, char *error)
{
    struct pt_archive *torch = file->torch;
    char name[512], reason[PICKLE_REASON_SIZE];
    zip_stat_t status;
    member_name(torch, PROGRAM_NAME, name, sizeof name);
    if (!find_member(file, name, &status, error)) {
        return false;
    }
    if (status.size > PICKLE_MAX_SIZE) {
        return file_error(error, file->path, PROGRAM_NAME " has %llu bytes, expected at most %d",
                          (unsigned long long)status.size, PICKLE_MAX_SIZE);
    }
    torch->program = read_stream(file, name, &status, error);
    if (torch->program == NULL) {
        return false;
    }
    return pickle_load(torch->program, status.size, &torch->pickle, reason) ||
           file_error(error, file->path, PROGRAM_NAME ": %s", reason);
}

/* ---- storages ------------------------------------------------------------------------------- */

struct storage_use {
    const struct pickle_value *storage, *key;
    size_t tensor;
};

static const struct pickle_value *tensor_value(const struct pt_archive *torch, size_t i)
{
    return &torch->pickle.values[torch->tensors[i]];
}

static const struct pickle_value *storage_of(const struct pt_archive *torch, size_t i)
{
    return &torch->pickle.values[tensor_value(torch, i)->as.tensor.storage];
}

static int compare_uses(const void *a, const void *b)
{
    const struct storage_use *one = a, *other = b;
    size_t length = one->key->as.text.length, other_length = other->key->as.text.length;
    if (length != other_length) {
        return length < other_length ? -1 : 1;
    }
    return memcmp(one->key->as.text.bytes, other->key->as.text.bytes, length);
}

static bool same_storage(const struct pickle_value *a, const struct pickle_value *b)
{
    return a->as.storage.type == b->as.storage.type &&
           a->as.storage.elements == b->as.storage.elements;
}

/* Tensors whose storages have one key share it. */
static bool share_storages(struct tensor_file *file, struct storage_use *uses, char *error)
{
    struct pt_archive *torch = file->torch;
    for (size_t i = 0; i < file->count; ++i) {
        uses[i].tensor = i;
        uses[i].storage = storage_of(torch, i);
        uses[i].key = &torch->pickle.values[uses[i].storage->as.storage.key];
    }
    qsort(uses, file->count, sizeof *uses, compare_uses);
    for (size_t i = 0; i < file->count; ++i) {
        bool shared = i > 0 && compare_uses(&uses[i - 1], &uses[i]) == 0;
        if (shared && !same_storage(uses[i - 1].storage, uses[i].storage)) {
            char key[64];
            pt_text(uses[i].key, key, sizeof key);
            return file_error(error, file->path, "storage '%s' has two types or sizes", key);
        }
        if (!shared) {
            torch->storages[torch->storages_count++].value = uses[i].storage;
        }
        torch->storage_of[uses[i].tensor] = torch->storages_count - 1;
    }
    return true;
}

static bool find_storages(struct tensor_file *file, char *error)
{
    struct storage_use *uses = calloc(file->count + 1, sizeof *uses);
    if (uses == NULL) {
        return file_error_memory(error, file->path, "its storages");
    }
    bool done = share_storages(file, uses, error);
    free(uses);
    return done;
}

bool pt_parse(struct tensor_file *file, char *error)
{
    file->torch = calloc(1, sizeof *file->torch);
    if (file->torch == NULL) {
        return file_error_memory(error, file->path, "an open archive");
    }
    return check_sizes(file, error) && find_folder(file, error) && check_byte_order(file, error) &&
           run_program(file, error) && pt_name_tensors(file, error) && find_storages(file, error);
}

/* ---- tensors -------------------------------------------------------------------------------- */

static bool read_storage(struct tensor_file *file, struct pt_storage *storage, char *error)
{
    char key[128], data[160], name[512];
    zip_stat_t status;
    const struct pickle_value *value = storage->value;
    uint64_t bytes = (uint64_t)value->as.storage.elements * (uint64_t)value->as.storage.type->size;
    if (storage->bytes != NULL) {
        return true;
    }
    pt_text(&file->torch->pickle.values[value->as.storage.key], key, sizeof key);
    snprintf(data, sizeof data, "data/%s", key);
    member_name(file->torch, data, name, sizeof name);
    if (!find_member(file, name, &status, error)) {
        return false;
    }
    if (status.size != bytes) {
        return file_error(error, file->path,
                          "member '%.100s' has %llu bytes, expected %" PRIu64 " for %" PRId64
                          " elements of %s",
                          name, (unsigned long long)status.size, bytes, value->as.storage.elements,
                          value->as.storage.type->name);
    }
    storage->bytes = read_stream(file, name, &status, error);
    return storage->bytes != NULL;
}

static int64_t item(const struct pt_archive *torch, pickle_place tuple, int d)
{
    return torch->pickle.values[torch->pickle.values[tuple].as.items.places[d]].as.integer;
}

/* Whether the elements lie one after another, the last index fastest. */
static bool is_run(const struct pt_archive *torch, const struct pickle_value *value,
                   const struct named_tensor *tensor)
{
    int64_t step = 1;
    for (int d = tensor->tensor.ndim - 1; d >= 0; --d) {
        if (tensor->shape[d] > 1 && item(torch, value->as.tensor.strides, d) != step) {
            return false;
        }
        step *= tensor->shape[d];
    }
    return true;
}

static void copy_view(const struct pt_archive *torch, const struct pickle_value *value,
                      const struct named_tensor *tensor, const unsigned char *from,
                      unsigned char *to)
{
    size_t size = tensor->tensor.dtype.bits / 8u;
    int64_t index[TENSOR_FILE_MAX_NDIM] = {0}, count = 1, at = 0;
    for (int d = 0; d < tensor->tensor.ndim; ++d) {
        count *= tensor->shape[d];
    }
    for (int64_t i = 0; i < count; ++i) {
        memcpy(to + (size_t)i * size, from + (size_t)at * size, size);
        for (int d = tensor->tensor.ndim - 1; d >= 0; --d) {
            int64_t stride = item(torch, value->as.tensor.strides, d);
            at += stride;
            if (++index[d] < tensor->shape[d]) {
                break;
            }
            at -= stride * tensor->shape[d];
            index[d] = 0;
        }
    }
}

static bool copy_tensor(struct tensor_file *file, size_t i, const unsigned char *from,
                        uint64_t bytes, char *error)
{
    struct pt_archive *torch = file->torch;
    struct named_tensor *tensor = &file->tensors[i];
    if (bytes > COPIES_MOST + 16 * (uint64_t)file->size - torch->copied) {
        return file_error(error, file->path,
                          "tensor '%.100s' takes %" PRIu64 " bytes as no view, which a file of %zu "
                          "bytes does not justify",
                          tensor->name, bytes, file->size);
    }
    torch->copied += bytes;
    file->buffers[i] = malloc(bytes + 1);
    if (file->buffers[i] == NULL) {
        return file_error(error, file->path, "no memory for tensor '%.100s' (%" PRIu64 " bytes)",
                          tensor->name, bytes);
    }
    copy_view(torch, tensor_value(torch, i), tensor, from, file->buffers[i]);
    tensor->tensor.data = file->buffers[i];
    return true;
}

bool pt_read_tensor(struct tensor_file *file, size_t i, char *error)
{
    struct pt_archive *torch = file->torch;
    struct named_tensor *tensor = &file->tensors[i];
    struct pt_storage *storage = &torch->storages[torch->storage_of[i]];
    const struct pickle_value *value = tensor_value(torch, i);
    int size = tensor->tensor.dtype.bits / 8;
    int64_t bytes;
    if (!read_storage(file, storage, error)) {
        return false;
    }
    element_type_bytes(size, tensor->tensor.ndim, tensor->shape, &bytes);
    if (bytes == 0) {
        tensor->tensor.data = storage->bytes;
        return true;
    }
    const unsigned char *from = storage->bytes + (size_t)value->as.tensor.offset * (size_t)size;
    if (!is_run(torch, value, tensor)) {
        return copy_tensor(file, i, from, (uint64_t)bytes, error);
    }
    tensor->tensor.data = (void *)from;
    return true;
}

void pt_close(struct pt_archive *torch)
{
    if (torch == NULL) {
        return;
    }
    for (size_t i = 0; i < torch->storages_count; ++i) {
        free(torch->storages[i].bytes);
    }
    free(torch->storages);
    free(torch->tensors);
    free(torch->storage_of);
    pickle_free(&torch->pickle);
    free(torch->program);
    free(torch->folder);
    free(torch);
}
