/* pt_names.c - from the values of a PyTorch file's pickle to named tensors: a dict's keys and a
 * list's numbers, joined by dots. A tensor alone is called as its file is. Numbers, text and bools
 * are metadata of the same names, so that a case can be a dict with its attributes. */
#include "io/file_error.h"
#include "pt_read.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DEPTH_MOST  32
#define NAME_SIZE   512
#define VISITS_MOST 1000000 /* of values: a pickle of few bytes can hold one list very often */
#define FOUND_MOST  100000  /* tensors and metadata */

/* One walk through the values: the first counts, the second names. */
struct walk {
    struct tensor_file *file;
    const struct pickle *pickle;
    bool naming;
    size_t visits, tensors, metadata;
    char name[NAME_SIZE];
    char *error;
};

static bool walk_value(struct walk *walk, pickle_place place, size_t length, int depth);

static const struct pickle_value *value_at(const struct walk *walk, pickle_place place)
{
    return &walk->pickle->values[place];
}

void pt_text(const struct pickle_value *text, char *to, size_t size)
{
    size_t length = text->as.text.length < size - 1 ? text->as.text.length : size - 1;
    memcpy(to, text->as.text.bytes, length);
    to[length] = '\0';
}

/* ---- tensors -------------------------------------------------------------------------------- */

static const struct pickle_global *type_of(const struct walk *walk,
                                           const struct pickle_value *value)
{
    const struct pickle_value *storage = value_at(walk, value->as.tensor.storage);
    return value->as.tensor.type != NULL ? value->as.tensor.type : storage->as.storage.type;
}

/* Whether every element lies in the storage. */
static bool fits(const struct walk *walk, const struct pickle_value *value, int64_t elements)
{
    const struct pickle_value *sizes = value_at(walk, value->as.tensor.sizes);
    const struct pickle_value *strides = value_at(walk, value->as.tensor.strides);
    int64_t last = value->as.tensor.offset;
    bool empty = false;
    if (last < 0) {
        return false;
    }
    for (uint32_t d = 0; d < sizes->as.items.count; ++d) {
        int64_t size = value_at(walk, sizes->as.items.places[d])->as.integer;
        int64_t stride = value_at(walk, strides->as.items.places[d])->as.integer;
        if (size < 0 || stride < 0) {
            return false;
        }
        empty = empty || size == 0;
    }
    for (uint32_t d = 0; !empty && d < sizes->as.items.count; ++d) {
        int64_t size = value_at(walk, sizes->as.items.places[d])->as.integer;
        int64_t stride = value_at(walk, strides->as.items.places[d])->as.integer;
        if (size > 1 && stride > 0 && size - 1 > (INT64_MAX - last) / stride) {
            return false;
        }
        last += (size - 1) * stride;
    }
    return empty || last < elements;
}

/* The storage counts elements of its own type, bytes where it has none. */
static bool check_view(struct walk *walk, const struct pickle_value *value)
{
    const struct pickle_value *storage = value_at(walk, value->as.tensor.storage);
    const struct pickle_global *type = type_of(walk, value);
    int64_t elements = storage->as.storage.elements, size = storage->as.storage.type->size;
    if (elements < 0 || elements > TENSOR_FILE_MAX_SIZE / size) {
        return file_error(walk->error, walk->file->path,
                          "tensor '%.100s': its storage has %" PRId64 " elements", walk->name,
                          elements);
    }
    elements = elements * size / type->size;
    if (!fits(walk, value, elements)) {
        return file_error(walk->error, walk->file->path,
                          "tensor '%.100s': its sizes and strides from offset %" PRId64
                          " on do not fit its storage of %" PRId64 " elements",
                          walk->name, value->as.tensor.offset, elements);
    }
    return true;
}

static bool set_problem(struct walk *walk, struct named_tensor *tensor)
{
    return tensor_reader_set_problem(walk->file, tensor, walk->error);
}

