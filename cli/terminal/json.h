/* json.h - the two kinds of JSON values that printf does not have: text with what must be escaped,
 * and numbers that may be no JSON numbers. */
#ifndef MOETOKEN_CLI_JSON_H
#define MOETOKEN_CLI_JSON_H

#include <stdio.h>

/* "text", quoted and escaped; bytes that are not ASCII pass as they are. */
void json_text(FILE *stream, const char *text);
/* All digits of a binary64 number; NaN and infinities as the text "nan", "inf", "-inf". */
void json_number(FILE *stream, double value);

#endif
