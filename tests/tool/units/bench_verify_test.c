/* bench_verify_test.c - what bench --verify looks at and what it finds: the sample of rows against
 * literals; right outputs of all types and modes pass, each flipped bit is named. */
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "bench/bench_verify.h"
#include "values/number_formats.h"

static int failures;

static void check(bool right, const char *what, int line)
{
    if (!right)
        printf("%s:%d: wrong: %s\n", __FILE__, line, what);
    failures += !right;
}

#define assert_true(condition) check((condition), #condition, __LINE__)

/* ---- the sample ------------------------------------------------------------------------------ */

static bool has_row(const int64_t *sample, int64_t count, int64_t row)
{
    for (int64_t i = 0; i < count; i++)
        if (sample[i] == row)
            return true;
    return false;
}

static bool is_ascending_below(const int64_t *sample, int64_t count, int64_t rows)
{
    for (int64_t i = 0; i < count; i++)
        if (sample[i] < (i == 0 ? 0 : sample[i - 1] + 1) || sample[i] >= rows)
            return false;
    return true;
}

static void the_sample_has_the_rows_where_32_bits_end(void)
{
    /* 2^31 / 7168 = 299593.1, 2^30 / 7168 = 149796.6, 2^32 / 7168 = 599186.3 */
    static const int64_t expected[] = {0,      149795, 149796, 149797, 299592, 299593,
                                       299594, 599185, 599186, 599187, 599999};
    int64_t sample[64];
    assert_true(sample_rows_most(10) <= 64);
    int64_t count = sample_rows(600000, 7168, 2, 10, 5, sample);
    assert_true(is_ascending_below(sample, count, 600000));
    for (size_t i = 0; i < sizeof expected / sizeof expected[0]; i++)
        assert_true(has_row(sample, count, expected[i]));
    for (int64_t part = 0; part < 10; part++) { /* and one in each tenth */
        bool found = false;
        for (int64_t i = 0; i < count; i++)
            found = found || sample[i] / 60000 == part;
        assert_true(found);
    }
    /* float32: 2^29 elements are 2^31 bytes */
    count = sample_rows(600000, 1024, 4, 1, 5, sample);
    assert_true(has_row(sample, count, 524288) && has_row(sample, count, 524287));
}

static void small_cases_are_sampled_within_their_rows(void)
{
    int64_t sample[64];
    assert_true(sample_rows(7, 100, 2, 7, 1, sample) == 7);
    assert_true(is_ascending_below(sample, 7, 7));
    assert_true(sample_rows(0, 100, 2, 7, 1, sample) == 0);
    for (uint64_t key = 0; key < 50; key++) {
        int64_t count = sample_rows(20, 0, 2, 3, key, sample);
        assert_true(count >= 3 && count <= 5 && is_ascending_below(sample, count, 20));
        assert_true(sample[0] == 0 && sample[count - 1] == 19);
    }
}

/* ---- outputs --------------------------------------------------------------------------------- */

struct trial {
    struct arena arena;
    struct bench_case bench;
    struct verification verification;
};

static bool begin_trial(struct trial *trial, const struct case_settings *settings, bool in_place,
                        int64_t rows)
{
    char error[TENSOR_FILE_ERROR_SIZE] = "";
    memset(trial, 0, sizeof *trial);
    bool good = bench_case_generate(&trial->bench, &trial->arena, settings, in_place, error,
                                    sizeof error) &&
                verification_begin(&trial->verification, &trial->bench, rows);
    if (!good)
        printf("%s%s\n", error, trial->verification.error);
    assert_true(good);
    return good;
}

static void end_trial(struct trial *trial)
{
    verification_free(&trial->verification);
    arena_free(&trial->arena);
}

static struct output_report compare(struct trial *trial, int output)
{
    struct output_report reports[OUTPUTS_MOST];
    assert_true(verification_compare(&trial->verification, &trial->bench, reports));
    assert_true(reports[1 - output].wrong == 0);
    return reports[output];
}

static void flip(const DLTensor *tensor, int64_t place, int bit)
{
    size_t size = tensor->dtype.bits / 8u;
    char *element = (char *)tensor->data + (size_t)place * size;
    store_bits(element, size, load_bits(element, size) ^ UINT64_C(1) << bit);
}

/* Each element of an output, one after the other. In a sum of binary64 the lowest bits are free. */
static void each_flipped_bit_is_found(struct trial *trial, int output, int64_t last_size)
{
    const DLTensor *tensor = trial->verification.oracle.output[output];
    bool sum = output == 1;
    int bit = sum ? (tensor->dtype.bits == 64 ? 20 : 1) : 0;
    for (int64_t place = 0; place < tensor_elements(tensor); place += sum ? 1 : 5) {
        flip(tensor, place, bit);
        struct output_report report = compare(trial, output);
        assert_true(report.wrong == 1 && report.first_wrong == place);
        assert_true(report.got == bits_at(tensor, place) && report.last_size == last_size);
        flip(tensor, place, bit);
    }
    assert_true(compare(trial, output).wrong == 0);
}

