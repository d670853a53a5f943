/* file_error.h - the one line that a failed reader or writer leaves behind. */
#ifndef MOETOKEN_CLI_FILE_ERROR_H
#define MOETOKEN_CLI_FILE_ERROR_H

#include <stdbool.h>

/* Puts "path: message" into error[TENSOR_FILE_ERROR_SIZE]. Names out of hostile files end up in
 * it, so whatever could move a terminal's cursor becomes '?'. Always false, so that a caller can
 * return it. Names are printed with %.100s: they must not push the values out of the line. */
bool file_error(char *error, const char *path, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* file_error for memory that could not be had; `what` it was for. */
bool file_error_memory(char *error, const char *path, const char *what);

#endif
