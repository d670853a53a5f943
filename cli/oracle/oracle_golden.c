/* oracle_golden.c - every output again, row by row: exactly but for one rounding, and in the
 * arithmetic of devices. See oracle_golden.h. */
#include "oracle_golden.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "oracle_rules.h"
#include "oracle_sums.h"
#include "values/number_formats.h"

#define LANES 64 /* of a benchmark's dot product */

/* One output on its way; each thread has a copy with scratch of its own. */
struct golden_job {
    const struct oracle_case *oracle;
    const struct oracle_slots *slots;
    bool wide;                  /* float64: the benchmark takes binary64 */
    int64_t width;              /* elements of a row of the output */
    double *x, *g;              /* [H] */
    long double *sums;          /* [H] */
    struct accurate_sum *pairs; /* [E] */
};

/* Fills a row of the output with golden and benchmark values. */
typedef void golden_row_fn(struct golden_job *job, int64_t row, double *golden, double *benchmark);

static double narrow(const struct golden_job *job, double value)
{
    return job->wide ? value : (float)value;
}

static void set_zeros(const struct golden_job *job, double *golden, double *benchmark)
{
    memset(golden, 0, (size_t)job->width * sizeof *golden);
    memset(benchmark, 0, (size_t)job->width * sizeof *benchmark);
}

static void copy_row(const struct golden_job *job, const DLTensor *source, int64_t row,
                     double *golden, double *benchmark)
{
    floats_at(source, row * job->width, job->width, golden);
    memcpy(benchmark, golden, (size_t)job->width * sizeof *golden);
}

/* ---- a row for each permuted row ------------------------------------------------------------- */

static void golden_gradient_row(struct golden_job *job, int64_t row, double *golden,
                                double *benchmark)
{
    const struct oracle_slots *slots = job->slots;
    int64_t slot = slots->slot_of_row[row];
    if (slot < 0 || slots->masked[slot]) {
        set_zeros(job, golden, benchmark);
        return;
    }
    copy_row(job, job->oracle->unpermuted_tokens_grad, slots->token[slot], golden, benchmark);
    if (job->oracle->probs == NULL && job->oracle->weights == NULL)
        return;
    for (int64_t h = 0; h < job->width; h++) {
        golden[h] *= slots->weight[slot];
        benchmark[h] = narrow(job, narrow(job, slots->weight[slot]) * benchmark[h]);
    }
}

static void golden_permuted_row(struct golden_job *job, int64_t row, double *golden,
                                double *benchmark)
{
    int64_t slot = job->slots->slot_of_row[row];
    if (slot < 0)
        set_zeros(job, golden, benchmark);
    else
        copy_row(job, job->oracle->plain_tokens, job->slots->token[slot], golden, benchmark);
}

static void golden_permuted_prob(struct golden_job *job, int64_t row, double *golden,
                                 double *benchmark)
{
    const struct oracle_slots *slots = job->slots;
    int64_t slot = slots->slot_of_row[row];
    *golden = 0;
    if (slot >= 0 && job->oracle->by_ids)
        *golden = float_at(job->oracle->weights, slot);
    else if (slot >= 0)
        *golden = float_at(job->oracle->probs,
                           slots->token[slot] * job->oracle->experts + slots->expert[slot]);
    *benchmark = *golden;
}

/* ---- a row for each token -------------------------------------------------------------------- */

/* Adds weight times a row of a tensor, if there is such a tensor. */
static void add_row(struct golden_job *job, const DLTensor *source, int64_t row, double weight,
                    double *benchmark)
{
    if (source == NULL)
        return;
    floats_at(source, row * job->width, job->width, job->x);
    for (int64_t h = 0; h < job->width; h++) {
        job->sums[h] += (long double)weight * job->x[h];
        benchmark[h] = narrow(job, benchmark[h] + narrow(job, narrow(job, weight) * job->x[h]));
    }
}

