/* safetensors_scan.h - the first look at the JSON header of a safetensors file, before cJSON. */
#ifndef MOETOKEN_CLI_SAFETENSORS_SCAN_H
#define MOETOKEN_CLI_SAFETENSORS_SCAN_H

#include <stdbool.h>
#include <stddef.h>

/* The format's own limit on the header, and ours on what is in it: cJSON takes 64 bytes for each
 * value, so a hostile header of commas could ask for 32 times its size. A tensor is 6 values or
 * more, with the commas between them. */
#define SAFETENSORS_MAX_HEADER 100000000
#define SAFETENSORS_MAX_VALUES 262144

/* Lets through what a safetensors header consists of: UTF-8 without NUL, objects and arrays of
 * strings and of whole numbers that are not negative, nested no deeper than 3. cJSON then decides
 * whether that is JSON. It alone would also take control characters for spaces, 1e3 and 007 for
 * numbers, and end a name at an escaped NUL. */
bool safetensors_scan(const unsigned char *header, size_t length, const char *path, char *error);

#endif
