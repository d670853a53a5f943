/* judge_limits_test.c - each standard on both sides of each of its limits, for each type. The
 * figures are worked by hand in the comments; golden results are float64, so that errors between
 * the steps of the narrow types can be had. */
#include "judge_cases.h"

/* `count` elements, all right and all 1 but the first, where they are what is given. */
static struct judgement first_of(const char *standard, moetoken_type type, int64_t count,
                                 double actual, double golden)
{
    static struct numbers a, g;
    double values[ELEMENTS_MOST], wanted[ELEMENTS_MOST];
    for (int64_t i = 0; i < count; i++)
        values[i] = wanted[i] = 1;
    values[0] = actual;
    wanted[0] = golden;
    set_numbers(&a, type, count, values);
    set_numbers(&g, MOETOKEN_F64, count, wanted);
    return judge_by(standard, &a.tensor, &g.tensor, NULL);
}

/* The golden result is all ones; these are the errors of ACTUAL (float32) and of the third party.
 * All errors are multiples of 2^-12, which float32 has beside 1. */
static struct judgement errors(const char *standard, int64_t count, const double *ours,
                               const double *theirs)
{
    static struct numbers a, g, t;
    double values[ELEMENTS_MOST], ones[ELEMENTS_MOST], third[ELEMENTS_MOST];
    for (int64_t i = 0; i < count; i++) {
        ones[i] = 1;
        values[i] = 1 + ours[i];
        third[i] = 1 + theirs[i];
    }
    set_numbers(&a, MOETOKEN_F32, count, values);
    set_numbers(&g, MOETOKEN_F64, count, ones);
    set_numbers(&t, MOETOKEN_F32, count, third);
    return judge_by(standard, &a.tensor, &g.tensor, &t.tensor);
}

/* Whether that figure fails, and no other. */
static bool only_fails(const struct judgement *judgement, const char *name)
{
    int failed = 0;
    for (int i = 0; i < judgement->figures_count; i++)
        failed += !judgement->figures[i].passed;
    return !judgement->passed && failed == 1 && !figure_of(judgement, name).passed;
}

static bool fails_by(struct judgement judgement, const char *name)
{
    return only_fails(&judgement, name);
}

#define PASSES(judgement)      assert_true((judgement).passed)
#define FAILS(judgement, name) assert_true(fails_by((judgement), name))

/* ---- ecosystem-2026-04: MERE < t, MARE < 10 t ------------------------------------------------ */

static void ecosystem_2026_04(void)
{
    static const struct {
        moetoken_type type;
        double threshold;
    } rows[] = {{MOETOKEN_F16, 0x1p-10},
                {MOETOKEN_BF16, 0x1p-7},
                {MOETOKEN_F32, 0x1p-13},
                {MOETOKEN_F64, 0x1p-13}};
    for (size_t i = 0; i < 4; i++) {
        double t = rows[i].threshold;
        /* One element, wrong by t: t / (1 + 1e-7) is below t. */
        struct judgement judgement = first_of("ecosystem-2026-04", rows[i].type, 1, 1 + t, 1);
        PASSES(judgement);
        assert_true(near(figure_of(&judgement, "MERE").value, t / (1 + 1e-7)));
        assert_true(figure_of(&judgement, "MERE").limit == t);
        assert_true(figure_of(&judgement, "MARE").limit == 10 * t);
        assert_true(judgement.worst == 0);
        /* golden = 1 - 1e-7: |a - g| / (|g| + 1e-7) = t + 1e-7. */
        FAILS(first_of("ecosystem-2026-04", rows[i].type, 1, 1 + t, 1 - 1e-7), "MERE");
        /* One of 20 is wrong by 10 t, so the mean is t / 2. */
        PASSES(first_of("ecosystem-2026-04", rows[i].type, 20, 1 + 10 * t, 1));
        FAILS(first_of("ecosystem-2026-04", rows[i].type, 20, 1 + 10 * t, 1 - 2e-7), "MARE");
    }
    /* "Below", not "at most": with a golden result of 0 the error is divided by 1e-7, and 2^-13
     * times that, which float64 has, gives 2^-13 to the bit. */
    FAILS(first_of("ecosystem-2026-04", MOETOKEN_F64, 1, 0x1p-13 * 1e-7, 0), "MERE");
}

/* ---- ecosystem-2026-07 ----------------------------------------------------------------------- */