static void golden_sum_of_rows(struct golden_job *job, int64_t token, double *golden,
                               double *benchmark)
{
    const struct oracle_case *oracle = job->oracle;
    const struct oracle_slots *slots = job->slots;
    const DLTensor *source = oracle->operator_kind == OPERATOR_UNPERMUTE
                                 ? oracle->permuted_tokens
                                 : oracle->permuted_tokens_grad;
    set_zeros(job, golden, benchmark);
    for (int64_t h = 0; h < job->width; h++)
        job->sums[h] = 0;
    add_row(job, oracle->residual, token, 1, benchmark);
    add_row(job, oracle->residual2, token, 1, benchmark);
    for (int64_t s = slots->start[token]; s < slots->start[token + 1]; s++) {
        int64_t slot = slots->order[s];
        if (slots->row[slot] < 0 || slots->weight[slot] == 0)
            continue;
        add_row(job, source, slots->row[slot], slots->weight[slot], benchmark);
        add_row(job, oracle->expert_bias, slots->expert[slot], slots->weight[slot], benchmark);
    }
    for (int64_t h = 0; h < job->width; h++)
        golden[h] = (double)job->sums[h];
}

static double value_of_sum(const struct accurate_sum *sum)
{
    return sum->special != 0 ? sum->special : sum->high + sum->low;
}

/* The dot product of x and g as a device with 64 lanes has it. */
static double lanes_dot(const struct golden_job *job, int64_t hidden)
{
    double lanes[LANES] = {0};
    for (int64_t h = 0; h < hidden; h++)
        lanes[h % LANES] = narrow(job, lanes[h % LANES] + narrow(job, job->x[h] * job->g[h]));
    for (int half = LANES / 2; half > 0; half /= 2)
        for (int lane = 0; lane < half; lane++)
            lanes[lane] = narrow(job, lanes[lane] + lanes[lane + half]);
    return lanes[0];
}

/* Adds the product of a row with the token's gradient, which is in job->g. */
static void add_dot(struct golden_job *job, const DLTensor *source, int64_t row,
                    struct accurate_sum *sum, double *benchmark)
{
    int64_t hidden = job->oracle->hidden;
    floats_at(source, row * hidden, hidden, job->x);
    accurate_sum_add_products(sum, job->x, job->g, hidden, !job->wide);
    *benchmark = narrow(job, *benchmark + lanes_dot(job, hidden));
}

static void add_slot(struct golden_job *job, int64_t slot, struct accurate_sum *sum,
                     double *benchmark)
{
    const struct oracle_case *oracle = job->oracle;
    if (oracle->operator_kind == OPERATOR_UNPERMUTE_GRAD) {
        add_dot(job, oracle->permuted_tokens, job->slots->row[slot], sum, benchmark);
    } else {
        double value = float_at(oracle->permuted_probs_grad, job->slots->row[slot]);
        accurate_sum_add(sum, value);
        *benchmark = narrow(job, *benchmark + value);
    }
}

static void load_gradient(struct golden_job *job, int64_t token)
{
    int64_t hidden = job->oracle->hidden;
    if (job->oracle->operator_kind == OPERATOR_UNPERMUTE_GRAD)
        floats_at(job->oracle->unpermuted_tokens_grad, token * hidden, hidden, job->g);
}

/* probs_grad: a sum for each pair of the token and an expert. */
static void golden_pairs(struct golden_job *job, int64_t token, double *golden, double *benchmark)
{
    const struct oracle_slots *slots = job->slots;
    set_zeros(job, golden, benchmark);
    load_gradient(job, token);
    for (int64_t e = 0; e < job->width; e++)
        accurate_sum_begin(&job->pairs[e]);
    for (int64_t s = slots->start[token]; s < slots->start[token + 1]; s++) {
        int64_t slot = slots->order[s], expert = slots->expert[slot];
        if (slots->row[slot] >= 0 && expert >= 0 && !slots->masked[slot])
            add_slot(job, slot, &job->pairs[expert], &benchmark[expert]);
    }
    for (int64_t e = 0; e < job->width; e++)
        golden[e] = value_of_sum(&job->pairs[e]);
}

