/* judge_test.c - what holds for every standard: NaN and infinity, other types, integers, shapes;
 * what published tools let pass does not pass here. And the names of standards. */
#include "judge_cases.h"

static const char *const all_standards[] = {
    "commercial-L0-2026-04",
    "commercial-L1-2026-04",
    "commercial-L2-2026-04",
    "ecosystem-2026-04",
    "ecosystem-2026-07",
    "atk-double",
    "msprobe",
    "bits",
    "ulp:1000000",
};
enum {
    ALL = sizeof all_standards / sizeof all_standards[0]
};

static struct numbers actual, golden, third;

static void set(moetoken_type type, int64_t count, const double *values, moetoken_type golden_type,
                const double *wanted)
{
    set_numbers(&actual, type, count, values);
    set_numbers(&golden, golden_type, count, wanted);
}

/* ---- NaN and infinity ------------------------------------------------------------------------ */

static void check_misplaced(const double values[4], const double wanted[4], int64_t misplaced,
                            int64_t first)
{
    set(MOETOKEN_F16, 4, values, MOETOKEN_F64, wanted);
    for (int i = 0; i < ALL; i++) {
        struct judgement judgement =
            judge_by(all_standards[i], &actual.tensor, &golden.tensor, &golden.tensor);
        struct figure figure = figure_of(&judgement, "misplaced NaN or Inf");
        assert_true(figure.value == (double)misplaced && figure.limit == 0);
        assert_true(judgement.passed == (misplaced == 0));
        assert_true(misplaced == 0 || judgement.worst == first);
    }
}

static void nan_and_infinity_are_counted_one_by_one(void)
{
    check_misplaced((double[]){1, NAN, INFINITY, -INFINITY},
                    (double[]){1, NAN, INFINITY, -INFINITY}, 0, -1);
    check_misplaced((double[]){1, NAN, 2, 3}, (double[]){1, 1.5, 2, 3}, 1, 1);
    check_misplaced((double[]){1, 1.5, 2, 3}, (double[]){1, 1.5, NAN, NAN}, 2, 2);
    check_misplaced((double[]){INFINITY, NAN, 2, INFINITY}, (double[]){-INFINITY, INFINITY, 2, NAN},
                    3, 0);
    /* 65520 is the first number that float16 rounds to infinity; 65519 is none. */
    check_misplaced((double[]){INFINITY, 1, 2, 3}, (double[]){65520, 1, 2, 3}, 0, -1);
    check_misplaced((double[]){INFINITY, 1, 2, 3}, (double[]){65519, 1, 2, 3}, 1, 0);
    check_misplaced((double[]){65504, 1, 2, 3}, (double[]){INFINITY, 1, 2, 3}, 1, 0);
    check_misplaced((double[]){-INFINITY, 1, 2, 3}, (double[]){65520, 1, 2, 3}, 1, 0);
}

/* The largest number for a golden one that the type rounds to infinity: both are numbers, and one
 * step of 32 apart by half of it. */
static void a_golden_number_beyond_the_type_is_a_number(void)
{
    set(MOETOKEN_F16, 1, (double[]){65504}, MOETOKEN_F64, (double[]){65520});
    assert_true(judge_by("ulp:0.5", &actual.tensor, &golden.tensor, NULL).passed);
    assert_true(judge_by("ecosystem-2026-07", &actual.tensor, &golden.tensor, NULL).passed);
    assert_true(!judge_by("bits", &actual.tensor, &golden.tensor, NULL).passed);
}

/* A published tool passes whenever the third party has a NaN or infinity, another where a ratio
 * comes out as one. */
static void a_broken_third_party_passes_nothing(void)
{
    static const double broken[][2] = {{NAN, 1}, {INFINITY, 1}, {NAN, NAN}, {1, -INFINITY}};
    set(MOETOKEN_F32, 2, (double[]){1, 1.5}, MOETOKEN_F64, (double[]){1, 1});
    for (int i = 0; i < 4; i++) {
        set_numbers(&third, MOETOKEN_F32, 2, broken[i]);
        for (int s = 0; s < ALL; s++)
            if (strncmp(all_standards[s], "commercial", 10) == 0 ||
                strcmp(all_standards[s], "atk-double") == 0)
                assert_true(
                    !judge_by(all_standards[s], &actual.tensor, &golden.tensor, &third.tensor)
                         .passed);
    }
    struct judgement judgement =
        judge_by("atk-double", &actual.tensor, &golden.tensor, &third.tensor);
    assert_true(figure_of(&judgement, "NaN or Inf misplaced by third party").value == 1);
    /* ACTUAL shares the third party's NaN: still another result than the golden one. */
    set(MOETOKEN_F32, 2, (double[]){1, NAN}, MOETOKEN_F64, (double[]){1, 1});
    set_numbers(&third, MOETOKEN_F32, 2, (double[]){1, NAN});
    assert_true(
        !judge_by("commercial-L0-2026-04", &actual.tensor, &golden.tensor, &third.tensor).passed);
}

