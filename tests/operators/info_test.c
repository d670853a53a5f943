/* info_test.c - what the library says of itself: version, status and ISA names, types, and which
 * instruction set is chosen. Run with MOETOKEN_ISA set it checks that bound. */
#include "support/check.h"
#include "support/family_case.h"
#include "support/grad_case.h"
#include "support/random.h"

#include <stdlib.h>
#include <string.h>

static void the_version_is_that_of_the_header(void **state)
{
    char wanted[32];
    (void)state;
    snprintf(wanted, sizeof wanted, "%d.%d.%d", MOETOKEN_VERSION_MAJOR, MOETOKEN_VERSION_MINOR,
             MOETOKEN_VERSION_PATCH);
    assert_string_equal(moetoken_version(), wanted);
}

static void every_status_has_its_name(void **state)
{
    static const char *const names[] = {"MOETOKEN_OK",
                                        "MOETOKEN_ERR_NULL",
                                        "MOETOKEN_ERR_DEVICE",
                                        "MOETOKEN_ERR_TYPE",
                                        "MOETOKEN_ERR_SHAPE",
                                        "MOETOKEN_ERR_STRIDE",
                                        "MOETOKEN_ERR_OVERFLOW",
                                        "MOETOKEN_ERR_OVERLAP",
                                        "MOETOKEN_ERR_INDEX",
                                        "MOETOKEN_ERR_DUPLICATE",
                                        "MOETOKEN_ERR_ROUTING",
                                        "MOETOKEN_ERR_OPTION",
                                        "MOETOKEN_ERR_WORKSPACE",
                                        "MOETOKEN_ERR_MEMORY",
                                        "MOETOKEN_ERR_MPI"};
    (void)state;
    for (int i = 0; i < 15; i++) {
        assert_string_equal(moetoken_status_name((moetoken_status)i), names[i]);
    }
    assert_string_equal(moetoken_status_name((moetoken_status)15), "unknown status");
    assert_string_equal(moetoken_status_name((moetoken_status)-1), "unknown status");
}

static void no_message_before_the_first_failure(void **state)
{
    (void)state;
    assert_string_equal(moetoken_last_error(), "");
}

static void types_are_those_of_dlpack(void **state)
{
    static const unsigned char wanted[][2] = {{2, 32}, {2, 16}, {4, 16}, {2, 64}, {0, 32},
                                              {0, 64}, {6, 8},  {0, 8},  {1, 8}};
    (void)state;
    for (int i = 0; i < 9; i++) {
        DLDataType type = moetoken_dtype((moetoken_type)i);
        assert_int_equal(type.code, wanted[i][0]);
        assert_int_equal(type.bits, wanted[i][1]);
        assert_int_equal(type.lanes, 1);
    }
    DLDataType none = moetoken_dtype((moetoken_type)9);
    assert_int_equal(none.code, 0);
    assert_int_equal(none.bits, 0);
    assert_int_equal(none.lanes, 0);
    none = moetoken_dtype((moetoken_type)-1);
    assert_int_equal(none.bits, 0);
}

static void the_helper_makes_a_plain_tensor(void **state)
{
    float data[6];
    int64_t shape[2] = {2, 3};
    (void)state;
    DLTensor tensor = moetoken_tensor(data, MOETOKEN_F32, 2, shape);
    assert_ptr_equal(tensor.data, data);
    assert_int_equal(tensor.device.device_type, kDLCPU);
    assert_int_equal(tensor.ndim, 2);
    assert_int_equal(tensor.dtype.bits, 32);
    assert_ptr_equal(tensor.shape, shape);
    assert_null(tensor.strides);
    assert_int_equal(tensor.byte_offset, 0);
}

static void isa_names(void **state)
{
    (void)state;
    assert_string_equal(moetoken_isa_name(MOETOKEN_ISA_SCALAR), "scalar");
    assert_string_equal(moetoken_isa_name(MOETOKEN_ISA_AVX2), "avx2");
    assert_string_equal(moetoken_isa_name(MOETOKEN_ISA_AVX512), "avx512");
    assert_string_equal(moetoken_isa_name(MOETOKEN_ISA_NEON), "neon");
    assert_string_equal(moetoken_isa_name(0), "unknown");
    assert_string_equal(moetoken_isa_name(3), "unknown");
    assert_string_equal(moetoken_isa_name(16), "unknown");
}

/* What MOETOKEN_ISA may hold, by hand: which instruction sets each value allows; 0: none, every
 * call fails. */
static uint32_t allowed_by_environment(void)
{
    static const struct {
        const char *value;
        uint32_t allowed;
    } rows[] = {{"", 15},      {"  ", 15},    {"scalar", 1},     {"Scalar", 1},    {"avx2", 3},
                {" AVX2 ", 3}, {"avx512", 7}, {"neon", 9},       {" \tNEON\n", 9}, {"nonsense", 0},
                {"avx", 0},    {"avx22", 0},  {"avx2 avx512", 0}};
    const char *value = getenv("MOETOKEN_ISA");
    for (size_t i = 0; value != NULL && i < sizeof rows / sizeof rows[0]; i++) {
        if (strcmp(value, rows[i].value) == 0) {
            return rows[i].allowed;
        }
    }
    check(value == NULL, "this test does not know MOETOKEN_ISA=%s", value);
    return 15;
}

