/* check.c - the check that errors are told as docs/contract.md wants them. */
#include "check.h"

#include <string.h>

static void check_message_holds(const char *text)
{
    check(text == NULL || strstr(moetoken_last_error(), text) != NULL,
          "the message \"%s\" does not hold \"%s\"", moetoken_last_error(), text);
}

void check_refused(moetoken_status actual, moetoken_status wanted, const char *text,
                   const char *second, const char *third)
{
    check(actual == wanted, "%s instead of %s (message \"%s\")", moetoken_status_name(actual),
          moetoken_status_name(wanted), moetoken_last_error());
    check(strchr(moetoken_last_error(), '\n') == NULL, "the message has a line feed: %s",
          moetoken_last_error());
    check_message_holds(text);
    check_message_holds(second);
    check_message_holds(third);
}