static void mixed_tolerance(void)
{
    static const struct {
        moetoken_type type;
        double atol, rtol, step; /* a step of the type at 4 */
    } rows[] = {{MOETOKEN_F16, 0x1p-9, 0x1p-9, 0x1p-8},
                {MOETOKEN_BF16, 0x1p-6, 0x1p-6, 0x1p-5},
                {MOETOKEN_F32, 0x1p-16, 0x1p-10, 0x1p-21}};
    for (size_t i = 0; i < 3; i++) {
        double tolerance = rows[i].atol + rows[i].rtol * 4; /* 5 * 2^-9, 5 * 2^-6, 257 * 2^-16 */
        double steps = floor(tolerance / rows[i].step);
        /* The last step of the type from 4 that is within the tolerance, and the one after it. */
        double actual = 4 + steps * rows[i].step, golden = 4;
        struct judgement judgement = first_of("ecosystem-2026-07", rows[i].type, 1, actual, golden);
        PASSES(judgement);
        FAILS(first_of("ecosystem-2026-07", rows[i].type, 1, actual + rows[i].step, golden),
              "matched ratio");
        /* 99 % of the elements are enough; 98 of 99 are 98.99 %. */
        PASSES(first_of("ecosystem-2026-07", rows[i].type, 100, actual + rows[i].step, golden));
        judgement = first_of("ecosystem-2026-07", rows[i].type, 99, actual + rows[i].step, golden);
        assert_true(only_fails(&judgement, "matched ratio"));
        assert_true(near(figure_of(&judgement, "matched ratio").value, 98.0 / 99));
        assert_true(figure_of(&judgement, "matched ratio").limit == 0.99);
        assert_true(judgement.worst == 0);
    }
    /* The tolerance itself still passes: bfloat16, golden 0, error 2^-6. */
    PASSES(first_of("ecosystem-2026-07", MOETOKEN_BF16, 1, 0x1p-6, 0));
    FAILS(first_of("ecosystem-2026-07", MOETOKEN_BF16, 1, 0x1.02p-6, 0), "matched ratio");
    PASSES(first_of("ecosystem-2026-07", MOETOKEN_F16, 1, 0x1p-9, 0));
    FAILS(first_of("ecosystem-2026-07", MOETOKEN_F16, 1, 0x1.004p-9, 0), "matched ratio");
    PASSES(first_of("ecosystem-2026-07", MOETOKEN_F32, 1, 0x1p-16, 0));
    FAILS(first_of("ecosystem-2026-07", MOETOKEN_F32, 1, 0x1.000002p-16, 0), "matched ratio");
}

/* One of 100 elements is wrong, so that the matched ratio is 0.99 and only the limit decides. */
static void largest_absolute_error(void)
{
    /* float16 at 1: 32 ulp are 2^-5, less than 0.1; 102 / 1024 = 0.0996, 103 / 1024 = 0.1006 */
    PASSES(first_of("ecosystem-2026-07", MOETOKEN_F16, 100, 1 + 102.0 / 1024, 1));
    FAILS(first_of("ecosystem-2026-07", MOETOKEN_F16, 100, 1 + 103.0 / 1024, 1),
          "largest absolute error");
    /* float16 at 1000: a step is 2^9 * 2^-10, so 32 are 16 */
    struct judgement judgement = first_of("ecosystem-2026-07", MOETOKEN_F16, 100, 1016, 1000);
    PASSES(judgement);
    assert_true(figure_of(&judgement, "largest absolute error").limit == 16);
    FAILS(first_of("ecosystem-2026-07", MOETOKEN_F16, 100, 1016.5, 1000), "largest absolute error");
    /* ulp of the golden result once it is rounded: 1023.9 becomes 1024, where a step is 1 */
    judgement = first_of("ecosystem-2026-07", MOETOKEN_F16, 100, 1040, 1023.9);
    assert_true(figure_of(&judgement, "largest absolute error").limit == 32);
    PASSES(judgement);
    /* bfloat16 at 1: 32 ulp are 0.25; 1 is the limit, and a step above 2 is 2^-6 */
    PASSES(first_of("ecosystem-2026-07", MOETOKEN_BF16, 100, 2, 1));
    FAILS(first_of("ecosystem-2026-07", MOETOKEN_BF16, 100, 2 + 0x1p-6, 1),
          "largest absolute error");
    /* float32 at 1: the two neighbours of 1.01 */
    PASSES(first_of("ecosystem-2026-07", MOETOKEN_F32, 100, 1.0099999904632568, 1));
    judgement = first_of("ecosystem-2026-07", MOETOKEN_F32, 100, 1.0100001096725464, 1);
    assert_true(only_fails(&judgement, "largest absolute error"));
    assert_true(judgement.worst == 0);
}

