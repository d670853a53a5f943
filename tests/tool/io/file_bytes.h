/* file_bytes.h - builds files by hand, right or wrong on purpose, sharing no code with the readers
 * and writers: safetensors from a header text, zip archives from members with free claims. */
#ifndef MOETOKEN_TESTS_FILE_BYTES_H
#define MOETOKEN_TESTS_FILE_BYTES_H

#include <stddef.h>
#include <stdint.h>

struct file_bytes {
    unsigned char *bytes; /* of a complete file exactly `size` long, for the sanitizers to see */
    size_t size;          /* every read past its end */
    unsigned char *directory; /* zip: the central directory so far */
    size_t directory_size;
    size_t members;
};

void file_bytes_add(struct file_bytes *file, const void *bytes, size_t size);
/* The lowest `count` bytes of value, little-endian. */
void file_bytes_add_number(struct file_bytes *file, uint64_t value, int count);
void file_bytes_free(struct file_bytes *file);

/* header length, header, data */
struct file_bytes safetensors_bytes(const char *header, const void *data, size_t data_size);

/* What the archive says of a member. */
struct zip_claim {
    uint16_t flags;
    uint16_t method; /* 0 stored, 8 deflated */
    uint32_t size;
    uint32_t crc;
};

uint32_t zip_crc(const void *bytes, size_t size);
void zip_add_claim(struct file_bytes *file, const char *name, const void *stored,
                   size_t stored_size, struct zip_claim claim);
/* An honest stored member. */
void zip_add(struct file_bytes *file, const char *name, const void *bytes, size_t size);
void zip_end(struct file_bytes *file);

/* An .npy file of version 1.0 with that header text (padded and ended here) and data. */
struct file_bytes npy_bytes(const char *header, const void *data, size_t data_size);
/* zip_add of npy_bytes. */
void zip_add_npy(struct file_bytes *file, const char *name, const char *header, const void *data,
                 size_t data_size);

#endif
