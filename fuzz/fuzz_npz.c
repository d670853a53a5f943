/* fuzz_npz.c - libFuzzer harness: an input that begins with "PK" is an archive; any other is put
 * into an honest archive as an array, so that checksums do not keep the fuzzer from array headers;
 * and one that begins as an array does is read as such, too.
 * Sources: this file, tests/tool/io/file_bytes.c and moetoken_io with a moetoken library; include
 * tests/tool/io. Seeds: io_corpus/make_seeds.c. */
#include "file_bytes.h"
#include "touch_tensors.h"

#include "io/tensor_file.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void try_archive(const uint8_t *data, size_t size)
{
    char error[TENSOR_FILE_ERROR_SIZE];
    struct tensor_file *file = tensor_file_open_memory(data, size, "input", error);
    touch_tensors(file, error);
    tensor_file_close(file);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size >= 2 && data[0] == 'P' && data[1] == 'K') {
        try_archive(data, size);
        return 0;
    }
    if (size >= 6 && memcmp(data, "\x93NUMPY", 6) == 0) {
        try_archive(data, size);
    }
    struct file_bytes archive = {0};
    zip_add(&archive, "x.npy", data, size);
    zip_add(&archive, "__metadata__.key.npy", data, size);
    zip_end(&archive);
    try_archive(archive.bytes, archive.size);
    file_bytes_free(&archive);
    return 0;
}
