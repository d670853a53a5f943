/* without_cmocka.h - the few things that the tests use of cmocka, for cross builds: Debian has no
 * cmocka among its cross libraries. */
#ifndef MOETOKEN_TESTS_WITHOUT_CMOCKA_H
#define MOETOKEN_TESTS_WITHOUT_CMOCKA_H

#include <stddef.h>
#include <stdio.h>
#include <string.h>

struct CMUnitTest {
    const char *name;
    void (*test_func)(void **state);
};

#define cmocka_unit_test(function)                                                                 \
    {                                                                                              \
#function, function                                                                        \
    }
#define cmocka_run_group_tests(tests, setup, teardown)                                             \
    run_unit_tests((tests), sizeof(tests) / sizeof(tests)[0])

/* Runs all, prints a line for each, and returns how many failed. */
int run_unit_tests(const struct CMUnitTest *tests, size_t count);

/* End the running test: as failed, as skipped. */
void fail_unit_test(const char *file, int line, const char *what);
void skip(void);

void print_error(const char *format, ...) __attribute__((format(printf, 1, 2)));
#define print_message printf
void assert_equal_text(const char *left, const char *right, const char *file, int line);

#define _fail(file, line) fail_unit_test((file), (line), "check")
#define assert_true(condition)                                                                     \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fail_unit_test(__FILE__, __LINE__, #condition);                                        \
        }                                                                                          \
    } while (0)
#define assert_false(condition)                assert_true(!(condition))
#define assert_null(pointer)                   assert_true((pointer) == NULL)
#define assert_int_equal(left, right)          assert_true((left) == (right))
#define assert_memory_equal(left, right, size) assert_true(memcmp((left), (right), (size)) == 0)
#define assert_ptr_equal(left, right)          assert_true((const void *)(left) == (const void *)(right))
#define assert_ptr_not_equal(left, right)      assert_true((const void *)(left) != (const void *)(right))
#define assert_string_equal(left, right)       assert_equal_text((left), (right), __FILE__, __LINE__)

#endif
