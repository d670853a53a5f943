/* zip_streams.h - what libzip reads a member from and writes an archive to. */
#ifndef MOETOKEN_CLI_ZIP_STREAMS_H
#define MOETOKEN_CLI_ZIP_STREAMS_H

#include <stddef.h>
#include <stdint.h>
#include <zip.h>

/* A member's bytes: a header, then data that is borrowed until the archive is closed. */
struct zip_member_stream {
    unsigned char header[512];
    size_t header_size;
    const void *data;
    uint64_t data_size;
    uint64_t at;
};

zip_source_t *zip_member_source(zip_t *archive, struct zip_member_stream *member);

/* An archive that is written to an open, empty file, which stays open. */
struct zip_archive_stream {
    int descriptor;
    int64_t at;
    int64_t size;
    zip_error_t error;
};

zip_source_t *zip_archive_source(struct zip_archive_stream *archive, zip_error_t *error);

#endif