/* ---- commercial: ratios to a third party's errors ------------------------------------------- */

/* One error of ACTUAL, 100 equal ones e of the third party: MARE ratio k e / (e + 1e-7),
 * MERE ratio k / 100 and RMSE ratio k / 10 of that. */
static struct judgement one_of_hundred(const char *standard, double k)
{
    const double e = 0x1p-8;
    double ours[100] = {k * e}, theirs[100];
    for (int i = 0; i < 100; i++)
        theirs[i] = e;
    return errors(standard, 100, ours, theirs);
}

/* Four errors k e of ACTUAL; the third party has 2 e once, so MARE 2 e, MERE e / 2, RMSE e. */
static struct judgement even_against_one(const char *standard, double k)
{
    const double e = 0x1p-8;
    double ours[] = {k * e, k * e, k * e, k * e}, theirs[] = {0, 2 * e, 0, 0};
    return errors(standard, 4, ours, theirs);
}

/* One error k e of ACTUAL in two elements, two e of the third party: MARE ratio k, MERE ratio
 * k / 2, RMSE ratio k / sqrt(2). */
static struct judgement one_against_even(const char *standard, double k)
{
    const double e = 0x1p-8;
    double ours[] = {k * e, 0}, theirs[] = {e, -e};
    return errors(standard, 2, ours, theirs);
}

static void commercial_ratios(void)
{
    struct judgement judgement = one_of_hundred("commercial-L0-2026-04", 10);
    /* 10 * 2^-8 / (1 + 1e-7) against 2^-8 / (1 + 1e-7) + 1e-7 */
    double mare = 10 * 0x1p-8 / (1 + 1e-7) / (0x1p-8 / (1 + 1e-7) + 1e-7);
    PASSES(judgement);
    assert_true(near(figure_of(&judgement, "MARE ratio").value, mare));
    assert_true(figure_of(&judgement, "MARE ratio").limit == 10);
    FAILS(one_of_hundred("commercial-L0-2026-04", 10.25), "MARE ratio");
    PASSES(one_of_hundred("commercial-L1-2026-04", 5));
    FAILS(one_of_hundred("commercial-L1-2026-04", 5.25), "MARE ratio");
    PASSES(one_of_hundred("commercial-L2-2026-04", 2));
    FAILS(one_of_hundred("commercial-L2-2026-04", 2.25), "MARE ratio");

    PASSES(even_against_one("commercial-L0-2026-04", 1)); /* MERE ratio 2 */
    FAILS(even_against_one("commercial-L0-2026-04", 1.0625), "MERE ratio");
    PASSES(even_against_one("commercial-L1-2026-04", 0.75));
    FAILS(even_against_one("commercial-L1-2026-04", 0.8125), "MERE ratio");
    PASSES(even_against_one("commercial-L2-2026-04", 0.5625)); /* 1.125 */
    FAILS(even_against_one("commercial-L2-2026-04", 0.625), "MERE ratio");

    PASSES(one_against_even("commercial-L0-2026-04", 2.8125));              /* 1.9887 */
    FAILS(one_against_even("commercial-L0-2026-04", 2.875), "RMSE ratio");  /* 2.0329 */
    PASSES(one_against_even("commercial-L1-2026-04", 2.0625));              /* 1.4584 */
    FAILS(one_against_even("commercial-L1-2026-04", 2.1875), "RMSE ratio"); /* 1.5468 */
    PASSES(one_against_even("commercial-L2-2026-04", 1.625));               /* 1.1490 */
    FAILS(one_against_even("commercial-L2-2026-04", 1.75), "RMSE ratio");   /* 1.2374 */
}

/* Small golden values, of which ACTUAL is wrong at the first `ours`, the third party at the first
 * `theirs`, by `error`. Of float16 beside 0 the latter has errors of 2^-16 elsewhere, which do not
 * count. */
