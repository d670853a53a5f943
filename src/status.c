/* status.c - status names and the calling thread's last message. */
#include "status.h"

#include <stdarg.h>
#include <stdio.h>

static _Thread_local char last_error[512];

moetoken_status moetoken_fail(moetoken_status status, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(last_error, sizeof last_error, format, arguments);
    va_end(arguments);
    return status;
}

const char *moetoken_last_error(void)
{
    return last_error;
}

const char *moetoken_status_name(moetoken_status status)
{
    static const char *const names[] = {
        "MOETOKEN_OK",
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
        "MOETOKEN_ERR_MPI",
    };
    size_t i = (size_t)status;
    return i < sizeof names / sizeof names[0] ? names[i] : "unknown status";
}
