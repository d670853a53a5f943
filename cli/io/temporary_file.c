/* temporary_file.c - temporary names: made, locked, swept, and removed when a signal ends us. */
#define _GNU_SOURCE /* NOLINT: O_TMPFILE */
#include "temporary_file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define NAME_PREFIX     ".moetoken-"
#define NAME_SUFFIX     ".tmp"
#define NAME_SIZE       64 /* ".moetoken-<pid>-<number>.tmp" and more */
#define NAME_TRIES      1000
#define DESCRIPTOR_SIZE 32 /* "/proc/self/fd/<n>" */

/* ---- names ---------------------------------------------------------------------------------- */

static char *make_name(const char *directory, int number)
{
    size_t size = strlen(directory) + NAME_SIZE;
    char *name = malloc(size);
    if (name == NULL) {
        errno = ENOMEM;
    } else {
        snprintf(name, size, "%s" NAME_PREFIX "%ld-%d" NAME_SUFFIX, directory, (long)getpid(),
                 number);
    }
    return name;
}

static bool is_temporary_name(const char *name)
{
    size_t length = strlen(name), prefix = strlen(NAME_PREFIX), suffix = strlen(NAME_SUFFIX);
    return length > prefix + suffix && strncmp(name, NAME_PREFIX, prefix) == 0 &&
           strcmp(name + length - suffix, NAME_SUFFIX) == 0;
}

/* ---- making --------------------------------------------------------------------------------- */

/* Locks a file that has just got its name. false when a sweep was faster and removed it. */
static bool lock_named(int descriptor)
{
    struct stat status;
    /* Where the system has no locks nobody sweeps either. */
    return flock(descriptor, LOCK_EX) != 0 || fstat(descriptor, &status) != 0 ||
           status.st_nlink > 0;
}

int temporary_file_make(const char *directory, mode_t mode, char **name)
{
    for (int number = 0; number < NAME_TRIES; ++number) {
        *name = make_name(directory, number);
        int descriptor =
            *name == NULL ? -1 : open(*name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, mode);
        if (descriptor >= 0 && lock_named(descriptor)) {
            return descriptor;
        }
        int reason = errno;
        free(*name);
        *name = NULL;
        if (descriptor >= 0) {
            close(descriptor);
        } else if (reason != EEXIST) {
            errno = reason;
            return -1;
        }
    }
    errno = EEXIST;
    return -1;
}

static void descriptor_path(int descriptor, char path[DESCRIPTOR_SIZE])
{
    snprintf(path, DESCRIPTOR_SIZE, "/proc/self/fd/%d", descriptor);
}

int temporary_file_open_nameless(const char *directory, mode_t mode)
{
#ifdef O_TMPFILE
    char proc[DESCRIPTOR_SIZE];
    int descriptor = open(directory, O_TMPFILE | O_RDWR | O_CLOEXEC, mode);
    if (descriptor >= 0) {
        descriptor_path(descriptor, proc);
        if (access(proc, F_OK) != 0) { /* without /proc it could not be named at the end */
            close(descriptor);
            descriptor = -1;
        }
    }
    return descriptor;
#else
    (void)directory;
    (void)mode;
    return -1;
#endif
}

bool temporary_file_link_as(int descriptor, const char *path)
{
    char proc[DESCRIPTOR_SIZE];
    descriptor_path(descriptor, proc);
    return linkat(AT_FDCWD, proc, AT_FDCWD, path, AT_SYMLINK_FOLLOW) == 0;
}

bool temporary_file_link(int descriptor, const char *directory, char **name)
{
    flock(descriptor, LOCK_EX | LOCK_NB); /* before there is a name that a sweep could find */
    for (int number = 0; number < NAME_TRIES; ++number) {
        *name = make_name(directory, number);
        if (*name == NULL) {
            return false;
        }
        if (temporary_file_link_as(descriptor, *name)) {
            return true;
        }
        int reason = errno;
        free(*name);
        *name = NULL;
        errno = reason;
        if (reason != EEXIST) {
            return false;
        }
    }
    return false;
}

/* ---- sweeping ------------------------------------------------------------------------------- */

static void remove_if_left_behind(int directory, const char *name)
{
    struct stat status;
    int descriptor = openat(directory, name, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (descriptor < 0) {
        return;
    }
    if (fstat(descriptor, &status) == 0 && S_ISREG(status.st_mode) &&
        flock(descriptor, LOCK_EX | LOCK_NB) == 0) {
        unlinkat(directory, name, 0);
    }
    close(descriptor);
}

void temporary_file_sweep(const char *directory)
{
    DIR *open_directory = opendir(directory);
    if (open_directory == NULL) {
        return; /* one may write there without being allowed to list it */
    }
    for (const struct dirent *entry = readdir(open_directory); entry != NULL;
         entry = readdir(open_directory)) {
        if (is_temporary_name(entry->d_name)) {
            remove_if_left_behind(dirfd(open_directory), entry->d_name);
        }
    }
    closedir(open_directory);
}

/* ---- signals -------------------------------------------------------------------------------- */

/* A handler can use nothing but a static pointer. */
static const char *volatile pending_name;

void temporary_file_set_pending(const char *name)
{
    pending_name = name;
}

const char *temporary_file_pending(void)
{
    return pending_name;
}

void temporary_file_remove_pending(void)
{
    const char *name = pending_name;
    if (name != NULL) {
        unlink(name);
    }
}

/* By now the default action is back in place, so the process ends as if there had been no handler.
 */
static void remove_and_end(int number)
{
    temporary_file_remove_pending();
    raise(number);
}

void temporary_file_handle_signals(void)
{
    static const int ending[] = {SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGPIPE, SIGXCPU, SIGBUS};
    struct sigaction action = {.sa_handler = remove_and_end,
                               .sa_flags = (int)SA_RESETHAND | SA_NODEFER};
    sigemptyset(&action.sa_mask);
    for (size_t i = 0; i < sizeof ending / sizeof ending[0]; ++i) {
        struct sigaction before;
        if (sigaction(ending[i], NULL, &before) == 0 && before.sa_handler == SIG_DFL) {
            sigaction(ending[i], &action, NULL);
        }
    }
    signal(SIGXFSZ, SIG_IGN);
}
