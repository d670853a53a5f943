/* case_files.c - the input files of a command, looked through in order: tensors, attributes,
 * errors. */
#include "case_files.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "terminal/options.h"

int report_error(const char *message)
{
    fprintf(stderr, "moetoken: %s\n", message);
    return EXIT_INPUT;
}

bool case_files_open(struct case_files *files, const char *const *paths, int count)
{
    char error[TENSOR_FILE_ERROR_SIZE];
    files->count = 0;
    if (count > CASE_FILES_MOST) {
        report_error("too many input files");
        return false;
    }
    for (int i = 0; i < count; i++) {
        files->paths[i] = paths[i];
        files->files[i] = tensor_file_open(paths[i], error);
        if (files->files[i] == NULL) {
            report_error(error);
            case_files_close(files);
            return false;
        }
        files->count++;
    }
    return true;
}

void case_files_close(struct case_files *files)
{
    for (int i = 0; i < files->count; i++)
        tensor_file_close(files->files[i]);
    files->count = 0;
}

bool case_tensor(const struct case_files *files, const char *name, bool required,
                 const DLTensor **tensor)
{
    *tensor = NULL;
    for (int i = 0; i < files->count && *tensor == NULL; i++) {
        const char *problem = tensor_file_problem(files->files[i], name);
        if (problem != NULL) {
            report_error(problem);
            return false;
        }
        *tensor = tensor_file_find(files->files[i], name);
    }
    if (*tensor == NULL && required)
        fprintf(stderr, "moetoken: %s: there is no tensor %s\n", files->paths[0], name);
    return *tensor != NULL || !required;
}

const char *case_metadata(const struct case_files *files, const char *key)
{
    for (int i = 0; i < files->count; i++) {
        const char *value = tensor_file_metadata(files->files[i], key);
        if (value != NULL)
            return value;
    }
    return NULL;
}

static bool equal_words(const char *a, const char *b)
{
    while (*a != '\0' && tolower((unsigned char)*a) == *b) {
        a++;
        b++;
    }
    return *a == '\0' && *b == '\0';
}

static bool bad_metadata(const struct case_files *files, const char *key, const char *text,
                         const char *expected)
{
    int from = 0;
    while (from < files->count - 1 && tensor_file_metadata(files->files[from], key) == NULL)
        from++;
    fprintf(stderr, "moetoken: %s: metadata %s = '%.60s': expected %s\n", files->paths[from], key,
            text, expected);
    return false;
}

bool case_switch(const struct case_files *files, const char *key, int given, bool *value)
{
    const char *text = case_metadata(files, key);
    if (given >= 0)
        *value = given == 1;
    else if (text == NULL)
        return true;
    else if (equal_words(text, "true") || equal_words(text, "1"))
        *value = true;
    else if (equal_words(text, "false") || equal_words(text, "0"))
        *value = false;
    else
        return bad_metadata(files, key, text, "true, false, 1 or 0");
    return true;
}

/* Reads a number that is not negative and moves *text behind it. */
static bool read_size(const char **text, int64_t *value)
{
    char *end;
    if (!isdigit((unsigned char)**text))
        return false;
    errno = 0;
    long long number = strtoll(*text, &end, 10);
    *text = end;
    *value = number;
    return errno == 0;
}

bool case_integer(const struct case_files *files, const char *key, int64_t given, int64_t *value)
{
    if (given >= 0) {
        *value = given;
        return true;
    }
    const char *text = case_metadata(files, key);
    if (text == NULL)
        return true;
    const char *end = text;
    if (!read_size(&end, value) || *end != '\0')
        return bad_metadata(files, key, text, "a number that is not negative");
    return true;
}

static void skip(const char **text, const char *characters)
{
    *text += strspn(*text, characters);
}

bool case_restore_shape(const struct case_files *files, const char *given, int64_t shape[2],
                        bool *present)
{
    const char *text = given != NULL ? given : case_metadata(files, "restore_shape");
    *present = text != NULL;
    if (text == NULL)
        return true;
    const char *end = text;
    skip(&end, " [(");
    bool good = read_size(&end, &shape[0]);
    skip(&end, " ,");
    good = good && read_size(&end, &shape[1]);
    skip(&end, " ])");
    if (good && *end == '\0')
        return true;
    if (given == NULL)
        return bad_metadata(files, "restore_shape", text, "two sizes, T,H");
    fprintf(stderr, "moetoken: --restore-shape %.60s: expected two sizes, T,H\n", text);
    return false;
}

int report_input(const struct case_files *files, const char *message)
{
    char name[64];
    size_t length = 0;
    while (length < sizeof name - 1 &&
           (isalnum((unsigned char)message[length]) || message[length] == '_'))
        length++;
    memcpy(name, message, length);
    name[length] = '\0';
    int from = 0;
    for (int i = files->count - 1; i >= 0; i--)
        if (tensor_file_find(files->files[i], name) != NULL)
            from = i;
    fprintf(stderr, "moetoken: %s: %s\n", files->paths[from], message);
    return EXIT_INPUT;
}

int64_t tensor_dimension(const DLTensor *tensor, int d)
{
    return tensor != NULL && d < tensor->ndim ? tensor->shape[d] : 0;
}

int64_t tensor_elements(const DLTensor *tensor)
{
    int64_t count = 1;
    for (int d = 0; d < tensor->ndim; d++)
        count *= tensor->shape[d];
    return count;
}

int64_t tensor_bytes(const DLTensor *tensor)
{
    return tensor_elements(tensor) * (tensor->dtype.bits / 8);
}
