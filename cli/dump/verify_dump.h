/* verify_dump.h - `verify DUMP`: every call of the family in an msprobe folder, recomputed. */
#ifndef MOETOKEN_CLI_VERIFY_DUMP_H
#define MOETOKEN_CLI_VERIFY_DUMP_H

#include "compare/standards.h"

#include <stdbool.h>

/* Prints a line for each result of each call, and what it did not know. Returns the exit status. */
int verify_dump(const char *path, const struct standard *standards, int count, bool quiet);

#endif
