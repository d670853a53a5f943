/* trial_judge.c - judges the outputs of a trial. See trial_judge.h. */
#include "trial_judge.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "compare/judge_report.h"
#include "oracle/oracle_golden.h"
#include "oracle/oracle_report.h"
#include "oracle/oracle_rules.h"
#include "values/number_formats.h"

/* The case again as the oracle reads it, and outputs for it to look at. */
struct judging {
    struct case_files inputs;
    struct oracle_case oracle;
    struct oracle_slots slots;
    char error[TENSOR_FILE_ERROR_SIZE];
};

/* ---- what belongs there ---------------------------------------------------------------------- */

static bool judging_begin(struct judging *judging, const struct trial *trial)
{
    char path[PATH_SIZE + 32];
    const char *paths[] = {path};
    struct case_files none = {.count = 0};
    struct oracle_options options = {.operator_kind = (int)trial->problem->operator_kind,
                                     .drop_and_pad = -1,
                                     .mask_fill_slots = -1,
                                     .tolerate_routing_mismatch = -1,
                                     .tokens_num = -1,
                                     .experts_num = -1,
                                     .num_out_tokens = -1,
                                     .expert_begin = -1,
                                     .expert_end = -1,
                                     .capacity = -1};
    trial_path(trial, "case", path);
    memset(judging, 0, sizeof *judging);
    judging->oracle.error = judging->error;
    if (!case_files_open(&judging->inputs, paths, 1))
        return false;
    if (!oracle_case_load(&judging->inputs, &none, &judging->inputs, &options, &judging->oracle))
        return false;
    if (trial->problem->operator_kind == OPERATOR_PERMUTE)
        judging->oracle.rows = trial->layout.rows;
    return true;
}

static void judging_end(struct judging *judging)
{
    oracle_slots_free(&judging->slots);
    case_files_close(&judging->inputs);
}

/* The outputs that are wanted, as an operator would declare them; specs without a name are not. */
static bool list_outputs(const struct trial *trial, struct tensor_spec specs[OUTPUTS_MOST])
{
    struct judging judging;
    bool good = judging_begin(&judging, trial);
    for (int i = 0; good && i < OUTPUTS_MOST; i++) {
        specs[i].name = NULL;
        if (trial->settings->wanted[i] && oracle_output_spec(&judging.oracle, i, &specs[i]))
            continue;
        specs[i].name = NULL;
    }
    judging_end(&judging);
    return good;
}

static int64_t spec_elements(const struct tensor_spec *spec)
{
    int64_t count = 1;
    for (int d = 0; d < spec->ndim; d++)
        count *= spec->shape[d];
    return count;
}

/* What lies in memory before run `run`: NaN at first. Not -1, which indices may be. */
static int blank_byte(moetoken_type type, int run)
{
    if (!type_is_float(type))
        return run == 0 ? 0x7b : 0x5d;
    return run == 0 ? 0xff : 0x5d;
}

bool trial_write_blank(const struct trial *trial, const char *path, int run,
                       char error[TENSOR_FILE_ERROR_SIZE])
{
    struct tensor_spec specs[OUTPUTS_MOST], present[OUTPUTS_MOST];
    size_t count = 0;
    snprintf(error, TENSOR_FILE_ERROR_SIZE, "the case could not be read back");
    if (!list_outputs(trial, specs))
        return false;
    for (int i = 0; i < OUTPUTS_MOST; i++)
        if (specs[i].name != NULL)
            present[count++] = specs[i];
    struct tensor_writer *writer = tensor_writer_open(path, present, count, NULL, error);
    for (size_t i = 0; writer != NULL && i < count; i++) {
        DLTensor *tensor = tensor_writer_tensor(writer, i);
        memset((char *)tensor->data + tensor->byte_offset, blank_byte(present[i].type, run),
               (size_t)spec_elements(&present[i]) * type_size(present[i].type));
    }
    return writer != NULL && tensor_writer_commit(writer, error);
}

/* ---- findings -------------------------------------------------------------------------------- */

