/* safetensors_read.c - a safetensors file: 8 bytes of header length, a JSON header that names
 * tensors, their data. Tensors point into the file's bytes. The format's rules are all checked:
 * one entry a name, sizes that agree with type and shape, data without overlaps or holes. */
#include "io/file_error.h"
#include "io/tensor_reader.h"
#include "safetensors_scan.h"

#include <cjson/cJSON.h>
#include <stdlib.h>
#include <string.h>

#define METADATA_NAME "__metadata__"

/* Where a tensor's bytes are, counted from the end of the header. */
struct extent {
    int64_t begin;
    int64_t end;
    const char *name;
};

struct parser {
    struct tensor_file *file;
    char *error;
    const unsigned char *data; /* what follows the header */
    int64_t data_size;
    struct extent *extents; /* of each tensor of file */
};

/* ---- one tensor ----------------------------------------------------------------------------- */

static bool fail_entry(const struct parser *parser, const cJSON *entry, const char *expected)
{
    return file_error(parser->error, parser->file->path, "tensor '%.100s': %s", entry->string,
                      expected);
}

/* safetensors_scan has let through only whole numbers; binary64 holds them exactly below 2^53. */
static bool get_size(const struct parser *parser, const cJSON *entry, const cJSON *number,
                     const char *field, int64_t *value)
{
    if (!cJSON_IsNumber(number)) {
        return file_error(parser->error, parser->file->path,
                          "tensor '%.100s': %s has an element that is not a number", entry->string,
                          field);
    }
    if (!(number->valuedouble >= 0 && number->valuedouble <= (double)TENSOR_FILE_MAX_SIZE)) {
        return file_error(parser->error, parser->file->path,
                          "tensor '%.100s': %s has %.17g, expected at most 2^53 - 1", entry->string,
                          field, number->valuedouble);
    }
    *value = (int64_t)number->valuedouble;
    return true;
}

struct entry_fields {
    const cJSON *dtype;
    const cJSON *shape;
    const cJSON *data_offsets;
};

/* With three entries and all three keys among them, none is there twice and nothing else is. */
static bool get_fields(const struct parser *parser, const cJSON *entry, struct entry_fields *fields)
{
    fields->dtype = cJSON_GetObjectItemCaseSensitive(entry, "dtype");
    fields->shape = cJSON_GetObjectItemCaseSensitive(entry, "shape");
    fields->data_offsets = cJSON_GetObjectItemCaseSensitive(entry, "data_offsets");
    if (!cJSON_IsObject(entry) || cJSON_GetArraySize(entry) != 3 || fields->dtype == NULL ||
        fields->shape == NULL || fields->data_offsets == NULL) {
        return fail_entry(parser, entry,
                          "expected an object with dtype, shape and data_offsets, each once");
    }
    if (!cJSON_IsString(fields->dtype)) {
        return fail_entry(parser, entry, "dtype is not a string");
    }
    if (!cJSON_IsArray(fields->shape) || !cJSON_IsArray(fields->data_offsets)) {
        return fail_entry(parser, entry, "shape and data_offsets must be arrays");
    }
    return true;
}

static bool get_extent(const struct parser *parser, const cJSON *entry, const cJSON *offsets,
                       struct extent *extent)
{
    const cJSON *begin = offsets->child;
    const cJSON *end = begin == NULL ? NULL : begin->next;
    if (end == NULL || end->next != NULL) {
        return fail_entry(parser, entry, "data_offsets must have two elements");
    }
    if (!get_size(parser, entry, begin, "data_offsets", &extent->begin) ||
        !get_size(parser, entry, end, "data_offsets", &extent->end)) {
        return false;
    }
    if (extent->begin > extent->end || extent->end > parser->data_size) {
        return file_error(parser->error, parser->file->path,
                          "tensor '%.100s': data_offsets [%lld, %lld] are not inside of the "
                          "%lld bytes of data",
                          entry->string, (long long)extent->begin, (long long)extent->end,
                          (long long)parser->data_size);
    }
    return true;
}

/* Every element is checked, also of a shape with too many of them. */
static bool get_shape(const struct parser *parser, const cJSON *entry, const cJSON *shape,
                      struct named_tensor *tensor, int *ndim)
{
    *ndim = 0;
    for (const cJSON *size = shape->child; size != NULL; size = size->next) {
        int64_t value = 0;
        if (!get_size(parser, entry, size, "shape", &value)) {
            return false;
        }
        if (*ndim < TENSOR_FILE_MAX_NDIM) {
            tensor->shape[*ndim] = value;
        }
        ++*ndim;
    }
    return true;
}

