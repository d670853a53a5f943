/* touch_tensors.h - what the file fuzzers do with an opened file: read all of it, and hold the
 * reader to its promises. */
#ifndef MOETOKEN_FUZZ_TOUCH_TENSORS_H
#define MOETOKEN_FUZZ_TOUCH_TENSORS_H

#include "io/tensor_file.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static void touch_require(bool promise)
{
    if (!promise) {
        abort();
    }
}

static void touch_bytes(const DLTensor *tensor)
{
    uint64_t bytes = tensor->dtype.bits / 8;
    unsigned char *copy;
    touch_require(tensor->ndim >= 0 && tensor->ndim <= TENSOR_FILE_MAX_NDIM);
    touch_require(tensor->data != NULL && tensor->strides == NULL && tensor->byte_offset == 0);
    for (int i = 0; i < tensor->ndim; ++i) {
        touch_require(tensor->shape[i] >= 0);
        bytes = tensor->shape[i] == 0 ? 0 : bytes * (uint64_t)tensor->shape[i];
        if (bytes == 0) {
            return;
        }
    }
    copy = malloc(bytes);
    if (copy != NULL) {
        memcpy(copy, tensor->data, bytes);
    }
    free(copy);
}

static void touch_tensors(struct tensor_file *file, const char *error)
{
    if (file == NULL) {
        touch_require(strncmp(error, "input: ", 7) == 0 && strchr(error, '\n') == NULL);
        return;
    }
    touch_require(error[0] == '\0');
    for (size_t i = 0; i < tensor_file_count(file); ++i) {
        const struct named_tensor *named = tensor_file_at(file, i);
        if (named->problem == NULL) {
            touch_bytes(&named->tensor);
        } else {
            touch_require(strncmp(named->problem, "input: ", 7) == 0);
            touch_require(named->tensor.data == NULL && named->tensor.dtype.bits == 0);
        }
        touch_require(tensor_file_find(file, named->name) == &named->tensor);
    }
    (void)tensor_file_metadata(file, "key");
}

#endif
