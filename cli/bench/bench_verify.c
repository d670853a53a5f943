/* bench_verify.c - a sample of rows, what must be in them, and what is. See bench_verify.h. */
#include "bench_verify.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench_memory.h"
#include "oracle/oracle_report.h"
#include "values/number_formats.h"
#include "values/random_values.h"

/* ---- the sample ------------------------------------------------------------------------------ */

/* Offsets that 32-bit arithmetic, signed or not, in elements or bytes, gets wrong from there on. */
#define LIMITS_COUNT 2
static const int64_t limits[LIMITS_COUNT] = {INT64_C(1) << 31, INT64_C(1) << 32};

/* Around each limit a row and its neighbours, in elements and in bytes; the first and the last. */
#define ROWS_BESIDE (LIMITS_COUNT * 2 * 3 + 2)

static int compare_rows(const void *left, const void *right)
{
    int64_t a = *(const int64_t *)left, b = *(const int64_t *)right;
    return (a > b) - (a < b);
}

static int64_t without_repetitions(int64_t *sample, int64_t count)
{
    int64_t kept = 0;
    qsort(sample, (size_t)count, sizeof *sample, compare_rows);
    for (int64_t i = 0; i < count; i++)
        if (kept == 0 || sample[i] != sample[kept - 1])
            sample[kept++] = sample[i];
    return kept;
}

static int64_t add_limits(int64_t rows, int64_t hidden, size_t element_size, int64_t *sample)
{
    int64_t count = 0;
    for (int i = 0; i < 2 * LIMITS_COUNT && hidden > 0; i++) {
        int64_t element = i % 2 == 0 ? limits[i / 2] : limits[i / 2] / (int64_t)element_size;
        for (int64_t row = element / hidden - 1; row <= element / hidden + 1; row++)
            if (row >= 0 && row < rows)
                sample[count++] = row;
    }
    sample[count++] = 0;
    sample[count++] = rows - 1;
    return count;
}

int64_t sample_rows_most(int64_t wanted)
{
    return wanted + ROWS_BESIDE;
}

int64_t sample_rows(int64_t rows, int64_t hidden, size_t element_size, int64_t wanted, uint64_t key,
                    int64_t *sample)
{
    if (rows <= wanted) {
        for (int64_t r = 0; r < rows; r++)
            sample[r] = r;
        return rows;
    }
    int64_t count = add_limits(rows, hidden, element_size, sample);
    int64_t share = rows / wanted, longer = rows % wanted; /* the first ones have a row more */
    for (int64_t i = 0, begin = 0; i < wanted; i++) {
        int64_t size = share + (i < longer);
        sample[count++] = begin + (int64_t)(random_bits(key, (uint64_t)i) % (uint64_t)size);
        begin += size;
    }
    return without_repetitions(sample, count);
}

/* ---- what must come out ---------------------------------------------------------------------- */

static struct oracle_case oracle_of(const struct bench_case *bench, char *error)
{
    return (struct oracle_case){.operator_kind = OPERATOR_UNPERMUTE_GRAD,
                                .drop_and_pad = bench->drop_and_pad,
                                .tokens = bench->tokens,
                                .hidden = bench->hidden,
                                .experts = bench->probs ? bench->experts : -1,
                                .slots = bench->slots,
                                .rows = bench->rows,
                                .unpermuted_tokens_grad =
                                    bench_case_tensor(bench, "unpermuted_tokens_grad"),
                                .out_index = bench_case_tensor(bench, "out_index"),
                                .permute_token_id = bench_case_tensor(bench, "permute_token_id"),
                                .routing_map = bench_case_tensor(bench, "routing_map"),
                                .permuted_tokens = bench_case_tensor(bench, "permuted_tokens"),
                                .probs = bench_case_tensor(bench, "probs"),
                                .output = {bench_case_tensor(bench, "permuted_tokens_grad"),
                                           bench_case_tensor(bench, "probs_grad")},
                                .error = error};
}