/* All rows are looked at: then every element of both outputs is. */
static void check_case(const struct case_settings *settings, bool in_place)
{
    struct trial trial;
    if (begin_trial(&trial, settings, in_place, 1000)) {
        const struct bench_case *bench = &trial.bench;
        struct output_report reports[OUTPUTS_MOST];
        assert_true((bench_case_tensor(bench, "permuted_tokens_grad")->data ==
                     trial.bench.traffic.read[0]) == in_place);
        assert_true(verification_compare(&trial.verification, bench, reports));
        assert_true(reports[0].wrong > 9 * reports[0].checked / 10); /* nothing is computed yet */
        assert_true(!bench->probs || reports[1].wrong == reports[1].checked);
        assert_true(bench_case_call(bench) == MOETOKEN_OK);
        assert_true(compare(&trial, 0).checked == bench->rows * bench->hidden);
        each_flipped_bit_is_found(&trial, 0, bench->hidden);
        if (bench->probs)
            each_flipped_bit_is_found(&trial, 1, bench->experts);
    }
    end_trial(&trial);
}

static const struct case_settings plain = {.operator_kind = OPERATOR_UNPERMUTE_GRAD,
                                           .tokens = 37,
                                           .hidden = 29,
                                           .experts = 5,
                                           .topk = 2,
                                           .skew_64ths = 32,
                                           .seed = 3,
                                           .probs_type = MOETOKEN_F32,
                                           .index_type = MOETOKEN_I32,
                                           .map_type = MOETOKEN_BOOL};

static void right_outputs_pass_and_flipped_bits_do_not(void)
{
    static const moetoken_type types[] = {MOETOKEN_F32, MOETOKEN_F16, MOETOKEN_BF16, MOETOKEN_F64};
    for (int i = 0; i < 4 * 2 * 3; i++) {
        struct case_settings settings = plain;
        settings.token_type = types[i / 6];
        settings.probs_type = settings.token_type == MOETOKEN_F64 ? MOETOKEN_F64 : MOETOKEN_F32;
        settings.drop_and_pad = i / 3 % 2 != 0;
        settings.without_probs = i % 3 == 2;
        check_case(&settings, i % 3 == 1);
    }
}

/* Holes, rows that no slot names, slots in any order; pairs with several slots. */
static void unusual_routings_are_understood(void)
{
    for (int in_place = 0; in_place < 2; in_place++) {
        struct case_settings settings = plain;
        settings.token_type = settings.probs_type = MOETOKEN_BF16;
        settings.holes = settings.shuffle = true;
        settings.spare_rows = 4;
        check_case(&settings, in_place == 1);
        settings.drop_and_pad = settings.random_fill_slots = true;
        settings.capacity = 30;
        check_case(&settings, in_place == 1);
    }
}

/* A large tensor's rows are copies of its beginning: they must differ, wherever they lie. */
static void rows_in_each_others_places_are_found(void)
{
    struct case_settings settings = plain;
    struct trial trial;
    settings.tokens = 5000;
    settings.hidden = 1024;
    settings.token_type = MOETOKEN_BF16;
    if (begin_trial(&trial, &settings, false, 10000)) {
        const DLTensor *out = trial.verification.oracle.output[0];
        char *data = out->data;
        size_t row_bytes = 1024 * 2;
        assert_true(bench_case_call(&trial.bench) == MOETOKEN_OK);
        assert_true(compare(&trial, 0).wrong == 0);
        for (int64_t r = 0; r + 4096 < 10000; r += 512) /* a whole number of pages apart */
            memcpy(data + (size_t)(r + 4096) * row_bytes, data + (size_t)r * row_bytes, row_bytes);
        struct output_report report = compare(&trial, 0);
        assert_true(report.first_wrong / 1024 == 4096);
        assert_true(report.wrong > 12 * 1000); /* of 12 rows nearly every element */
    }
    end_trial(&trial);
}

static void a_fault_is_described(void)
{
    char text[TENSOR_FILE_ERROR_SIZE];
    struct output_report report = {.name = "permuted_tokens_grad",
                                   .type = MOETOKEN_BF16,
                                   .checked = 7168000,
                                   .wrong = 2,
                                   .last_size = 7168,
                                   .first_wrong = INT64_C(7168) * 299594 + 17,
                                   .got = 0xbf00,
                                   .want = 0.25};
    verification_describe(&report, text, sizeof text);
    assert_true(strcmp(text,
                       "permuted_tokens_grad[299594,17] = -0.5 (0xbf00), expected 0.25 "
                       "(0x3e80 when rounded); 2 of 7168000 elements checked are wrong") == 0);
}

int main(void)
{
    the_sample_has_the_rows_where_32_bits_end();
    small_cases_are_sampled_within_their_rows();
    right_outputs_pass_and_flipped_bits_do_not();
    unusual_routings_are_understood();
    rows_in_each_others_places_are_found();
    a_fault_is_described();
    printf("%d failures\n", failures);
    return failures != 0;
}