static struct judgement small_values(const char *standard, moetoken_type type, double golden,
                                     double error, int ours, int theirs)
{
    static struct numbers a, g, t;
    double values[16], wanted[16], third[16];
    for (int i = 0; i < 16; i++) {
        wanted[i] = golden;
        values[i] = golden + (i < ours ? error : 0);
        third[i] = golden + (i < theirs                            ? error
                             : golden == 0 && type == MOETOKEN_F16 ? 0x1p-16
                                                                   : 0);
    }
    set_numbers(&a, type, 16, values);
    set_numbers(&g, MOETOKEN_F64, 16, wanted);
    set_numbers(&t, type, 16, third);
    return judge_by(standard, &a.tensor, &g.tensor, &t.tensor);
}

static double small_ratio(moetoken_type type, double golden, double error)
{
    struct judgement judgement = small_values("commercial-L0-2026-04", type, golden, error, 1, 0);
    return figure_of(&judgement, "small-value errors ratio").value;
}

static void commercial_small_values(void)
{
    const char *l2 = "commercial-L2-2026-04";
    PASSES(small_values(l2, MOETOKEN_F16, 0, 0x1p-15, 2, 0)); /* 2 / max(0, 1) */
    FAILS(small_values(l2, MOETOKEN_F16, 0, 0x1p-15, 3, 0), "small-value errors ratio");
    PASSES(small_values(l2, MOETOKEN_F16, 0, 0x1p-15, 4, 2));
    FAILS(small_values(l2, MOETOKEN_F16, 0, 0x1p-15, 5, 2), "small-value errors ratio");
    assert_true(small_values(l2, MOETOKEN_F16, 0, 0x1p-15, 3, 0).worst == 0);
    /* One that is wrong by 1 is no more than one, but the root mean square sees it. */
    FAILS(small_values(l2, MOETOKEN_F16, 0, 1, 1, 0), "RMSE ratio");

    /* The error itself is none, the next number is one; the threshold itself is not small. */
    assert_true(small_ratio(MOETOKEN_F16, 0, 0x1p-16) == 0);
    assert_true(small_ratio(MOETOKEN_F16, 0, 0x1.04p-16) == 1);
    assert_true(small_ratio(MOETOKEN_F16, 0x1.ff8p-12, 0x1p-12) == 1);
    assert_true(small_ratio(MOETOKEN_F16, 0x1p-11, 0x1p-12) == 0);
    assert_true(small_ratio(MOETOKEN_BF16, 0, 0x1p-16) == 0);
    assert_true(small_ratio(MOETOKEN_BF16, 0, 0x1.02p-16) == 1);
    assert_true(small_ratio(MOETOKEN_BF16, 0x1p-9, 0x1p-9) == 1);
    assert_true(small_ratio(MOETOKEN_BF16, 0x1p-8, 0x1p-9) == 0);
    assert_true(small_ratio(MOETOKEN_F32, 0, 0x1p-30) == 0);
    assert_true(small_ratio(MOETOKEN_F32, 0, 0x1.000002p-30) == 1);
    assert_true(small_ratio(MOETOKEN_F32, 0x1p-15, 0x1p-16) == 1);
    assert_true(small_ratio(MOETOKEN_F32, 0x1p-14, 0x1p-16) == 0);
}

/* ---- atk-double ------------------------------------------------------------------------------ */

/* A third party without any error, which counts as the least error of the type. */
static struct judgement against_exact(moetoken_type type, int64_t count, double error)
{
    static struct numbers a, g;
    double values[ELEMENTS_MOST], ones[ELEMENTS_MOST];
    for (int64_t i = 0; i < count; i++)
        values[i] = ones[i] = 1;
    values[0] += error;
    set_numbers(&a, type, count, values);
    set_numbers(&g, MOETOKEN_F64, count, ones);
    return judge_by("atk-double", &a.tensor, &g.tensor, &g.tensor);
}

static void atk_least_errors(void)
{
    /* 100 elements, one wrong by k * least: MARE ratio k, MERE ratio k / 100, RMSE ratio k / 10.
     * The steps of float16 and bfloat16 at 1 are twice their least errors. */
    PASSES(against_exact(MOETOKEN_F16, 100, 10 * 0x1p-11));
    FAILS(against_exact(MOETOKEN_F16, 100, 12 * 0x1p-11), "MARE ratio");
    PASSES(against_exact(MOETOKEN_BF16, 100, 10 * 0x1p-8));
    FAILS(against_exact(MOETOKEN_BF16, 100, 12 * 0x1p-8), "MARE ratio");
    PASSES(against_exact(MOETOKEN_F32, 100, 10 * 0x1p-14));
    FAILS(against_exact(MOETOKEN_F32, 100, 10.5 * 0x1p-14), "MARE ratio");
    struct judgement judgement = against_exact(MOETOKEN_F16, 100, 12 * 0x1p-11);
    assert_true(near(figure_of(&judgement, "MARE ratio").value, 12 / (1 + 1e-7)));
    assert_true(near(figure_of(&judgement, "RMSE ratio").value, 1.2));
    assert_true(near(figure_of(&judgement, "error balance").value, 12 * 0x1p-11 / 100));
}

