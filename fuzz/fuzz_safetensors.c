/* fuzz_safetensors.c - libFuzzer harness: any bytes as a tensor file. Sources: this file and
 * moetoken_io with a moetoken library. Seeds: io_corpus/make_seeds.c. */
#include "touch_tensors.h"

#include "io/tensor_file.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Half of all random changes would break the header length: inputs that begin with '{' are a header
 * that ends at the first line feed, then data, and get their length here. */
static struct tensor_file *open_header(const uint8_t *data, size_t size, uint8_t **copy,
                                       char *error)
{
    const uint8_t *end = memchr(data, '\n', size);
    size_t length = end == NULL ? size : (size_t)(end - data);
    *copy = malloc(size + 8);
    if (*copy == NULL) {
        return NULL;
    }
    for (int i = 0; i < 8; ++i) {
        (*copy)[i] = (uint8_t)((uint64_t)length >> (8 * i));
    }
    memcpy(*copy + 8, data, length);
    size_t rest = end == NULL ? 0 : size - length - 1;
    if (rest > 0) {
        memcpy(*copy + 8 + length, end + 1, rest);
    }
    return tensor_file_open_memory(*copy, 8 + length + rest, "input", error);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char error[TENSOR_FILE_ERROR_SIZE];
    uint8_t *copy = NULL;
    struct tensor_file *file = size > 0 && data[0] == '{'
                                   ? open_header(data, size, &copy, error)
                                   : tensor_file_open_memory(data, size, "input", error);
    touch_tensors(file, error);
    tensor_file_close(file);
    free(copy);
    return 0;
}
