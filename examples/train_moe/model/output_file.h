/* output_file.h - files that appear under their name only when they are complete.
 *
 * Checkpoints, cases and plots are written through it: to PATH.tmp, which is renamed at the end. A
 * failure ends the program with a message and leaves an older file as it was. */
#ifndef TRAIN_MOE_OUTPUT_FILE_H
#define TRAIN_MOE_OUTPUT_FILE_H

#include <stddef.h>
#include <stdio.h>

struct output_file {
    FILE *stream; /* for fprintf; commit notices its errors */
    const char *path;
    char *temporary;
};

struct output_file output_file_open(const char *path);
void output_file_write(struct output_file *file, const void *bytes, size_t count);
void output_file_commit(struct output_file *file);

#endif
