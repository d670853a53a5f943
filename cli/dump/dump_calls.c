/* dump_calls.c - dump.json -> calls and values. The files it names must lie in its own folder:
 * a name with a slash is refused. */
#include "dump_calls.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "io/file_error.h"

#define JSON_MOST (256 << 20)
#define PATH_SIZE 4096

/* ---- the file -------------------------------------------------------------------------------- */

/* All of a file, with a NUL behind it; NULL after an error. */
static char *read_text(const char *path, char *error)
{
    FILE *file = fopen(path, "rb");
    struct stat status;
    if (file == NULL || fstat(fileno(file), &status) != 0 || !S_ISREG(status.st_mode) ||
        status.st_size > JSON_MOST) {
        file_error(error, path, "cannot be read, expected a file of at most %d bytes: %s",
                   JSON_MOST, strerror(errno));
        if (file != NULL)
            fclose(file);
        return NULL;
    }
    size_t size = (size_t)status.st_size;
    char *text = malloc(size + 1);
    if (text == NULL) {
        file_error_memory(error, path, "its text");
    } else if (fread(text, 1, size, file) != size) {
        file_error(error, path, "ends early");
        free(text);
        text = NULL;
    } else {
        text[size] = '\0';
    }
    fclose(file);
    return text;
}

/* Whether a "data_name" stands anywhere in the value. */
static bool names_data(const cJSON *value)
{
    const cJSON *item = NULL;
    if (cJSON_IsString(cJSON_GetObjectItemCaseSensitive(value, "data_name")))
        return true;
    cJSON_ArrayForEach(item, value)
    {
        if ((cJSON_IsObject(item) || cJSON_IsArray(item)) && names_data(item))
            return true;
    }
    return false;
}

bool dump_open(const char *folder, struct dump *dump, char error[TENSOR_FILE_ERROR_SIZE])
{
    char path[PATH_SIZE];
    *dump = (struct dump){.folder = folder};
    snprintf(path, sizeof path, "%s/dump.json", folder);
    char *text = read_text(path, error);
    if (text == NULL)
        return false;
    dump->json = cJSON_Parse(text);
    if (dump->json == NULL) {
        const char *at = cJSON_GetErrorPtr();
        file_error(error, path, "is not JSON from byte %ld on",
                   at == NULL ? 0L : (long)(at - text));
    }
    free(text);
    dump->data = cJSON_GetObjectItemCaseSensitive(dump->json, "data");
    dump->data_path =
        cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(dump->json, "dump_data_dir"));
    if (dump->json == NULL)
        return false;
    if (!cJSON_IsObject(dump->data))
        return file_error(error, path, "has no object 'data', which msprobe writes");
    dump->has_tensors = names_data(dump->data);
    return true;
}

void dump_close(struct dump *dump)
{
    cJSON_Delete(dump->json);
    *dump = (struct dump){0};
}

/* ---- calls ----------------------------------------------------------------------------------- */

bool dump_call_parse(const cJSON *entry, struct dump_call *call)
{
    *call = (struct dump_call){.name = entry->string, .entry = entry};
    if (entry->string == NULL || strlen(entry->string) >= DUMP_NAME_SIZE)
        return false;
    snprintf(call->stem, sizeof call->stem, "%s", entry->string);
    char *direction = strrchr(call->stem, '.');
    if (direction == NULL)
        return false;
    call->backward = strcmp(direction, ".backward") == 0;
    if (!call->backward && strcmp(direction, ".forward") != 0)
        return false;
    *direction = '\0';
    char *number = strrchr(call->stem, '.');
    const char *kind = strchr(call->stem, '.');
    if (number == NULL || kind >= number)
        return false;
    snprintf(call->function, sizeof call->function, "%.*s", (int)(number - kind - 1), kind + 1);
    return true;
}

const cJSON *dump_forward_of(const struct dump *dump, const struct dump_call *call)
{
    char name[DUMP_NAME_SIZE + 16];
    snprintf(name, sizeof name, "%s.forward", call->stem);
    return cJSON_GetObjectItemCaseSensitive(dump->data, name);
}

/* ---- values ---------------------------------------------------------------------------------- */

