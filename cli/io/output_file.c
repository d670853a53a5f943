/* output_file.c - temporary files next to the final one, their commit, and nothing left behind.
 * Used by both writers through tensor_writer.c. */
#define _GNU_SOURCE /* NOLINT: O_TMPFILE */
#include "output_file.h"

#include "file_error.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define TEMPORARY_SIZE  64 /* ".moetoken-<pid>-<number>.tmp" and more */
#define TEMPORARY_TRIES 1000
#define DESCRIPTOR_SIZE 32 /* "/proc/self/fd/<n>" */

/* What output_file_remove_temporary unlinks: a handler can use nothing but a static pointer. */
static char *volatile pending_temporary;

void output_file_remove_temporary(void)
{
    const char *path = pending_temporary;
    if (path != NULL) {
        unlink(path);
    }
}

static void set_temporary(struct output_file *output, char *temporary)
{
    char *previous = output->temporary;
    output->temporary = temporary;
    if (temporary != NULL || pending_temporary == previous) {
        pending_temporary = temporary;
    }
    free(previous);
}

/* ---- paths ---------------------------------------------------------------------------------- */

/* A link is followed, so that what it points to is replaced and not the link. */
static bool resolve(struct output_file *output, char *error)
{
    struct stat status;
    bool exists = stat(output->given, &status) == 0;
    if (exists && !S_ISREG(status.st_mode)) {
        return file_error(error, output->given, "cannot be written: it is not a regular file");
    }
    output->path = exists ? realpath(output->given, NULL) : strdup(output->given);
    if (output->path == NULL) {
        return file_error(error, output->given, "cannot be resolved: %s", strerror(errno));
    }
    return true;
}

static bool set_directory(struct output_file *output, char *error)
{
    const char *slash = strrchr(output->path, '/');
    if (slash == NULL) {
        output->directory = strdup("./");
    } else {
        output->directory = strndup(output->path, (size_t)(slash - output->path) + 1);
    }
    return output->directory != NULL || file_error_memory(error, output->given, "a path");
}

static char *temporary_path(const struct output_file *output, int number)
{
    size_t size = strlen(output->directory) + TEMPORARY_SIZE;
    char *path = malloc(size);
    if (path != NULL) {
        snprintf(path, size, "%s.moetoken-%ld-%d.tmp", output->directory, (long)getpid(), number);
    }
    return path;
}

static void descriptor_path(int descriptor, char path[DESCRIPTOR_SIZE])
{
    snprintf(path, DESCRIPTOR_SIZE, "/proc/self/fd/%d", descriptor);
}

/* ---- opening -------------------------------------------------------------------------------- */

/* Only where /proc will let us give it a name at the end. */
static int open_nameless(const char *directory)
{
#ifdef O_TMPFILE
    char proc[DESCRIPTOR_SIZE];
    int descriptor = open(directory, O_TMPFILE | O_RDWR | O_CLOEXEC, 0666);
    if (descriptor >= 0) {
        descriptor_path(descriptor, proc);
        if (access(proc, F_OK) != 0) {
            close(descriptor);
            descriptor = -1;
        }
    }
    return descriptor;
#else
    (void)directory;
    return -1;
#endif
}

static bool open_named(struct output_file *output, char *error)
{
    for (int number = 0; number < TEMPORARY_TRIES; ++number) {
        char *temporary = temporary_path(output, number);
        if (temporary == NULL) {
            return file_error_memory(error, output->given, "a path");
        }
        output->descriptor = open(temporary, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (output->descriptor >= 0) {
            set_temporary(output, temporary);
            return true;
        }
        free(temporary);
        if (errno != EEXIST) {
            break;
        }
    }
    return file_error(error, output->given, "no file can be made in %s: %s", output->directory,
                      strerror(errno));
}

bool output_file_open(struct output_file *output, const char *path, char *error)
{
    memset(output, 0, sizeof *output);
    output->descriptor = -1;
    output->given = strdup(path);
    if (output->given == NULL) {
        return file_error_memory(error, path, "a path");
    }
    size_t length = strlen(path);
    if (length == 0 || path[length - 1] == '/') {
        return file_error(error, path, "is not the name of a file");
    }
    if (!resolve(output, error) || !set_directory(output, error)) {
        return false;
    }
    output->descriptor = open_nameless(output->directory);
    return output->descriptor >= 0 || open_named(output, error);
}

bool output_file_allocate(const struct output_file *output, int64_t size, char *error)
{
    int reason = posix_fallocate(output->descriptor, 0, (off_t)size);
    if (reason == EOPNOTSUPP || reason == EINVAL) {
        reason = ftruncate(output->descriptor, (off_t)size) == 0 ? 0 : errno;
    }
    if (reason != 0) {
        return file_error(error, output->given, "%lld bytes cannot be reserved: %s",
                          (long long)size, strerror(reason));
    }
    return true;
}

/* ---- commit --------------------------------------------------------------------------------- */

/* Gives the nameless file its final name where that is free, else a temporary one. */
static bool name_nameless(struct output_file *output)
{
    char proc[DESCRIPTOR_SIZE];
    descriptor_path(output->descriptor, proc);
    if (linkat(AT_FDCWD, proc, AT_FDCWD, output->path, AT_SYMLINK_FOLLOW) == 0) {
        return true;
    }
    for (int number = 0; errno == EEXIST && number < TEMPORARY_TRIES; ++number) {
        char *temporary = temporary_path(output, number);
        if (temporary == NULL) {
            errno = ENOMEM;
        } else if (linkat(AT_FDCWD, proc, AT_FDCWD, temporary, AT_SYMLINK_FOLLOW) == 0) {
            set_temporary(output, temporary);
            return true;
        } else {
            int reason = errno;
            free(temporary);
            errno = reason;
        }
    }
    return false;
}

/* Network file systems tell of failed writes only when a descriptor is closed. There is no fsync:
 * whole or not there holds for a process that fails or is killed, and waiting for the disk could
 * take longer than the work, for the sake of power cuts alone. */
static bool report_late_errors(const struct output_file *output, char *error)
{
    int descriptor = dup(output->descriptor);
    return (descriptor >= 0 && close(descriptor) == 0) ||
           file_error(error, output->given, "cannot be written: %s", strerror(errno));
}

bool output_file_commit(struct output_file *output, char *error)
{
    if (!report_late_errors(output, error)) {
        return false;
    }
    bool named = output->temporary != NULL || name_nameless(output);
    if (!named || (output->temporary != NULL && rename(output->temporary, output->path) != 0)) {
        return file_error(error, output->given, "cannot be given its name: %s", strerror(errno));
    }
    set_temporary(output, NULL);
    return true;
}

void output_file_close(struct output_file *output)
{
    if (output->temporary != NULL) {
        unlink(output->temporary);
        set_temporary(output, NULL);
    }
    if (output->descriptor >= 0) {
        close(output->descriptor);
    }
    free(output->given);
    free(output->path);
    free(output->directory);
    memset(output, 0, sizeof *output);
    output->descriptor = -1;
}
