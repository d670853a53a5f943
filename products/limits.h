/* limits.h - what each product accepts of unpermute_grad, by formula. Depends on nothing, so that
 * the aclnn layer, the tool and the tests compile the same file. */
#ifndef ACLNN_LIMITS_H
#define ACLNN_LIMITS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Slots of a token: the most that any product, and this layer, takes with probs. */
#define LIMITS_TOPK_MAX 512

struct product {
    const char *name;       /* as aclrtGetSocName answers; a value of MOETOKEN_SOC */
    const char *sold_as;    /* "Atlas A2" */
    bool has_operators;     /* the four operators exist there */
    int64_t unified_buffer; /* bytes; 0: no product limit */
};

/* The products by name, in the order of the documentation; index from 0, NULL behind the last. */
const struct product *limits_product(size_t index);

/* The product of that name; a longer name that begins with a product's (Ascend910B4) is that
 * product. NULL and "" are "host". NULL when there is none. */
const struct product *limits_find_product(const char *name);

/* One call of unpermute_grad with probs; nothing is limited without. */
struct limits_call {
    bool drop_and_pad;
    int64_t tokens_num, hidden_size, experts_num, slots_num;
    int token_bytes, probs_bytes;
    bool token_is_bfloat16;
};

/* True when the product takes the call. If not, the reason, with formula and numbers, in
 * reason[size]. */
bool limits_accept(const struct product *product, const struct limits_call *call, char *reason,
                   size_t size);

/* Whether the vendor's own operator goes about the call in another way than its document, by which
 * limits_accept decides, says; near the limits they differ. How, in note[size]. */
bool limits_differ(const struct product *product, const struct limits_call *call, char *note,
                   size_t size);

/* The largest experts_num (dropless) and hidden_size (padded) a product takes with probs; -1: no
 * limit. */
int64_t limits_experts_max(const struct product *product, int token_bytes, int probs_bytes);
int64_t limits_hidden_max(const struct product *product, int token_bytes);
/* The same as the vendor's tiling has them. */
int64_t limits_experts_max_tiling(const struct product *product, int token_bytes, int probs_bytes);
int64_t limits_hidden_max_tiling(const struct product *product, int token_bytes);

/* All values of limits_product, for messages: "host, Ascend910B, ...". */
#define LIMITS_PRODUCT_NAMES                                                                       \
    "host, Ascend910B, Ascend910_93, Ascend950, Ascend310B, Ascend310P, Ascend910A"

#endif
