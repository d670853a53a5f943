/* temporary_file.h - files under a temporary name in the directory of the final one, and what
 * becomes of them when their process ends too early.
 *
 * Such a file is called .moetoken-<pid>-<number>.tmp, and its maker holds a lock (flock) on it for
 * as long as it lives. So whoever gets the lock knows that the maker is gone, however it went. */
#ifndef MOETOKEN_CLI_TEMPORARY_FILE_H
#define MOETOKEN_CLI_TEMPORARY_FILE_H

#include <stdbool.h>
#include <sys/types.h>

/* Makes an empty file in `directory` (which ends with '/') and opens it for reading and writing.
 * Its descriptor, and its path in *name, to be freed; -1 with errno on failure. */
int temporary_file_make(const char *directory, mode_t mode, char **name);

/* Gives a file without a name (O_TMPFILE) a temporary one. false with errno on failure. */
bool temporary_file_link(int descriptor, const char *directory, char **name);

/* Links the file behind the descriptor, which must have no name yet, to `path`, if that is free. */
bool temporary_file_link_as(int descriptor, const char *path);

/* Whether the system can make files without a name there that can be named later. */
int temporary_file_open_nameless(const char *directory, mode_t mode);

/* Removes the temporary files whose makers are gone. */
void temporary_file_sweep(const char *directory);

/* Which name has to go when a signal ends the process; NULL: none. The pointer is borrowed. */
void temporary_file_set_pending(const char *name);
const char *temporary_file_pending(void);

/* Async-signal-safe: unlinks the pending name. */
void temporary_file_remove_pending(void);

/* From now on the signals that end a process (SIGHUP, SIGINT, SIGQUIT, SIGTERM and their like, as
 * far as they are not ignored) remove the pending name first; and a write beyond the limit on the
 * size of files (SIGXFSZ) is an error like any other. */
void temporary_file_handle_signals(void);

#endif