static bool check_size(const struct parser *parser, const char *name,
                       const struct element_type *type, int ndim, const int64_t *shape,
                       const struct extent *extent)
{
    int64_t bytes = 0;
    if (!element_type_bytes(type->size, ndim, shape, &bytes)) {
        return file_error(parser->error, parser->file->path,
                          "tensor '%.100s': the bytes of its shape do not fit in 53 bits", name);
    }
    if (bytes != extent->end - extent->begin) {
        return file_error(parser->error, parser->file->path,
                          "tensor '%.100s': its type %s and shape take %lld bytes, its "
                          "data_offsets [%lld, %lld] hold %lld",
                          name, type->safetensors, (long long)bytes, (long long)extent->begin,
                          (long long)extent->end, (long long)(extent->end - extent->begin));
    }
    return true;
}

static bool parse_tensor(struct parser *parser, const cJSON *entry)
{
    struct entry_fields fields = {NULL, NULL, NULL};
    struct tensor_file *file = parser->file;
    struct extent *extent = &parser->extents[file->count];
    struct named_tensor *tensor = tensor_reader_add(file, entry->string, parser->error);
    int ndim = 0;
    if (tensor == NULL || !get_fields(parser, entry, &fields) ||
        !get_extent(parser, entry, fields.data_offsets, extent) ||
        !get_shape(parser, entry, fields.shape, tensor, &ndim)) {
        return false;
    }
    extent->name = tensor->name;
    const char *type_name = fields.dtype->valuestring;
    const struct element_type *type = element_type_from_safetensors(type_name);
    if (type == NULL) {
        file_error(parser->error, file->path,
                   "tensor '%.100s' has type %.40s, expected " ELEMENT_TYPES_SAFETENSORS,
                   tensor->name, type_name);
        return tensor_reader_set_problem(file, tensor, parser->error);
    }
    if (ndim > TENSOR_FILE_MAX_NDIM) {
        file_error(parser->error, file->path,
                   "tensor '%.100s' has %d dimensions, expected at most %d", tensor->name, ndim,
                   TENSOR_FILE_MAX_NDIM);
        return tensor_reader_set_problem(file, tensor, parser->error);
    }
    tensor_reader_set_data(tensor, parser->data + extent->begin, type->type, ndim);
    return check_size(parser, tensor->name, type, ndim, tensor->shape, extent);
}

/* ---- the whole header ----------------------------------------------------------------------- */

static bool parse_metadata(const struct parser *parser, const cJSON *entry)
{
    if (cJSON_IsNull(entry)) {
        return true; /* none, as the format's own reader takes it */
    }
    if (!cJSON_IsObject(entry)) {
        return file_error(parser->error, parser->file->path,
                          METADATA_NAME " is not an object of strings");
    }
    for (const cJSON *item = entry->child; item != NULL; item = item->next) {
        if (!cJSON_IsString(item)) {
            return file_error(parser->error, parser->file->path,
                              METADATA_NAME " '%.100s' is not a string", item->string);
        }
        if (!tensor_reader_add_metadata(parser->file, item->string, item->valuestring,
                                        parser->error)) {
            return false;
        }
    }
    return true;
}

static int compare_extents(const void *a, const void *b)
{
    const struct extent *left = a;
    const struct extent *right = b;
    if (left->begin != right->begin) {
        return left->begin < right->begin ? -1 : 1;
    }
    return left->end < right->end ? -1 : left->end > right->end;
}

static bool check_layout(const struct parser *parser)
{
    const char *path = parser->file->path;
    const char *previous = "the header";
    int64_t expected = 0;
    qsort(parser->extents, parser->file->count, sizeof *parser->extents, compare_extents);
    for (size_t i = 0; i < parser->file->count; ++i) {
        const struct extent *extent = &parser->extents[i];
        if (extent->begin != expected) {
            return file_error(parser->error, path,
                              "tensor '%.100s' begins at data byte %lld, which %s byte %lld, "
                              "where '%.100s' ends",
                              extent->name, (long long)extent->begin,
                              extent->begin < expected ? "overlaps what goes up to"
                                                       : "leaves a hole after",
                              (long long)expected, previous);
        }
        expected = extent->end;
        previous = extent->name;
    }
    if (expected != parser->data_size) {
        return file_error(parser->error, path,
                          "has %lld bytes of data, of which tensors use only %lld",
                          (long long)parser->data_size, (long long)expected);
    }
    return true;
}

