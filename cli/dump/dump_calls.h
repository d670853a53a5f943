/* dump_calls.h - what a dump.json says of calls: their names, arguments and results.
 *
 * An entry is called "NPU.npu_moe_token_unpermute.0.forward": kind, name of the function, number of
 * the call, direction. Forward, it has input_args, input_kwargs and output; backward, input (the
 * gradients of the results) and output (the gradients of the arguments by position). */
#ifndef MOETOKEN_CLI_DUMP_CALLS_H
#define MOETOKEN_CLI_DUMP_CALLS_H

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "io/tensor_file.h"

#define DUMP_NAME_SIZE 256

struct dump {
    const char *folder;
    cJSON *json;
    const cJSON *data;     /* name of each entry -> entry */
    const char *data_path; /* dump_data_dir, or NULL */
    bool has_tensors;      /* whether any entry names a file of data */
};

/* Reads folder/dump.json. false with a reason in error. Close in any case. */
bool dump_open(const char *folder, struct dump *dump, char error[TENSOR_FILE_ERROR_SIZE]);
void dump_close(struct dump *dump);

/* One entry of a dump. */
struct dump_call {
    const char *name;          /* all of it */
    char stem[DUMP_NAME_SIZE]; /* without the direction */
    char function[DUMP_NAME_SIZE];
    bool backward;
    const cJSON *entry;
};

/* false when the entry is no call: a module's, or of another form. */
bool dump_call_parse(const cJSON *entry, struct dump_call *call);
/* The entry "STEM.forward", or NULL. */
const cJSON *dump_forward_of(const struct dump *dump, const struct dump_call *call);

enum dump_value_kind {
    VALUE_ABSENT,
    VALUE_NONE,
    VALUE_TENSOR,
    VALUE_NUMBER, /* integer or bool */
    VALUE_LIST,   /* of integers */
    VALUE_OTHER
};
#define DUMP_LIST_MOST 8

struct dump_value {
    enum dump_value_kind kind;
    int64_t number;
    int64_t list[DUMP_LIST_MOST];
    int list_count;
    struct tensor_file *file; /* where a tensor lies */
    const DLTensor *tensor;
};

/* A value as it stands in an entry; NULL: absent. A tensor is read from its file. false, with a
 * reason in error, when that cannot be done. */
bool dump_value_read(const struct dump *dump, const cJSON *item, struct dump_value *value,
                     char error[TENSOR_FILE_ERROR_SIZE]);
void dump_value_free(struct dump_value *value);

#endif
