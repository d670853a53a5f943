/* case_files.h - the input files of a command, looked through in order: tensors, attributes,
 * errors.
 *
 * Several files may make up a case (the output of one command and the inputs it was made from): the
 * first that has a name wins. Functions that return false have printed their one line. */
#ifndef MOETOKEN_CLI_CASE_FILES_H
#define MOETOKEN_CLI_CASE_FILES_H

#include <stdbool.h>
#include <stdint.h>

#include "io/tensor_file.h"

#define CASE_FILES_MOST 8

struct case_files {
    struct tensor_file *files[CASE_FILES_MOST];
    const char *paths[CASE_FILES_MOST];
    int count;
};

bool case_files_open(struct case_files *files, const char *const *paths, int count);
void case_files_close(struct case_files *files);

/* The tensor of that name in *tensor, or NULL there when no file has it and it is not required. */
bool case_tensor(const struct case_files *files, const char *name, bool required,
                 const DLTensor **tensor);
/* A metadata value, or NULL. */
const char *case_metadata(const struct case_files *files, const char *key);

/* Attributes: the value given on the command line when there is one (switch: 0 or 1; integer: not
 * negative), else the files', else what *value held. A file has an attribute as text in its
 * metadata or, as numpy.savez stores Python's numbers, as a tensor: one bool or integer
 * (restore_shape: two integers), of no dimension or one. Any other tensor of that name is an error.
 */
bool case_switch(const struct case_files *files, const char *key, int given, bool *value);
bool case_integer(const struct case_files *files, const char *key, int64_t given, int64_t *value);
/* A finite number; given NaN: the files'. As a tensor: one floating-point number. */
bool case_decimal(const struct case_files *files, const char *key, double given, double *value);
/* Which of the words "a|b|c" it is; given -1: the files'. Text alone. */
bool case_choice(const struct case_files *files, const char *key, const char *words, int given,
                 int *value);
/* restore_shape, "T,H"; given NULL: the files'. *present: whether there is one. */
bool case_restore_shape(const struct case_files *files, const char *given, int64_t shape[2],
                        bool *present);

/* Whether the files and the tensors read from them justify that much memory and output. Sizes
 * without data behind them, next to a size of 0 or in an attribute, are a few bytes that could
 * demand any amount of work. false after printing a line. */
bool case_justifies(const struct case_files *files, int64_t input_bytes, double bytes);
/* Whether `path` is one of the files, by whatever name. */
bool case_files_hold(const struct case_files *files, const char *path);

/* Prints "moetoken: FILE: message", FILE being the one that holds the tensor that the message
 * begins with, else the first. Returns EXIT_INPUT. */
int report_input(const struct case_files *files, const char *message);
/* Prints "moetoken: message"; returns EXIT_INPUT. */
int report_error(const char *message);

/* The size of dimension d, 0 when the tensor is NULL or has fewer dimensions. */
int64_t tensor_dimension(const DLTensor *tensor, int d);
int64_t tensor_elements(const DLTensor *tensor);
int64_t tensor_bytes(const DLTensor *tensor);

#endif
