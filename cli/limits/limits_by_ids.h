/* limits_by_ids.h - `moetoken limits` for a case with a routing by expert ids. */
#ifndef MOETOKEN_CLI_LIMITS_BY_IDS_H
#define MOETOKEN_CLI_LIMITS_BY_IDS_H

#include "cases/case_files.h"

/* Whether the files' tensors are those of one of the four operators, by expert ids. */
bool limits_are_by_ids(const struct case_files *files);

/* A line for each product, or for that one, and operator; an exit status. */
int limits_by_ids(const struct case_files *files, const char *soc);

#endif