/* The highest of what the CPU has and the environment allows. */
static uint32_t best_allowed(void)
{
    uint32_t usable = moetoken_isa_detected() & allowed_by_environment(), best = 0;
    for (uint32_t isa = MOETOKEN_ISA_SCALAR; isa <= MOETOKEN_ISA_NEON; isa <<= 1) {
        best = usable & isa ? isa : best;
    }
    return best;
}

/* Every operator refuses, check and run, and says what it would understand. */
static void a_word_that_is_not_understood_fails_every_call(void **state)
{
    (void)state;
    if (allowed_by_environment() != 0) {
        skip();
    }
    for (int verb = 0; verb < 3; verb++) {
        struct family_case family;
        struct family_spec spec = family_spec_default((enum family_verb)verb, false);
        family_case_make(&family, &spec);
        family_case_refused(&family, NULL, MOETOKEN_ERR_OPTION, "MOETOKEN_ISA",
                            getenv("MOETOKEN_ISA"), "scalar, avx2, avx512 or neon");
        family_case_free(&family);
    }
    struct grad_case grad;
    struct grad_spec spec = grad_spec_default(false);
    grad_case_make(&grad, &spec);
    grad_case_refused(&grad, NULL, MOETOKEN_ERR_OPTION, "MOETOKEN_ISA", getenv("MOETOKEN_ISA"),
                      "scalar, avx2, avx512 or neon");
    grad_case_free(&grad);
    assert_int_equal(moetoken_isa_chosen(0), 0);
    assert_int_equal(moetoken_isa_chosen(MOETOKEN_ISA_SCALAR), 0);
}

static void unknown_bits_of_a_mask_are_refused(void **state)
{
    (void)state;
    if (allowed_by_environment() == 0) {
        skip();
    }
    struct family_case family;
    struct family_spec spec = family_spec_default(FAMILY_PERMUTE, true);
    family_case_make(&family, &spec);
    moetoken_options options = {.isa_mask = 0x12};
    family_case_refused(&family, &options, MOETOKEN_ERR_OPTION, "isa_mask = 0x12",
                        "unknown bits 0x10", NULL);
    options.isa_mask = 0x80000000u;
    family_case_refused(&family, &options, MOETOKEN_ERR_OPTION, "isa_mask = 0x80000000", NULL,
                        NULL);
    for (options.isa_mask = 0; options.isa_mask < 16; options.isa_mask++) {
        family_case_check(&family, &options);
    }
    family_case_free(&family);
    assert_int_equal(moetoken_isa_chosen(0x12), 0);
}

static void the_chosen_isa_obeys_masks_and_environment(void **state)
{
    (void)state;
    uint32_t detected = moetoken_isa_detected();
    assert_true(detected & MOETOKEN_ISA_SCALAR);
#if defined(__x86_64__)
    assert_int_equal(detected & MOETOKEN_ISA_NEON, 0);
    /* every CPU with these two has F16C */
    assert_int_equal((detected & MOETOKEN_ISA_AVX2) != 0,
                     __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"));
#elif defined(__aarch64__)
    assert_int_equal(detected, MOETOKEN_ISA_SCALAR | MOETOKEN_ISA_NEON);
#endif
    uint32_t best = best_allowed();
    if (best == 0) {
        skip(); /* see above */
    }
    assert_int_equal(moetoken_isa_chosen(0), best);
    assert_int_equal(moetoken_isa_chosen(detected), best);
    assert_int_equal(moetoken_isa_chosen(MOETOKEN_ISA_SCALAR), MOETOKEN_ISA_SCALAR);
    assert_int_equal(moetoken_isa_chosen(best), best);
#if defined(__x86_64__)
    assert_int_equal(moetoken_isa_chosen(MOETOKEN_ISA_NEON), MOETOKEN_ISA_SCALAR);
#else
    assert_int_equal(moetoken_isa_chosen(MOETOKEN_ISA_AVX512), MOETOKEN_ISA_SCALAR);
#endif
}

int main(void)
{
    random_start("info_test");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_message_before_the_first_failure),
        cmocka_unit_test(the_version_is_that_of_the_header),
        cmocka_unit_test(every_status_has_its_name),
        cmocka_unit_test(types_are_those_of_dlpack),
        cmocka_unit_test(the_helper_makes_a_plain_tensor),
        cmocka_unit_test(isa_names),
        cmocka_unit_test(a_word_that_is_not_understood_fails_every_call),
        cmocka_unit_test(unknown_bits_of_a_mask_are_refused),
        cmocka_unit_test(the_chosen_isa_obeys_masks_and_environment),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
