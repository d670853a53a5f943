/* no_tmpfile.c - test helper, to be preloaded: a system that makes no files without a name, so that
 * output files have temporary ones (as on NFS, FUSE and old kernels). */
#define _GNU_SOURCE /* NOLINT: O_TMPFILE, RTLD_NEXT */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>

typedef int open_fn(const char *path, int flags, ...);

static int open_named(const char *function, const char *path, int flags, int mode)
{
    union {
        void *found;
        open_fn *call;
    } real = {.found = dlsym(RTLD_NEXT, function)};
    if ((flags & O_TMPFILE) == O_TMPFILE) {
        errno = EOPNOTSUPP;
        return -1;
    }
    return real.call(path, flags, mode);
}

#define FORWARD(function)                                                                          \
    int function(const char *path, int flags, ...)                                                 \
    {                                                                                              \
        va_list arguments;                                                                         \
        va_start(arguments, flags);                                                                \
        int mode = va_arg(arguments, int);                                                         \
        va_end(arguments);                                                                         \
        return open_named(#function, path, flags, mode);                                           \
    }

#undef open
#undef open64
__attribute__((visibility("default"))) FORWARD(open) __attribute__((visibility("default")))
FORWARD(open64)
