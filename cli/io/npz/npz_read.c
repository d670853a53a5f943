/* npz_read.c - a NumPy .npz file: a zip archive of .npy members. Opening it reads their headers;
 * the data of a member are read, into memory of their own, when somebody asks for them. Nothing
 * larger than what member size, compressed size and array header agree on is ever allocated. */
#include "io/file_error.h"
#include "io/tensor_reader.h"
#include "io/utf8.h"
#include "io/zip_archive.h"
#include "npy_header.h"

#include <stdlib.h>
#include <string.h>
#include <zip.h>

#define METADATA_PREFIX   "__metadata__."
#define MAX_METADATA_SIZE 65536
#define MAX_METADATA_SUM  (16 << 20)

struct npz_archive {
    zip_uint64_t *members;  /* which member each tensor of the file is */
    uint64_t metadata_size; /* of all metadata that were read */
};

struct member {
    struct tensor_file *file;
    zip_t *zip;
    zip_uint64_t index;
    char *name;    /* without ".npy" */
    uint64_t size; /* uncompressed, as the archive claims */
    zip_file_t *stream;
    char *error;
};

static bool fail_member(const struct member *member, const char *what)
{
    return file_error(member->error, member->file->path, "tensor '%.100s': %s", member->name, what);
}

/* ---- bytes of a member ---------------------------------------------------------------------- */

static bool read_bytes(const struct member *member, void *bytes, uint64_t count)
{
    uint64_t done = 0;
    while (done < count) {
        zip_int64_t step = zip_fread(member->stream, (char *)bytes + done, count - done);
        if (step < 0) {
            return fail_member(member, zip_file_strerror(member->stream));
        }
        if (step == 0) {
            return file_error(member->error, member->file->path,
                              "tensor '%.100s' ends early: %llu of %llu bytes are missing",
                              member->name, (unsigned long long)(count - done),
                              (unsigned long long)count);
        }
        done += (uint64_t)step;
    }
    return true;
}

/* At the end libzip compares the checksum. */
static bool check_end(const struct member *member)
{
    char byte = 0;
    zip_int64_t step = zip_fread(member->stream, &byte, 1);
    if (step < 0) {
        return fail_member(member, zip_file_strerror(member->stream));
    }
    return step == 0 || fail_member(member, "is longer than the archive says");
}

/* ---- the array header ----------------------------------------------------------------------- */

static enum npy_result broken(const struct member *member, const char *reason)
{
    fail_member(member, reason);
    return NPY_BROKEN;
}

static enum npy_result read_header_text(const struct member *member, uint64_t length,
                                        struct npy_header *header)
{
    char reason[NPY_REASON_SIZE];
    char *text = malloc(length + 1);
    enum npy_result result = NPY_BROKEN;
    if (text == NULL) {
        file_error_memory(member->error, member->file->path, "an array header");
    } else if (read_bytes(member, text, length)) {
        result = npy_header_parse(text, length, header, reason);
        if (result == NPY_BROKEN) {
            fail_member(member, reason);
        } else if (result == NPY_UNSUPPORTED) {
            file_error(member->error, member->file->path, "tensor '%.100s' %s", member->name,
                       reason);
        }
    }
    free(text);
    return result;
}

/* Reads up to the data and checks that what follows has the size that the header asks for. */
static enum npy_result read_header(const struct member *member, struct npy_header *header)
{
    unsigned char prefix[NPY_PREFIX_SIZE + 4];
    char reason[NPY_REASON_SIZE];
    if (!read_bytes(member, prefix, NPY_PREFIX_SIZE)) {
        return NPY_BROKEN;
    }
    int length_size = npy_prefix_length_size(prefix, reason);
    if (length_size == 0) {
        return broken(member, reason);
    }
    uint64_t length = 0;
    if (!read_bytes(member, prefix + NPY_PREFIX_SIZE, (uint64_t)length_size)) {
        return NPY_BROKEN;
    }
    for (int i = length_size - 1; i >= 0; --i) {
        length = length << 8 | prefix[NPY_PREFIX_SIZE + i];
    }
    uint64_t before = NPY_PREFIX_SIZE + (uint64_t)length_size;
    if (length > NPY_MAX_HEADER || member->size < before || length > member->size - before) {
        file_error(member->error, member->file->path,
                   "tensor '%.100s': array header of %llu bytes in %llu, expected at most %d",
                   member->name, (unsigned long long)length, (unsigned long long)member->size,
                   NPY_MAX_HEADER);
        return NPY_BROKEN;
    }
    enum npy_result result = read_header_text(member, length, header);
    uint64_t rest = member->size - before - length;
    if (result == NPY_OK && rest != (uint64_t)header->bytes) {
        file_error(member->error, member->file->path,
                   "tensor '%.100s': its type and shape take %lld bytes, the archive has %llu",
                   member->name, (long long)header->bytes, (unsigned long long)rest);
        result = NPY_BROKEN;
    }
    return result;
}

