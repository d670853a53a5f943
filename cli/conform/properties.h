/* properties.h - what is special about a case, as a set of bits: "K = 1", "a token with fewer than
 * K experts". The table at the end of conform counts by them. */
#ifndef MOETOKEN_CLI_CONFORM_PROPERTIES_H
#define MOETOKEN_CLI_CONFORM_PROPERTIES_H

#include "problem.h"

#define PROPERTIES_MOST 64

uint64_t properties_of(const struct problem *problem, const struct layout *layout);
/* The words for property i; NULL behind the last. */
const char *property_name(int i);

#endif
