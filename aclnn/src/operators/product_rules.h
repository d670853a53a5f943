/* product_rules.h - what the product that MOETOKEN_SOC names refuses of the three operators beside
 * unpermute_grad, by its documents and host code. Nothing on the host. */
#ifndef ACLNN_PRODUCT_RULES_H
#define ACLNN_PRODUCT_RULES_H

#include "executor.h"

/* Whether MOETOKEN_SOC names a product with limits. */
bool product_named(void);

/* Whether it names that one. */
bool product_is(const char *name);
bool product_is_a2_or_a3(void);

/* Slots of a token, dropless: at most 512; else 561103, as when a device's operator is not made. */
aclnnStatus product_check_topk(const char *formula, int64_t rows_num, int64_t tokens_num);

/* permute: sizes that its sort takes, and rows as many as numOutTokens allows. */
aclnnStatus product_check_permute(const aclOpExecutor *executor, int64_t tokens_num,
                                  int64_t experts_num, int64_t rows_num);

/* permute_grad: numbers that are positive. */
aclnnStatus product_check_positive(const char *name, int64_t value);

#endif
