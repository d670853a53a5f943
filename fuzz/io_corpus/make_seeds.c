/* make_seeds.c - writes the seeds of the file fuzzers: make_seeds DIR makes DIR/safetensors-...,
 * DIR/npz-... and DIR/pt-... files, from the tool's own writers and from hand-made bytes. Sources:
 * this file, tests/tool/io/file_bytes.c and moetoken_io with a moetoken library; include
 * tests/tool/io. */
#include "pt_bytes.h"

#include "io/tensor_file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct tensor_spec specs[] = {
    {"probs", MOETOKEN_F32, 2, {2, 3}}, {"out_index", MOETOKEN_I64, 1, {2}},
    {"map", MOETOKEN_BOOL, 2, {2, 3}},  {"tokens", MOETOKEN_BF16, 2, {1, 4}},
    {"half", MOETOKEN_F16, 0, {0}},     {"none", MOETOKEN_F64, 2, {0, 5}}};

static const char *const headers[] = {
    "{\"x\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]}}\nab",
    ("{\"__metadata__\":{\"key\":\"\\u00e9\"},\"x\":{\"dtype\":\"I32\",\"shape\":[],"
     "\"data_offsets\":[1,5]},\"y\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}"
     "\nabcde"),
    "{\"x\":{\"dtype\":\"U16\",\"shape\":[1,0],\"data_offsets\":[0,0]}}",
};

static const char *const arrays[] = {
    "{'descr': '<f4', 'fortran_order': False, 'shape': (1,), }",
    "{'descr': '<i2', 'fortran_order': True, 'shape': (2, 1), }",
    "{'descr': '|u1', 'fortran_order': True, 'shape': (2, 2), }",
    "{'descr': '<U1', 'fortran_order': False, 'shape': (), }",
    "{'descr': '|S4', 'fortran_order': False, 'shape': (1,), }",
    "{'descr': '|O', 'fortran_order': False, 'shape': (), }",
    "{'descr': [('x', '<f4')], 'fortran_order': False, 'shape': (), }",
};

static bool put_seed(const char *directory, const char *kind, size_t number, const void *bytes,
                     size_t size)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s-%zu", directory, kind, number);
    FILE *file = fopen(path, "wb");
    bool done = file != NULL && fwrite(bytes, 1, size, file) == size;
    return file != NULL && fclose(file) == 0 && done;
}

static bool put_written(const char *directory, const char *name)
{
    static const char *const metadata[] = {"key", "value", NULL};
    char path[512];
    char error[TENSOR_FILE_ERROR_SIZE];
    snprintf(path, sizeof path, "%s/%s", directory, name);
    struct tensor_writer *writer =
        tensor_writer_open(path, specs, sizeof specs / sizeof specs[0], metadata, error);
    if (writer != NULL && tensor_writer_commit(writer, error)) {
        return true;
    }
    fprintf(stderr, "%s\n", error);
    return false;
}

/* A deflated member: one stored block of deflate. */
static bool put_deflated(const char *directory)
{
    struct file_bytes npy = npy_bytes(arrays[0], "abcd", 4);
    struct file_bytes block = {0};
    struct file_bytes archive = {0};
    struct zip_claim claim = {
        .method = 8, .size = (uint32_t)npy.size, .crc = zip_crc(npy.bytes, npy.size)};
    file_bytes_add_number(&block, 1, 1);
    file_bytes_add_number(&block, npy.size, 2);
    file_bytes_add_number(&block, ~npy.size, 2);
    file_bytes_add(&block, npy.bytes, npy.size);
    zip_add_claim(&archive, "x.npy", block.bytes, block.size, claim);
    zip_end(&archive);
    bool done = put_seed(directory, "npz-deflated", 0, archive.bytes, archive.size);
    file_bytes_free(&archive);
    file_bytes_free(&block);
    file_bytes_free(&npy);
    return done;
}

/* A dict with a tensor, a list, a size and numbers; alone and in its archive. */
static bool put_pickles(const char *directory)
{
    static const struct pickle_view views[] = {{"FloatStorage", "0", 12, 0, 2, {3, 4}, {4, 1}},
                                               {"HalfStorage", "0", 24, 2, 2, {3, 2}, {1, 6}}};
    bool done = true;
    for (size_t i = 0; done && i < 2; ++i) {
        struct file_bytes program = pickle_begin();
        pickle_add(&program, "ccollections\nOrderedDict\n)R(");
        pickle_text(&program, "x");
        pickle_tensor(&program, &views[i]);
        pickle_text(&program, "list");
        pickle_add(&program, "]q\1(K\2M\3\4N\x88\x89G????????eh\1");
        pickle_add(&program, "ctorch\nSize\n");
        pickle_integers(&program, views[i].sizes, 2);
        pickle_add(&program, "\x85Ru}(");
        pickle_text(&program, "version");
        pickle_add(&program, "K\1ub.");
        done = put_seed(directory, "pt-pickle", i, program.bytes, program.size);
        struct file_bytes archive =
            pt_bytes(&program, "0123456789012345678901234567890123456789abcdefgh", 48);
        done = done && put_seed(directory, "pt-archive", i, archive.bytes, archive.size);
        file_bytes_free(&archive);
    }
    return done;
}

int main(int count, char **arguments)
{
    if (count != 2) {
        fprintf(stderr, "usage: make_seeds DIR\n");
        return 2;
    }
    const char *directory = arguments[1];
    bool done = put_written(directory, "safetensors-written") &&
                put_written(directory, "npz-written.npz") && put_deflated(directory) &&
                put_pickles(directory);
    for (size_t i = 0; done && i < sizeof headers / sizeof headers[0]; ++i) {
        done = put_seed(directory, "safetensors-header", i, headers[i], strlen(headers[i]));
    }
    for (size_t i = 0; done && i < sizeof arrays / sizeof arrays[0]; ++i) {
        struct file_bytes npy = npy_bytes(arrays[i], "abcd", 4);
        done = put_seed(directory, "npz-array", i, npy.bytes, npy.size);
        file_bytes_free(&npy);
    }
    return done ? 0 : 1;
}