static void spoil_outputs(const struct bench_case *bench)
{
    for (int i = bench->inputs_count; i < bench->count; i++) {
        const DLTensor *output = &bench->tensors[i].tensor;
        if (!bench->in_place || strcmp(bench->tensors[i].name, "permuted_tokens_grad") != 0)
            memset(output->data, 0xff, (size_t)tensor_bytes(output));
    }
}

/* The dot products of all slots of the pair that `slot` belongs to. g and x: scratch, [H] each. */
static void sum_pair(const struct verification *v, int64_t slot, double *g, double *x,
                     struct accurate_sum *sum)
{
    const struct oracle_slots *slots = &v->slots;
    int64_t token = slots->token[slot], hidden = v->oracle.hidden;
    const DLTensor *rows = v->oracle.permuted_tokens;
    accurate_sum_begin(sum);
    floats_at(v->oracle.unpermuted_tokens_grad, token * hidden, hidden, g);
    for (int64_t s = slots->start[token]; s < slots->start[token + 1]; s++) {
        int64_t other = slots->order[s];
        if (slots->row[other] < 0 || slots->expert[other] != slots->expert[slot])
            continue;
        floats_at(rows, slots->row[other] * hidden, hidden, x);
        accurate_sum_add_products(sum, x, g, hidden, rows->dtype.bits < 64);
    }
}

static bool sum_pairs(struct verification *v)
{
    int64_t hidden = v->oracle.hidden;
    double *scratch = malloc((2 * (size_t)hidden + 1) * sizeof *scratch);
    for (int64_t i = 0; scratch != NULL && i < v->count; i++) {
        int64_t slot = v->slots.slot_of_row[v->sample[i]];
        if (slot >= 0)
            sum_pair(v, slot, scratch, scratch + hidden, &v->sums[i]);
    }
    free(scratch);
    return scratch != NULL;
}

bool verification_begin(struct verification *v, const struct bench_case *bench, int64_t wanted)
{
    memset(v, 0, sizeof *v);
    v->oracle = oracle_of(bench, v->error);
    if (!oracle_slots_build(&v->oracle, &v->slots))
        return false;
    size_t most = (size_t)sample_rows_most(wanted < bench->rows ? wanted : bench->rows);
    v->sample = malloc(most * sizeof *v->sample);
    v->sums = malloc(most * sizeof *v->sums);
    bool good = v->sample != NULL && v->sums != NULL;
    if (good) {
        v->count = sample_rows(bench->rows, bench->hidden, type_size(bench->token_type), wanted,
                               random_key(1, 0), v->sample);
        good = !bench->probs || sum_pairs(v);
    }
    if (!good)
        snprintf(v->error, sizeof v->error, "no memory to verify %" PRId64 " rows", wanted);
    spoil_outputs(bench);
    return good;
}

void verification_free(struct verification *v)
{
    oracle_slots_free(&v->slots);
    free(v->sample);
    free(v->sums);
}

/* ---- what is there --------------------------------------------------------------------------- */

static int64_t pair_of(const struct verification *v, int64_t slot)
{
    return v->slots.token[slot] * v->oracle.experts + v->slots.expert[slot];
}

/* What is known of a (token, expert) pair. */
enum pair_state {
    PAIR_WITHOUT_SLOT,
    PAIR_WITH_SLOT,
    PAIR_COMPARED
};

/* probs_grad of the sampled rows' pairs, each once, and of the pairs that no slot reaches. pairs:
 * scratch, [T*E], all 0. */
static void compare_pairs(const struct verification *v, uint8_t *pairs,
                          struct output_report *report)
{
    const DLTensor *out = v->oracle.output[1];
    for (int64_t slot = 0; slot < v->oracle.slots; slot++)
        if (v->slots.row[slot] >= 0)
            pairs[pair_of(v, slot)] = PAIR_WITH_SLOT;
    for (int64_t i = 0; i < v->count; i++) {
        int64_t slot = v->slots.slot_of_row[v->sample[i]];
        if (slot < 0 || pairs[pair_of(v, slot)] == PAIR_COMPARED)
            continue;
        report_sum(report, pair_of(v, slot), bits_at(out, pair_of(v, slot)), &v->sums[i]);
        pairs[pair_of(v, slot)] = PAIR_COMPARED;
    }
    for (int64_t pair = 0; pair < v->oracle.tokens * v->oracle.experts; pair++)
        if (pairs[pair] == PAIR_WITHOUT_SLOT)
            report_bits(report, pair, bits_at(out, pair), 0);
}

