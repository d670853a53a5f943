/* status.h - how the library says what is wrong: a status and the calling thread's message. */
#ifndef MOETOKEN_STATUS_H
#define MOETOKEN_STATUS_H

#include <moetoken/moetoken.h>

/* Sets the calling thread's message, as printf would, and returns `status`. */
moetoken_status moetoken_fail(moetoken_status status, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

#endif