static void an_exact_third_party_is_no_division_by_zero(void)
{
    set(MOETOKEN_F32, 2, (double[]){1, 1.5}, MOETOKEN_F64, (double[]){1, 1});
    struct judgement judgement =
        judge_by("commercial-L0-2026-04", &actual.tensor, &golden.tensor, &golden.tensor);
    /* 0.5 / (1 + 1e-7) / 1e-7 */
    assert_true(!judgement.passed);
    assert_true(near(figure_of(&judgement, "MARE ratio").value, 0.5 / (1 + 1e-7) / 1e-7));
    set(MOETOKEN_F32, 2, (double[]){1, 1}, MOETOKEN_F64, (double[]){1, 1});
    judgement = judge_by("commercial-L2-2026-04", &actual.tensor, &golden.tensor, &golden.tensor);
    assert_true(judgement.passed && figure_of(&judgement, "MARE ratio").value == 0);
}

/* float64: differences and squares that overflow, or vanish, are not lost. */
static void no_overflow_passes(void)
{
    set(MOETOKEN_F64, 2, (double[]){1.7e308, 1}, MOETOKEN_F64, (double[]){-1.7e308, 1});
    set_numbers(&third, MOETOKEN_F64, 2, (double[]){-1.7e308, 1});
    for (int i = 0; i < ALL; i++)
        assert_true(
            !judge_by(all_standards[i], &actual.tensor, &golden.tensor, &third.tensor).passed);
    set_numbers(&third, MOETOKEN_F64, 2, (double[]){1.7e308, 1}); /* inf / inf is NaN */
    struct judgement judgement =
        judge_by("commercial-L0-2026-04", &actual.tensor, &golden.tensor, &third.tensor);
    assert_true(!judgement.passed && !figure_of(&judgement, "MARE ratio").passed);
    /* cosine -1 and 1 of numbers whose squares a double does not have */
    set(MOETOKEN_F64, 2, (double[]){-1e-300, -2e-300}, MOETOKEN_F64, (double[]){1e-300, 2e-300});
    judgement = judge_by("msprobe", &actual.tensor, &golden.tensor, NULL);
    assert_true(near(figure_of(&judgement, "cosine").value, -1) && !judgement.passed);
    set(MOETOKEN_F64, 2, (double[]){1e200, 2e200}, MOETOKEN_F64, (double[]){1e200, 2e200});
    judgement = judge_by("msprobe", &actual.tensor, &golden.tensor, NULL);
    assert_true(near(figure_of(&judgement, "cosine").value, 1) && judgement.passed);
}

/* All zeros beside numbers: msprobe's cosine has no value then. */
static void zeros_are_no_numbers_and_no_numbers_are_zeros(void)
{
    struct judgement judgement;
    set(MOETOKEN_F32, 2, (double[]){0, 0}, MOETOKEN_F64, (double[]){0x1p-20, 0x1p-20});
    judgement = judge_by("msprobe", &actual.tensor, &golden.tensor, NULL);
    assert_true(!judgement.passed && figure_of(&judgement, "cosine").value == 0);
    set(MOETOKEN_F32, 2, (double[]){0x1p-20, 0x1p-20}, MOETOKEN_F64, (double[]){0, 0});
    judgement = judge_by("msprobe", &actual.tensor, &golden.tensor, NULL);
    assert_true(!judgement.passed && figure_of(&judgement, "cosine").value == 0);
    set(MOETOKEN_F32, 2, (double[]){0, 0}, MOETOKEN_F64, (double[]){0, 0});
    judgement = judge_by("msprobe", &actual.tensor, &golden.tensor, NULL);
    assert_true(judgement.passed && figure_of(&judgement, "cosine").value == 1);
}

/* ---- types and shapes ------------------------------------------------------------------------ */

