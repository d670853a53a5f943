/* openmp_test.c - a program with OpenMP of its own: omp_set_num_threads() counts, and a call from
 * inside a parallel region uses one thread. */
#include "support/check.h"
#include "support/grad_case.h"
#include "support/random.h"

#include <omp.h>

static void the_number_that_the_program_sets(void **state)
{
    (void)state;
    omp_set_num_threads(3);
    assert_int_equal(moetoken_threads_chosen(0), 3);
    assert_int_equal(moetoken_threads_chosen(5), 5);
    omp_set_num_threads(7);
    assert_int_equal(moetoken_threads_chosen(0), 7);
}

static void nested_calls_use_one_thread(void **state)
{
    struct grad_case grad[4];
    int chosen[4] = {0}, asked[4] = {0};
    (void)state;
    for (int i = 0; i < 4; i++) {
        struct grad_spec spec = grad_spec_default(i % 2 == 1);
        spec.routing.tokens = 201;
        spec.routing.slots = i % 2 == 1 ? 83 : 3;
        spec.hidden = 151;
        grad_case_make(&grad[i], &spec);
    }
    omp_set_max_active_levels(1);
#pragma omp parallel for num_threads(4) schedule(static, 1)
    for (int i = 0; i < 4; i++) {
        chosen[i] = moetoken_threads_chosen(0);
        asked[i] = moetoken_threads_chosen(6);
        const moetoken_options options = {.threads = 6};
        moetoken_unpermute_grad(&grad[i].args, &options);
    }
    for (int i = 0; i < 4; i++) {
        assert_int_equal(chosen[i], 1);
        assert_int_equal(asked[i], 1);
        grad_case_check(&grad[i], NULL);
        grad_case_free(&grad[i]);
    }
}

static void nested_calls_use_more_where_the_program_says_so(void **state)
{
    int asked[2] = {0};
    (void)state;
    omp_set_max_active_levels(2);
#pragma omp parallel for num_threads(2) schedule(static, 1)
    for (int i = 0; i < 2; i++) {
        asked[i] = moetoken_threads_chosen(6);
    }
    assert_int_equal(asked[0], 6);
    assert_int_equal(asked[1], 6);
    omp_set_max_active_levels(1);
}

int main(void)
{
    random_start("openmp_test");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_number_that_the_program_sets),
        cmocka_unit_test(nested_calls_use_one_thread),
        cmocka_unit_test(nested_calls_use_more_where_the_program_says_so),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