static bool is_whole(const cJSON *item, int64_t *number)
{
    if (cJSON_IsBool(item)) {
        *number = cJSON_IsTrue(item);
        return true;
    }
    double value = cJSON_IsNumber(item) ? item->valuedouble : NAN;
    if (!(fabs(value) < 0x1p53) || value != floor(value))
        return false;
    *number = (int64_t)value;
    return true;
}

/* {"type": "int", "value": 4} or 4 itself. */
static const cJSON *plain(const cJSON *item)
{
    const cJSON *value = cJSON_GetObjectItemCaseSensitive(item, "value");
    return value != NULL ? value : item;
}

static void read_list(const cJSON *array, struct dump_value *value)
{
    const cJSON *item = NULL;
    value->kind = VALUE_LIST;
    cJSON_ArrayForEach(item, array)
    {
        if (value->list_count == DUMP_LIST_MOST ||
            !is_whole(plain(item), &value->list[value->list_count])) {
            value->kind = VALUE_OTHER;
            return;
        }
        value->list_count++;
    }
}

static bool has_suffix(const char *name, const char *suffix)
{
    size_t length = strlen(name), end = strlen(suffix);
    return length > end && strcmp(name + length - end, suffix) == 0;
}

static bool exists(const char *path)
{
    struct stat status;
    return stat(path, &status) == 0;
}

/* In the folder beside dump.json, or in the one that dump.json names. */
static void data_path(const struct dump *dump, const char *name, char path[PATH_SIZE])
{
    snprintf(path, PATH_SIZE, "%s/dump_tensor_data/%s", dump->folder, name);
    if (!exists(path) && dump->data_path != NULL)
        snprintf(path, PATH_SIZE, "%s/%s", dump->data_path, name);
}

static bool same_shape(const cJSON *shape, const DLTensor *tensor)
{
    int d = 0;
    const cJSON *item = NULL;
    if (!cJSON_IsArray(shape))
        return true;
    cJSON_ArrayForEach(item, shape)
    {
        int64_t size;
        if (d >= tensor->ndim || !is_whole(item, &size) || size != tensor->shape[d++])
            return false;
    }
    return d == tensor->ndim;
}

static bool read_tensor(const struct dump *dump, const cJSON *item, const char *name,
                        struct dump_value *value, char *error)
{
    char path[PATH_SIZE];
    if (strchr(name, '/') != NULL || !(has_suffix(name, ".pt") || has_suffix(name, ".npy")))
        return file_error(error, dump->folder,
                          "data_name '%.100s': expected the name of a .pt or .npy file", name);
    data_path(dump, name, path);
    value->file = tensor_file_open(path, error);
    if (value->file == NULL)
        return false;
    if (tensor_file_count(value->file) != 1)
        return file_error(error, path, "has %zu tensors, expected one",
                          tensor_file_count(value->file));
    const struct named_tensor *named = tensor_file_at(value->file, 0);
    if (named->problem != NULL) {
        snprintf(error, TENSOR_FILE_ERROR_SIZE, "%s", named->problem);
        return false;
    }
    if (!same_shape(cJSON_GetObjectItemCaseSensitive(item, "shape"), &named->tensor))
        return file_error(error, path, "has another shape than dump.json says");
    value->kind = VALUE_TENSOR;
    value->tensor = &named->tensor;
    return true;
}

bool dump_value_read(const struct dump *dump, const cJSON *item, struct dump_value *value,
                     char error[TENSOR_FILE_ERROR_SIZE])
{
    *value = (struct dump_value){.kind = VALUE_ABSENT};
    if (item == NULL)
        return true;
    const char *name = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(item, "data_name"));
    if (name != NULL)
        return read_tensor(dump, item, name, value, error);
    const cJSON *inner = plain(item);
    if (cJSON_IsNull(inner))
        value->kind = VALUE_NONE;
    else if (cJSON_IsArray(inner))
        read_list(inner, value);
    else
        value->kind = is_whole(inner, &value->number) ? VALUE_NUMBER : VALUE_OTHER;
    return true;
}

void dump_value_free(struct dump_value *value)
{
    tensor_file_close(value->file);
    *value = (struct dump_value){.kind = VALUE_ABSENT};
}
