/* info_test.c - what the library says of itself: version, status and ISA names, types, and which
 * instruction set is chosen. Run with MOETOKEN_ISA set it checks that bound. */
#include "support/check.h"

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
                                        "MOETOKEN_ERR_MEMORY"};
    (void)state;
    for (int i = 0; i < 14; i++) {
        assert_string_equal(moetoken_status_name((moetoken_status)i), names[i]);
    }
    assert_string_equal(moetoken_status_name((moetoken_status)14), "unknown status");
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

/* The highest of what the CPU has and the environment allows. */
static uint32_t best_allowed(void)
{
    const char *bound = getenv("MOETOKEN_ISA");
    uint32_t best = MOETOKEN_ISA_SCALAR;
    for (uint32_t isa = MOETOKEN_ISA_SCALAR; isa <= MOETOKEN_ISA_NEON; isa <<= 1) {
        best = moetoken_isa_detected() & isa ? isa : best;
        if (bound != NULL && strcmp(bound, moetoken_isa_name(isa)) == 0) {
            return best;
        }
    }
    return best;
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
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_message_before_the_first_failure),
        cmocka_unit_test(the_version_is_that_of_the_header),
        cmocka_unit_test(every_status_has_its_name),
        cmocka_unit_test(types_are_those_of_dlpack),
        cmocka_unit_test(the_helper_makes_a_plain_tensor),
        cmocka_unit_test(isa_names),
        cmocka_unit_test(the_chosen_isa_obeys_masks_and_environment),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