static bool declare_tensor(struct walk *walk, pickle_place place)
{
    const struct pickle_value *value = value_at(walk, place);
    const struct pickle_global *type = type_of(walk, value);
    const struct pickle_value *sizes = value_at(walk, value->as.tensor.sizes);
    uint32_t ndim = sizes->as.items.count;
    int64_t bytes;
    if (!check_view(walk, value)) {
        return false;
    }
    struct named_tensor *tensor = tensor_reader_add(walk->file, walk->name, walk->error);
    if (tensor == NULL) {
        return false;
    }
    walk->file->torch->tensors[walk->file->count - 1] = place;
    if (!type->is_read) {
        file_error(walk->error, walk->file->path, "tensor '%.100s' has type %s, expected one of %s",
                   walk->name, type->name, ELEMENT_TYPES_SAFETENSORS);
        return set_problem(walk, tensor);
    }
    if (ndim > TENSOR_FILE_MAX_NDIM) {
        file_error(walk->error, walk->file->path,
                   "tensor '%.100s' has %" PRIu32 " dimensions, expected at most %d", walk->name,
                   ndim, TENSOR_FILE_MAX_NDIM);
        return set_problem(walk, tensor);
    }
    for (uint32_t d = 0; d < ndim; ++d) {
        tensor->shape[d] = value_at(walk, sizes->as.items.places[d])->as.integer;
    }
    if (!element_type_bytes(type->size, (int)ndim, tensor->shape, &bytes)) {
        file_error(walk->error, walk->file->path, "tensor '%.100s' has more than 2^53 - 1 bytes",
                   walk->name);
        return set_problem(walk, tensor);
    }
    tensor_reader_set_data(tensor, NULL, type->type, (int)ndim);
    return true;
}

/* ---- metadata ------------------------------------------------------------------------------- */

static bool add_metadata(struct walk *walk, const char *text)
{
    walk->metadata++;
    return !walk->naming || tensor_reader_add_metadata(walk->file, walk->name, text, walk->error);
}

static bool add_number(struct walk *walk, const struct pickle_value *value)
{
    char text[40];
    if (value->kind == PICKLE_BOOL) {
        snprintf(text, sizeof text, "%s", value->as.integer != 0 ? "true" : "false");
    } else if (value->kind == PICKLE_INTEGER) {
        snprintf(text, sizeof text, "%" PRId64, value->as.integer);
    } else {
        snprintf(text, sizeof text, "%.17g", value->as.number);
    }
    return add_metadata(walk, text);
}

static bool add_text(struct walk *walk, const struct pickle_value *value)
{
    char *text = malloc(value->as.text.length + 1);
    if (text == NULL) {
        return file_error_memory(walk->error, walk->file->path, "its metadata");
    }
    pt_text(value, text, value->as.text.length + 1);
    bool added = add_metadata(walk, text);
    free(text);
    return added;
}

/* A pair of integers, as a shape is: "4,8". */
static bool is_pair(const struct walk *walk, const struct pickle_value *value)
{
    return value->as.items.count == 2 &&
           value_at(walk, value->as.items.places[0])->kind == PICKLE_INTEGER &&
           value_at(walk, value->as.items.places[1])->kind == PICKLE_INTEGER;
}

static bool add_pair(struct walk *walk, const struct pickle_value *value)
{
    char text[48];
    snprintf(text, sizeof text, "%" PRId64 ",%" PRId64,
             value_at(walk, value->as.items.places[0])->as.integer,
             value_at(walk, value->as.items.places[1])->as.integer);
    return add_metadata(walk, text);
}

/* ---- walking -------------------------------------------------------------------------------- */

/* name[0, length) with a dot and the part behind it. */
static bool join(struct walk *walk, size_t length, const char *part, size_t part_length,
                 size_t *joined)
{
    const char *dot = length > 0 ? "." : "";
    int written = snprintf(walk->name + length, NAME_SIZE - length, "%s%.*s", dot,
                           (int)(part_length < NAME_SIZE ? part_length : NAME_SIZE), part);
    *joined = length + (size_t)written;
    return *joined < NAME_SIZE ||
           file_error(walk->error, walk->file->path,
                      "has a name of more than %d bytes: '%.100s...'", NAME_SIZE - 1, walk->name);
}

