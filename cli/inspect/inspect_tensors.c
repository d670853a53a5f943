/* inspect_tensors.c - every tensor of the files: type, shape, and what its numbers are like. */
#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "inspect.h"
#include "values/number_formats.h"

struct facts {
    int64_t nan, infinite, subnormal, zero, negative_zero, finite;
    double least, most, sum;
};

static double smallest_normal(moetoken_type type)
{
    return type == MOETOKEN_F16 ? 0x1p-14 : type == MOETOKEN_F64 ? DBL_MIN : FLT_MIN;
}

static void count_value(struct facts *facts, double value, double normal)
{
    if (isnan(value)) {
        facts->nan++;
        return;
    }
    if (isinf(value)) {
        facts->infinite++;
        return;
    }
    facts->finite++;
    facts->sum += value;
    facts->least = value < facts->least ? value : facts->least;
    facts->most = value > facts->most ? value : facts->most;
    facts->zero += value == 0;
    facts->negative_zero += value == 0 && signbit(value) != 0;
    facts->subnormal += value != 0 && fabs(value) < normal;
}

/* A whole number of any size, as binary64. */
static double whole_value(const DLTensor *tensor, moetoken_type type, int64_t i)
{
    uint64_t bits = bits_at(tensor, i);
    switch (type) {
    case MOETOKEN_I8:
        return (int8_t)bits;
    case MOETOKEN_I32:
        return (int32_t)bits;
    case MOETOKEN_I64:
        return (double)(int64_t)bits;
    default:
        return (double)bits;
    }
}

static void merge_facts(struct facts *all, const struct facts *part)
{
    all->nan += part->nan;
    all->infinite += part->infinite;
    all->subnormal += part->subnormal;
    all->zero += part->zero;
    all->negative_zero += part->negative_zero;
    all->finite += part->finite;
    all->sum += part->sum;
    all->least = part->least < all->least ? part->least : all->least;
    all->most = part->most > all->most ? part->most : all->most;
}

static struct facts measure(const DLTensor *tensor, moetoken_type type, int64_t count)
{
    struct facts facts = {.least = INFINITY, .most = -INFINITY};
    double normal = smallest_normal(type);
    bool is_float = type_is_float(type);
#pragma omp parallel if (count > 1 << 16)
    {
        struct facts part = {.least = INFINITY, .most = -INFINITY};
#pragma omp for schedule(static)
        for (int64_t i = 0; i < count; i++)
            count_value(&part,
                        is_float ? bits_to_double(type, bits_at(tensor, i))
                                 : whole_value(tensor, type, i),
                        is_float ? normal : 0);
#pragma omp critical
        merge_facts(&facts, &part);
    }
    return facts;
}

/* As text: JSON has no -0 that readers keep. */
static void add_number(cJSON *object, const char *key, double value)
{
    char text[40];
    snprintf(text, sizeof text, "%.9g", value);
    cJSON_AddStringToObject(object, key, text);
}

static void add_facts(cJSON *item, const DLTensor *tensor)
{
    moetoken_type type;
    if (!type_of_tensor(tensor, &type))
        return;
    int64_t count = tensor_elements(tensor);
    struct facts facts = measure(tensor, type, count);
    cJSON_AddStringToObject(item, "type", type_name(type));
    cJSON_AddNumberToObject(item, "elements", (double)count);
    if (facts.finite > 0) {
        add_number(item, "least", facts.least);
        add_number(item, "most", facts.most);
        add_number(item, "mean", facts.sum / (double)facts.finite);
    }
    cJSON_AddNumberToObject(item, "zero", (double)facts.zero);
    if (!type_is_float(type))
        return;
    cJSON_AddNumberToObject(item, "nan", (double)facts.nan);
    cJSON_AddNumberToObject(item, "infinite", (double)facts.infinite);
    cJSON_AddNumberToObject(item, "subnormal", (double)facts.subnormal);
    cJSON_AddNumberToObject(item, "negative_zero", (double)facts.negative_zero);
}

static void add_shape(cJSON *item, const DLTensor *tensor)
{
    char text[192] = "[";
    size_t length = 1;
    for (int d = 0; d < tensor->ndim && length < 160; d++)
        length += (size_t)snprintf(text + length, sizeof text - length, "%s%" PRId64,
                                   d == 0 ? "" : ", ", tensor->shape[d]);
    snprintf(text + length, sizeof text - length, "]");
    cJSON_AddStringToObject(item, "shape", text);
}

static void add_tensor(cJSON *list, const char *path, const struct named_tensor *tensor)
{
    cJSON *item = cJSON_CreateObject();
    inspect_add_text(item, "name", tensor->name);
    inspect_add_text(item, "file", path);
    if (tensor->problem != NULL) {
        inspect_add_text(item, "problem", tensor->problem);
    } else {
        add_shape(item, &tensor->tensor);
        add_facts(item, &tensor->tensor);
    }
    cJSON_AddItemToArray(list, item);
}

void inspect_tensors(const struct case_files *files, cJSON *page)
{
    cJSON *list = cJSON_AddArrayToObject(page, "tensors");
    int64_t left_out = 0;
    int listed = 0;
    for (int f = 0; f < files->count; f++) {
        size_t count = tensor_file_count(files->files[f]);
        for (size_t i = 0; i < count; i++) {
            if (listed == INSPECT_TENSORS_MOST) {
                left_out++;
                continue;
            }
            const struct named_tensor *tensor = tensor_file_at(files->files[f], i);
            if (tensor == NULL)
                continue;
            add_tensor(list, files->paths[f], tensor);
            listed++;
        }
    }
    cJSON_AddNumberToObject(page, "tensors_left_out", (double)left_out);
}
