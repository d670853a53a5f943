/* without_cmocka.c - runs unit tests where cmocka is not to be had: in cross builds. */
#include "without_cmocka.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum {
    FAILED = 1,
    SKIPPED
};

static jmp_buf end_of_test;

int run_unit_tests(const struct CMUnitTest *tests, size_t count)
{
    volatile int failed = 0;
    for (volatile size_t i = 0; i < count; i++) {
        const char *volatile outcome = "passed";
        void *state = NULL;
        switch (setjmp(end_of_test)) {
        case 0:
            tests[i].test_func(&state);
            break;
        case SKIPPED:
            outcome = "skipped";
            break;
        default:
            outcome = "FAILED";
            failed++;
            break;
        }
        printf("%s: %s\n", tests[i].name, outcome);
        fflush(stdout);
    }
    return failed;
}

void fail_unit_test(const char *file, int line, const char *what)
{
    fprintf(stderr, "%s:%d: %s\n", file, line, what);
    longjmp(end_of_test, FAILED);
}

void skip(void)
{
    longjmp(end_of_test, SKIPPED);
}

void print_error(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
}

void assert_equal_text(const char *left, const char *right, const char *file, int line)
{
    if (strcmp(left, right) != 0) {
        fprintf(stderr, "\"%s\" is not \"%s\"\n", left, right);
        fail_unit_test(file, line, "texts differ");
    }
}
