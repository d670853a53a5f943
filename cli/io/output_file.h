/* output_file.h - a file that gets its name only once it is complete. */
#ifndef MOETOKEN_CLI_OUTPUT_FILE_H
#define MOETOKEN_CLI_OUTPUT_FILE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct output_file {
    char *given;     /* the path as the caller wrote it, for messages */
    char *path;      /* the final path, links resolved */
    char *directory; /* that it lies in, with '/' at the end */
    char *temporary; /* the name it has until then; NULL while it has none */
    int descriptor;  /* open for reading and writing */
    bool replaces;   /* there is a file at `path`, with this mode, owner and group: */
    mode_t mode;
    uid_t owner;
    gid_t group;
};

/* Opens an empty file without a name (O_TMPFILE) in the directory of `path`, or, where the file
 * system or kernel cannot do that, under a temporary name; files under such names whose makers are
 * gone are removed there. A link is followed, also a dangling one. An existing file must be a
 * regular one, a device must not be replaced, and its mode stays. */
bool output_file_open(struct output_file *output, const char *path, char *error);
/* Makes it `size` bytes of zeros whose blocks are all there, so that a full disk is an error here
 * and not a SIGBUS at the first write through a mapping. */
bool output_file_allocate(const struct output_file *output, int64_t size, char *error);
/* Waits until the data are on the disk, then puts the file in the place of `path` in one step. */
bool output_file_commit(struct output_file *output, char *error);
/* Closes; a file that was not committed is gone. Once, after a successful or failed open. */
void output_file_close(struct output_file *output);

/* Async-signal-safe: unlinks the temporary name of the file opened last, if it has one. */
void output_file_remove_temporary(void);

#endif
