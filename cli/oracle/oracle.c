/* oracle.c - the four operators again, element by element, beside what OUT holds.
 * The last stop of verify: oracle_case and oracle_slots -> a report for each output. */
#include "oracle.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "oracle_report.h"
#include "oracle_rules.h"
#include "oracle_sums.h"
#include "values/number_formats.h"

/* A check of the rows [first, end) of one output, by one thread. */
struct job {
    const struct oracle_case *oracle;
    const struct oracle_slots *slots;
    const DLTensor *output;
    double *floats;            /* [2 * H]: scratch of the thread */
    struct accurate_sum *sums; /* [E]: scratch of the thread */
    struct output_report report;
};

/* ---- outputs with a row for each permuted row ------------------------------------------------ */

static void check_zeros(struct job *job, int64_t first, int64_t count)
{
    for (int64_t h = 0; h < count; h++)
        report_bits(&job->report, first + h, bits_at(job->output, first + h), 0);
}

static void check_copy(struct job *job, int64_t first, const DLTensor *source, int64_t from,
                       int64_t count)
{
    for (int64_t h = 0; h < count; h++)
        report_bits(&job->report, first + h, bits_at(job->output, first + h),
                    bits_at(source, from + h));
}

static void check_unpermute_grad_row(struct job *job, int64_t row)
{
    oracle_check_gradient_row(job->oracle, job->slots, row, job->floats, &job->report);
}

static void check_permute_row(struct job *job, int64_t row)
{
    int64_t hidden = job->oracle->hidden, slot = job->slots->slot_of_row[row];
    if (slot < 0)
        check_zeros(job, row * hidden, hidden);
    else
        check_copy(job, row * hidden, job->oracle->plain_tokens, job->slots->token[slot] * hidden,
                   hidden);
}

static void check_permuted_prob(struct job *job, int64_t row)
{
    const struct oracle_slots *slots = job->slots;
    int64_t slot = slots->slot_of_row[row];
    if (slot < 0)
        check_zeros(job, row, 1);
    else if (job->oracle->by_ids)
        check_copy(job, row, job->oracle->weights, slot, 1);
    else
        check_copy(job, row, job->oracle->probs,
                   slots->token[slot] * job->oracle->experts + slots->expert[slot], 1);
}

/* ---- outputs with a row for each token ------------------------------------------------------- */

/* float32 (binary64 for float64): multiply, then add, slot by slot, from +0. With narrow types the
 * binary64 operations are exact or round as float32 would after the conversion. */
static void add_row(double *sum, double weight, const double *x, int64_t count, bool wide)
{
    for (int64_t h = 0; h < count; h++) {
        double product = weight * x[h];
        if (!wide)
            product = (float)product;
        sum[h] += product;
        if (!wide)
            sum[h] = (float)sum[h];
    }
}

/* Adds one row of a tensor, if there is such a tensor, to the sum in floats[0..H). */
static void add_row_of(struct job *job, const DLTensor *source, int64_t row, double weight)
{
    int64_t hidden = job->oracle->hidden;
    double *sum = job->floats, *x = job->floats + hidden;
    if (source == NULL)
        return;
    floats_at(source, row * hidden, hidden, x);
    add_row(sum, weight, x, hidden, job->report.type == MOETOKEN_F64);
}

/* unpermuted_tokens and tokens_grad: the weighted sum of a token's rows. */
static void check_sum_of_rows(struct job *job, const DLTensor *source, int64_t token)
{
    const struct oracle_slots *slots = job->slots;
    int64_t hidden = job->oracle->hidden;
    double *sum = job->floats;
    for (int64_t h = 0; h < hidden; h++)
        sum[h] = 0;
    add_row_of(job, job->oracle->residual, token, 1);
    add_row_of(job, job->oracle->residual2, token, 1);
    for (int64_t s = slots->start[token]; s < slots->start[token + 1]; s++) {
        int64_t slot = slots->order[s];
        if (slots->row[slot] < 0 || slots->weight[slot] == 0)
            continue;
        add_row_of(job, source, slots->row[slot], slots->weight[slot]);
        add_row_of(job, job->oracle->expert_bias, slots->expert[slot], slots->weight[slot]);
    }
    for (int64_t h = 0; h < hidden; h++) {
        int64_t place = token * hidden + h;
        report_rounded(&job->report, place, bits_at(job->output, place), sum[h]);
    }
}

