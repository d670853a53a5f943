/* dump_recompute.c - reads a call's values, has the function's own code make cases of them, and has
 * the oracle judge those. */
#include "dump_recompute.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "io/tensor_gather.h"
#include "recomputation.h"
#include "values/number_formats.h"

static const struct family_function *find_function(const char *name)
{
    for (int i = 0; i < family_by_map_count; i++)
        if (strcmp(family_by_map[i].name, name) == 0)
            return &family_by_map[i];
    for (int i = 0; i < family_by_ids_count; i++)
        if (strcmp(family_by_ids[i].name, name) == 0)
            return &family_by_ids[i];
    return NULL;
}

bool dump_is_known(const struct dump_call *call)
{
    return find_function(call->function) != NULL;
}

/* ---- reporting ------------------------------------------------------------------------------- */

void not_checked(struct recomputation *r, const char *name, const char *which, const char *why)
{
    struct dump_result result = {
        .call = r->call->name, .which = which, .name = name, .problem = why};
    r->judging->report(r->judging->context, &result);
}

struct judged_report {
    struct recomputation *r;
    const char *which;
};

static void report_judged(void *context, const struct judged *judged)
{
    struct judged_report *report = context;
    struct dump_result result = {.call = report->r->call->name,
                                 .which = report->which,
                                 .name = judged->output,
                                 .judged = judged};
    report->r->judging->report(report->r->judging->context, &result);
}

/* ---- made tensors ---------------------------------------------------------------------------- */

int64_t size_of(const DLTensor *tensor, int d)
{
    return tensor_dimension(tensor, d);
}

int64_t elements_of(const DLTensor *tensor)
{
    return tensor_elements(tensor);
}

struct made_tensor {
    DLTensor tensor;
    int64_t shape[2];
};

static void *allocate(struct recomputation *r, size_t size)
{
    if (r->scratch_count == SCRATCH_MOST)
        return NULL;
    void *memory = calloc(1, size + 1);
    if (memory != NULL)
        r->scratch[r->scratch_count++] = memory;
    return memory;
}

const DLTensor *reshaped(struct recomputation *r, const DLTensor *tensor, int64_t rows,
                         int64_t columns)
{
    struct made_tensor *made = tensor == NULL ? NULL : allocate(r, sizeof *made);
    if (made == NULL)
        return NULL;
    made->tensor = *tensor;
    made->tensor.ndim = 2;
    made->tensor.shape = made->shape;
    made->shape[0] = rows;
    made->shape[1] = columns;
    return &made->tensor;
}

const DLTensor *new_integers(struct recomputation *r, int64_t count, int64_t **values)
{
    struct made_tensor *made = allocate(r, sizeof *made);
    *values = allocate(r, (size_t)count * sizeof **values);
    if (made == NULL || *values == NULL)
        return NULL;
    made->shape[0] = count;
    made->tensor = moetoken_tensor(*values, MOETOKEN_I64, 1, made->shape);
    return &made->tensor;
}

static bool is_whole(const DLTensor *tensor)
{
    moetoken_type type;
    return type_of_tensor(tensor, &type) && !type_is_float(type);
}

const DLTensor *integers_within(struct recomputation *r, const DLTensor *tensor, int64_t end)
{
    int64_t *values;
    if (tensor == NULL || !is_whole(tensor))
        return NULL;
    int64_t count = elements_of(tensor);
    const DLTensor *made = new_integers(r, count, &values);
    for (int64_t i = 0; made != NULL && i < count; i++) {
        int64_t value = whole_number_at(tensor, i);
        values[i] = value < 0 || value >= end ? -1 : value;
    }
    return made;
}

const DLTensor *tokens_first(struct recomputation *r, const DLTensor *tensor, int64_t tokens)
{
    int64_t *values;
    if (tensor == NULL || !is_whole(tensor))
        return NULL;
    int64_t count = elements_of(tensor), topk = tokens > 0 ? count / tokens : 0;
    const DLTensor *made = new_integers(r, count, &values);
    for (int64_t i = 0; made != NULL && i < tokens * topk; i++)
        values[i] = whole_number_at(tensor, i % topk * tokens + i / topk);
    return made;
}

