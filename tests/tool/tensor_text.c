/* tensor_text.c - test helper: tensor files from and to text, for shell scripts.
 *
 *   tensor_text write OUT [BASE=FILE] [DROP=NAME]... [META=KEY=VALUE]...
 * [NAME:TYPE:SHAPE=V,V,...]... SHAPE is 3x2; BASE's tensors come along unless dropped or given anew
 *   tensor_text pt OUT.pt :TYPE:SHAPE=V,V,...    a tensor alone, as PyTorch saves it
 *   tensor_text print FILE NAME       the values, one line per row of the last dimension
 *   tensor_text flip FILE NAME BIT    flips one bit of a tensor, in place (safetensors) */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "io/tensor_file.h"
#include "pt_bytes.h"
#include "values/number_formats.h"

enum {
    TENSORS_MOST = 16,
    METADATA_MOST = 8
};

struct plan {
    struct tensor_spec specs[TENSORS_MOST];
    const char *text[TENSORS_MOST];       /* the values, or NULL: */
    const DLTensor *source[TENSORS_MOST]; /* copied from here */
    char name[TENSORS_MOST][64];
    size_t count;
    const char *metadata[2 * METADATA_MOST + 1];
    char keys[METADATA_MOST][64];
    size_t metadata_count;
    const char *dropped[TENSORS_MOST];
    size_t dropped_count;
    struct tensor_file *base;
};

static _Noreturn void die(const char *message, const char *detail)
{
    fprintf(stderr, "tensor_text: %s: %s\n", message, detail);
    exit(3);
}

static moetoken_type read_type(const char *text)
{
    static const char *const names[] = {"f32", "f16",  "bf16", "f64", "i32",
                                        "i64", "bool", "i8",   "u8"};
    for (int i = 0; i < 9; i++)
        if (strncmp(text, names[i], strlen(names[i])) == 0 && text[strlen(names[i])] == ':')
            return (moetoken_type)i;
    die("no such type", text);
}

/* NAME:TYPE:SHAPE=VALUES */
static void add_spec(struct plan *plan, const char *text)
{
    struct tensor_spec *spec = &plan->specs[plan->count];
    const char *type = strchr(text, ':'), *shape = type ? strchr(type + 1, ':') : NULL;
    const char *values = shape ? strchr(shape, '=') : NULL;
    if (values == NULL || type - text > 63)
        die("expected NAME:TYPE:SHAPE=VALUES", text);
    snprintf(plan->name[plan->count], 64, "%.*s", (int)(type - text), text);
    spec->name = plan->name[plan->count];
    spec->type = read_type(type + 1);
    spec->ndim = 0;
    for (const char *at = shape + 1; at < values;) {
        char *end;
        spec->shape[spec->ndim++] = strtoll(at, &end, 10);
        at = *end == 'x' ? end + 1 : end;
    }
    plan->text[plan->count] = values + 1;
    plan->source[plan->count++] = NULL;
}

static void read_argument(struct plan *plan, const char *text)
{
    char error[TENSOR_FILE_ERROR_SIZE];
    if (strncmp(text, "BASE=", 5) == 0) {
        plan->base = tensor_file_open(text + 5, error);
        if (plan->base == NULL)
            die("BASE", error);
    } else if (strncmp(text, "DROP=", 5) == 0) {
        plan->dropped[plan->dropped_count++] = text + 5;
    } else if (strncmp(text, "META=", 5) == 0) {
        size_t n = plan->metadata_count++;
        snprintf(plan->keys[n], 64, "%.*s", (int)strcspn(text + 5, "="), text + 5);
        plan->metadata[2 * n] = plan->keys[n];
        plan->metadata[2 * n + 1] = strchr(text + 5, '=') + 1;
    } else {
        add_spec(plan, text);
    }
}

static int is_taken(const struct plan *plan, const char *name, size_t given)
{
    for (size_t i = 0; i < plan->dropped_count; i++)
        if (strcmp(plan->dropped[i], name) == 0)
            return 1;
    for (size_t i = 0; i < given; i++)
        if (strcmp(plan->specs[i].name, name) == 0)
            return 1;
    return 0;
}

