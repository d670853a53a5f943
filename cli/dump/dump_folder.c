/* dump_folder.c - finds the dump.json files of an msprobe folder. */
#include "dump_folder.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "io/file_error.h"

#define FOLDERS_MOST 65536

bool is_folder(const char *path)
{
    struct stat status;
    return stat(path, &status) == 0 && S_ISDIR(status.st_mode);
}

static char *join(const char *folder, const char *name)
{
    size_t size = strlen(folder) + strlen(name) + 2;
    char *path = malloc(size);
    if (path != NULL)
        snprintf(path, size, "%s/%s", folder, name);
    return path;
}

static bool has_dump(const char *folder)
{
    struct stat status;
    char *path = join(folder, "dump.json");
    bool has = path != NULL && stat(path, &status) == 0 && S_ISREG(status.st_mode);
    free(path);
    return has;
}

static bool add_folder(struct dump_folders *folders, const char *path)
{
    char **paths = realloc(folders->paths, (folders->count + 1) * sizeof *paths);
    if (paths == NULL)
        return false;
    folders->paths = paths;
    paths[folders->count] = strdup(path);
    return paths[folders->count] != NULL && ++folders->count <= FOLDERS_MOST;
}

/* "step12" for the prefix "step"; msprobe has "rank" alone, too, where there is no number. */
static bool is_numbered(const char *name, const char *prefix)
{
    size_t length = strlen(prefix);
    if (strncmp(name, prefix, length) != 0)
        return false;
    for (name += length; *name != '\0'; name++)
        if (!isdigit((unsigned char)*name))
            return false;
    return true;
}

/* By the number at the end, then by name. */
static int compare_names(const void *a, const void *b)
{
    const char *left = *(char *const *)a, *right = *(char *const *)b;
    long numbers[2] = {-1, -1};
    const char *names[2] = {left, right};
    for (int i = 0; i < 2; i++) {
        const char *digits = names[i] + strlen(names[i]);
        while (digits > names[i] && isdigit((unsigned char)digits[-1]))
            digits--;
        if (*digits != '\0')
            numbers[i] = strtol(digits, NULL, 10);
    }
    if (numbers[0] != numbers[1])
        return numbers[0] < numbers[1] ? -1 : 1;
    return strcmp(left, right);
}

/* The folders of that prefix in `path`, in order. */
static bool list(const char *path, const char *prefix, struct dump_folders *found)
{
    DIR *open = opendir(path);
    bool good = true;
    *found = (struct dump_folders){0};
    if (open == NULL)
        return errno != ENOMEM;
    for (struct dirent *entry; good && (entry = readdir(open)) != NULL;) {
        if (!is_numbered(entry->d_name, prefix))
            continue;
        char *folder = join(path, entry->d_name);
        good = folder != NULL && (!is_folder(folder) || add_folder(found, folder));
        free(folder);
    }
    closedir(open);
    if (found->count > 1)
        qsort(found->paths, found->count, sizeof *found->paths, compare_names);
    return good;
}

static bool add_ranks(const char *step, struct dump_folders *folders)
{
    struct dump_folders ranks;
    bool good = list(step, "rank", &ranks);
    for (size_t i = 0; good && i < ranks.count; i++)
        if (has_dump(ranks.paths[i]))
            good = add_folder(folders, ranks.paths[i]);
    dump_folders_free(&ranks);
    return good;
}

static bool add_steps(const char *path, struct dump_folders *folders)
{
    struct dump_folders steps;
    bool good = list(path, "step", &steps);
    for (size_t i = 0; good && i < steps.count; i++)
        good = add_ranks(steps.paths[i], folders);
    dump_folders_free(&steps);
    return good;
}

bool dump_folders_find(const char *path, struct dump_folders *folders, char *error)
{
    *folders = (struct dump_folders){0};
    bool good = has_dump(path) ? add_folder(folders, path)
                               : add_steps(path, folders) && add_ranks(path, folders);
    if (!good)
        return file_error_memory(error, path, "the names of its folders");
    return folders->count > 0 ||
           file_error(error, path,
                      "has no dump.json, expected one in step*/rank*/ as msprobe "
                      "writes it");
}

void dump_folders_free(struct dump_folders *folders)
{
    for (size_t i = 0; i < folders->count; i++)
        free(folders->paths[i]);
    free(folders->paths);
    *folders = (struct dump_folders){0};
}
