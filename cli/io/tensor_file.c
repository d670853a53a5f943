/* tensor_file.c - opens a tensor file: maps it, tells its format, has it parsed, and finds tensors
 * by name. The formats are in safetensors/, npz/ and pt/. */
#include "tensor_file.h"

#include "file_error.h"
#include "tensor_reader.h"
#include "zip_archive.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *file_kind(mode_t mode)
{
    if (S_ISDIR(mode)) {
        return "a directory";
    }
    if (S_ISFIFO(mode)) {
        return "a FIFO";
    }
    return S_ISSOCK(mode) ? "a socket" : "a device";
}

/* The size is read once, here, and every check is made against it. Whoever cuts the file off while
 * it is mapped ends the process with SIGBUS; since no output has its final name by then, that
 * leaves nothing half-written, and copying gigabytes to be safe from it would cost all others. */
static bool map_descriptor(struct tensor_file *file, int descriptor, char *error)
{
    struct stat status;
    if (fstat(descriptor, &status) != 0) {
        return file_error(error, file->path, "cannot be examined: %s", strerror(errno));
    }
    if (!S_ISREG(status.st_mode)) {
        return file_error(error, file->path, "is %s, expected a regular file",
                          file_kind(status.st_mode));
    }
    if (status.st_size == 0) {
        return file_error(error, file->path, "is empty");
    }
    void *bytes = mmap(NULL, (size_t)status.st_size, PROT_READ, MAP_PRIVATE, descriptor, 0);
    if (bytes == MAP_FAILED) {
        return file_error(error, file->path, "cannot be mapped into memory (%lld bytes): %s",
                          (long long)status.st_size, strerror(errno));
    }
    file->bytes = bytes;
    file->size = (size_t)status.st_size;
    file->mapped = true;
    return true;
}

