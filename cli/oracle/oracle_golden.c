/* oracle_golden.c - the results that a case calls for, as tensors: what the oracle would have
 * compared with, written down element by element. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "oracle.h"
#include "values/number_formats.h"

static void keep_element(void *context, int output, int64_t place, uint64_t got, double want,
                         bool right, double ulp)
{
    struct oracle_golden *golden = context;
    DLTensor *tensor = &golden->tensors[output];
    moetoken_type type = MOETOKEN_F64;
    (void)got;
    (void)right;
    (void)ulp;
    type_of_tensor(tensor, &type);
    size_t size = type_size(type);
    uint64_t bits = type == MOETOKEN_F64 ? double_to_bits(type, want) : (uint64_t)(int64_t)want;
    store_bits((char *)tensor->data + (size_t)place * size, size, bits);
}

static bool allocate_output(struct oracle_golden *golden, int i)
{
    const struct tensor_spec *spec = &golden->specs[i];
    moetoken_type type = type_is_float(spec->type) ? MOETOKEN_F64 : spec->type;
    size_t bytes = type_size(type);
    for (int d = 0; d < spec->ndim; d++) {
        golden->shapes[i][d] = spec->shape[d];
        bytes *= (size_t)spec->shape[d];
    }
    void *data = calloc(bytes + 1, 1);
    golden->tensors[i] = moetoken_tensor(data, type, spec->ndim, golden->shapes[i]);
    golden->present[i] = true;
    return data != NULL;
}

/* An output of zeros, in the type that outputs have, for the oracle to look at. The largest one
 * serves for all. */
static void *make_zeros(const struct oracle_golden *golden)
{
    size_t most = 0;
    for (int i = 0; i < OUTPUTS_MOST; i++) {
        if (!golden->present[i])
            continue;
        size_t bytes = type_size(golden->specs[i].type);
        for (int d = 0; d < golden->specs[i].ndim; d++)
            bytes *= (size_t)golden->specs[i].shape[d];
        most = bytes > most ? bytes : most;
    }
    return calloc(most + 1, 1);
}

static bool compute_into(const struct oracle_case *oracle, struct oracle_golden *golden)
{
    DLTensor outputs[OUTPUTS_MOST];
    struct output_report reports[OUTPUTS_MOST];
    struct progress progress = {0};
    struct oracle_case copy = *oracle;
    void *zeros = make_zeros(golden);
    if (zeros == NULL)
        return false;
    copy.observe = keep_element;
    copy.observe_context = golden;
    for (int i = 0; i < OUTPUTS_MOST; i++) {
        copy.output[i] = NULL;
        if (!golden->present[i])
            continue;
        outputs[i] =
            moetoken_tensor(zeros, golden->specs[i].type, golden->specs[i].ndim, golden->shapes[i]);
        copy.output[i] = &outputs[i];
    }
    bool good = oracle_verify(&copy, golden->present, reports, &progress);
    free(zeros);
    return good;
}

bool oracle_golden_compute(const struct oracle_case *oracle, struct oracle_golden *golden)
{
    *golden = (struct oracle_golden){.present = {false}};
    bool good = true;
    for (int i = 0; i < OUTPUTS_MOST; i++)
        if (oracle_output_spec(oracle, i, &golden->specs[i]))
            good = allocate_output(golden, i) && good;
    if (!good) {
        snprintf(oracle->error, TENSOR_FILE_ERROR_SIZE, "no memory for the results of the case");
        return false;
    }
    oracle->error[0] = '\0';
    good = compute_into(oracle, golden);
    if (!good && oracle->error[0] == '\0')
        snprintf(oracle->error, TENSOR_FILE_ERROR_SIZE, "no memory for the results of the case");
    return good;
}

void oracle_golden_free(struct oracle_golden *golden)
{
    for (int i = 0; i < OUTPUTS_MOST; i++) {
        if (golden->present[i])
            free(golden->tensors[i].data);
        golden->present[i] = false;
    }
}