static void other_types_are_compared(void)
{
    static const moetoken_type types[] = {MOETOKEN_F16, MOETOKEN_BF16, MOETOKEN_F32, MOETOKEN_F64};
    for (int a = 0; a < 4; a++) {
        for (int g = 0; g < 4; g++) {
            for (int i = 0; i < ALL; i++) {
                set(types[a], 2, (double[]){1, 2}, types[g], (double[]){1, 2});
                assert_true(
                    judge_by(all_standards[i], &actual.tensor, &golden.tensor, &golden.tensor)
                        .passed);
                set(types[a], 2, (double[]){1, 2e4 * 1.024}, types[g], (double[]){1, -1});
                assert_true(!judge_by(i == ALL - 1 ? "ulp:9" : all_standards[i], &actual.tensor,
                                      &golden.tensor, &golden.tensor)
                                 .passed);
            }
        }
    }
}

struct integers {
    unsigned char bytes[64];
    int64_t shape[1];
    DLTensor tensor;
};

static void set_integers(struct integers *integers, moetoken_type type, int64_t count,
                         const int64_t *values)
{
    integers->shape[0] = count;
    integers->tensor = moetoken_tensor(integers->bytes, type, 1, integers->shape);
    for (int64_t i = 0; i < count; i++)
        store_bits(integers->bytes + (size_t)i * type_size(type), type_size(type),
                   (uint64_t)values[i]);
}

static void integers_must_be_equal(void)
{
    static struct integers a, g;
    static const moetoken_type types[] = {MOETOKEN_I32, MOETOKEN_I64, MOETOKEN_I8};
    for (int i = 0; i < ALL; i++) {
        for (int t = 0; t < 9; t++) {
            set_integers(&a, types[t % 3], 3, (int64_t[]){-1, 100, 0});
            set_integers(&g, types[t / 3], 3, (int64_t[]){-1, 100, 0});
            assert_true(judge_by(all_standards[i], &a.tensor, &g.tensor, NULL).passed);
            set_integers(&a, types[t % 3], 3, (int64_t[]){-1, 101, 7});
            struct judgement judgement = judge_by(all_standards[i], &a.tensor, &g.tensor, NULL);
            assert_true(!judgement.passed && judgement.figures[0].value == 2);
            if (i < ALL - 2)
                assert_true(judgement.worst == 2 &&
                            figure_of(&judgement, "largest difference").value == 7);
        }
        /* next to each other where a double has only every 1024th number */
        set_integers(&a, MOETOKEN_I64, 2, (int64_t[]){INT64_MAX, INT64_MIN});
        set_integers(&g, MOETOKEN_I64, 2, (int64_t[]){INT64_MAX - 1, INT64_MIN});
        struct judgement judgement = judge_by(all_standards[i], &a.tensor, &g.tensor, NULL);
        assert_true(!judgement.passed && judgement.worst == 0);
    }
    /* Any byte but 0 is true; bits alone tell 2 from 1. */
    set_integers(&a, MOETOKEN_BOOL, 3, (int64_t[]){2, 0, 1});
    set_integers(&g, MOETOKEN_BOOL, 3, (int64_t[]){1, 0, 1});
    assert_true(judge_by("msprobe", &a.tensor, &g.tensor, NULL).passed);
    assert_true(!judge_by("bits", &a.tensor, &g.tensor, NULL).passed);
    set_integers(&g, MOETOKEN_U8, 3, (int64_t[]){1, 0, 1});
    assert_true(judge_by("bits", &a.tensor, &g.tensor, NULL).passed);
    set_integers(&a, MOETOKEN_U8, 3, (int64_t[]){255, 0, 1}); /* not -1 */
    set_integers(&g, MOETOKEN_I8, 3, (int64_t[]){-1, 0, 1});
    assert_true(!judge_by("bits", &a.tensor, &g.tensor, NULL).passed);
}

static void what_cannot_be_compared_is_said_to_be(void)
{
    static struct integers whole;
    set(MOETOKEN_F32, 2, (double[]){1, 2}, MOETOKEN_F32, (double[]){1, 2});
    set_integers(&whole, MOETOKEN_I32, 2, (int64_t[]){1, 2});
    struct judgement judgement = judge_by("bits", &actual.tensor, &whole.tensor, NULL);
    assert_true(!judgement.passed && judgement.figures_count == 0);
    assert_true(strcmp(judgement.problem, "has type float32, which cannot be compared with int32 "
                                          "of the golden result") == 0);
    set_numbers(&golden, MOETOKEN_F32, 3, (double[]){1, 2, 3});
    judgement = judge_by("bits", &actual.tensor, &golden.tensor, NULL);
    assert_true(!judgement.passed);
    assert_true(strcmp(judgement.problem, "has shape [2], expected [3] as in the golden result") ==
                0);
    set_numbers(&golden, MOETOKEN_F32, 2, (double[]){1, 2});
    set_numbers(&third, MOETOKEN_F32, 3, (double[]){1, 2, 3});
    judgement = judge_by("atk-double", &actual.tensor, &golden.tensor, &third.tensor);
    assert_true(!judgement.passed && strstr(judgement.problem, "third party") != NULL);
    judgement = judge_by("atk-double", &actual.tensor, &golden.tensor, NULL);
    assert_true(!judgement.passed && strstr(judgement.problem, "without a third party") != NULL);
    /* Integers need none. */
    assert_true(judge_by("atk-double", &whole.tensor, &whole.tensor, NULL).passed);
    /* A tensor without elements has nothing wrong. */
    actual.shape[0] = golden.shape[0] = 0;
    for (int i = 0; i < ALL; i++)
        assert_true(
            judge_by(all_standards[i], &actual.tensor, &golden.tensor, &golden.tensor).passed);
}

