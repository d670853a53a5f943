/* bench_ceiling_test.c - the ruler itself: row copy moves the rows that the operator moves, and the
 * plain loop on one thread costs a small copy no more than the copy. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/bench_row_copy.h"
#include "cases/case_options.h"
#include "terminal/progress.h"

static int failures;

static void expect(bool condition, const char *what)
{
    if (!condition) {
        fprintf(stderr, "bench_ceiling_test: %s\n", what);
        failures++;
    }
}

/* ---- row copy -------------------------------------------------------------------------------- */

static bool make_case(struct bench_case *bench, struct arena *arena,
                      enum operator_kind operator_kind, bool padded, bool without_probs,
                      moetoken_type type, int64_t hidden)
{
    char error[256];
    struct case_options options = case_options_default();
    struct case_settings settings;
    options.operator_kind = operator_kind;
    options.drop_and_pad = padded;
    options.no_probs = without_probs;
    options.token_type = (int)type;
    options.tokens = 37;
    options.hidden = hidden;
    options.experts = 6;
    options.topk = 3;
    return case_options_resolve(&options, &settings, error, sizeof error) &&
           bench_case_generate(bench, arena, &settings, false, error, sizeof error) &&
           bench_case_call(bench) == MOETOKEN_OK;
}

/* Whether the rows that a copy leaves are those that the operator leaves: where there is nothing to
 * compute, in every bit. */
static void same_rows_as_operator(enum operator_kind operator_kind, bool padded, int64_t hidden)
{
    struct bench_case bench;
    struct arena arena = {0};
    struct row_copy copy = {0};
    bool made = make_case(&bench, &arena, operator_kind, padded, true, MOETOKEN_BF16, hidden) &&
                row_copy_make(&copy, &bench);
    expect(made, "a case");
    if (made) {
        size_t bytes = bench.traffic.write_bytes;
        char *expected = malloc(bytes + 1);
        memcpy(expected, bench.traffic.write, bytes);
        for (int stores = 0; stores < CEILING_STORES_COUNT; stores++) {
            memset(bench.traffic.write, 0xff, bytes);
            row_copy_run(&copy, 1 + stores, (enum ceiling_stores)stores);
            expect(memcmp(expected, bench.traffic.write, bytes) == 0, "the operator's rows");
        }
        free(expected);
    }
    row_copy_free(&copy);
    arena_free(&arena);
}

/* With probs each row of permuted_tokens goes to the row of the same number; a sum's token gets the
 * row of its first slot. */
static void rows_of_sums_and_gradients(bool padded)
{
    struct bench_case bench;
    struct arena arena = {0};
    struct row_copy copy = {0};
    bool made =
        make_case(&bench, &arena, OPERATOR_UNPERMUTE_GRAD, padded, false, MOETOKEN_F32, 48) &&
        row_copy_make(&copy, &bench);
    expect(made, "a case");
    if (made) {
        memset(bench.traffic.write, 0, bench.traffic.write_bytes);
        row_copy_run(&copy, 2, CEILING_STREAMING);
        expect(memcmp(bench.traffic.read[0], bench.traffic.write, bench.traffic.write_bytes) == 0,
               "rows to rows");
    }
    row_copy_free(&copy);
    made = make_case(&bench, &arena, OPERATOR_UNPERMUTE, padded, false, MOETOKEN_F32, 48) &&
           row_copy_make(&copy, &bench);
    expect(made, "a case");
    for (int64_t t = 0; made && t < bench.tokens; t++) {
        size_t row = 48 * sizeof(float);
        if (copy.start[t] == copy.start[t + 1])
            continue;
        row_copy_run(&copy, 1, CEILING_CACHED);
        expect(memcmp(bench.traffic.write + (size_t)t * row,
                      bench.traffic.read[0] + (size_t)copy.row[copy.start[t]] * row, row) == 0,
               "the first row of a token");
    }
    row_copy_free(&copy);
    arena_free(&arena);
}

/* ---- other pages ----------------------------------------------------------------------------- */

static void redrawn_memory_holds_the_same(void)
{
    struct bench_case bench;
    struct arena arena = {0};
    expect(make_case(&bench, &arena, OPERATOR_UNPERMUTE_GRAD, false, false, MOETOKEN_F32, 4096),
           "a case");
    char *before = malloc(arena.used + 1), *begin = arena.begin;
    memcpy(before, arena.begin, arena.used);
    expect(arena_redraw(&arena), "other pages");
    expect(arena.begin == begin && memcmp(before, begin, arena.used) == 0, "the same contents");
    expect(bench_case_call(&bench) == MOETOKEN_OK, "a call afterwards");
    free(before);
    arena_free(&arena);
}

/* ---- small calls ----------------------------------------------------------------------------- */

/* 4 KB read and written, in the first-level cache: at 10 GB/s, of which any CPU has several times
 * as much, 0.8 us. Of many tries the best counts, so that a busy machine does not matter. */
static void small_copies_are_fast(void)
{
    static _Alignas(64) char from[4096], to[4096];
    const struct traffic traffic = {
        .read = {from}, .read_bytes = {sizeof from}, .write = to, .write_bytes = sizeof to};
    double best = 1, began = seconds_now();
    while (best > 0.8e-6 && seconds_now() - began < 20) {
        double start = seconds_now();
        for (int i = 0; i < 50; i++)
            ceiling_run(&traffic, 1, CEILING_CACHED);
        double seconds = (seconds_now() - start) / 50;
        best = seconds < best ? seconds : best;
    }
    expect(best <= 0.8e-6, "10 GB/s from cache to cache");
}

int main(void)
{
    static const int64_t hidden[] = {1, 33, 64, 1000, 4096};
    for (size_t i = 0; i < sizeof hidden / sizeof hidden[0]; i++)
        for (int padded = 0; padded < 2; padded++) {
            same_rows_as_operator(OPERATOR_PERMUTE, padded, hidden[i]);
            same_rows_as_operator(OPERATOR_UNPERMUTE_GRAD, padded, hidden[i]);
        }
    rows_of_sums_and_gradients(false);
    rows_of_sums_and_gradients(true);
    redrawn_memory_holds_the_same();
#if defined(__OPTIMIZE__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    small_copies_are_fast();
#endif
    return failures == 0 ? 0 : 1;
}
