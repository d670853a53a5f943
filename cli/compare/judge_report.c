/* judge_report.c - a judgement in words and as JSON. See judge_report.h. */
#include "judge_report.h"

#include <inttypes.h>
#include <stdio.h>

#include "terminal/json.h"
#include "values/number_formats.h"

/* ---- elements ------------------------------------------------------------------------------- */

/* The index of an element in C order. */
static void index_of(const DLTensor *tensor, int64_t element, int64_t *index)
{
    for (int d = tensor->ndim - 1; d >= 0; d--) {
        index[d] = element % tensor->shape[d];
        element /= tensor->shape[d];
    }
}

enum {
    DIMENSIONS_MOST = 8
};

static void describe_numbers(const int64_t *numbers, int count, char *text, size_t size)
{
    size_t length = (size_t)snprintf(text, size, "[");
    for (int d = 0; d < count && length + 24 < size; d++)
        length += (size_t)snprintf(text + length, size - length, "%s%" PRId64, d == 0 ? "" : ",",
                                   numbers[d]);
    snprintf(text + length, size - length, "]");
}

void describe_index(const DLTensor *tensor, int64_t element, char *text, size_t size)
{
    int64_t index[DIMENSIONS_MOST];
    index_of(tensor, element, index);
    describe_numbers(index, tensor->ndim, text, size);
}

void describe_value(const DLTensor *tensor, int64_t element, char *text, size_t size)
{
    moetoken_type type = MOETOKEN_F32;
    type_of_tensor(tensor, &type);
    if (type == MOETOKEN_BOOL) {
        snprintf(text, size, "%s", whole_number_at(tensor, element) != 0 ? "true" : "false");
    } else if (!type_is_float(type)) {
        snprintf(text, size, "%" PRId64, whole_number_at(tensor, element));
    } else {
        snprintf(text, size, "%.*g (0x%0*" PRIx64 ")", type == MOETOKEN_F64 ? 17 : 9,
                 float_at(tensor, element), (int)(2 * type_size(type)), bits_at(tensor, element));
    }
}

void describe_tensor(const DLTensor *tensor, char *text, size_t size)
{
    moetoken_type type;
    bool known = type_of_tensor(tensor, &type);
    int length = snprintf(text, size, "%s ", known ? type_name(type) : "unknown type");
    if (length >= 0 && (size_t)length < size)
        describe_numbers(tensor->shape, tensor->ndim, text + length, size - (size_t)length);
}

/* ---- text ----------------------------------------------------------------------------------- */

static void print_figure(const struct figure *figure)
{
    if (figure->relation == FIGURE_INFORMS)
        printf("    %-36s %14.7g\n", figure->name, figure->value);
    else
        printf("    %-36s %14.7g  %2s %-12.7g %s\n", figure->name, figure->value,
               figure_relation_sign(figure->relation), figure->limit,
               figure->passed ? "pass" : "FAIL");
}

static void print_worst(const struct comparison *comparison, const struct judgement *judgement,
                        const char *where)
{
    char index[ELEMENT_TEXT_SIZE], actual[ELEMENT_TEXT_SIZE], golden[ELEMENT_TEXT_SIZE];
    describe_index(comparison->actual, judgement->worst, index, sizeof index);
    describe_value(comparison->actual, judgement->worst, actual, sizeof actual);
    describe_value(comparison->golden, judgement->worst, golden, sizeof golden);
    printf("    worst %s%s%s = %s, golden %s", index, where[0] == '\0' ? "" : ", ", where, actual,
           golden);
    if (comparison->third_party != NULL) {
        describe_value(comparison->third_party, judgement->worst, golden, sizeof golden);
        printf(", third party %s", golden);
    }
    printf("\n");
}

void judgement_print(const struct standard *standard, const struct comparison *comparison,
                     const struct judgement *judgement, const char *where)
{
    printf("  %-38s %s\n", standard->name, judgement->passed ? "PASS" : "FAIL");
    if (judgement->problem[0] != '\0') {
        printf("    %s\n", judgement->problem);
        return;
    }
    for (int i = 0; i < judgement->figures_count; i++)
        print_figure(&judgement->figures[i]);
    if (judgement->worst >= 0)
        print_worst(comparison, judgement, where);
}

/* ---- JSON ----------------------------------------------------------------------------------- */

static void print_figure_json(const struct figure *figure)
{
    printf("{\"name\": ");
    json_text(stdout, figure->name);
    printf(", \"value\": ");
    json_number(stdout, figure->value);
    if (figure->relation == FIGURE_INFORMS) {
        printf("}");
        return;
    }
    printf(", \"relation\": \"%s\", \"limit\": ", figure_relation_sign(figure->relation));
    json_number(stdout, figure->limit);
    printf(", \"passed\": %s}", figure->passed ? "true" : "false");
}

static void print_element_json(const char *name, const DLTensor *tensor, int64_t element)
{
    moetoken_type type = MOETOKEN_F32;
    type_of_tensor(tensor, &type);
    printf(", \"%s\": ", name);
    if (type_is_float(type))
        json_number(stdout, float_at(tensor, element));
    else
        printf("%" PRId64, whole_number_at(tensor, element));
}

static void print_worst_json(const struct comparison *comparison, const struct judgement *judgement,
                             const char *where)
{
    int64_t index[DIMENSIONS_MOST];
    const DLTensor *actual = comparison->actual;
    index_of(actual, judgement->worst, index);
    printf("{\"element\": %" PRId64 ", \"index\": [", judgement->worst);
    for (int d = 0; d < actual->ndim; d++)
        printf("%s%" PRId64, d == 0 ? "" : ", ", index[d]);
    printf("]");
    if (where[0] != '\0') {
        printf(", \"where\": ");
        json_text(stdout, where);
    }
    print_element_json("actual", actual, judgement->worst);
    print_element_json("golden", comparison->golden, judgement->worst);
    if (comparison->third_party != NULL)
        print_element_json("third_party", comparison->third_party, judgement->worst);
    printf("}");
}

void judgement_print_json(const struct standard *standard, const struct comparison *comparison,
                          const struct judgement *judgement, const char *where)
{
    printf("{\"standard\": ");
    json_text(stdout, standard->name);
    printf(", \"passed\": %s", judgement->passed ? "true" : "false");
    if (judgement->problem[0] != '\0') {
        printf(", \"problem\": ");
        json_text(stdout, judgement->problem);
    }
    printf(", \"figures\": [");
    for (int i = 0; i < judgement->figures_count; i++) {
        printf("%s", i == 0 ? "" : ", ");
        print_figure_json(&judgement->figures[i]);
    }
    printf("], \"worst\": ");
    if (judgement->worst >= 0)
        print_worst_json(comparison, judgement, where);
    else
        printf("null");
    printf("}");
}
