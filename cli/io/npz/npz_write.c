/* npz_write.c - a NumPy .npz file: every tensor a stored .npy member, filled in memory and written
 * at commit. Stored, as numpy.savez does: gradients hardly shrink, and deflate is slow. */
#include "io/file_error.h"
#include "io/tensor_writer.h"
#include "io/utf8.h"
#include "npy_header.h"
#include "zip_streams.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zip.h>

#define DOS_DATE ((0 << 9) | (1 << 5) | 1) /* 1980-01-01, as in numpy.savez: equal runs, equal */
#define DOS_TIME 0                         /* bytes */

_Static_assert(sizeof((struct zip_member_stream *)0)->header >= NPY_TEXT_SIZE,
               "an array header fits");

bool npz_begin(struct tensor_writer *writer, char *error)
{
    for (size_t i = 0; i < writer->count; ++i) {
        struct written_tensor *tensor = &writer->tensors[i];
        tensor->buffer = calloc((size_t)tensor->bytes + 1, 1);
        if (tensor->buffer == NULL) {
            return file_error(error, writer->output.given,
                              "no memory for tensor '%.100s' (%lld bytes)", tensor->name,
                              (long long)tensor->bytes);
        }
        tensor->tensor.data = tensor->buffer;
    }
    return true;
}

/* ---- metadata ------------------------------------------------------------------------------- */

/* UTF-8 -> code points of 4 bytes. Returns how many; `points` has room for one a byte. */
static size_t decode_text(const char *text, unsigned char *points)
{
    size_t length = strlen(text);
    size_t count = 0;
    for (size_t i = 0; i < length; ++count) {
        uint32_t code_point = 0;
        i += utf8_decode((const unsigned char *)text + i, length - i, &code_point);
        for (int byte = 0; byte < 4; ++byte) {
            points[4 * count + (size_t)byte] = (unsigned char)(code_point >> (8 * byte));
        }
    }
    return count;
}

/* Returns the memory that the stream's data lies in, or NULL. */
static unsigned char *fill_metadata(struct zip_member_stream *stream, const char *value)
{
    char descr[32];
    unsigned char *points = calloc(strlen(value) + 1, 4);
    if (points != NULL) {
        size_t count = decode_text(value, points);
        count = count > 0 ? count : 1; /* NumPy has no text of length 0; the end is cut off */
        snprintf(descr, sizeof descr, "<U%zu", count);
        stream->header_size = npy_header_write(stream->header, descr, 0, NULL);
        stream->data = points;
        stream->data_size = 4 * count;
    }
    return points;
}

/* ---- the archive ---------------------------------------------------------------------------- */

static void fill_tensor(struct zip_member_stream *stream, const struct written_tensor *tensor)
{
    stream->header_size =
        npy_header_write(stream->header, tensor->type->npy, tensor->tensor.ndim, tensor->shape);
    stream->data = tensor->buffer;
    stream->data_size = (uint64_t)tensor->bytes;
}

static bool add_member(zip_t *archive, const char *prefix, const char *name,
                       struct zip_member_stream *stream)
{
    size_t size = strlen(prefix) + strlen(name) + sizeof ".npy";
    char *member = malloc(size);
    if (member == NULL) {
        return false;
    }
    snprintf(member, size, "%s%s.npy", prefix, name);
    zip_source_t *source = zip_member_source(archive, stream);
    zip_int64_t index =
        source == NULL ? -1 : zip_file_add(archive, member, source, ZIP_FL_ENC_UTF_8);
    free(member);
    if (index < 0) {
        zip_source_free(source);
        return false;
    }
    return zip_set_file_compression(archive, (zip_uint64_t)index, ZIP_CM_STORE, 0) == 0 &&
           zip_file_set_dostime(archive, (zip_uint64_t)index, DOS_TIME, DOS_DATE, 0) == 0;
}

/* `texts` takes the memory of metadata, which must live until the archive is closed. */
static bool add_members(const struct tensor_writer *writer, zip_t *archive,
                        struct zip_member_stream *streams, unsigned char **texts)
{
    for (size_t i = 0; i < writer->count; ++i) {
        fill_tensor(&streams[i], &writer->tensors[i]);
        if (!add_member(archive, "", writer->tensors[i].name, &streams[i])) {
            return false;
        }
    }
    for (size_t i = 0; i < writer->metadata_count; ++i) {
        struct zip_member_stream *stream = &streams[writer->count + i];
        texts[i] = fill_metadata(stream, writer->metadata[2 * i + 1]);
        if (texts[i] == NULL ||
            !add_member(archive, "__metadata__.", writer->metadata[2 * i], stream)) {
            return false;
        }
    }
    return true;
}

/* Without a reason of libzip's it was one of our own allocations that failed. */
static bool fail_archive(const struct tensor_writer *writer, zip_error_t *reason, char *error)
{
    if (zip_error_code_zip(reason) == ZIP_ER_OK) {
        return file_error_memory(error, writer->output.given, "the archive's members");
    }
    return file_error(error, writer->output.given, "cannot be written: %s",
                      zip_error_strerror(reason));
}

static bool write_archive(const struct tensor_writer *writer, struct zip_member_stream *streams,
                          unsigned char **texts, char *error)
{
    zip_error_t reason;
    zip_error_init(&reason);
    struct zip_archive_stream output = {.descriptor = writer->output.descriptor};
    zip_source_t *source = zip_archive_source(&output, &reason);
    zip_t *archive =
        source == NULL ? NULL : zip_open_from_source(source, ZIP_CREATE | ZIP_TRUNCATE, &reason);
    if (archive == NULL) {
        zip_source_free(source);
        fail_archive(writer, &reason, error);
        zip_error_fini(&reason);
        return false;
    }
    bool done = add_members(writer, archive, streams, texts) && zip_close(archive) == 0;
    if (!done) {
        fail_archive(writer, zip_get_error(archive), error);
        zip_discard(archive);
    }
    zip_error_fini(&reason);
    zip_error_fini(&output.error);
    return done;
}

/* libzip makes no archive without members; it consists of the end record alone. */
static bool write_empty_archive(const struct tensor_writer *writer, char *error)
{
    static const char end_record[22] = "PK\5\6";
    ssize_t done = write(writer->output.descriptor, end_record, sizeof end_record);
    return done == (ssize_t)sizeof end_record ||
           file_error(error, writer->output.given, "cannot be written: %s", strerror(errno));
}

bool npz_finish(struct tensor_writer *writer, char *error)
{
    size_t count = writer->count + writer->metadata_count;
    if (count == 0) {
        return write_empty_archive(writer, error);
    }
    struct zip_member_stream *streams = calloc(count, sizeof *streams);
    unsigned char **texts = calloc(writer->metadata_count + 1, sizeof *texts);
    bool done = streams != NULL && texts != NULL
                    ? write_archive(writer, streams, texts, error)
                    : file_error_memory(error, writer->output.given, "the archive's members");
    for (size_t i = 0; texts != NULL && i < writer->metadata_count; ++i) {
        free(texts[i]);
    }
    free((void *)texts);
    free(streams);
    return done;
}
