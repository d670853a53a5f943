/* check.h - cmocka with the headers it wants, and checks whose message says what went wrong. */
#ifndef MOETOKEN_TESTS_CHECK_H
#define MOETOKEN_TESTS_CHECK_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#ifdef MOETOKEN_TESTS_WITHOUT_CMOCKA
#include "without_cmocka.h"
#else
#include <cmocka.h>
#endif
#include <moetoken/moetoken.h>

/* Fails the running test with a formatted message unless the condition holds. */
#define check(condition, ...)                                                                      \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            print_error(__VA_ARGS__);                                                              \
            print_error("\n");                                                                     \
            _fail(__FILE__, __LINE__);                                                             \
        }                                                                                          \
    } while (0)

/* Fails unless a call just made gave the status, and moetoken_last_error() is one line that holds
 * every one of the texts (NULL: not looked for). */
void check_refused(moetoken_status actual, moetoken_status wanted, const char *text,
                   const char *second, const char *third);

#endif