/* k e and -k e, which balance, against e a hundred times: MARE ratio k, MERE ratio k / 50, RMSE
 * ratio k * sqrt(2) / 10. */
static struct judgement two_of_hundred(double k)
{
    const double e = 0x1p-8;
    double ours[100] = {k * e, -k * e}, theirs[100];
    for (int i = 0; i < 100; i++)
        theirs[i] = e;
    return errors("atk-double", 100, ours, theirs);
}

static void atk_ratios(void)
{
    PASSES(two_of_hundred(9.9375));
    FAILS(two_of_hundred(10.25), "MARE ratio");
    /* Errors of both signs, so that they balance: 2 e and -2 e against e: MERE and RMSE ratio 2. */
    const double e = 0x1p-8;
    double ours[] = {2 * e, -2 * e, 0, 0}, even[] = {e, -e, 0, 0}, one[] = {2 * e, 0, 0, 0};
    PASSES(errors("atk-double", 4, ours, even));
    /* 1.125 e four times against 2 e once: MERE ratio 4 * 1.125 / 2, RMSE ratio 1.125 */
    double flat[] = {1.125 * e, -1.125 * e, 1.125 * e, -1.125 * e};
    FAILS(errors("atk-double", 4, flat, one), "MERE ratio");
    /* 4.5 e and -4.5 e in 8 against e everywhere: MARE 4.5, MERE 1.125, RMSE 2.25 */
    double peaks[8] = {4.5 * e, -4.5 * e}, all[8] = {e, e, e, e, e, e, e, e};
    FAILS(errors("atk-double", 8, peaks, all), "RMSE ratio");
}

/* All errors have one sign and are as large as the third party's. */
static struct judgement biased(moetoken_type type, double golden, double error)
{
    static struct numbers a, g, t;
    double actual[] = {golden + error}, third[] = {golden - 8 * error};
    set_numbers(&a, type, 1, actual);
    set_numbers(&g, MOETOKEN_F64, 1, &golden);
    set_numbers(&t, MOETOKEN_F64, 1, third);
    return judge_by("atk-double", &a.tensor, &g.tensor, &t.tensor);
}

static void atk_balance_and_small_values(void)
{
    PASSES(biased(MOETOKEN_F16, 1, 0x1p-10));
    FAILS(biased(MOETOKEN_F16, 1, 0x1p-9), "error balance");
    PASSES(biased(MOETOKEN_BF16, 1, 0x1p-7));
    FAILS(biased(MOETOKEN_BF16, 1, 0x1p-6), "error balance");
    PASSES(biased(MOETOKEN_F32, 1, 0x1p-14));
    FAILS(biased(MOETOKEN_F32, 1, 0x1.01p-14), "error balance");
    /* Divided by |golden| above 1, and by 1 below it. */
    struct judgement judgement = biased(MOETOKEN_F32, 4, 0x1p-12);
    assert_true(figure_of(&judgement, "error balance").value == 0x1p-14);
    judgement = biased(MOETOKEN_F32, 0.25, 0x1p-14);
    assert_true(figure_of(&judgement, "error balance").value == 0x1p-14);
    judgement = small_values("atk-double", MOETOKEN_F16, 0, 0x1p-12, 3, 1);
    assert_true(!figure_of(&judgement, "small-value errors ratio").passed);
    judgement = small_values("atk-double", MOETOKEN_F16, 0, 0x1p-12, 2, 1);
    assert_true(figure_of(&judgement, "small-value errors ratio").passed);
}

/* ---- msprobe, bits, ulp ---------------------------------------------------------------------- */

/* golden (s, s, 0), ACTUAL (s, s, x s): cosine 1 / sqrt(1 + x^2 / 2), two thirds are right. */
static struct judgement aside(double scale, double x)
{
    static struct numbers a, g;
    double actual[] = {scale, scale, x * scale}, golden[] = {scale, scale, 0};
    set_numbers(&a, MOETOKEN_F32, 3, actual);
    set_numbers(&g, MOETOKEN_F64, 3, golden);
    return judge_by("msprobe", &a.tensor, &g.tensor, NULL);
}