/* ---- tensors -------------------------------------------------------------------------------- */

/* The data of the member, in row-major order. NULL on failure; the caller frees it. */
static void *read_data(const struct member *member, const struct npy_header *header)
{
    size_t bytes = (size_t)header->bytes;
    bool reorder = header->fortran_order && header->ndim > 1 && bytes > 0;
    char *data = malloc(bytes + 1);
    char *rows = reorder ? malloc(bytes) : NULL;
    if (data == NULL || (reorder && rows == NULL)) {
        file_error(member->error, member->file->path, "no memory for tensor '%.100s' (%zu bytes)",
                   member->name, bytes);
    } else if (read_bytes(member, data, bytes) && check_end(member)) {
        if (reorder) {
            npy_reorder_to_rows(header, data, rows);
            free(data);
            return rows;
        }
        return data;
    }
    free(data);
    free(rows);
    return NULL;
}

/* Type and shape; the data stay where they are. */
static bool declare_tensor(const struct member *member)
{
    struct tensor_file *file = member->file;
    struct npy_header header;
    struct named_tensor *tensor = tensor_reader_add(file, member->name, member->error);
    if (tensor == NULL) {
        return false;
    }
    file->archive->members[file->count - 1] = member->index;
    enum npy_result result = read_header(member, &header);
    if (result == NPY_OK && header.type == NULL) {
        file_error(member->error, file->path, "tensor '%.100s' holds text, expected numbers",
                   member->name);
        result = NPY_UNSUPPORTED;
    }
    if (result != NPY_OK) {
        return result == NPY_UNSUPPORTED && tensor_reader_set_problem(file, tensor, member->error);
    }
    memcpy(tensor->shape, header.shape, sizeof tensor->shape);
    tensor_reader_set_data(tensor, NULL, header.type->type, header.ndim);
    return true;
}

/* ---- metadata ------------------------------------------------------------------------------- */