const DLTensor *ones(struct recomputation *r, const DLTensor *like, int64_t tokens)
{
    moetoken_type type = MOETOKEN_F32;
    struct made_tensor *made = allocate(r, sizeof *made);
    if (made == NULL || like == NULL || !type_of_tensor(like, &type) || !type_is_float(type))
        return NULL;
    size_t size = type_size(type);
    char *values = allocate(r, (size_t)tokens * size);
    if (values == NULL)
        return NULL;
    for (int64_t t = 0; t < tokens; t++)
        store_bits(values + (size_t)t * size, size, double_to_bits(type, 1));
    made->shape[0] = tokens;
    made->shape[1] = 1;
    made->tensor = moetoken_tensor(values, type, 2, made->shape);
    return &made->tensor;
}

/* ---- cases ----------------------------------------------------------------------------------- */

void case_begin(struct recomputation *r)
{
    r->inputs = tensor_gather_begin(r->call->name, r->error);
    r->made_well = r->inputs != NULL;
}

void case_put(struct recomputation *r, const char *name, const DLTensor *tensor)
{
    if (r->made_well && tensor != NULL)
        r->made_well = tensor_gather_add(r->inputs, name, tensor, r->error);
}

static void put_text(struct recomputation *r, const char *key, const char *text)
{
    if (r->made_well)
        r->made_well = tensor_gather_metadata(r->inputs, key, text, r->error);
}

void case_number(struct recomputation *r, const char *key, int64_t value)
{
    char text[24];
    snprintf(text, sizeof text, "%" PRId64, value);
    put_text(r, key, text);
}

void case_flag(struct recomputation *r, const char *key, bool value)
{
    put_text(r, key, value ? "true" : "false");
}

void case_shape(struct recomputation *r, int64_t tokens, int64_t hidden)
{
    char text[48];
    snprintf(text, sizeof text, "%" PRId64 ",%" PRId64, tokens, hidden);
    put_text(r, "restore_shape", text);
}

static bool judge_case(struct recomputation *r, enum operator_kind kind, const char *name,
                       struct tensor_file *output, const char *which)
{
    struct case_files inputs = {.files = {r->inputs}, .paths = {r->call->name}, .count = 1};
    struct case_files outputs = {.files = {output}, .paths = {r->call->name}, .count = 1};
    struct oracle_options options = {.operator_kind = kind,
                                     .drop_and_pad = -1,
                                     .mask_fill_slots = -1,
                                     .tolerate_routing_mismatch = -1,
                                     .tokens_num = -1,
                                     .experts_num = -1,
                                     .num_out_tokens = -1,
                                     .expert_begin = -1,
                                     .expert_end = -1,
                                     .capacity = -1};
    struct oracle_case oracle = {.error = r->error};
    struct judged_report report = {r, which};
    bool wanted[OUTPUTS_MOST], passed;
    snprintf(r->error, sizeof r->error, "it cannot be recomputed, as standard error says");
    if (!oracle_case_load(&inputs, &outputs, &inputs, &options, &oracle))
        return false;
    for (int i = 0; i < OUTPUTS_MOST; i++)
        wanted[i] = operator_outputs[kind].outputs[i] != NULL &&
                    strcmp(operator_outputs[kind].outputs[i], name) == 0;
    return judge_outputs(&oracle, wanted, r->judging->standards, r->judging->standards_count,
                         report_judged, &report, &passed);
}

void case_judge(struct recomputation *r, enum operator_kind kind, const char *name,
                const DLTensor *actual, const char *which)
{
    struct tensor_file *output = r->made_well ? tensor_gather_begin(r->call->name, r->error) : NULL;
    bool good = output != NULL && actual != NULL &&
                tensor_gather_add(output, name, actual, r->error) &&
                (r->rows == NULL || r->rows == actual ||
                 tensor_gather_add(output, "permuted_tokens", r->rows, r->error)) &&
                judge_case(r, kind, name, output, which);
    if (!good)
        not_checked(r, name, which, r->error[0] != '\0' ? r->error : "no memory");
    tensor_file_close(output);
    tensor_file_close(r->inputs);
    r->inputs = NULL;
    r->rows = NULL;
    r->error[0] = '\0';
}

