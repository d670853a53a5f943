/* case_file.c - a minimal writer of safetensors: 8 bytes of header length (little-endian), a JSON
 * header that gives each tensor's type, shape and place, then the tensors one after the other. */
#include "case_file.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "output_file.h"

struct entry {
    const char *name;
    const DLTensor *tensor;
};

static const char *type_name(DLDataType type)
{
    static const struct {
        moetoken_type type;
        const char *name;
    } names[] = {{MOETOKEN_F32, "F32"},   {MOETOKEN_F16, "F16"}, {MOETOKEN_BF16, "BF16"},
                 {MOETOKEN_F64, "F64"},   {MOETOKEN_I32, "I32"}, {MOETOKEN_I64, "I64"},
                 {MOETOKEN_BOOL, "BOOL"}, {MOETOKEN_I8, "I8"},   {MOETOKEN_U8, "U8"}};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        DLDataType known = moetoken_dtype(names[i].type);
        if (known.code == type.code && known.bits == type.bits)
            return names[i].name;
    }
    return "unknown";
}

static uint64_t tensor_bytes(const DLTensor *tensor)
{
    uint64_t bytes = tensor->dtype.bits / 8u;
    for (int i = 0; i < tensor->ndim; i++)
        bytes *= (uint64_t)tensor->shape[i];
    return bytes;
}

static int describe(char *text, size_t size, const struct entry *entry, uint64_t begin)
{
    const DLTensor *tensor = entry->tensor;
    int length = snprintf(text, size, ",\"%s\":{\"dtype\":\"%s\",\"shape\":[", entry->name,
                          type_name(tensor->dtype));
    for (int i = 0; i < tensor->ndim; i++)
        length += snprintf(text + length, size - (size_t)length, "%s%" PRId64, i ? "," : "",
                           tensor->shape[i]);
    length += snprintf(text + length, size - (size_t)length,
                       "],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}", begin,
                       begin + tensor_bytes(tensor));
    return length;
}

/* Padded with spaces, so that the tensors start at a multiple of 8 bytes. */
static size_t make_header(char *text, size_t size, const struct entry *entries, size_t count)
{
    int length = snprintf(text, size, "{\"__metadata__\":{\"made_by\":\"train_moe\"}");
    uint64_t begin = 0;
    for (size_t i = 0; i < count; i++) {
        if (!entries[i].tensor)
            continue;
        length += describe(text + length, size - (size_t)length, &entries[i], begin);
        begin += tensor_bytes(entries[i].tensor);
    }
    text[length++] = '}';
    while (length % 8 != 0)
        text[length++] = ' ';
    return (size_t)length;
}

void case_file_write(const char *path, const moetoken_unpermute_grad_args *args)
{
    /* The widest elements first: every tensor is then aligned to its own elements. */
    const struct entry entries[] = {
        {"weights", args->weights},
        {"out_index", args->out_index},
        {"unpermuted_tokens_grad", args->unpermuted_tokens_grad},
        {"permuted_tokens", args->permuted_tokens},
    };
    size_t count = sizeof entries / sizeof entries[0];
    char header[4096];
    size_t length = make_header(header, sizeof header, entries, count);
    unsigned char prefix[8];
    for (int i = 0; i < 8; i++)
        prefix[i] = (unsigned char)((uint64_t)length >> 8 * i);

    struct output_file file = output_file_open(path);
    output_file_write(&file, prefix, sizeof prefix);
    output_file_write(&file, header, length);
    for (size_t i = 0; i < count; i++)
        if (entries[i].tensor)
            output_file_write(&file, entries[i].tensor->data, tensor_bytes(entries[i].tensor));
    output_file_commit(&file);
}