static bool find(struct trial *trial, enum finding_kind kind, int output, const char *format,
                 const char *text)
{
    trial->finding.kind = kind;
    trial->finding.output = output;
    snprintf(trial->finding.text, sizeof trial->finding.text, format, text);
    return false;
}

/* The outputs of the file into the oracle; false with a finding when one is unfit. */
static bool take_outputs(struct trial *trial, struct judging *judging, struct tensor_file *file)
{
    struct oracle_case *oracle = &judging->oracle;
    char text[512];
    for (int i = 0; i < OUTPUTS_MOST; i++) {
        struct tensor_spec spec;
        struct output_rule rule;
        oracle->output[i] = NULL;
        if (!trial->settings->wanted[i] || !oracle_output_spec(oracle, i, &spec))
            continue;
        const char *problem = tensor_file_problem(file, spec.name);
        if (problem != NULL)
            return find(trial, FINDING_FORM, i, "%s", problem);
        const DLTensor *tensor = tensor_file_find(file, spec.name);
        if (tensor == NULL)
            return find(trial, FINDING_MISSING, i, "%s is missing", spec.name);
        oracle->output[i] = tensor; /* permute's sorted_indices are like themselves */
        if (oracle_find_rule(oracle, i, &rule) &&
            !oracle_check_output(&rule, tensor, text, sizeof text)) {
            char line[512 + 64];
            snprintf(line, sizeof line, "%s %s", spec.name, text);
            return find(trial, FINDING_FORM, i, "%s", line);
        }
    }
    return true;
}

/* Whether the element still holds what was there before. */
static bool is_blank(const DLTensor *tensor, int64_t element)
{
    moetoken_type type = MOETOKEN_F32;
    unsigned char blank[8];
    if (element < 0 || !type_of_tensor(tensor, &type))
        return false;
    memset(blank, blank_byte(type, 0), sizeof blank);
    return bits_at(tensor, element) == load_bits(blank, type_size(type));
}

static bool find_element(struct trial *trial, const struct judging *judging, int output,
                         int64_t element, const char *expected, const char *why)
{
    const DLTensor *tensor = judging->oracle.output[output];
    char index[ELEMENT_TEXT_SIZE] = "", value[ELEMENT_TEXT_SIZE] = "", where[512] = "";
    char text[1000];
    const char *name = operator_outputs[judging->oracle.operator_kind].outputs[output];
    if (element >= 0) {
        describe_index(tensor, element, index, sizeof index);
        describe_value(tensor, element, value, sizeof value);
        golden_describe_place(&judging->oracle, &judging->slots, output, element, where,
                              sizeof where);
    }
    if (element < 0)
        snprintf(text, sizeof text, "%s: %s", name, why);
    else
        snprintf(text, sizeof text, "%s%s = %.60s, expected %.40s%s%.200s%s; %.380s", name, index,
                 value, expected, where[0] ? " (" : "", where, where[0] ? ")" : "", why);
    return find(trial, is_blank(tensor, element) ? FINDING_UNWRITTEN : FINDING_VALUES, output, "%s",
                text);
}

/* ---- by the contract ------------------------------------------------------------------------- */

static bool judge_by_contract(struct trial *trial, const struct judging *judging)
{
    struct output_report reports[OUTPUTS_MOST];
    struct progress progress = {0};
    bool wanted[OUTPUTS_MOST];
    for (int i = 0; i < OUTPUTS_MOST; i++)
        wanted[i] = judging->oracle.output[i] != NULL;
    if (!oracle_verify(&judging->oracle, wanted, reports, &progress))
        return find(trial, FINDING_INTERNAL, -1, "%s", judging->oracle.error);
    for (int i = 0; i < OUTPUTS_MOST; i++) {
        char expected[64], why[96];
        if (reports[i].name == NULL || reports[i].wrong == 0)
            continue;
        snprintf(expected, sizeof expected, "%.17g", reports[i].want);
        snprintf(why, sizeof why, "%lld of %lld elements have other bits than documented",
                 (long long)reports[i].wrong, (long long)reports[i].checked);
        return find_element(trial, judging, i, reports[i].first_wrong, expected, why);
    }
    return true;
}

