/* text.c - reading the text and finding windows in its two parts. */
#include "text.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "ranks/ranks.h"

#define PERIOD        10240
#define TRAINING_PART 9216 /* of a period, at its start; the rest is for validation */

uint64_t checksum_add(uint64_t checksum, const void *bytes, int64_t count)
{
    const uint8_t *in = bytes;
    for (int64_t i = 0; i < count; i++)
        checksum = (checksum ^ in[i]) * UINT64_C(0x100000001b3);
    return checksum;
}

static bool append_file(struct text *text, const char *path)
{
    FILE *file = fopen(path, "rb");
    if (!file) {
        complain("cannot open the text %s: %s", path, strerror(errno));
        return false;
    }
    uint8_t buffer[65536];
    size_t got;
    while ((got = fread(buffer, 1, sizeof buffer, file)) > 0) {
        uint8_t *larger = realloc(text->bytes, (size_t)text->count + got);
        if (!larger)
            break;
        text->bytes = larger;
        memcpy(text->bytes + text->count, buffer, got);
        text->count += (int64_t)got;
    }
    bool complete = feof(file) && !ferror(file);
    fclose(file);
    if (!complete)
        complain("cannot read the text %s: %s", path, strerror(errno));
    return complete;
}

static int is_visible(const struct dirent *entry)
{
    return entry->d_name[0] != '.';
}

static bool append_entry(struct text *text, const char *directory, const char *name)
{
    size_t size = strlen(directory) + strlen(name) + 2;
    char *path = malloc(size);
    struct stat status;
    bool good = path != NULL;
    if (good) {
        snprintf(path, size, "%s/%s", directory, name);
        if (lstat(path, &status) == 0 && S_ISREG(status.st_mode))
            good = append_file(text, path);
    }
    free(path);
    return good;
}

static bool append_directory(struct text *text, const char *path)
{
    struct dirent **entries;
    /* By the bytes of the names: the program never leaves the C locale. */
    int count = scandir(path, &entries, is_visible, alphasort);
    if (count < 0) {
        complain("cannot read the directory %s: %s", path, strerror(errno));
        return false;
    }
    bool good = true;
    for (int i = 0; i < count; i++) {
        good = good && append_entry(text, path, entries[i]->d_name);
        free(entries[i]);
    }
    free(entries);
    return good;
}

static bool append_path(struct text *text, const char *path)
{
    struct stat status;
    bool directory = stat(path, &status) == 0 && S_ISDIR(status.st_mode);
    return directory ? append_directory(text, path) : append_file(text, path);
}

bool text_read(struct text *text, char *const *paths, int count, int64_t context)
{
    *text = (struct text){0};
    for (int i = 0; i < count; i++)
        if (!append_path(text, paths[i])) {
            text_free(text);
            return false;
        }
    text->checksum = checksum_add(CHECKSUM_START, text->bytes, text->count);
    if (text_validation_windows(text, context) > 0)
        return true;
    complain("the text has %lld bytes; expected at least %lld", (long long)text->count,
             (long long)(TRAINING_PART + context + 1));
    text_free(text);
    return false;
}

void text_free(struct text *text)
{
    free(text->bytes);
    *text = (struct text){0};
}

/* Windows that start one byte apart from the other in `bytes` bytes. */
static int64_t windows_in(int64_t bytes, int64_t context)
{
    return bytes > context ? bytes - context : 0;
}

static int64_t training_part(int64_t bytes)
{
    return bytes < TRAINING_PART ? bytes : TRAINING_PART;
}

int64_t text_training_windows(const struct text *text, int64_t context)
{
    return text->count / PERIOD * windows_in(TRAINING_PART, context) +
           windows_in(training_part(text->count % PERIOD), context);
}

const uint8_t *text_training_window(const struct text *text, int64_t context, int64_t i)
{
    int64_t each = TRAINING_PART - context;
    return text->bytes + i / each * PERIOD + i % each;
}

int64_t text_validation_windows(const struct text *text, int64_t context)
{
    int64_t rest = text->count % PERIOD - TRAINING_PART;
    return text->count / PERIOD * ((PERIOD - TRAINING_PART - 1) / context) +
           (rest > 0 ? (rest - 1) / context : 0);
}

const uint8_t *text_validation_window(const struct text *text, int64_t context, int64_t i)
{
    int64_t each = (PERIOD - TRAINING_PART - 1) / context;
    return text->bytes + i / each * PERIOD + TRAINING_PART + i % each * context;
}
