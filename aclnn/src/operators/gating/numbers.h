/* numbers.h - single floating-point elements of operands, in binary64. */
#ifndef ACLNN_GATING_NUMBERS_H
#define ACLNN_GATING_NUMBERS_H

#include "operators/operand.h"

/* Element [row, column] of an operand of ACL_FLOAT, ACL_FLOAT16 or ACL_BF16. */
double numbers_load(const struct operand *operand, int64_t row, int64_t column);

/* The same, rounded once, to nearest even. */
void numbers_store(const struct operand *operand, int64_t row, int64_t column, double value);

#endif