static void check_unpermuted_token(struct job *job, int64_t token)
{
    check_sum_of_rows(job, job->oracle->permuted_tokens, token);
}

static void check_token_grad(struct job *job, int64_t token)
{
    check_sum_of_rows(job, job->oracle->permuted_tokens_grad, token);
}

/* Adds what a slot gives to probs_grad of its pair. */
typedef void add_slot_fn(struct job *job, int64_t slot, struct accurate_sum *sum);

static void check_pairs(struct job *job, int64_t token, add_slot_fn *add_slot)
{
    const struct oracle_slots *slots = job->slots;
    int64_t experts = job->oracle->experts;
    for (int64_t e = 0; e < experts; e++)
        job->sums[e].terms = -1; /* no slot yet */
    for (int64_t s = slots->start[token]; s < slots->start[token + 1]; s++) {
        int64_t slot = slots->order[s], expert = slots->expert[slot];
        if (slots->row[slot] < 0 || expert < 0 || slots->masked[slot])
            continue;
        if (job->sums[expert].terms < 0)
            accurate_sum_begin(&job->sums[expert]);
        add_slot(job, slot, &job->sums[expert]);
    }
    for (int64_t e = 0; e < experts; e++) {
        int64_t place = token * experts + e;
        if (job->sums[e].terms < 0)
            check_zeros(job, place, 1);
        else
            report_sum(&job->report, place, bits_at(job->output, place), &job->sums[e]);
    }
}

/* The dot product of the slot's row with the token's gradient, which is in floats[0..H). */
static void add_dot(struct job *job, int64_t slot, struct accurate_sum *sum)
{
    int64_t hidden = job->oracle->hidden;
    const DLTensor *x = job->oracle->permuted_tokens;
    double *values = job->floats + hidden;
    floats_at(x, job->slots->row[slot] * hidden, hidden, values);
    accurate_sum_add_products(sum, values, job->floats, hidden, x->dtype.bits < 64);
}

static void check_dots(struct job *job, int64_t token)
{
    int64_t hidden = job->oracle->hidden;
    floats_at(job->oracle->unpermuted_tokens_grad, token * hidden, hidden, job->floats);
    check_pairs(job, token, add_dot);
}

static void add_prob_grad(struct job *job, int64_t slot, struct accurate_sum *sum)
{
    accurate_sum_add(sum, float_at(job->oracle->permuted_probs_grad, job->slots->row[slot]));
}

static void check_prob_grads(struct job *job, int64_t token)
{
    check_pairs(job, token, add_prob_grad);
}

/* By ids, weights_grad[t,k]: the product with the row and, with a bias, that with the bias's. */
static void check_weight_dots(struct job *job, int64_t token)
{
    const struct oracle_case *oracle = job->oracle;
    const struct oracle_slots *slots = job->slots;
    int64_t hidden = oracle->hidden;
    double *g = job->floats, *bias = job->floats + hidden;
    floats_at(oracle->unpermuted_tokens_grad, token * hidden, hidden, g);
    for (int64_t s = slots->start[token]; s < slots->start[token + 1]; s++) {
        int64_t slot = slots->order[s];
        struct accurate_sum sum;
        if (slots->row[slot] < 0) {
            check_zeros(job, slot, 1);
            continue;
        }
        accurate_sum_begin(&sum);
        add_dot(job, slot, &sum);
        if (oracle->expert_bias != NULL) {
            floats_at(oracle->expert_bias, slots->expert[slot] * hidden, hidden, bias);
            accurate_sum_add_products(&sum, bias, g, hidden, oracle->expert_bias->dtype.bits < 64);
        }
        report_sum(&job->report, slot, bits_at(job->output, slot), &sum);
    }
}

static void check_weight_copies(struct job *job, int64_t token)
{
    const struct oracle_slots *slots = job->slots;
    for (int64_t s = slots->start[token]; s < slots->start[token + 1]; s++) {
        int64_t slot = slots->order[s];
        if (slots->row[slot] < 0)
            check_zeros(job, slot, 1);
        else
            check_copy(job, slot, job->oracle->permuted_probs_grad, slots->row[slot], 1);
    }
}

/* ---- outputs with an element for each slot --------------------------------------------------- */