void judge_integers_directly(struct recomputation *r, const char *name, const DLTensor *actual,
                             const DLTensor *golden, const char *which)
{
    struct comparison comparison;
    struct judgement judgement;
    DLTensor shaped;
    if (golden == NULL || !is_whole(actual) || elements_of(actual) != elements_of(golden)) {
        not_checked(r, name, which, "it has a type or size that it cannot have");
        return;
    }
    shaped = *golden;
    shaped.ndim = actual->ndim;
    shaped.shape = actual->shape;
    judge_compare(actual, &shaped, NULL, &comparison);
    for (int i = 0; i < r->judging->standards_count; i++) {
        struct judged_report report = {r, which};
        struct judged judged = {.output = name,
                                .standard = &r->judging->standards[i],
                                .comparison = &comparison,
                                .judgement = &judgement,
                                .where = ""};
        judge_comparison(judged.standard, &comparison, &judgement);
        report_judged(&report, &judged);
    }
}

/* ---- a call ---------------------------------------------------------------------------------- */

/* Item i of what may be a list or one value. */
static const cJSON *item_at(const cJSON *list, int i)
{
    if (cJSON_IsArray(list))
        return cJSON_GetArrayItem(list, i);
    return i == 0 ? list : NULL;
}

static bool read_arguments(struct recomputation *r, const struct family_function *function,
                           const cJSON *forward)
{
    const cJSON *list = cJSON_GetObjectItemCaseSensitive(forward, "input_args");
    const cJSON *named = cJSON_GetObjectItemCaseSensitive(forward, "input_kwargs");
    for (int i = 0; i < ARGUMENTS_MOST && function->arguments[i] != NULL; i++) {
        const cJSON *item = item_at(list, i);
        if (item == NULL)
            item = cJSON_GetObjectItemCaseSensitive(named, function->arguments[i]);
        if (!dump_value_read(r->dump, item, &r->arguments[i], r->error))
            return false;
    }
    return true;
}

static bool read_values(struct recomputation *r, const cJSON *entry, const char *key,
                        struct dump_value *values, int most)
{
    const cJSON *list = cJSON_GetObjectItemCaseSensitive(entry, key);
    for (int i = 0; i < most; i++)
        if (!dump_value_read(r->dump, item_at(list, i), &values[i], r->error))
            return false;
    return true;
}

static bool read_all(struct recomputation *r, const struct family_function *function)
{
    const cJSON *forward = r->call->backward ? dump_forward_of(r->dump, r->call) : r->call->entry;
    if (forward == NULL) {
        snprintf(r->error, sizeof r->error, "the forward call is not in the dump");
        return false;
    }
    if (!read_arguments(r, function, forward) ||
        !read_values(r, forward, "output", r->results, RESULTS_MOST))
        return false;
    return !r->call->backward ||
           (read_values(r, r->call->entry, "input", r->gradients, RESULTS_MOST) &&
            read_values(r, r->call->entry, "output", r->argument_gradients, ARGUMENTS_MOST));
}

static void free_values(struct dump_value *values, int count)
{
    for (int i = 0; i < count; i++)
        dump_value_free(&values[i]);
}

void dump_recompute(const struct dump *dump, const struct dump_call *call,
                    const struct dump_judging *judging)
{
    const struct family_function *function = find_function(call->function);
    struct recomputation *r = calloc(1, sizeof *r);
    family_fn *recompute = call->backward ? function->backward : function->forward;
    if (r == NULL)
        return;
    r->dump = dump;
    r->call = call;
    r->judging = judging;
    if (recompute == NULL)
        not_checked(r, "", "", "this function has no gradient that the plug-in could record");
    else if (!read_all(r, function))
        not_checked(r, "", "", r->error);
    else
        recompute(r);
    free_values(r->arguments, ARGUMENTS_MOST);
    free_values(r->results, RESULTS_MOST);
    free_values(r->gradients, RESULTS_MOST);
    free_values(r->argument_gradients, ARGUMENTS_MOST);
    for (int i = 0; i < r->scratch_count; i++)
        free(r->scratch[i]);
    free(r);
}
