/* zip_archive.c - reading zip archives in memory, on top of libzip. */
#include "zip_archive.h"

#include "file_error.h"

#include <stdio.h>
#include <string.h>

#define MAX_DEFLATE_RATIO 1032 /* what deflate can reach, by its format */

static zip_t *open_bytes(const unsigned char *bytes, size_t size, zip_error_t *reason)
{
    zip_source_t *source = zip_source_buffer_create(bytes, size, 0, reason);
    zip_t *zip =
        source == NULL ? NULL : zip_open_from_source(source, ZIP_RDONLY | ZIP_CHECKCONS, reason);
    if (zip == NULL) {
        zip_source_free(source);
    }
    return zip;
}

zip_t *zip_archive_open(const unsigned char *bytes, size_t size, const char *path, char *error)
{
    zip_error_t reason;
    zip_error_init(&reason);
    zip_t *zip = open_bytes(bytes, size, &reason);
    if (zip == NULL && zip_error_code_zip(&reason) == ZIP_ER_EXISTS) {
        file_error(error, path, "has two members of one name"); /* libzip may be first to see it */
    } else if (zip == NULL) {
        file_error(error, path, "is not a readable zip archive (.npz or .pt): %s",
                   zip_error_strerror(&reason));
    }
    zip_error_fini(&reason);
    return zip;
}

static bool ends_with(const char *text, const char *suffix)
{
    size_t length = strlen(text), end = strlen(suffix);
    return length >= end && strcmp(text + length - end, suffix) == 0;
}

bool zip_archive_has(zip_t *zip, const char *suffix)
{
    zip_int64_t count = zip_get_num_entries(zip, 0);
    for (zip_int64_t i = 0; i < count; ++i) {
        const char *name = zip_get_name(zip, (zip_uint64_t)i, 0);
        if (name != NULL && ends_with(name, suffix)) {
            return true;
        }
    }
    return false;
}

bool zip_claims_are_possible(const zip_stat_t *status, char reason[ZIP_REASON_SIZE])
{
    if (status->encryption_method != ZIP_EM_NONE) {
        snprintf(reason, ZIP_REASON_SIZE, "is encrypted");
        return false;
    }
    if (status->comp_method != ZIP_CM_STORE && status->comp_method != ZIP_CM_DEFLATE) {
        snprintf(reason, ZIP_REASON_SIZE,
                 "compression method %d, expected stored (0) or deflated (8)", status->comp_method);
        return false;
    }
    bool stored = status->comp_method == ZIP_CM_STORE;
    if ((stored && status->size != status->comp_size) ||
        status->size / MAX_DEFLATE_RATIO > status->comp_size) {
        snprintf(reason, ZIP_REASON_SIZE, "%llu bytes are said to come from %llu, which cannot be",
                 (unsigned long long)status->size, (unsigned long long)status->comp_size);
        return false;
    }
    return true;
}