/* ---- by a standard --------------------------------------------------------------------------- */

/* "MERE 0.3, expected < 0.002" */
static void describe_figures(const struct standard *standard, const struct judgement *judgement,
                             char *text, size_t size)
{
    size_t length = (size_t)snprintf(text, size, "%s: ", standard->name);
    for (int i = 0; i < judgement->figures_count && length < size; i++) {
        const struct figure *figure = &judgement->figures[i];
        if (!figure->passed)
            length += (size_t)snprintf(text + length, size - length, "%s %.4g, expected %s %.4g; ",
                                       figure->name, figure->value,
                                       figure_relation_sign(figure->relation), figure->limit);
    }
    length = strlen(text);
    if (length > 2 && strcmp(text + length - 2, "; ") == 0)
        text[length - 2] = '\0';
}

static bool judge_output(struct trial *trial, const struct judging *judging, int i,
                         const struct golden_output *output)
{
    const struct standard *standard = &trial->settings->standard;
    struct comparison comparison;
    struct judgement judgement;
    char expected[ELEMENT_TEXT_SIZE] = "", why[400];
    judge_compare(judging->oracle.output[i], &output->golden, &output->benchmark, &comparison);
    judge_comparison(standard, &comparison, &judgement);
    if (judgement.passed)
        return true;
    if (judgement.problem[0] != '\0')
        return find(trial, FINDING_FORM, i, "%s", judgement.problem);
    describe_figures(standard, &judgement, why, sizeof why);
    if (judgement.worst >= 0)
        describe_value(&output->golden, judgement.worst, expected, sizeof expected);
    expected[strcspn(expected, " ")] = '\0'; /* without its bits */
    return find_element(trial, judging, i, judgement.worst, expected, why);
}

static bool judge_by_standard(struct trial *trial, const struct judging *judging)
{
    bool good = true;
    for (int i = 0; good && i < OUTPUTS_MOST; i++) {
        struct golden_output output;
        if (judging->oracle.output[i] == NULL)
            continue;
        if (!golden_output_make(&judging->oracle, &judging->slots, i, &output))
            good = find(trial, FINDING_INTERNAL, -1, "%s", judging->oracle.error);
        else if (output.written)
            good = judge_output(trial, judging, i, &output);
        golden_output_free(&output);
    }
    return good;
}

/* ---- a run ----------------------------------------------------------------------------------- */

bool trial_judge(struct trial *trial, const char *path)
{
    struct judging judging;
    char error[TENSOR_FILE_ERROR_SIZE];
    struct tensor_file *file = tensor_file_open(path, error);
    if (file == NULL)
        return find(trial, FINDING_FILE, -1, "%s", error);
    bool good = judging_begin(&judging, trial);
    if (!good || !oracle_slots_build(&judging.oracle, &judging.slots))
        good = find(trial, FINDING_INTERNAL, -1, "the case could not be read back%s", "");
    else
        good = take_outputs(trial, &judging, file) &&
               (trial->settings->contract ? judge_by_contract(trial, &judging)
                                          : judge_by_standard(trial, &judging));
    judging_end(&judging);
    tensor_file_close(file);
    return good;
}

/* The first byte that differs, or -1. */
static int64_t first_difference(const DLTensor *a, const DLTensor *b)
{
    size_t size = a->dtype.bits / 8u;
    int64_t count = tensor_elements(a);
    if (count != tensor_elements(b) || b->dtype.bits != a->dtype.bits)
        return 0;
    const char *left = (const char *)a->data + a->byte_offset;
    const char *right = (const char *)b->data + b->byte_offset;
    for (int64_t i = 0; i < count; i++)
        if (memcmp(left + (size_t)i * size, right + (size_t)i * size, size) != 0)
            return i;
    return -1;
}