static bool walk_list(struct walk *walk, const struct pickle_value *list, size_t length, int depth)
{
    for (uint32_t i = 0; i < list->as.items.count; ++i) {
        char number[16];
        size_t joined;
        int digits = snprintf(number, sizeof number, "%" PRIu32, i);
        if (!join(walk, length, number, (size_t)digits, &joined) ||
            !walk_value(walk, list->as.items.places[i], joined, depth)) {
            return false;
        }
    }
    return true;
}

static bool walk_dict(struct walk *walk, const struct pickle_value *dict, size_t length, int depth)
{
    for (uint32_t i = 0; i + 1 < dict->as.items.count; i += 2) {
        const struct pickle_value *key = value_at(walk, dict->as.items.places[i]);
        char number[24];
        size_t joined;
        bool joined_well = false;
        if (key->kind == PICKLE_TEXT) {
            joined_well = join(walk, length, key->as.text.bytes, key->as.text.length, &joined);
        } else if (key->kind == PICKLE_INTEGER) {
            int digits = snprintf(number, sizeof number, "%" PRId64, key->as.integer);
            joined_well = join(walk, length, number, (size_t)digits, &joined);
        } else {
            walk->name[length] = '\0';
            file_error(walk->error, walk->file->path,
                       "the dict '%.100s' has a key that is neither text nor an integer",
                       walk->name);
        }
        if (!joined_well || !walk_value(walk, dict->as.items.places[i + 1], joined, depth)) {
            return false;
        }
    }
    return true;
}

static bool walk_found(struct walk *walk, pickle_place place, size_t length, int depth)
{
    const struct pickle_value *value = value_at(walk, place);
    switch (value->kind) {
    case PICKLE_TENSOR:
        walk->tensors++;
        return !walk->naming || declare_tensor(walk, place);
    case PICKLE_TUPLE:
    case PICKLE_LIST:
        return is_pair(walk, value) ? add_pair(walk, value)
                                    : walk_list(walk, value, length, depth + 1);
    case PICKLE_DICT:
        return walk_dict(walk, value, length, depth + 1);
    case PICKLE_BOOL:
    case PICKLE_INTEGER:
    case PICKLE_NUMBER:
        return add_number(walk, value);
    case PICKLE_TEXT:
        return add_text(walk, value);
    default: /* None, a type, a storage of its own */
        return true;
    }
}

static bool walk_value(struct walk *walk, pickle_place place, size_t length, int depth)
{
    walk->name[length] = '\0';
    if (depth > DEPTH_MOST) {
        return file_error(walk->error, walk->file->path, "'%.100s' is nested deeper than %d",
                          walk->name, DEPTH_MOST);
    }
    if (++walk->visits > VISITS_MOST || walk->tensors + walk->metadata > FOUND_MOST) {
        return file_error(walk->error, walk->file->path,
                          "holds more than %d values, or %d tensors, up to '%.100s'", VISITS_MOST,
                          FOUND_MOST, walk->name);
    }
    return walk_found(walk, place, length, depth);
}

static bool walk_all(struct walk *walk)
{
    const struct pickle *pickle = walk->pickle;
    enum pickle_kind kind = pickle->values[pickle->top].kind;
    size_t length = 0;
    walk->visits = walk->tensors = walk->metadata = 0;
    if (kind == PICKLE_TENSOR) {
        tensor_reader_stem(walk->file->path, walk->name, sizeof walk->name);
        length = strlen(walk->name);
    }
    return walk_value(walk, pickle->top, length, 0);
}

bool pt_name_tensors(struct tensor_file *file, char *error)
{
    struct pt_archive *torch = file->torch;
    struct walk walk = {.file = file, .pickle = &torch->pickle, .error = error};
    if (!walk_all(&walk)) {
        return false;
    }
    torch->tensors = calloc(walk.tensors + 1, sizeof *torch->tensors);
    torch->storage_of = calloc(walk.tensors + 1, sizeof *torch->storage_of);
    torch->storages = calloc(walk.tensors + 1, sizeof *torch->storages);
    if (torch->tensors == NULL || torch->storage_of == NULL || torch->storages == NULL) {
        return file_error_memory(error, file->path, "its list of tensors");
    }
    walk.naming = true;
    return tensor_reader_reserve(file, walk.tensors, walk.metadata, error) && walk_all(&walk);
}
