/* modes_test.c - the caller's floating-point modes: rounding direction, flush-to-zero, traps. They
 * change no bit of a result and are as before after a call, on every thread. */
#include "oracle/oracle.h"
#include "support/check.h"
#include "support/family_case.h"
#include "support/grad_case.h"
#include "support/random.h"

#if defined(__x86_64__)
#include <xmmintrin.h>

#define FLUSH_TO_ZERO      0x8000u
#define DENORMALS_ARE_ZERO 0x0040u
#define ALL_TRAPS_MASKED   0x1f80u
#define STATUS_FLAGS       0x003fu

static uint64_t read_mode(void)
{
    return _mm_getcsr() & ~STATUS_FLAGS;
}

static void write_mode(uint64_t mode)
{
    _mm_setcsr((unsigned)mode);
}

static const struct mode {
    const char *name;
    uint64_t set, cleared;
} modes[] = {
    {"to nearest", 0, 0},
    {"flush to zero", FLUSH_TO_ZERO, 0},
    {"denormals are zero", DENORMALS_ARE_ZERO, 0},
    {"both", FLUSH_TO_ZERO | DENORMALS_ARE_ZERO, 0},
    {"down", 0x2000u, 0},
    {"up, both", 0x4000u | FLUSH_TO_ZERO | DENORMALS_ARE_ZERO, 0},
    {"toward zero", 0x6000u, 0},
    {"all traps", 0, ALL_TRAPS_MASKED},
};
#elif defined(__aarch64__)
#define FLUSH_TO_ZERO    (UINT64_C(1) << 24)
#define FLUSH_16_TO_ZERO (UINT64_C(1) << 19)
#define DEFAULT_NAN      (UINT64_C(1) << 25)

static uint64_t read_mode(void)
{
    uint64_t mode;
    __asm__ volatile("mrs %0, fpcr" : "=r"(mode));
    return mode;
}

static void write_mode(uint64_t mode)
{
    __asm__ volatile("msr fpcr, %0" : : "r"(mode) : "memory");
}

static const struct mode {
    const char *name;
    uint64_t set, cleared;
} modes[] = {
    {"to nearest", 0, 0},
    {"flush to zero", FLUSH_TO_ZERO | FLUSH_16_TO_ZERO, 0},
    {"default NaN", DEFAULT_NAN, 0},
    {"up", UINT64_C(1) << 22, 0},
    {"down", UINT64_C(2) << 22, 0},
    {"toward zero, flush", (UINT64_C(3) << 22) | FLUSH_TO_ZERO, 0},
};
#endif

#define MODES (sizeof modes / sizeof modes[0])

/* Sets a mode for the call alone: the oracle and the comparison run in the mode of the start. */
static uint64_t enter(const struct mode *mode, uint64_t start)
{
    write_mode((start | mode->set) & ~mode->cleared);
    return read_mode();
}

static void gradient_in_mode(const struct mode *mode, struct grad_case *grad,
                             const moetoken_options *options)
{
    char line[300];
    struct oracle *oracle = oracle_unpermute_grad(&grad->args, 0);
    tensor_fill_poison(&grad->rows_grad.dl);
    tensor_fill_poison(&grad->probs_grad.dl);
    uint64_t start = read_mode(), entered = enter(mode, start);
    moetoken_status status = moetoken_unpermute_grad(&grad->args, options);
    uint64_t left = read_mode();
    write_mode(start);
    check(status == MOETOKEN_OK, "%s: %s", mode->name, moetoken_last_error());
    check(left == entered, "%s: mode 0x%llx became 0x%llx", mode->name, (unsigned long long)entered,
          (unsigned long long)left);
    oracle_difference(oracle, line, sizeof line);
    check(line[0] == '\0', "%s: %s", mode->name, line);
    oracle_free(oracle);
}

