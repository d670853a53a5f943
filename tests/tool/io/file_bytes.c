/* file_bytes.c - hand-made safetensors and zip files for the tests and fuzzers of cli/io. */
#include "file_bytes.h"

#include <stdlib.h>
#include <string.h>

static void append(unsigned char **all, size_t *size, const void *bytes, size_t count)
{
    unsigned char *longer = realloc(*all, *size + count + 1);
    if (longer == NULL) {
        abort();
    }
    if (count > 0) {
        memcpy(longer + *size, bytes, count);
    }
    *all = longer;
    *size += count;
}

void file_bytes_add(struct file_bytes *file, const void *bytes, size_t size)
{
    append(&file->bytes, &file->size, bytes, size);
}

void file_bytes_add_number(struct file_bytes *file, uint64_t value, int count)
{
    unsigned char bytes[8];
    for (int i = 0; i < 8; ++i) {
        bytes[i] = (unsigned char)(value >> (8 * i));
    }
    file_bytes_add(file, bytes, (size_t)count);
}

/* A block of exactly the file's size: the one extra byte of `append` would hide a read past it. */
static void trim(struct file_bytes *file)
{
    unsigned char *exact = malloc(file->size);
    if (exact == NULL) {
        abort();
    }
    memcpy(exact, file->bytes, file->size);
    free(file->bytes);
    file->bytes = exact;
}

void file_bytes_free(struct file_bytes *file)
{
    free(file->bytes);
    free(file->directory);
    memset(file, 0, sizeof *file);
}

struct file_bytes safetensors_bytes(const char *header, const void *data, size_t data_size)
{
    struct file_bytes file = {0};
    file_bytes_add_number(&file, strlen(header), 8);
    file_bytes_add(&file, header, strlen(header));
    file_bytes_add(&file, data, data_size);
    trim(&file);
    return file;
}

uint32_t zip_crc(const void *bytes, size_t size)
{
    uint32_t crc = UINT32_MAX;
    for (size_t i = 0; i < size; ++i) {
        crc ^= ((const unsigned char *)bytes)[i];
        for (int bit = 0; bit < 8; ++bit) {
            crc = crc >> 1 ^ ((crc & 1) != 0 ? UINT32_C(0xEDB88320) : 0);
        }
    }
    return ~crc;
}

/* What the local header and the directory have in common, from "version needed" on. */
static void add_common(struct file_bytes *to, const char *name, size_t stored_size,
                       struct zip_claim claim)
{
    file_bytes_add_number(to, 20, 2);
    file_bytes_add_number(to, claim.flags, 2);
    file_bytes_add_number(to, claim.method, 2);
    file_bytes_add_number(to, 0x00210000, 4); /* 1980-01-01 00:00 */
    file_bytes_add_number(to, claim.crc, 4);
    file_bytes_add_number(to, stored_size, 4);
    file_bytes_add_number(to, claim.size, 4);
    file_bytes_add_number(to, strlen(name), 2);
    file_bytes_add_number(to, 0, 2); /* extra fields */
}

void zip_add_claim(struct file_bytes *file, const char *name, const void *stored,
                   size_t stored_size, struct zip_claim claim)
{
    struct file_bytes entry = {0};
    size_t offset = file->size;
    file_bytes_add(file, "PK\3\4", 4);
    add_common(file, name, stored_size, claim);
    file_bytes_add(file, name, strlen(name));
    file_bytes_add(file, stored, stored_size);
    file_bytes_add(&entry, "PK\1\2", 4);
    file_bytes_add_number(&entry, 20, 2);
    add_common(&entry, name, stored_size, claim);
    file_bytes_add_number(&entry, 0, 6); /* comment, disk, attributes */
    file_bytes_add_number(&entry, 0, 4);
    file_bytes_add_number(&entry, offset, 4);
    file_bytes_add(&entry, name, strlen(name));
    append(&file->directory, &file->directory_size, entry.bytes, entry.size);
    free(entry.bytes);
    ++file->members;
}

void zip_add(struct file_bytes *file, const char *name, const void *bytes, size_t size)
{
    struct zip_claim claim = {.size = (uint32_t)size, .crc = zip_crc(bytes, size)};
    zip_add_claim(file, name, bytes, size, claim);
}

void zip_end(struct file_bytes *file)
{
    size_t offset = file->size;
    if (file->directory_size > 0) {
        file_bytes_add(file, file->directory, file->directory_size);
    }
    file_bytes_add(file, "PK\5\6\0\0\0\0", 8);
    file_bytes_add_number(file, file->members, 2);
    file_bytes_add_number(file, file->members, 2);
    file_bytes_add_number(file, file->directory_size, 4);
    file_bytes_add_number(file, offset, 4);
    file_bytes_add_number(file, 0, 2);
    trim(file);
}

struct file_bytes npy_bytes(const char *header, const void *data, size_t data_size)
{
    struct file_bytes file = {0};
    file_bytes_add(&file, "\x93NUMPY\1\0", 8);
    file_bytes_add_number(&file, strlen(header) + 1, 2);
    file_bytes_add(&file, header, strlen(header));
    file_bytes_add(&file, "\n", 1);
    file_bytes_add(&file, data, data_size);
    return file;
}

void zip_add_npy(struct file_bytes *file, const char *name, const char *header, const void *data,
                 size_t data_size)
{
    struct file_bytes npy = npy_bytes(header, data, data_size);
    zip_add(file, name, npy.bytes, npy.size);
    file_bytes_free(&npy);
}