static bool map_file(struct tensor_file *file, char *error)
{
    /* O_NONBLOCK: opening a FIFO must not wait for a writer. */
    int descriptor = open(file->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (descriptor < 0) {
        return file_error(error, file->path, "cannot be opened: %s", strerror(errno));
    }
    bool mapped = map_descriptor(file, descriptor, error);
    close(descriptor);
    return mapped;
}

static bool begins_with(const struct tensor_file *file, const char *magic, size_t length)
{
    return file->size >= length && memcmp(file->bytes, magic, length) == 0;
}

/* A zip archive begins with a member or, when it has none, with its end record. As a safetensors
 * header length both would be a number with '{' as the ninth byte, which zip cannot have there. */
static bool looks_like_zip(const struct tensor_file *file)
{
    bool magic = begins_with(file, "PK\3\4", 4) || begins_with(file, "PK\5\6", 4);
    return magic && !(file->size > 8 && file->bytes[8] == '{');
}

static bool parse_zip(struct tensor_file *file, char *error)
{
    file->zip = zip_archive_open(file->bytes, file->size, file->path, error);
    if (file->zip == NULL) {
        return false;
    }
    file->format = zip_archive_has(file->zip, "/data.pkl") ? TENSOR_FILE_PT : TENSOR_FILE_NPZ;
    return file->format == TENSOR_FILE_PT ? pt_parse(file, error) : npz_parse(file, error);
}

static bool parse(struct tensor_file *file, char *error)
{
    if (begins_with(file, "\x93NUMPY", 6)) {
        file->format = TENSOR_FILE_NPY;
        return npy_parse(file, error);
    }
    /* Before version 1.6 PyTorch wrote pickles one after another; the first is this number. */
    if (begins_with(file, "\x80\x02\x8a\nl\xfc\x9c\x46\xf9 j\xa8P\x19.", 15)) {
        return file_error(error, file->path,
                          "is a PyTorch file of the old kind, expected one of version 1.6 or later "
                          "(a zip archive)");
    }
    bool parsed;
    if (!looks_like_zip(file)) {
        file->format = TENSOR_FILE_SAFETENSORS;
        parsed = safetensors_parse(file, error);
    } else {
        parsed = parse_zip(file, error);
    }
    return parsed && tensor_reader_check_names(file, error);
}

static struct tensor_file *new_file(const char *path, char *error)
{
    error[0] = '\0';
    struct tensor_file *file = calloc(1, sizeof *file);
    char *copy = strdup(path);
    if (file == NULL || copy == NULL) {
        free(file);
        free(copy);
        file_error_memory(error, path, "an open file");
        return NULL;
    }
    file->path = copy;
    return file;
}

struct tensor_file *tensor_file_open(const char *path, char error[TENSOR_FILE_ERROR_SIZE])
{
    struct tensor_file *file = new_file(path, error);
    if (file != NULL && !(map_file(file, error) && parse(file, error))) {
        tensor_file_close(file);
        file = NULL;
    }
    return file;
}

struct tensor_file *tensor_file_open_raw(const char *path, moetoken_type type, int ndim,
                                         const int64_t *shape, char error[TENSOR_FILE_ERROR_SIZE])
{
    struct tensor_file *file = new_file(path, error);
    if (file == NULL) {
        return NULL;
    }
    file->format = TENSOR_FILE_RAW;
    if (!map_file(file, error) || !raw_parse(file, type, ndim, shape, error)) {
        tensor_file_close(file);
        file = NULL;
    }
    return file;
}

struct tensor_file *tensor_file_open_memory(const void *bytes, size_t size, const char *name,
                                            char error[TENSOR_FILE_ERROR_SIZE])
{
    struct tensor_file *file = new_file(name, error);
    if (file == NULL) {
        return NULL;
    }
    file->bytes = bytes;
    file->size = size;
    bool parsed = size > 0 ? parse(file, error) : file_error(error, name, "is empty");
    if (!parsed) {
        tensor_file_close(file);
        file = NULL;
    }
    return file;
}

void tensor_file_close(struct tensor_file *file)
{
    if (file == NULL) {
        return;
    }
    for (size_t i = 0; i < file->count; ++i) {
        free(file->tensors[i].name);
        tensor_reader_free_problem(&file->tensors[i]);
        free(file->buffers[i]);
    }
    for (size_t i = 0; i < file->metadata_count; ++i) {
        free(file->metadata[i].key);
        free(file->metadata[i].value);
    }
    free(file->tensors);
    free(file->buffers);
    free(file->metadata);
    npz_close(file->archive);
    pt_close(file->torch);
    if (file->zip != NULL) {
        zip_discard(file->zip); /* it reads from the bytes */
    }
    if (file->mapped) {
        munmap((void *)file->bytes, file->size);
    }
    free(file->path);
    free(file);
}

enum tensor_file_format tensor_file_format(const struct tensor_file *file)
{
    return file->format;
}

size_t tensor_file_size(const struct tensor_file *file)
{
    return file->size;
}

size_t tensor_file_count(const struct tensor_file *file)
{
    return file->count;
}

/* Brings the data in, where the format leaves them outside at first. Data that cannot be read make
 * the tensor one that cannot be used. */
static const struct named_tensor *load(struct tensor_file *file, size_t i)
{
    struct named_tensor *tensor = &file->tensors[i];
    bool outside = file->archive != NULL || file->torch != NULL;
    if (!outside || tensor->problem != NULL || tensor->tensor.data != NULL) {
        return tensor;
    }
    char error[TENSOR_FILE_ERROR_SIZE] = "";
    bool read =
        file->torch != NULL ? pt_read_tensor(file, i, error) : npz_read_tensor(file, i, error);
    if (!read) {
        tensor->tensor = (DLTensor){.device = {.device_type = kDLCPU}, .shape = tensor->shape};
        tensor_reader_set_problem(file, tensor, error);
    }
    return tensor;
}

static size_t find(const struct tensor_file *file, const char *name)
{
    size_t i = 0;
    while (i < file->count && strcmp(file->tensors[i].name, name) != 0) {
        ++i;
    }
    return i;
}

const struct named_tensor *tensor_file_at(struct tensor_file *file, size_t i)
{
    return i < file->count ? load(file, i) : NULL;
}

bool tensor_file_has(const struct tensor_file *file, const char *name)
{
    return find(file, name) < file->count;
}

const char *tensor_file_name(const struct tensor_file *file, size_t i)
{
    return file->tensors[i].name;
}

const struct named_tensor *tensor_file_named(struct tensor_file *file, const char *name)
{
    return tensor_file_at(file, find(file, name));
}

const DLTensor *tensor_file_find(struct tensor_file *file, const char *name)
{
    const struct named_tensor *tensor = tensor_file_named(file, name);
    return tensor == NULL ? NULL : &tensor->tensor;
}

const char *tensor_file_problem(struct tensor_file *file, const char *name)
{
    const struct named_tensor *tensor = tensor_file_named(file, name);
    return tensor == NULL ? NULL : tensor->problem;
}

const char *tensor_file_metadata(const struct tensor_file *file, const char *key)
{
    for (size_t i = 0; i < file->metadata_count; ++i) {
        if (strcmp(file->metadata[i].key, key) == 0) {
            return file->metadata[i].value;
        }
    }
    return NULL;
}