static void the_gradient_in_every_mode(void **state)
{
    (void)state;
    for (size_t m = 0; m < MODES; m++) {
        for (moetoken_type type = MOETOKEN_F32; type <= MOETOKEN_F64; type++) {
            for (int kind = 0; kind < 8; kind++) {
                static const uint32_t isas[] = {MOETOKEN_ISA_SCALAR, 0};
                const moetoken_options options = {.isa_mask = isas[kind % 2]};
                struct grad_case grad;
                struct grad_spec spec = grad_spec_default((kind & 2) != 0);
                spec.token_type = type;
                spec.probs_type = type == MOETOKEN_F64 ? type : MOETOKEN_F32;
                spec.special_percent = 30;
                spec.hidden = 45;
                spec.without_probs = kind >= 6;
                grad_case_make(&grad, &spec);
                gradient_in_mode(&modes[m], &grad, &options);
                grad_case_free(&grad);
            }
        }
    }
}

/* Threads of OpenMP have modes of their own, taken over from whoever started them. */
static void large_gradients_on_threads_in_every_mode(void **state)
{
    (void)state;
    for (size_t m = 0; m < MODES; m++) {
        const moetoken_options options = {.threads = 3};
        struct grad_case grad;
        struct grad_spec spec = grad_spec_default(false);
        spec.routing.tokens = 200;
        spec.hidden = 211;
        spec.special_percent = 30;
        grad_case_make(&grad, &spec);
        gradient_in_mode(&modes[m], &grad, &options);
        grad_case_free(&grad);
    }
}

static struct oracle *family_oracle(struct family_case *family)
{
    switch (family->spec.verb) {
    case FAMILY_UNPERMUTE:
        return oracle_unpermute(&family->unpermute, 0);
    case FAMILY_PERMUTE:
        return oracle_permute(&family->permute);
    default:
        return oracle_permute_grad(&family->permute_grad, 0);
    }
}

static void family_in_mode(const struct mode *mode, const struct family_spec *spec)
{
    char line[300];
    struct family_case family;
    family_case_make(&family, spec);
    struct oracle *oracle = family_oracle(&family);
    for (int i = 0; i < family.output_count; i++) {
        tensor_fill_poison(&family.outputs[i].dl);
    }
    uint64_t start = read_mode(), entered = enter(mode, start);
    moetoken_status status = family_case_call(&family, NULL);
    uint64_t left = read_mode();
    write_mode(start);
    check(status == MOETOKEN_OK, "%s: %s", mode->name, moetoken_last_error());
    check(left == entered, "%s: mode 0x%llx became 0x%llx", mode->name, (unsigned long long)entered,
          (unsigned long long)left);
    oracle_difference(oracle, line, sizeof line);
    check(line[0] == '\0', "%s: %s", mode->name, line);
    oracle_free(oracle);
    family_case_free(&family);
}

static void the_family_in_every_mode(void **state)
{
    (void)state;
    for (size_t m = 0; m < MODES; m++) {
        for (moetoken_type type = MOETOKEN_F32; type <= MOETOKEN_F64; type++) {
            for (int kind = 0; kind < 6; kind++) {
                struct family_spec spec =
                    family_spec_default((enum family_verb)(kind / 2), kind % 2 == 1);
                spec.token_type = spec.probs_type = type;
                spec.special_percent = 30;
                spec.hidden = 45;
                family_in_mode(&modes[m], &spec);
            }
        }
    }
}

static void a_refused_call_keeps_the_mode(void **state)
{
    (void)state;
    for (size_t m = 0; m < MODES; m++) {
        struct grad_case grad;
        struct grad_spec spec = grad_spec_default(true);
        grad_case_make(&grad, &spec);
        tensor_set_bits(&grad.out_index.dl, 3, 0, 15);
        uint64_t start = read_mode(), entered = enter(&modes[m], start);
        moetoken_status status = moetoken_unpermute_grad(&grad.args, NULL);
        uint64_t left = read_mode();
        write_mode(start);
        assert_int_equal(status, MOETOKEN_ERR_INDEX);
        check(left == entered, "%s: the mode changed", modes[m].name);
        grad_case_free(&grad);
    }
}

int main(void)
{
    random_start("modes_test");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_gradient_in_every_mode),
        cmocka_unit_test(large_gradients_on_threads_in_every_mode),
        cmocka_unit_test(the_family_in_every_mode),
        cmocka_unit_test(a_refused_call_keeps_the_mode),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