/* weights_grad by ids: a sum for each slot of the token. */
static void golden_weights(struct golden_job *job, int64_t token, double *golden, double *benchmark)
{
    const struct oracle_case *oracle = job->oracle;
    const struct oracle_slots *slots = job->slots;
    set_zeros(job, golden, benchmark);
    load_gradient(job, token);
    for (int64_t k = 0; k < job->width; k++) {
        int64_t slot = token * job->width + k;
        struct accurate_sum sum;
        if (slots->row[slot] < 0)
            continue;
        accurate_sum_begin(&sum);
        add_slot(job, slot, &sum, &benchmark[k]);
        if (oracle->operator_kind == OPERATOR_UNPERMUTE_GRAD && oracle->expert_bias != NULL)
            add_dot(job, oracle->expert_bias, slots->expert[slot], &sum, &benchmark[k]);
        golden[k] = value_of_sum(&sum);
    }
}

/* ---- an element for each slot, row or expert ------------------------------------------------- */

static int64_t slot_in_place(const struct golden_job *job, int64_t place)
{
    return job->oracle->drop_and_pad ? job->slots->order[place] : place;
}

static void golden_out_index(struct golden_job *job, int64_t place, double *golden,
                             double *benchmark)
{
    *golden = *benchmark = (double)job->slots->row[slot_in_place(job, place)];
}

static void golden_token_id(struct golden_job *job, int64_t place, double *golden,
                            double *benchmark)
{
    *golden = *benchmark = (double)job->slots->token[slot_in_place(job, place)];
}

static void golden_slot_weight(struct golden_job *job, int64_t slot, double *golden,
                               double *benchmark)
{
    *golden = *benchmark = job->slots->weight[slot];
}

static void golden_sorted_index(struct golden_job *job, int64_t slot, double *golden,
                                double *benchmark)
{
    *golden = *benchmark =
        (double)(job->oracle->drop_and_pad ? job->slots->token[slot] : job->slots->row[slot]);
}

static void golden_source_slot(struct golden_job *job, int64_t row, double *golden,
                               double *benchmark)
{
    *golden = *benchmark = (double)job->slots->slot_of_row[row];
}

static void golden_rows_of_expert(struct golden_job *job, int64_t place, double *golden,
                                  double *benchmark)
{
    const struct oracle_case *oracle = job->oracle;
    int64_t count = 0;
    for (int64_t i = 0; i < oracle->slots; i++)
        count += job->slots->row[i] >= 0 &&
                 integer_at(oracle->expert_ids, i) == oracle->expert_begin + place;
    *golden = *benchmark = (double)count;
}

/* ---- an output ------------------------------------------------------------------------------- */

static golden_row_fn *const row_functions[OPERATORS_COUNT][OUTPUTS_MOST] = {
    [OPERATOR_UNPERMUTE_GRAD] = {golden_gradient_row, golden_pairs, golden_weights},
    [OPERATOR_UNPERMUTE] = {golden_sum_of_rows, golden_out_index, golden_token_id,
                            golden_slot_weight},
    [OPERATOR_PERMUTE] = {golden_permuted_row, golden_permuted_prob, golden_sorted_index,
                          golden_source_slot, golden_rows_of_expert},
    [OPERATOR_PERMUTE_GRAD] = {golden_sum_of_rows, golden_pairs, golden_weights},
};

static bool allocate_scratch(struct golden_job *job)
{
    size_t most = (size_t)(job->width > job->oracle->hidden ? job->width : job->oracle->hidden) + 1;
    job->x = malloc(most * sizeof *job->x);
    job->g = malloc(most * sizeof *job->g);
    job->sums = malloc(most * sizeof *job->sums);
    job->pairs = malloc(most * sizeof *job->pairs);
    return job->x != NULL && job->g != NULL && job->sums != NULL && job->pairs != NULL;
}

static void free_scratch(struct golden_job *job)
{
    free(job->x);
    free(job->g);
    free(job->sums);
    free(job->pairs);
}