/* Code points of 4 bytes -> UTF-8, which never takes more. 0 where they are none. */
static size_t encode_text(const unsigned char *data, size_t count, char *text)
{
    size_t length = 0;
    for (size_t i = 0; i < count; ++i) {
        const unsigned char *at = data + 4 * i;
        uint32_t code_point =
            (uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
        size_t step = utf8_encode(code_point, text + length);
        if (step == 0) {
            return 0;
        }
        length += step;
    }
    return length;
}

/* NumPy pads text with NULs, so those at the end are not part of it. */
static bool add_text(const struct member *member, const struct npy_header *header,
                     const unsigned char *data)
{
    size_t size = (size_t)header->item_size;
    size_t unit = header->text_kind == 'U' ? 4 : 1;
    static const unsigned char padding[4] = {0};
    while (size >= unit && memcmp(data + size - unit, padding, unit) == 0) {
        size -= unit;
    }
    char *text = calloc(size + UTF8_MAX, 1);
    if (text == NULL) {
        return file_error_memory(member->error, member->file->path, "its metadata");
    }
    size_t length = size;
    if (unit == 4) {
        length = encode_text(data, size / 4, text);
    } else {
        memcpy(text, data, size);
    }
    bool valid = strlen(text) == length && (length > 0 || size == 0) && utf8_is_valid(text);
    bool added =
        valid ? tensor_reader_add_metadata(member->file, member->name + strlen(METADATA_PREFIX),
                                           text, member->error)
              : fail_member(member, "is not valid Unicode text");
    free(text);
    return added;
}

static bool read_metadata(const struct member *member)
{
    struct npy_header header;
    enum npy_result result = read_header(member, &header);
    if (result != NPY_OK) {
        return false;
    }
    int64_t count = 1;
    for (int i = 0; i < header.ndim && count == 1; ++i) {
        count = header.shape[i];
    }
    if (header.text_kind == 0 || count != 1) {
        return fail_member(member, "metadata must be an array of one string (S or U)");
    }
    if (header.item_size > MAX_METADATA_SIZE) {
        return file_error(member->error, member->file->path,
                          "tensor '%.100s': metadata of %d bytes, expected at most %d",
                          member->name, header.item_size, MAX_METADATA_SIZE);
    }
    member->file->archive->metadata_size += (uint64_t)header.item_size;
    if (member->file->archive->metadata_size > MAX_METADATA_SUM) {
        return file_error(member->error, member->file->path,
                          "has more than %d bytes of metadata, up to tensor '%.100s'",
                          MAX_METADATA_SUM, member->name);
    }
    void *data = read_data(member, &header);
    bool added = data != NULL && add_text(member, &header, data);
    free(data);
    return added;
}

/* ---- members -------------------------------------------------------------------------------- */

/* What the archive claims of a member, before a byte of it is read. */
static bool check_claims(struct member *member, const zip_stat_t *status)
{
    char reason[ZIP_REASON_SIZE];
    member->size = status->size;
    return zip_claims_are_possible(status, reason) || fail_member(member, reason);
}

/* Takes ".npy" off; false when the name does not end so. */
static bool strip_suffix(char *name)
{
    size_t length = strlen(name);
    bool array = length > 4 && strcmp(name + length - 4, ".npy") == 0;
    if (array) {
        name[length - 4] = '\0';
    }
    return array;
}

static bool read_stream(struct member *member, bool array)
{
    if (!array) {
        struct tensor_file *file = member->file;
        struct named_tensor *tensor = tensor_reader_add(file, member->name, member->error);
        file_error(member->error, file->path, "member '%.100s' is not an array (.npy)",
                   member->name);
        return tensor != NULL && tensor_reader_set_problem(file, tensor, member->error);
    }
    member->stream = zip_fopen_index(member->zip, member->index, 0);
    if (member->stream == NULL) {
        return fail_member(member, zip_strerror(member->zip));
    }
    bool metadata = strncmp(member->name, METADATA_PREFIX, strlen(METADATA_PREFIX)) == 0;
    bool done = metadata ? read_metadata(member) : declare_tensor(member);
    zip_fclose(member->stream);
    return done;
}

/* `compressed` adds up: members that share bytes of the archive are how small files claim a lot. */
static bool read_member(struct member *member, uint64_t *compressed)
{
    const char *path = member->file->path;
    zip_stat_t status;
    const zip_uint64_t needed = ZIP_STAT_NAME | ZIP_STAT_SIZE | ZIP_STAT_COMP_SIZE |
                                ZIP_STAT_COMP_METHOD | ZIP_STAT_ENCRYPTION_METHOD;
    if (zip_stat_index(member->zip, member->index, 0, &status) != 0 ||
        (status.valid & needed) != needed) {
        return file_error(member->error, path, "member %llu has no name or no size",
                          (unsigned long long)member->index);
    }
    if (status.comp_size > member->file->size - *compressed) {
        return file_error(member->error, path,
                          "member '%.100s' claims %llu bytes, more than are left in the archive",
                          status.name, (unsigned long long)status.comp_size);
    }
    *compressed += status.comp_size;
    member->name = strdup(status.name);
    if (member->name == NULL) {
        return file_error_memory(member->error, path, "the name of a member");
    }
    bool array = strip_suffix(member->name);
    bool done = check_claims(member, &status) && read_stream(member, array);
    free(member->name);
    return done;
}

static bool read_members(struct tensor_file *file, char *error)
{
    zip_t *zip = file->zip;
    zip_int64_t count = zip_get_num_entries(zip, 0);
    uint64_t compressed = 0;
    file->archive->members = calloc((size_t)count + 1, sizeof *file->archive->members);
    if (file->archive->members == NULL) {
        return file_error_memory(error, file->path, "its list of members");
    }
    if (!tensor_reader_reserve(file, (size_t)count, (size_t)count, error)) {
        return false;
    }
    for (zip_int64_t i = 0; i < count; ++i) {
        struct member member = {.file = file, .zip = zip, .index = (zip_uint64_t)i, .error = error};
        if (!read_member(&member, &compressed)) {
            return false;
        }
    }
    return true;
}

/* ---- the archive ---------------------------------------------------------------------------- */

bool npz_parse(struct tensor_file *file, char *error)
{
    file->archive = calloc(1, sizeof *file->archive);
    if (file->archive == NULL) {
        return file_error_memory(error, file->path, "an open archive");
    }
    return read_members(file, error);
}

/* The header has been read once, so what it says is known to be possible. */
bool npz_read_tensor(struct tensor_file *file, size_t i, char *error)
{
    struct member member = {.file = file,
                            .zip = file->zip,
                            .index = file->archive->members[i],
                            .name = file->tensors[i].name,
                            .error = error};
    struct npy_header header;
    zip_stat_t status;
    if (zip_stat_index(member.zip, member.index, 0, &status) != 0) {
        return fail_member(&member, zip_strerror(member.zip));
    }
    member.size = status.size;
    member.stream = zip_fopen_index(member.zip, member.index, 0);
    if (member.stream == NULL) {
        return fail_member(&member, zip_strerror(member.zip));
    }
    void *data = read_header(&member, &header) == NPY_OK ? read_data(&member, &header) : NULL;
    zip_fclose(member.stream);
    file->buffers[i] = data;
    file->tensors[i].tensor.data = data;
    return data != NULL;
}

void npz_close(struct npz_archive *archive)
{
    if (archive != NULL) {
        free(archive->members);
        free(archive);
    }
}