static bool compare_files(struct trial *trial, struct tensor_file *first,
                          struct tensor_file *second)
{
    const char *const *names = operator_outputs[trial->problem->operator_kind].outputs;
    for (int i = 0; i < OUTPUTS_MOST; i++) {
        const DLTensor *a = names[i] == NULL ? NULL : tensor_file_find(first, names[i]);
        char index[ELEMENT_TEXT_SIZE], text[ELEMENT_TEXT_SIZE + 64];
        if (a == NULL || !trial->settings->wanted[i])
            continue;
        const DLTensor *b = tensor_file_find(second, names[i]);
        int64_t element = b == NULL ? 0 : first_difference(a, b);
        if (element < 0)
            continue;
        describe_index(a, element, index, sizeof index);
        snprintf(text, sizeof text, "%s%s has other bits when the command is run again", names[i],
                 index);
        return find(trial, FINDING_REPEAT, i, "%s", text);
    }
    return true;
}

bool trial_compare_runs(struct trial *trial, const char *first, const char *second)
{
    char error[TENSOR_FILE_ERROR_SIZE];
    struct tensor_file *a = tensor_file_open(first, error);
    struct tensor_file *b = a == NULL ? NULL : tensor_file_open(second, error);
    bool good = b == NULL ? find(trial, FINDING_FILE, -1, "%s", error) : compare_files(trial, a, b);
    tensor_file_close(a);
    tensor_file_close(b);
    return good;
}

/* ---- the golden file ------------------------------------------------------------------------- */

/* A golden result for an output that is all zeros, which gives it type and shape. */
static bool make_golden(struct judging *judging, int i, const struct tensor_spec *spec,
                        struct golden_output *output)
{
    int64_t shape[2] = {spec->shape[0], spec->shape[1]};
    void *zeros = calloc((size_t)spec_elements(spec) + 1, type_size(spec->type));
    DLTensor tensor = moetoken_tensor(zeros, spec->type, spec->ndim, shape);
    judging->oracle.output[i] = &tensor;
    bool good = zeros != NULL && golden_output_make(&judging->oracle, &judging->slots, i, output);
    judging->oracle.output[i] = NULL;
    free(zeros);
    return good && output->written;
}

static bool write_outputs(const struct golden_output *outputs, int count, const char *path,
                          char error[TENSOR_FILE_ERROR_SIZE])
{
    struct tensor_spec specs[OUTPUTS_MOST];
    for (int i = 0; i < count; i++) {
        const DLTensor *golden = &outputs[i].golden;
        specs[i] = (struct tensor_spec){
            .name = outputs[i].name, .type = MOETOKEN_F64, .ndim = golden->ndim};
        type_of_tensor(golden, &specs[i].type);
        for (int d = 0; d < golden->ndim; d++)
            specs[i].shape[d] = outputs[i].shape[d];
    }
    struct tensor_writer *writer = tensor_writer_open(path, specs, (size_t)count, NULL, error);
    for (int i = 0; writer != NULL && i < count; i++) {
        DLTensor *tensor = tensor_writer_tensor(writer, (size_t)i);
        memcpy((char *)tensor->data + tensor->byte_offset, outputs[i].golden.data,
               (size_t)spec_elements(&specs[i]) * type_size(specs[i].type));
    }
    return writer != NULL && tensor_writer_commit(writer, error);
}

bool trial_write_golden(const struct trial *trial, char error[TENSOR_FILE_ERROR_SIZE])
{
    struct judging judging;
    struct golden_output outputs[OUTPUTS_MOST];
    char path[PATH_SIZE + 32];
    int count = 0;
    bool good =
        judging_begin(&judging, trial) && oracle_slots_build(&judging.oracle, &judging.slots);
    snprintf(error, TENSOR_FILE_ERROR_SIZE, "no memory for the golden results");
    for (int i = 0; good && i < OUTPUTS_MOST; i++) {
        struct tensor_spec spec;
        if (!trial->settings->wanted[i] || !oracle_output_spec(&judging.oracle, i, &spec))
            continue;
        good = make_golden(&judging, i, &spec, &outputs[count]);
        count += good;
    }
    trial_path(trial, "golden", path);
    good = good && write_outputs(outputs, count, path, error);
    for (int i = 0; i < count; i++)
        golden_output_free(&outputs[i]);
    judging_end(&judging);
    return good;
}
