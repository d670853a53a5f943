/* zip_streams.c - two libzip sources for npz_write.c: members straight out of the tensors' memory,
 * and an archive straight into the nameless output file, where libzip alone would make a temporary
 * file that outlives a killed process. */
#include "zip_streams.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* ---- a member, read by libzip --------------------------------------------------------------- */

static zip_int64_t member_read(struct zip_member_stream *member, void *bytes, zip_uint64_t length)
{
    zip_uint64_t done = 0;
    if (member->at < member->header_size) {
        zip_uint64_t rest = member->header_size - member->at;
        done = rest < length ? rest : length;
        memcpy(bytes, member->header + member->at, done);
    } else {
        zip_uint64_t from = member->at - member->header_size;
        zip_uint64_t rest = member->data_size - from;
        done = rest < length ? rest : length;
        if (done > 0) {
            memcpy(bytes, (const char *)member->data + from, done);
        }
    }
    member->at += done;
    return (zip_int64_t)done;
}

static zip_int64_t member_stat(const struct zip_member_stream *member, void *data)
{
    zip_stat_t *status = data;
    zip_stat_init(status);
    status->size = member->header_size + member->data_size;
    status->valid = ZIP_STAT_SIZE;
    return sizeof *status;
}

static zip_int64_t member_command(void *state, void *data, zip_uint64_t length,
                                  zip_source_cmd_t command)
{
    struct zip_member_stream *member = state;
    switch (command) {
    case ZIP_SOURCE_OPEN:
        member->at = 0;
        return 0;
    case ZIP_SOURCE_READ:
        return member_read(member, data, length);
    case ZIP_SOURCE_STAT:
        return member_stat(member, data);
    case ZIP_SOURCE_CLOSE:
    case ZIP_SOURCE_FREE:
        return 0;
    case ZIP_SOURCE_SUPPORTS:
        return ZIP_SOURCE_SUPPORTS_READABLE;
    default:
        return -1; /* nothing that could fail, so ZIP_SOURCE_ERROR has nothing to say */
    }
}

zip_source_t *zip_member_source(zip_t *archive, struct zip_member_stream *member)
{
    return zip_source_function(archive, member_command, member);
}

/* ---- the archive, written by libzip --------------------------------------------------------- */

static zip_int64_t archive_fail(struct zip_archive_stream *archive, int zip_code, int reason)
{
    zip_error_set(&archive->error, zip_code, reason);
    return -1;
}

static zip_int64_t archive_read(struct zip_archive_stream *archive, void *bytes,
                                zip_uint64_t length)
{
    ssize_t done = pread(archive->descriptor, bytes, length, archive->at);
    if (done < 0) {
        return archive_fail(archive, ZIP_ER_READ, errno);
    }
    archive->at += done;
    return done;
}

static zip_int64_t archive_write(struct zip_archive_stream *archive, const void *bytes,
                                 zip_uint64_t length)
{
    zip_uint64_t done = 0;
    while (done < length) {
        ssize_t step =
            pwrite(archive->descriptor, (const char *)bytes + done, length - done, archive->at);
        if (step < 0) {
            return archive_fail(archive, ZIP_ER_WRITE, errno);
        }
        done += (zip_uint64_t)step;
        archive->at += step;
    }
    if (archive->at > archive->size) {
        archive->size = archive->at;
    }
    return (zip_int64_t)length;
}

static zip_int64_t archive_seek(struct zip_archive_stream *archive, void *data, zip_uint64_t length)
{
    zip_int64_t at = zip_source_seek_compute_offset(
        (zip_uint64_t)archive->at, (zip_uint64_t)archive->size, data, length, &archive->error);
    if (at >= 0) {
        archive->at = at;
    }
    return at < 0 ? -1 : 0;
}

static zip_int64_t archive_stat(const struct zip_archive_stream *archive, void *data)
{
    zip_stat_t *status = data;
    zip_stat_init(status);
    status->size = (zip_uint64_t)archive->size;
    status->valid = ZIP_STAT_SIZE;
    return sizeof *status;
}

static zip_int64_t archive_command(void *state, void *data, zip_uint64_t length,
                                   zip_source_cmd_t command)
{
    struct zip_archive_stream *archive = state;
    switch (command) {
    case ZIP_SOURCE_OPEN:
    case ZIP_SOURCE_BEGIN_WRITE:
        archive->at = 0;
        return 0;
    case ZIP_SOURCE_READ:
        return archive_read(archive, data, length);
    case ZIP_SOURCE_WRITE:
        return archive_write(archive, data, length);
    case ZIP_SOURCE_SEEK:
    case ZIP_SOURCE_SEEK_WRITE:
        return archive_seek(archive, data, length);
    case ZIP_SOURCE_TELL:
    case ZIP_SOURCE_TELL_WRITE:
        return archive->at;
    case ZIP_SOURCE_STAT:
        return archive_stat(archive, data);
    case ZIP_SOURCE_ERROR:
        return zip_error_to_data(&archive->error, data, length);
    case ZIP_SOURCE_CLOSE:
    case ZIP_SOURCE_FREE:
    case ZIP_SOURCE_COMMIT_WRITE:   /* the caller's output_file_commit does it */
    case ZIP_SOURCE_ROLLBACK_WRITE: /* the caller drops the file */
    case ZIP_SOURCE_REMOVE:
        return 0;
    case ZIP_SOURCE_SUPPORTS:
        return ZIP_SOURCE_SUPPORTS_WRITABLE;
    default:
        return archive_fail(archive, ZIP_ER_OPNOTSUPP, 0);
    }
}

zip_source_t *zip_archive_source(struct zip_archive_stream *archive, zip_error_t *error)
{
    zip_error_init(&archive->error);
    return zip_source_function_create(archive_command, archive, error);
}
