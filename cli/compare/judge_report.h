/* judge_report.h - a judgement in words: every figure beside its limit, and the worst element. */
#ifndef MOETOKEN_CLI_JUDGE_REPORT_H
#define MOETOKEN_CLI_JUDGE_REPORT_H

#include <stddef.h>

#include "judge.h"

#define ELEMENT_TEXT_SIZE 160

/* "[12,3]" for a tensor of that shape. */
void describe_index(const DLTensor *tensor, int64_t element, char *text, size_t size);
/* "1.5 (0x3fc0)", "-1", "true". */
void describe_value(const DLTensor *tensor, int64_t element, char *text, size_t size);
/* "float32 [4,8]" */
void describe_tensor(const DLTensor *tensor, char *text, size_t size);

/* The figures, indented, on standard output; then the worst element, of which `where` (may be "")
 * says more: "token 3, slot 1". */
void judgement_print(const struct standard *standard, const struct comparison *comparison,
                     const struct judgement *judgement, const char *where);
/* The same as one JSON object. */
void judgement_print_json(const struct standard *standard, const struct comparison *comparison,
                          const struct judgement *judgement, const char *where);

#endif
