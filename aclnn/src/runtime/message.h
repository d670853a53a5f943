/* message.h - statuses with a message: what aclGetRecentErrMsg returns. */
#ifndef ACLNN_MESSAGE_H
#define ACLNN_MESSAGE_H

/* Keeps the message for the calling thread and returns status. */
int fail(int status, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* The thread's message, "" before the first. */
const char *recent_message(void);

#endif
