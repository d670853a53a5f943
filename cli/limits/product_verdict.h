/* product_verdict.h - whether an Ascend product takes a call of unpermute_grad, and why not: the
 * tensors of a case -> the formulas of products/limits.h, for the commands limits and inspect. */
#ifndef MOETOKEN_CLI_PRODUCT_VERDICT_H
#define MOETOKEN_CLI_PRODUCT_VERDICT_H

#include <moetoken/moetoken.h>
#include <stdbool.h>

#include "products/limits.h"

#define PRODUCT_REASON_SIZE 512

struct product_verdict {
    bool accepted;
    const char *word;                 /* "accepted", "refused", "absent" */
    char reason[PRODUCT_REASON_SIZE]; /* why not, or why there was nothing to refuse, or "" */
    char note[PRODUCT_REASON_SIZE];   /* where the vendor's own code decides otherwise, or "" */
};

/* args: tensors that are there and whose shapes fit together; data are not looked at. */
void product_judge(const struct product *product, const moetoken_unpermute_grad_args *args,
                   struct product_verdict *verdict);

#endif
