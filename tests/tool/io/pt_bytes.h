/* pt_bytes.h - builds PyTorch files by hand, instruction by instruction, for the test and for the
 * fuzzer's seeds. */
#ifndef MOETOKEN_TESTS_PT_BYTES_H
#define MOETOKEN_TESTS_PT_BYTES_H

#include "file_bytes.h"

#include <string.h>

/* The instructions of a pickle of protocol 2. */
static inline struct file_bytes pickle_begin(void)
{
    struct file_bytes program = {0};
    file_bytes_add(&program, "\x80\2", 2);
    return program;
}

static inline void pickle_add(struct file_bytes *program, const char *instructions)
{
    file_bytes_add(program, instructions, strlen(instructions));
}

static inline void pickle_text(struct file_bytes *program, const char *text)
{
    file_bytes_add(program, "X", 1);
    file_bytes_add_number(program, strlen(text), 4);
    file_bytes_add(program, text, strlen(text));
}

static inline void pickle_integer(struct file_bytes *program, int64_t value)
{
    file_bytes_add(program, "\x8a\x08", 2);
    file_bytes_add_number(program, (uint64_t)value, 8);
}

static inline void pickle_integers(struct file_bytes *program, const int64_t *values, int count)
{
    pickle_add(program, "(");
    for (int i = 0; i < count; ++i) {
        pickle_integer(program, values[i]);
    }
    pickle_add(program, "t");
}

/* A tensor as torch.save writes it: a view of a storage. type: "FloatStorage". */
struct pickle_view {
    const char *type, *key;
    int64_t elements, offset;
    int ndim;
    int64_t sizes[4], strides[4];
};

static inline void pickle_storage(struct file_bytes *program, const struct pickle_view *view)
{
    pickle_add(program, "(");
    pickle_text(program, "storage");
    pickle_add(program, "ctorch\n");
    pickle_add(program, view->type);
    pickle_add(program, "\n");
    pickle_text(program, view->key);
    pickle_text(program, "npu:0");
    pickle_integer(program, view->elements);
    pickle_add(program, "tQ");
}

static inline void pickle_tensor(struct file_bytes *program, const struct pickle_view *view)
{
    pickle_add(program, "ctorch._utils\n_rebuild_tensor_v2\n(");
    pickle_storage(program, view);
    pickle_integer(program, view->offset);
    pickle_integers(program, view->sizes, view->ndim);
    pickle_integers(program, view->strides, view->ndim);
    pickle_add(program, "\x89"
                        "ccollections\nOrderedDict\n)RtR");
}

/* The archive of a program and one storage, as PyTorch 1.13 writes it (no byte order, a folder
 * named after the file); without a storage where data is NULL. Frees the program. */
static inline struct file_bytes pt_bytes(struct file_bytes *program, const void *data,
                                         size_t data_size)
{
    struct file_bytes archive = {0};
    zip_add(&archive, "dump/data.pkl", program->bytes, program->size);
    if (data != NULL) {
        zip_add(&archive, "dump/data/0", data, data_size);
    }
    zip_add(&archive, "dump/version", "3\n", 2);
    zip_end(&archive);
    file_bytes_free(program);
    return archive;
}

#endif