static void add_base(struct plan *plan)
{
    size_t given = plan->count;
    for (size_t i = 0; plan->base != NULL && i < tensor_file_count(plan->base); i++) {
        const struct named_tensor *tensor = tensor_file_at(plan->base, i);
        if (is_taken(plan, tensor->name, given))
            continue;
        struct tensor_spec *spec = &plan->specs[plan->count];
        spec->name = tensor->name;
        type_of_tensor(&tensor->tensor, &spec->type);
        spec->ndim = tensor->tensor.ndim;
        memcpy(spec->shape, tensor->shape, sizeof spec->shape);
        plan->source[plan->count++] = &tensor->tensor;
    }
    static const char *const keys[] = {"operator",       "drop_and_pad", "restore_shape",
                                       "num_out_tokens", "tokens_num",   "experts_num"};
    for (int k = 0; plan->base != NULL && k < 6; k++) {
        const char *value = tensor_file_metadata(plan->base, keys[k]);
        int given_anew = 0;
        for (size_t i = 0; i < plan->metadata_count; i++)
            given_anew = given_anew || strcmp(plan->metadata[2 * i], keys[k]) == 0;
        if (value == NULL || given_anew || plan->metadata_count == METADATA_MOST)
            continue;
        plan->metadata[2 * plan->metadata_count] = keys[k];
        plan->metadata[2 * plan->metadata_count++ + 1] = value;
    }
}

static int64_t elements_of(const DLTensor *tensor)
{
    int64_t count = 1;
    for (int d = 0; d < tensor->ndim; d++)
        if (tensor->shape[d] == 0)
            return 0; /* whatever the others are */
    for (int d = 0; d < tensor->ndim; d++)
        count *= tensor->shape[d];
    return count;
}

static void fill(const struct tensor_spec *spec, const char *text, DLTensor *tensor)
{
    size_t size = type_size(spec->type);
    char *out = (char *)tensor->data + tensor->byte_offset;
    for (int64_t i = 0; i < elements_of(tensor); i++) {
        char *end;
        double value = strtod(text, &end);
        if (end == text)
            die("too few values", spec->name);
        uint64_t bits = type_is_float(spec->type) ? double_to_bits(spec->type, value)
                                                  : (uint64_t)(int64_t)value;
        store_bits(out + (size_t)i * size, size, bits);
        text = *end == ',' ? end + 1 : end;
    }
    if (*text != '\0')
        die("too many values", spec->name);
}

static int write_file(int argc, char **argv)
{
    static struct plan plan;
    char error[TENSOR_FILE_ERROR_SIZE];
    for (int i = 3; i < argc; i++)
        read_argument(&plan, argv[i]);
    add_base(&plan);
    struct tensor_writer *writer =
        tensor_writer_open(argv[2], plan.specs, plan.count, plan.metadata, error);
    if (writer == NULL)
        die("open", error);
    for (size_t i = 0; i < plan.count; i++) {
        DLTensor *tensor = tensor_writer_tensor(writer, i);
        if (plan.source[i] == NULL)
            fill(&plan.specs[i], plan.text[i], tensor);
        else if (elements_of(tensor) > 0)
            memcpy((char *)tensor->data + tensor->byte_offset,
                   (const char *)plan.source[i]->data + plan.source[i]->byte_offset,
                   (size_t)elements_of(tensor) * type_size(plan.specs[i].type));
    }
    if (!tensor_writer_commit(writer, error))
        die("commit", error);
    tensor_file_close(plan.base);
    return 0;
}