static void begin_report(const struct verification *v, int i, struct output_report *report)
{
    report->name = operator_outputs[OPERATOR_UNPERMUTE_GRAD].outputs[i];
    report->last_size = i == 0 ? v->oracle.hidden : v->oracle.experts;
    type_of_tensor(v->oracle.output[i], &report->type);
}

bool verification_compare(struct verification *v, const struct bench_case *bench,
                          struct output_report reports[OUTPUTS_MOST])
{
    double *g = malloc(((size_t)bench->hidden + 1) * sizeof *g);
    uint8_t *pairs = calloc((size_t)bench->tokens * (size_t)bench->experts + 1, 1);
    bool good = g != NULL && pairs != NULL;
    memset(reports, 0, OUTPUTS_MOST * sizeof *reports);
    if (good) {
        begin_report(v, 0, &reports[0]);
        for (int64_t i = 0; i < v->count; i++)
            oracle_check_gradient_row(&v->oracle, &v->slots, v->sample[i], g, &reports[0]);
    }
    if (good && bench->probs) {
        begin_report(v, 1, &reports[1]);
        compare_pairs(v, pairs, &reports[1]);
    }
    if (!good)
        snprintf(v->error, sizeof v->error, "no memory to verify %" PRId64 " rows", v->count);
    free(g);
    free(pairs);
    return good;
}

void verification_describe(const struct output_report *report, char *text, size_t size)
{
    char fault[256];
    report_describe(report, fault, sizeof fault);
    snprintf(text, size, "%s; %" PRId64 " of %" PRId64 " elements checked are wrong", fault,
             report->wrong, report->checked);
}

/* ---- the first call -------------------------------------------------------------------------- */

static bool verify_outputs(struct verification *v, const struct bench_case *bench,
                           struct first_call *first, char *error, size_t error_size)
{
    struct output_report reports[OUTPUTS_MOST];
    if (!verification_compare(v, bench, reports)) {
        snprintf(error, error_size, "%s", v->error);
        return false;
    }
    first->rows = v->count;
    for (int i = 0; i < OUTPUTS_MOST; i++) {
        if (reports[i].wrong != 0) {
            verification_describe(&reports[i], error, error_size);
            return false;
        }
        first->elements += reports[i].checked;
        if (reports[i].worst_ulp > first->worst_ulp)
            first->worst_ulp = reports[i].worst_ulp;
    }
    return true;
}

/* The call itself, and by how much the process grew meanwhile. All tensors and the workspace are in
 * memory before it. */
static bool call_and_weigh(const struct bench_case *bench, struct first_call *first, char *error,
                           size_t error_size)
{
    memory_peak_reset();
    int64_t before = memory_resident();
    moetoken_status status = bench_case_call(bench);
    int64_t peak = memory_peak();
    first->grown_bytes = before < 0 || peak < 0 ? -1 : peak > before ? peak - before : 0;
    if (status != MOETOKEN_OK)
        snprintf(error, error_size, "%s", moetoken_last_error());
    return status == MOETOKEN_OK;
}

bool bench_first_call(const struct bench_case *bench, int64_t wanted, struct first_call *first,
                      char *error, size_t error_size)
{
    struct verification verification;
    *first = (struct first_call){0};
    if (wanted == 0)
        return call_and_weigh(bench, first, error, error_size);
    bool good = verification_begin(&verification, bench, wanted);
    if (!good)
        snprintf(error, error_size, "%s", verification.error);
    else
        good = call_and_weigh(bench, first, error, error_size) &&
               verify_outputs(&verification, bench, first, error, error_size);
    verification_free(&verification);
    return good;
}