static void check_integer(struct job *job, int64_t place, int64_t want)
{
    uint64_t mask = job->report.type == MOETOKEN_I32 ? UINT32_MAX : UINT64_MAX;
    report_bits(&job->report, place, bits_at(job->output, place), (uint64_t)want & mask);
}

/* Where slot number `slot` of sorted_indices comes in out_index: padded, sorted by token. */
static int64_t slot_in_place(const struct job *job, int64_t place)
{
    return job->oracle->drop_and_pad ? job->slots->order[place] : place;
}

static void check_out_index(struct job *job, int64_t place)
{
    check_integer(job, place, job->slots->row[slot_in_place(job, place)]);
}

static void check_token_id(struct job *job, int64_t place)
{
    check_integer(job, place, job->slots->token[slot_in_place(job, place)]);
}

static void check_slot_weight(struct job *job, int64_t slot)
{
    report_rounded(&job->report, slot, bits_at(job->output, slot), job->slots->weight[slot]);
}

static void check_sorted_index(struct job *job, int64_t slot)
{
    check_integer(job, slot,
                  job->oracle->drop_and_pad ? job->slots->token[slot] : job->slots->row[slot]);
}

static void check_source_slot(struct job *job, int64_t row)
{
    check_integer(job, row, job->slots->slot_of_row[row]);
}

/* Counted one expert at a time: slow, and too simple to be wrong. */
static void check_rows_of_expert(struct job *job, int64_t place)
{
    const struct oracle_case *oracle = job->oracle;
    int64_t count = 0;
    for (int64_t i = 0; i < oracle->slots; i++)
        count += job->slots->row[i] >= 0 &&
                 integer_at(oracle->expert_ids, i) == oracle->expert_begin + place;
    check_integer(job, place, count);
}

/* ---- all outputs ----------------------------------------------------------------------------- */

bool oracle_find_rule(const struct oracle_case *o, int i, struct output_rule *rule)
{
    const int64_t t = o->tokens, h = o->hidden, e = o->experts, n = o->slots, r = o->rows;
    const int64_t k = t > 0 ? n / t : o->topk >= 0 ? o->topk : 0;
    const int64_t range = o->expert_end - o->expert_begin;
    const bool ids = o->by_ids;
    const DLTensor *weight = o->weights != NULL ? o->weights : o->probs;
    const struct output_rule rules[OPERATORS_COUNT][OUTPUTS_MOST] = {
        [OPERATOR_UNPERMUTE_GRAD] =
            {{o->unpermuted_tokens_grad, 2, {r, h}, check_unpermute_grad_row},
             {o->probs, 2, {t, e}, check_dots},
             {o->weights, 2, {t, k}, check_weight_dots}},
        [OPERATOR_UNPERMUTE] =
            {{o->permuted_tokens, 2, {t, h}, check_unpermuted_token},
             {o->sorted_indices, 1, {n, 0}, check_out_index},
             {o->sorted_indices, 1, {n, 0}, check_token_id},
             {weight ? weight : o->permuted_tokens, 1, {n, 0}, check_slot_weight}},
        [OPERATOR_PERMUTE] = {{o->plain_tokens, 2, {r, h}, check_permute_row},
                              {ids ? o->weights : o->probs, 1, {r, 0}, check_permuted_prob},
                              {o->output[2], 1, {n, 0}, check_sorted_index},
                              {ids ? o->expert_ids : NULL, 1, {r, 0}, check_source_slot},
                              {ids ? o->expert_ids : NULL, 1, {range, 0}, check_rows_of_expert}},
        [OPERATOR_PERMUTE_GRAD] =
            {{o->permuted_tokens_grad, 2, {t, h}, check_token_grad},
             {ids ? NULL : o->permuted_probs_grad, 2, {t, e}, check_prob_grads},
             {ids ? o->permuted_probs_grad : NULL, 2, {t, k}, check_weight_copies}},
    };
    *rule = rules[o->operator_kind][i];
    return rule->check_row != NULL && (rule->like != NULL || rule->check_row == check_sorted_index);
}

bool oracle_output_spec(const struct oracle_case *oracle, int i, struct tensor_spec *spec)
{
    struct output_rule rule;
    moetoken_type type = MOETOKEN_I32;
    if (!oracle_find_rule(oracle, i, &rule))
        return false;
    if (rule.like != NULL && !type_of_tensor(rule.like, &type))
        return false;
    if (rule.check_row == check_rows_of_expert)
        type = MOETOKEN_I64;
    *spec = (struct tensor_spec){.name = operator_outputs[oracle->operator_kind].outputs[i],
                                 .type = type,
                                 .ndim = rule.ndim,
                                 .shape = {rule.shape[0], rule.shape[1]}};
    return true;
}