static int write_pt(const char *path, const char *text)
{
    static const char *const storages[] = {"Float", "Half", "BFloat16", "Double", "Int",
                                           "Long",  "Bool", "Char",     "Byte"};
    static struct plan plan;
    char type[32];
    add_spec(&plan, text);
    struct tensor_spec *spec = &plan.specs[0];
    struct pickle_view view = {.type = type, .key = "0", .elements = 1, .ndim = spec->ndim};
    snprintf(type, sizeof type, "%sStorage", storages[spec->type]);
    for (int d = spec->ndim - 1; d >= 0; d--) {
        view.sizes[d] = spec->shape[d];
        view.strides[d] = view.elements;
        view.elements *= spec->shape[d];
    }
    size_t size = (size_t)view.elements * type_size(spec->type);
    void *data = malloc(size + 1);
    if (data == NULL)
        die("no memory", text);
    DLTensor tensor = moetoken_tensor(data, spec->type, spec->ndim, spec->shape);
    fill(spec, plan.text[0], &tensor);
    struct file_bytes program = pickle_begin();
    pickle_tensor(&program, &view);
    pickle_add(&program, ".");
    struct file_bytes bytes = pt_bytes(&program, data, size);
    FILE *file = fopen(path, "wb");
    if (file == NULL || fwrite(bytes.bytes, 1, bytes.size, file) != bytes.size)
        die("write", path);
    free(data);
    file_bytes_free(&bytes);
    return fclose(file) == 0 ? 0 : 3;
}

static int print_tensor(const char *path, const char *name)
{
    char error[TENSOR_FILE_ERROR_SIZE];
    struct tensor_file *file = tensor_file_open(path, error);
    if (file == NULL)
        die("open", error);
    const DLTensor *tensor = tensor_file_find(file, name);
    if (tensor == NULL)
        die("no such tensor", name);
    moetoken_type type = MOETOKEN_F32;
    type_of_tensor(tensor, &type);
    int64_t width = tensor->ndim > 0 ? tensor->shape[tensor->ndim - 1] : 1;
    for (int64_t i = 0; i < elements_of(tensor); i++) {
        if (type_is_float(type))
            printf("%.17g", float_at(tensor, i));
        else if (type == MOETOKEN_I32 || type == MOETOKEN_I64)
            printf("%" PRId64, integer_at(tensor, i));
        else
            printf("%" PRIu64, bits_at(tensor, i));
        putchar(i % width == width - 1 ? '\n' : ' ');
    }
    tensor_file_close(file);
    return 0;
}

/* Finds where the tensor's data begins in the file, by the text of the header. */
static long data_begin(FILE *file, const char *name, long *end)
{
    unsigned char length[8];
    static char header[1 << 16];
    char key[128];
    if (fread(length, 1, 8, file) != 8)
        die("short file", name);
    uint64_t header_size = load_bits(length, 8); /* little-endian, as the machines of the tests */
    if (header_size >= sizeof header || fread(header, 1, header_size, file) != header_size)
        die("long header", name);
    snprintf(key, sizeof key, "\"%s\"", name);
    const char *at = strstr(header, key);
    at = at != NULL ? strstr(at, "\"data_offsets\"") : NULL;
    at = at != NULL ? strchr(at, '[') : NULL;
    if (at == NULL)
        die("no such tensor", name);
    char *next;
    long begin = strtol(at + 1, &next, 10);
    *end = 8 + (long)header_size + strtol(next + 1, NULL, 10);
    return 8 + (long)header_size + begin;
}

static int flip_bit(const char *path, const char *name, const char *bit_text)
{
    FILE *file = fopen(path, "r+b");
    if (file == NULL)
        die("open", path);
    long end, bit = strtol(bit_text, NULL, 10);
    long place = data_begin(file, name, &end) + bit / 8;
    if (place >= end)
        die("bit beyond the tensor", bit_text);
    fseek(file, place, SEEK_SET);
    int byte = fgetc(file);
    fseek(file, place, SEEK_SET);
    fputc(byte ^ (1 << bit % 8), file);
    return fclose(file) == 0 ? 0 : 3;
}

int main(int argc, char **argv)
{
    if (argc >= 3 && strcmp(argv[1], "write") == 0)
        return write_file(argc, argv);
    if (argc == 4 && strcmp(argv[1], "pt") == 0)
        return write_pt(argv[2], argv[3]);
    if (argc == 4 && strcmp(argv[1], "print") == 0)
        return print_tensor(argv[2], argv[3]);
    if (argc == 5 && strcmp(argv[1], "flip") == 0)
        return flip_bit(argv[2], argv[3], argv[4]);
    die("usage", "write OUT ... | pt OUT SPEC | print FILE NAME | flip FILE NAME BIT");
}
