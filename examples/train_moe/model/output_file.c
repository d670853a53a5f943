/* output_file.c - temporary file, flush to the disk, rename. */
#include "output_file.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ranks/ranks.h"

static void fail(struct output_file *file, const char *what)
{
    complain("cannot %s %s: %s", what, file->temporary, strerror(errno));
    if (file->stream) {
        fclose(file->stream);
        remove(file->temporary);
    }
    give_up();
}

struct output_file output_file_open(const char *path)
{
    size_t size = strlen(path) + sizeof ".tmp";
    struct output_file file = {NULL, path, malloc(size)};
    if (!file.temporary) {
        complain("no memory for the name of %s", path);
        give_up();
    }
    snprintf(file.temporary, size, "%s.tmp", path);
    file.stream = fopen(file.temporary, "wb");
    if (!file.stream)
        fail(&file, "create");
    return file;
}

void output_file_write(struct output_file *file, const void *bytes, size_t count)
{
    if (fwrite(bytes, 1, count, file->stream) != count)
        fail(file, "write");
}

void output_file_commit(struct output_file *file)
{
    if (fflush(file->stream) != 0 || ferror(file->stream) || fsync(fileno(file->stream)) != 0)
        fail(file, "write");
    if (rename(file->temporary, file->path) != 0)
        fail(file, "rename");
    fclose(file->stream); /* everything is on the disk already */
    free(file->temporary);
}