/* Index outputs may have either index type; all others that of `like`. */
static bool has_right_type(const DLTensor *output, const DLTensor *like)
{
    moetoken_type type, wanted;
    if (like == NULL || !type_of_tensor(output, &type) || !type_of_tensor(like, &wanted))
        return false;
    if (!type_is_float(wanted))
        return type == MOETOKEN_I32 || type == MOETOKEN_I64;
    return type == wanted;
}

bool oracle_check_output(const struct output_rule *rule, const DLTensor *output, char *problem,
                         size_t size)
{
    problem[0] = '\0';
    if (output == NULL)
        snprintf(problem, size, "is missing");
    else if (!has_right_type(output, rule->like))
        snprintf(problem, size, "has the wrong type");
    else if (output->ndim != rule->ndim)
        snprintf(problem, size, "has %d dimensions, expected %d", output->ndim, rule->ndim);
    else if (output->shape[0] != rule->shape[0])
        snprintf(problem, size, "has shape[0] = %" PRId64 ", expected %" PRId64, output->shape[0],
                 rule->shape[0]);
    else if (rule->ndim == 2 && output->shape[1] != rule->shape[1])
        snprintf(problem, size, "has shape[1] = %" PRId64 ", expected %" PRId64, output->shape[1],
                 rule->shape[1]);
    return problem[0] == '\0';
}

static bool allocate_scratch(struct job *job)
{
    size_t hidden = (size_t)job->oracle->hidden;
    size_t experts = job->oracle->experts < 0 ? 0 : (size_t)job->oracle->experts;
    job->floats = malloc((2 * hidden + 1) * sizeof *job->floats);
    job->sums = malloc((experts + 1) * sizeof *job->sums);
    return job->floats != NULL && job->sums != NULL;
}

/* All rows of an output, on all threads. */
static bool check_rows(const struct job *shared, check_row_fn *check_row, int64_t rows,
                       struct output_report *report, struct progress *progress)
{
    int64_t hidden = shared->oracle->hidden;
    bool good = true;
#pragma omp parallel if (rows * (hidden + 1) > 1 << 16)
    {
        struct job job = *shared;
        bool ready = allocate_scratch(&job);
#pragma omp for schedule(dynamic, 16)
        for (int64_t row = 0; row < rows; row++) {
            if (ready)
                check_row(&job, row);
            progress_add(progress, 1);
        }
#pragma omp critical
        {
            good = good && ready;
            report_merge(report, &job.report);
        }
        free(job.floats);
        free(job.sums);
    }
    return good;
}

static bool verify_output(const struct oracle_case *oracle, const struct oracle_slots *slots, int i,
                          struct output_report *report, struct progress *progress)
{
    struct output_rule rule;
    if (!oracle_find_rule(oracle, i, &rule))
        return true;
    report->name = operator_outputs[oracle->operator_kind].outputs[i];
    report->output = i;
    report->observe = oracle->observe;
    report->observe_context = oracle->observe_context;
    if (!oracle_check_output(&rule, oracle->output[i], report->problem, sizeof report->problem))
        return true;
    type_of_tensor(oracle->output[i], &report->type);
    report->last_size = rule.ndim == 2 ? rule.shape[1] : 0;
    struct job job = {
        .oracle = oracle, .slots = slots, .output = oracle->output[i], .report = *report};
    bool good = check_rows(&job, rule.check_row, rule.shape[0], report, progress);
    if (!good)
        snprintf(oracle->error, TENSOR_FILE_ERROR_SIZE, "no memory to check %s", report->name);
    return good;
}

bool oracle_verify(const struct oracle_case *oracle, const bool wanted[OUTPUTS_MOST],
                   struct output_report reports[OUTPUTS_MOST], struct progress *progress)
{
    struct oracle_slots slots;
    bool good = oracle_slots_build(oracle, &slots);
    memset(reports, 0, OUTPUTS_MOST * sizeof *reports);
    for (int i = 0; good && i < OUTPUTS_MOST; i++)
        if (wanted[i])
            good = verify_output(oracle, &slots, i, &reports[i], progress);
    oracle_slots_free(&slots);
    return good;
}
