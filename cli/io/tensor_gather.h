/* tensor_gather.h - a tensor file that is none: borrowed tensors under names of the caller's
 * choice, for what takes its inputs from files. */
#ifndef MOETOKEN_CLI_TENSOR_GATHER_H
#define MOETOKEN_CLI_TENSOR_GATHER_H

#include "tensor_file.h"

#define TENSOR_GATHER_MOST 16 /* tensors, and metadata entries */

/* `name` stands for the path in messages. NULL after an error. To be closed by tensor_file_close.
 */
struct tensor_file *tensor_gather_begin(const char *name, char error[TENSOR_FILE_ERROR_SIZE]);
/* A contiguous tensor of at most TENSOR_FILE_MAX_NDIM dimensions whose data outlive the file. */
bool tensor_gather_add(struct tensor_file *file, const char *name, const DLTensor *tensor,
                       char error[TENSOR_FILE_ERROR_SIZE]);
bool tensor_gather_metadata(struct tensor_file *file, const char *key, const char *value,
                            char error[TENSOR_FILE_ERROR_SIZE]);

#endif