static struct judgement right_of_five(int right, double wrong)
{
    static struct numbers a, g;
    double actual[5], golden[] = {1, 1, 1, 1, 1};
    for (int i = 0; i < 5; i++)
        actual[i] = i < right ? 1 : wrong;
    set_numbers(&a, MOETOKEN_F32, 5, actual);
    set_numbers(&g, MOETOKEN_F64, 5, golden);
    return judge_by("msprobe", &a.tensor, &g.tensor, NULL);
}

static void msprobe_limits(void)
{
    /* 0.99 at x = sqrt(2 / 0.9801 - 2) = 0.20152; 0.9 at sqrt(2 / 0.81 - 2) = 0.68493 */
    PASSES(aside(1, 0x1.9cp-3));                            /* 0.20117 */
    FAILS(aside(1, 0x1.9dp-3), "cosine");                   /* 0.20166 */
    struct judgement judgement = aside(0x1p-11, 0x1.5ep-1); /* 0.68359, below 0.001 in all */
    PASSES(judgement);
    assert_true(
        near(figure_of(&judgement, "cosine").value, 1 / sqrt(1 + 0x1.5ep-1 * 0x1.5ep-1 / 2)));
    FAILS(aside(0x1p-11, 0x1.5fp-1), "cosine"); /* 0.68555 */
    PASSES(first_of("msprobe", MOETOKEN_F32, 3, 101, 100));
    FAILS(first_of("msprobe", MOETOKEN_F32, 3, 101.0625, 100), "largest absolute error");
    PASSES(right_of_five(3, 1.0625));
    FAILS(right_of_five(2, 1.0625), "within one thousandth");
    PASSES(right_of_five(0, 1.00099992752075195)); /* the two neighbours of 1.001 */
    FAILS(right_of_five(0, 1.00100004673004150), "within one thousandth");
    judgement = right_of_five(1, 1.00499999523162842);
    assert_true(figure_of(&judgement, "within five thousandths").value == 1);
    judgement = right_of_five(1, 1.00500011444091797);
    assert_true(figure_of(&judgement, "within five thousandths").value == 0.2);
    /* ACTUAL is compared with what the golden result is in its type: 2^-12 beside 1 is nothing. */
    judgement = first_of("msprobe", MOETOKEN_F16, 1, 1, 1 + 0x1p-12);
    assert_true(figure_of(&judgement, "largest absolute error").value == 0);
}

static void bits_and_ulps(void)
{
    PASSES(first_of("bits", MOETOKEN_F16, 3, 1, 1 + 0x1p-12)); /* rounds to 1 */
    struct judgement judgement = first_of("bits", MOETOKEN_F16, 3, 1 + 0x1p-10, 1);
    assert_true(only_fails(&judgement, "elements with other bits"));
    assert_true(figure_of(&judgement, "largest error in ulp").value == 1);
    FAILS(first_of("bits", MOETOKEN_F32, 3, -0.0, 0), "elements with other bits");
    assert_true(first_of("bits", MOETOKEN_F32, 3, -0.0, 0).worst == 0);

    PASSES(first_of("ulp:2", MOETOKEN_F16, 3, 1 + 2 * 0x1p-10, 1));
    FAILS(first_of("ulp:1.9", MOETOKEN_F16, 3, 1 + 2 * 0x1p-10, 1), "largest error in ulp");
    PASSES(first_of("ulp:2", MOETOKEN_BF16, 3, 1 + 2 * 0x1p-7, 1));
    FAILS(first_of("ulp:2", MOETOKEN_BF16, 3, 1 + 3 * 0x1p-7, 1), "largest error in ulp");
    PASSES(first_of("ulp:1", MOETOKEN_F32, 3, 0x1p-149, 0)); /* the smallest subnormal */
    FAILS(first_of("ulp:0.5", MOETOKEN_F32, 3, 0x1p-149, 0), "largest error in ulp");
    PASSES(first_of("ulp:0.5", MOETOKEN_F16, 3, 1, 1 + 0x1p-11)); /* a tie */
}

int main(void)
{
    ecosystem_2026_04();
    mixed_tolerance();
    largest_absolute_error();
    commercial_ratios();
    commercial_small_values();
    atk_least_errors();
    atk_ratios();
    atk_balance_and_small_values();
    msprobe_limits();
    bits_and_ulps();
    printf("%d failures\n", failures);
    return failures != 0;
}
