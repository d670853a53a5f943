/* utf8.h - code points in and out of UTF-8: names and metadata of tensor files. */
#ifndef MOETOKEN_CLI_UTF8_H
#define MOETOKEN_CLI_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define UTF8_MAX 4 /* bytes of one code point at most */

/* The code point at bytes[0], of `length` bytes. Returns how many bytes it takes, 0 when they are
 * not UTF-8 (surrogates, overlong forms and what is cut off are not). */
size_t utf8_decode(const unsigned char *bytes, size_t length, uint32_t *code_point);
/* Returns how many bytes were put into text, 0 for what is no Unicode scalar value. */
size_t utf8_encode(uint32_t code_point, char text[UTF8_MAX]);
/* The first byte that is not part of UTF-8, or `length`. */
size_t utf8_valid_length(const unsigned char *bytes, size_t length);
bool utf8_is_valid(const char *text);

#endif
