/* verify_standard.h - `verify --standard`: an operator's outputs, judged by published standards. */
#ifndef MOETOKEN_CLI_VERIFY_STANDARD_H
#define MOETOKEN_CLI_VERIFY_STANDARD_H

#include "oracle/oracle_judge.h"

/* Prints figures unless quiet, the first fault on standard error. Returns the exit status. */
int verify_by_standards(const struct oracle_case *oracle, const bool wanted[OUTPUTS_MOST],
                        const struct standard *standards, int count, bool quiet, const char *path);

#endif