/* ---- large tensors, names -------------------------------------------------------------------- */

/* More elements than are measured at a time; one is wrong, once in each of some places. */
static void every_element_of_a_large_tensor_counts(void)
{
    enum {
        LARGE = 600001
    };
    int64_t shape[] = {LARGE};
    float *values = calloc(LARGE, sizeof *values), *wanted = calloc(LARGE, sizeof *wanted);
    if (values == NULL || wanted == NULL) {
        check(false, "memory for a large tensor", __FILE__, __LINE__);
    } else {
        DLTensor a = moetoken_tensor(values, MOETOKEN_F32, 1, shape);
        DLTensor g = moetoken_tensor(wanted, MOETOKEN_F32, 1, shape);
        static const int64_t places[] = {0, 4095, 4096, 262143, 262144, 524288, LARGE - 1};
        for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
            values[places[i]] = 0.5f;
            struct judgement judgement = judge_by("ecosystem-2026-04", &a, &g, NULL);
            assert_true(!judgement.passed && judgement.worst == places[i]);
            /* the mean: 0.5 / 1e-7 once in 600001 */
            assert_true(near(figure_of(&judgement, "MERE").value, 0.5 / 1e-7 / LARGE));
            judgement = judge_by("bits", &a, &g, NULL);
            assert_true(figure_of(&judgement, "elements with other bits").value == 1);
            assert_true(judgement.worst == places[i]);
            values[places[i]] = 0;
        }
        assert_true(judge_by("bits", &a, &g, NULL).passed);
    }
    free(values);
    free(wanted);
}

static void names_of_standards(void)
{
    struct standard standards[STANDARDS_MOST];
    char error[STANDARDS_ERROR_SIZE];
    int count;
    assert_true(standards_parse("bits,ulp:2.5,commercial-L1-2026-04", standards, &count, error));
    assert_true(count == 3 && standards[0].rule == RULE_BITS && standards[1].ulps == 2.5);
    assert_true(strcmp(standards[1].name, "ulp:2.5") == 0);
    assert_true(standards[2].needs_third_party && standards[2].maximum_ratio == 5);
    static const char *const wrong[] = {
        "",       "bit",       "bitss", "bits,",    "ulp:",    "ulp",    "ulp:x",
        "ulp:-1", "ulp:1e3",   "ulp:.", "ulp:inf",  "ulp:nan", "ulp:1 ", "ulp:1.2.3",
        "list",   "ecosystem", "BITS",  "ulp:0x10", "ulp: 1",  "ulp:+1", "commercial-L0"};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        assert_true(!standards_parse(wrong[i], standards, &count, error));
    assert_true(!standards_parse("bits,what,bits", standards, &count, error));
    assert_true(strcmp(error, "'what' is no standard; 'compare --standard list' names them") == 0);
    assert_true(!standards_parse("bits,bits,bits,bits,bits,bits,bits,bits,bits,bits,bits,bits,bits,"
                                 "bits,bits,bits,bits",
                                 standards, &count, error));
    for (int i = 0; i < ALL; i++)
        assert_true(standard_find(all_standards[i], strlen(all_standards[i]), &standards[0]) &&
                    strcmp(standards[0].name, all_standards[i]) == 0);
}

int main(void)
{
    nan_and_infinity_are_counted_one_by_one();
    a_golden_number_beyond_the_type_is_a_number();
    a_broken_third_party_passes_nothing();
    an_exact_third_party_is_no_division_by_zero();
    no_overflow_passes();
    zeros_are_no_numbers_and_no_numbers_are_zeros();
    other_types_are_compared();
    integers_must_be_equal();
    what_cannot_be_compared_is_said_to_be();
    every_element_of_a_large_tensor_counts();
    names_of_standards();
    printf("%d failures\n", failures);
    return failures != 0;
}