/* Values into the two tensors. */
static void store_row(const struct golden_output *output, int64_t first, int64_t width,
                      const double *golden, const double *benchmark)
{
    moetoken_type type = MOETOKEN_F32;
    type_of_tensor(&output->benchmark, &type);
    size_t size = type_size(type);
    char *to = (char *)output->benchmark.data + (size_t)first * size;
    if (type_is_float(type)) {
        memcpy((double *)output->golden.data + first, golden, (size_t)width * sizeof *golden);
        for (int64_t i = 0; i < width; i++)
            store_bits(to + (size_t)i * size, size, double_to_bits(type, benchmark[i]));
        return;
    }
    for (int64_t i = 0; i < width; i++) {
        ((int64_t *)output->golden.data)[first + i] = (int64_t)golden[i];
        store_bits(to + (size_t)i * size, size, (uint64_t)(int64_t)benchmark[i]);
    }
}

static bool fill_rows(const struct golden_job *shared, golden_row_fn *fill, int64_t rows,
                      const struct golden_output *output)
{
    bool good = true;
#pragma omp parallel if (rows * (shared->oracle->hidden + 1) > 1 << 16)
    {
        struct golden_job job = *shared;
        double *golden = malloc(((size_t)job.width + 1) * sizeof *golden);
        double *benchmark = malloc(((size_t)job.width + 1) * sizeof *benchmark);
        bool ready = allocate_scratch(&job) && golden != NULL && benchmark != NULL;
#pragma omp for schedule(dynamic, 16)
        for (int64_t row = 0; row < rows; row++) {
            if (!ready)
                continue;
            fill(&job, row, golden, benchmark);
            store_row(output, row * job.width, job.width, golden, benchmark);
        }
#pragma omp critical
        good = good && ready;
        free(golden);
        free(benchmark);
        free_scratch(&job);
    }
    return good;
}

/* The tensors, without contents yet. */
static bool allocate_output(const struct oracle_case *oracle, const struct output_rule *rule,
                            const DLTensor *actual, struct golden_output *output)
{
    moetoken_type type = MOETOKEN_F32;
    type_of_tensor(actual, &type);
    size_t elements = (size_t)(rule->shape[0] * (rule->ndim == 2 ? rule->shape[1] : 1));
    output->golden =
        moetoken_tensor(malloc(elements * 8 + 1), type_is_float(type) ? MOETOKEN_F64 : MOETOKEN_I64,
                        rule->ndim, output->shape);
    output->benchmark =
        moetoken_tensor(malloc(elements * type_size(type) + 1), type, rule->ndim, output->shape);
    if (output->golden.data != NULL && output->benchmark.data != NULL)
        return true;
    snprintf(oracle->error, TENSOR_FILE_ERROR_SIZE, "no memory to compute %s", output->name);
    return false;
}

bool golden_output_make(const struct oracle_case *oracle, const struct oracle_slots *slots, int i,
                        struct golden_output *output)
{
    struct output_rule rule;
    *output = (struct golden_output){.name = operator_outputs[oracle->operator_kind].outputs[i]};
    if (!oracle_find_rule(oracle, i, &rule))
        return true;
    output->written = true;
    output->shape[0] = rule.shape[0];
    output->shape[1] = rule.ndim == 2 ? rule.shape[1] : 1;
    if (!oracle_check_output(&rule, oracle->output[i], output->problem, sizeof output->problem))
        return true;
    if (!allocate_output(oracle, &rule, oracle->output[i], output))
        return false;
    struct golden_job job = {.oracle = oracle,
                             .slots = slots,
                             .wide = oracle->output[i]->dtype.bits == 64,
                             .width = output->shape[1]};
    if (fill_rows(&job, row_functions[oracle->operator_kind][i], rule.shape[0], output))
        return true;
    snprintf(oracle->error, TENSOR_FILE_ERROR_SIZE, "no memory to compute %s", output->name);
    return false;
}

void golden_output_free(struct golden_output *output)
{
    free(output->golden.data);
    free(output->benchmark.data);
    output->golden.data = output->benchmark.data = NULL;
}
