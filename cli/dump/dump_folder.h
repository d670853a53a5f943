/* dump_folder.h - a folder as msprobe writes it: in its folders step0, step1, ... the folders
 * rank0, rank1, ..., in each of them a dump.json and the folder dump_tensor_data. */
#ifndef MOETOKEN_CLI_DUMP_FOLDER_H
#define MOETOKEN_CLI_DUMP_FOLDER_H

#include <stdbool.h>
#include <stddef.h>

struct dump_folders {
    char **paths; /* each has a dump.json; in order of steps and ranks */
    size_t count;
};

bool is_folder(const char *path);
/* Finds them in `path`, which may also be one step's folder or one rank's. false, with a reason in
 * error[TENSOR_FILE_ERROR_SIZE], when there is none. Free in any case. */
bool dump_folders_find(const char *path, struct dump_folders *folders, char *error);
void dump_folders_free(struct dump_folders *folders);

#endif
