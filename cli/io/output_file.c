/* output_file.c - a file without a name, or with a temporary one, and its commit under the final
 * name. Used by both writers through tensor_writer.c; temporary names are in temporary_file.c. */
#define _GNU_SOURCE /* NOLINT: PATH_MAX, readlink */
#include "output_file.h"

#include "file_error.h"
#include "temporary_file.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define LINKS_MOST 40 /* as many as the kernel follows */

void output_file_remove_temporary(void)
{
    temporary_file_remove_pending();
}

/* Takes `temporary` over; NULL: there is none any more. */
static void set_temporary(struct output_file *output, char *temporary)
{
    char *previous = output->temporary;
    output->temporary = temporary;
    if (temporary != NULL || temporary_file_pending() == previous) {
        temporary_file_set_pending(temporary);
    }
    free(previous);
}

/* ---- paths ---------------------------------------------------------------------------------- */

/* What a link at `path` points to, as a path; NULL with errno on failure, also of what is no link.
 */
static char *link_target(const char *path)
{
    char target[PATH_MAX + 1];
    ssize_t length = readlink(path, target, PATH_MAX);
    if (length < 0) {
        return NULL;
    }
    target[length] = '\0';
    const char *slash = target[0] == '/' ? NULL : strrchr(path, '/');
    size_t before = slash == NULL ? 0 : (size_t)(slash - path) + 1;
    char *joined = malloc(before + (size_t)length + 1);
    if (joined != NULL) {
        memcpy(joined, path, before);
        memcpy(joined + before, target, (size_t)length + 1);
    }
    return joined;
}

/* The name behind a chain of links, whether there is a file of that name or not. */
static char *follow_links(const char *given)
{
    char *path = strdup(given);
    struct stat status;
    for (int links = 0; path != NULL && lstat(path, &status) == 0 && S_ISLNK(status.st_mode);
         ++links) {
        char *next = links < LINKS_MOST ? link_target(path) : NULL;
        if (next == NULL && links == LINKS_MOST) {
            errno = ELOOP;
        }
        int reason = errno;
        free(path);
        errno = reason;
        path = next;
    }
    return path;
}

/* A link is followed, dangling or not, so that what it points to is replaced and not the link. */
static bool resolve(struct output_file *output, char *error)
{
    struct stat status;
    output->path = follow_links(output->given);
    if (output->path == NULL) {
        return file_error(error, output->given, "cannot be resolved: %s", strerror(errno));
    }
    output->replaces = lstat(output->path, &status) == 0;
    if (output->replaces && !S_ISREG(status.st_mode)) {
        return file_error(error, output->given, "cannot be written: it is not a regular file");
    }
    if (output->replaces) {
        output->mode = status.st_mode & (S_IRWXU | S_IRWXG | S_IRWXO);
        output->owner = status.st_uid;
        output->group = status.st_gid;
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

/* ---- opening -------------------------------------------------------------------------------- */

/* The file that is replaced keeps its mode, and its owner where we may give files away. Whoever
 * could not read the old one never sees the new one either: until here it is for the owner only. */
static bool keep_mode(const struct output_file *output, char *error)
{
    struct stat status;
    if (!output->replaces) {
        return true;
    }
    if (fstat(output->descriptor, &status) == 0 &&
        (status.st_uid != output->owner || status.st_gid != output->group) &&
        fchown(output->descriptor, output->owner, output->group) != 0) {
        errno = 0; /* only root may */
    }
    return fchmod(output->descriptor, output->mode) == 0 ||
           file_error(error, output->given, "the file's mode cannot be kept: %s", strerror(errno));
}

static bool open_named(struct output_file *output, mode_t mode, char *error)
{
    char *temporary = NULL;
    output->descriptor = temporary_file_make(output->directory, mode, &temporary);
    if (output->descriptor < 0) {
        return file_error(error, output->given, "no file can be made in %s: %s", output->directory,
                          strerror(errno));
    }
    set_temporary(output, temporary);
    return true;
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
    temporary_file_sweep(output->directory);
    mode_t mode = output->replaces ? S_IRUSR | S_IWUSR : 0666;
    output->descriptor = temporary_file_open_nameless(output->directory, mode);
    return (output->descriptor >= 0 || open_named(output, mode, error)) && keep_mode(output, error);
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
    if (temporary_file_link_as(output->descriptor, output->path)) {
        return true;
    }
    char *temporary = NULL;
    if (errno != EEXIST ||
        !temporary_file_link(output->descriptor, output->directory, &temporary)) {
        return false;
    }
    set_temporary(output, temporary);
    return true;
}

/* The data are on the disk before the name is, so that a power cut, too, leaves the old file or
 * the new one, whole. Network file systems tell of failed writes only when a descriptor is closed.
 * EINVAL: a file system that has nothing to wait for. */
static bool bring_to_disk(const struct output_file *output, char *error)
{
    if (fsync(output->descriptor) != 0 && errno != EINVAL && errno != ENOTSUP) {
        return file_error(error, output->given, "cannot be written: %s", strerror(errno));
    }
    int descriptor = dup(output->descriptor);
    return (descriptor >= 0 && close(descriptor) == 0) ||
           file_error(error, output->given, "cannot be written: %s", strerror(errno));
}

bool output_file_commit(struct output_file *output, char *error)
{
    if (!bring_to_disk(output, error)) {
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
