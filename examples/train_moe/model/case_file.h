/* case_file.h - the inputs of unpermute_grad as a file that the tool `moetoken` reads. */
#ifndef TRAIN_MOE_CASE_FILE_H
#define TRAIN_MOE_CASE_FILE_H

#include <moetoken/moetoken.h>

/* Writes every input that args has as a safetensors file, by temporary file and rename. The
 * tensors must be contiguous. Ends the program with a message when it cannot. */
void case_file_write(const char *path, const moetoken_unpermute_grad_args *args);

#endif
