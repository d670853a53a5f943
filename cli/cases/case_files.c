/* case_files.c - the input files of a command, looked through in order: tensors, attributes,
 * errors. */
#include "case_files.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "terminal/options.h"
#include "values/number_formats.h"

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

/* ---- attributes ------------------------------------------------------------------------------ */

/* An attribute as the files have it: text in the metadata or, as NumPy's users store them, a tensor
 * of its name. Both NULL: no file has it. */
struct attribute {
    const char *text;
    const DLTensor *array;
};

/* The first file that has it; in one file metadata go first. false: it cannot be read. */
static bool find_attribute(const struct case_files *files, const char *key,
                           struct attribute *attribute)
{
    *attribute = (struct attribute){NULL, NULL};
    for (int i = 0; i < files->count; i++) {
        attribute->text = tensor_file_metadata(files->files[i], key);
        if (attribute->text != NULL)
            return true;
        const char *problem = tensor_file_problem(files->files[i], key);
        if (problem != NULL)
            return report_error(problem), false;
        attribute->array = tensor_file_find(files->files[i], key);
        if (attribute->array != NULL)
            return true;
    }
    return true;
}

static bool bad_array(const struct case_files *files, const char *key, const char *expected)
{
    int from = 0;
    while (from < files->count - 1 && !tensor_file_has(files->files[from], key))
        from++;
    fprintf(stderr, "moetoken: %s: tensor %s: expected %s\n", files->paths[from], key, expected);
    return false;
}

/* `count` whole numbers: an array of one dimension, or, of one number, of none. */
static bool read_array(const DLTensor *array, int64_t count, int64_t *values)
{
    moetoken_type type;
    bool fits = array->ndim == 1 ? array->shape[0] == count : array->ndim == 0 && count == 1;
    if (!fits || !type_of_tensor(array, &type) || type_is_float(type))
        return false;
    for (int64_t i = 0; i < count; i++)
        values[i] = integer_at(array, i);
    return true;
}

static bool is_bool(const DLTensor *array)
{
    moetoken_type type;
    return type_of_tensor(array, &type) && type == MOETOKEN_BOOL;
}

bool case_switch(const struct case_files *files, const char *key, int given, bool *value)
{
    struct attribute found;
    int64_t number;
    if (given >= 0) {
        *value = given == 1;
        return true;
    }
    if (!find_attribute(files, key, &found))
        return false;
    if (found.array != NULL) {
        if (!read_array(found.array, 1, &number) || number < 0 || number > 1)
            return bad_array(files, key, "one bool, or one integer that is 0 or 1");
        *value = number == 1;
    } else if (found.text == NULL) {
        return true;
    } else if (equal_words(found.text, "true") || equal_words(found.text, "1")) {
        *value = true;
    } else if (equal_words(found.text, "false") || equal_words(found.text, "0")) {
        *value = false;
    } else {
        return bad_metadata(files, key, found.text, "true, false, 1 or 0");
    }
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
    struct attribute found;
    if (given >= 0) {
        *value = given;
        return true;
    }
    if (!find_attribute(files, key, &found))
        return false;
    if (found.array != NULL) {
        int64_t number;
        if (is_bool(found.array) || !read_array(found.array, 1, &number) || number < 0)
            return bad_array(files, key, "one integer that is not negative");
        *value = number;
        return true;
    }
    if (found.text == NULL)
        return true;
    const char *end = found.text;
    if (!read_size(&end, value) || *end != '\0')
        return bad_metadata(files, key, found.text, "a number that is not negative");
    return true;
}

bool case_decimal(const struct case_files *files, const char *key, double given, double *value)
{
    struct attribute found;
    moetoken_type type;
    if (!isnan(given)) {
        *value = given;
        return true;
    }
    if (!find_attribute(files, key, &found))
        return false;
    if (found.array != NULL) {
        bool one = found.array->ndim <= 1 && tensor_elements(found.array) == 1 &&
                   type_of_tensor(found.array, &type) && type_is_float(type);
        if (!one || !isfinite(float_at(found.array, 0)))
            return bad_array(files, key, "one finite floating-point number");
        *value = float_at(found.array, 0);
    } else if (found.text != NULL) {
        char *end;
        *value = strtod(found.text, &end);
        if (end == found.text || *end != '\0' || !isfinite(*value))
            return bad_metadata(files, key, found.text, "a finite number");
    }
    return true;
}

bool case_choice(const struct case_files *files, const char *key, const char *words, int given,
                 int *value)
{
    const char *text = given >= 0 ? NULL : case_metadata(files, key);
    if (given >= 0)
        *value = given;
    if (text == NULL)
        return true;
    *value = choice_number(words, text);
    return *value >= 0 || bad_metadata(files, key, text, words);
}

static void skip(const char **text, const char *characters)
{
    *text += strspn(*text, characters);
}

static bool parse_shape(const char *text, int64_t shape[2])
{
    skip(&text, " [(");
    bool good = read_size(&text, &shape[0]);
    skip(&text, " ,");
    good = good && read_size(&text, &shape[1]);
    skip(&text, " ])");
    return good && *text == '\0';
}

bool case_restore_shape(const struct case_files *files, const char *given, int64_t shape[2],
                        bool *present)
{
    static const char *const key = "restore_shape";
    struct attribute found = {given, NULL};
    *present = false;
    if (given == NULL && !find_attribute(files, key, &found))
        return false;
    *present = found.text != NULL || found.array != NULL;
    if (found.array != NULL)
        return (!is_bool(found.array) && read_array(found.array, 2, shape) && shape[0] >= 0 &&
                shape[1] >= 0) ||
               bad_array(files, key, "two integers that are not negative, T and H");
    if (found.text == NULL || parse_shape(found.text, shape))
        return true;
    if (given == NULL)
        return bad_metadata(files, key, found.text, "two sizes, T,H");
    fprintf(stderr, "moetoken: --restore-shape %.60s: expected two sizes, T,H\n", found.text);
    return false;
}

/* ---- sizes and places ------------------------------------------------------------------------ */

#define FREE_WORK (INT64_C(1) << 28) /* bytes that any case may ask for */
#define WORK_PER_BYTE                                                                              \
    8192 /* a token of a single int32 index may ask for a row of 7168 float32 numbers */

bool case_justifies(const struct case_files *files, int64_t input_bytes, double bytes)
{
    for (int i = 0; i < files->count; i++)
        input_bytes += (int64_t)tensor_file_size(files->files[i]);
    double most = (double)FREE_WORK + (double)WORK_PER_BYTE * (double)input_bytes;
    if (bytes <= most)
        return true;
    fprintf(stderr,
            "moetoken: %s: the sizes of the case call for %.3g bytes, which the %" PRId64
            " bytes of its data do not justify: expected at most %.3g\n",
            files->paths[0], bytes, input_bytes, most);
    return false;
}

bool case_files_hold(const struct case_files *files, const char *path)
{
    struct stat output, input;
    if (path == NULL || stat(path, &output) != 0)
        return false;
    for (int i = 0; i < files->count; i++)
        if (stat(files->paths[i], &input) == 0 && input.st_dev == output.st_dev &&
            input.st_ino == output.st_ino)
            return true;
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
        if (tensor_file_has(files->files[i], name))
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
        if (tensor->shape[d] == 0)
            return 0; /* beside it any other size is possible, and their product may not be */
    for (int d = 0; d < tensor->ndim; d++)
        count *= tensor->shape[d];
    return count;
}

int64_t tensor_bytes(const DLTensor *tensor)
{
    return tensor_elements(tensor) * (tensor->dtype.bits / 8);
}