/* The number of tensors and of metadata entries. __metadata__ twice is two tensors of one name. */
static bool count_entries(const struct parser *parser, const cJSON *root, size_t *tensors,
                          size_t *metadata)
{
    const cJSON *found = NULL;
    *tensors = 0;
    *metadata = 0;
    for (const cJSON *entry = root->child; entry != NULL; entry = entry->next) {
        if (strcmp(entry->string, METADATA_NAME) != 0) {
            ++*tensors;
        } else if (found == NULL) {
            found = entry;
            *metadata = (size_t)cJSON_GetArraySize(entry);
        } else {
            return file_error(parser->error, parser->file->path, "has " METADATA_NAME " twice");
        }
    }
    return true;
}

static bool parse_entries(struct parser *parser, const cJSON *root)
{
    size_t tensors = 0;
    size_t metadata = 0;
    if (!count_entries(parser, root, &tensors, &metadata) ||
        !tensor_reader_reserve(parser->file, tensors, metadata, parser->error)) {
        return false;
    }
    parser->extents = calloc(tensors + 1, sizeof *parser->extents);
    if (parser->extents == NULL) {
        return file_error_memory(parser->error, parser->file->path, "its list of tensors");
    }
    for (const cJSON *entry = root->child; entry != NULL; entry = entry->next) {
        bool parsed = strcmp(entry->string, METADATA_NAME) == 0 ? parse_metadata(parser, entry)
                                                                : parse_tensor(parser, entry);
        if (!parsed) {
            return false;
        }
    }
    return check_layout(parser);
}

/* cJSON does not tell a lack of memory from bad text, so its allocations are watched. */
static _Thread_local bool out_of_memory;

static void *watched_malloc(size_t size)
{
    void *memory = malloc(size);
    out_of_memory = out_of_memory || memory == NULL;
    return memory;
}

static cJSON *parse_json(const char *text, const char **end)
{
    cJSON_Hooks hooks = {.malloc_fn = watched_malloc, .free_fn = free};
    cJSON_InitHooks(&hooks);
    out_of_memory = false;
    return cJSON_ParseWithOpts(text, end, 1);
}

static bool parse_header(struct parser *parser, const unsigned char *header, size_t length)
{
    const char *path = parser->file->path;
    if (!safetensors_scan(header, length, path, parser->error)) {
        return false;
    }
    /* cJSON wants a terminating NUL; some versions read past the end of text without one. */
    char *text = malloc(length + 1);
    if (text == NULL) {
        return file_error_memory(parser->error, path, "its header");
    }
    memcpy(text, header, length);
    text[length] = '\0';
    const char *end = text;
    cJSON *root = parse_json(text, &end);
    size_t stopped = end == NULL ? 0 : (size_t)(end - text);
    free(text);
    if (root == NULL && out_of_memory) {
        return file_error_memory(parser->error, path, "its header");
    }
    if (root == NULL) {
        return file_error(parser->error, path, "header is not valid JSON near byte %zu of %zu",
                          stopped, length);
    }
    bool parsed = parse_entries(parser, root);
    free(parser->extents);
    cJSON_Delete(root);
    return parsed;
}

static uint64_t read_header_length(const unsigned char *bytes)
{
    uint64_t length = 0;
    for (int i = 7; i >= 0; --i) {
        length = length << 8 | bytes[i];
    }
    return length;
}

bool safetensors_parse(struct tensor_file *file, char *error)
{
    if (file->size < 10) {
        return file_error(error, file->path,
                          "has %zu bytes, which is too short for safetensors or .npz", file->size);
    }
    uint64_t length = read_header_length(file->bytes);
    if (file->bytes[8] != '{') {
        return file_error(error, file->path,
                          "is neither .npz (begins with 'PK') nor safetensors (byte 8 is '{', "
                          "here 0x%02x)",
                          file->bytes[8]);
    }
    if (length > file->size - 8) {
        return file_error(error, file->path, "claims a header of %llu bytes, %zu bytes follow",
                          (unsigned long long)length, file->size - 8);
    }
    if (length > SAFETENSORS_MAX_HEADER) {
        return file_error(error, file->path, "has a header of %llu bytes, expected at most %d",
                          (unsigned long long)length, SAFETENSORS_MAX_HEADER);
    }
    struct parser parser = {.file = file,
                            .error = error,
                            .data = file->bytes + 8 + length,
                            .data_size = (int64_t)(file->size - 8 - length)};
    return parse_header(&parser, file->bytes + 8, (size_t)length);
}
