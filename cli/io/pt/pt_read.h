/* pt_read.h - a PyTorch file from the inside: what pt_names.c finds in the pickle and pt_read.c
 * reads from the archive. */
#ifndef MOETOKEN_CLI_PT_READ_H
#define MOETOKEN_CLI_PT_READ_H

#include "io/tensor_reader.h"
#include "pickle.h"

#include <zip.h>

/* The bytes beside the pickle that tensors are views of. */
struct pt_storage {
    const struct pickle_value *value; /* of kind PICKLE_STORAGE */
    unsigned char *bytes;             /* once they were read */
};

struct pt_archive {
    char *folder; /* "archive/" of "archive/data.pkl" */
    unsigned char *program;
    struct pickle pickle;
    pickle_place *tensors; /* each tensor of the file, where it is in the pickle */
    size_t *storage_of;    /* and its storage's number */
    struct pt_storage *storages;
    size_t storages_count;
    uint64_t copied; /* bytes of tensors that are not a run of their storage */
};

/* Names for the tensors that the pickle holds, metadata for its other values. */
bool pt_name_tensors(struct tensor_file *file, char *error);

/* The text of a pickle's value, for messages; cut off where it is long. */
void pt_text(const struct pickle_value *text, char *to, size_t size);

#endif
