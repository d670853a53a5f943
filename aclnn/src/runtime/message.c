/* message.c - the calling thread's last message: every function that fails writes it here, and
 * aclGetRecentErrMsg reads it. */
#include "message.h"

#include "../../include/acl/acl.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum {
    MESSAGE_SIZE = 1024
};

static _Thread_local char message[MESSAGE_SIZE];

int fail(int status, const char *format, ...)
{
    char text[MESSAGE_SIZE]; /* the arguments may hold the message that is replaced */
    va_list arguments;
    va_start(arguments, format);
    /* NOLINTNEXTLINE(clang-analyzer-valist.Uninitialized): a false alarm */
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    memcpy(message, text, sizeof message);
    return status;
}

const char *recent_message(void)
{
    return message;
}

const char *aclGetRecentErrMsg(void)
{
    return recent_message();
}
