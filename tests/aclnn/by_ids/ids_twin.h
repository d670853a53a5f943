/* ids_twin.h - what the tests of the operators by expert ids share: a random routing with the rows
 * that the definition gives it, tensors of numbers that every sum here adds up exactly, and phase
 * two. */
#ifndef TESTS_ACLNN_IDS_TWIN_H
#define TESTS_ACLNN_IDS_TWIN_H

#include "aclnnop/aclnn_moe_token_permute.h"
#include "aclnnop/aclnn_moe_token_permute_grad.h"
#include "aclnnop/aclnn_moe_token_permute_with_ep.h"
#include "aclnnop/aclnn_moe_token_permute_with_ep_grad.h"
#include "aclnnop/aclnn_moe_token_unpermute.h"
#include "aclnnop/aclnn_moe_token_unpermute_grad.h"
#include "aclnnop/aclnn_moe_token_unpermute_with_ep.h"
#include "aclnnop/aclnn_moe_token_unpermute_with_ep_grad.h"
#include "support/numbers.h"
#include "support/random.h"
#include "twin.h"

enum {
    SLOTS_MOST = 512,
    ELEMENTS_MOST = 1 << 14
};

extern const aclDataType float_types[3];
moetoken_type number_type(aclDataType type);

/* Numbers of a tensor on the host, row by row. */
struct numbers {
    int64_t rows, columns;
    double value[ELEMENTS_MOST];
};

/* Multiples of 1/4 up to 2 (tokens), of 1/8 up to 1 (probs): the three types hold them, and float32
 * holds every sum of a few of their products. */
void numbers_fill(struct numbers *numbers, int64_t rows, int64_t columns, int64_t steps);
void numbers_zero(struct numbers *numbers, int64_t rows, int64_t columns);

/* The tensor of the numbers: contiguous, or (strided) a view with room between its elements, of
 * rank 1 when there is one column and `rank` is 1. Sets nothing but the elements of the view. */
struct twin_tensor numbers_tensor(const struct numbers *numbers, aclDataType type, int rank,
                                  bool strided);
/* The same without values: NaN in every byte. */
struct twin_tensor room_tensor(int64_t rows, int64_t columns, aclDataType type, int rank,
                               bool strided);
/* Fails where the tensor, made by one of the two above, does not hold the numbers rounded once to
 * its type, or where a byte between its elements has changed. */
void expect_numbers(const struct twin_tensor *tensor, const struct numbers *expected,
                    const char *name);

/* A routing: expert ids, and by the definition the row of each slot in expert order. */
struct routing {
    int64_t tokens, topk, slots;
    int64_t id[SLOTS_MOST], row[SLOTS_MOST];
};

/* Ids from [least, least + ids_num). */
void routing_make(struct routing *routing, int64_t tokens, int64_t topk, int64_t least,
                  int64_t ids_num);

/* The routing's rows as sortedIndices. */
struct twin_tensor routing_indices(const struct routing *routing);

/* Workspace full of 0xFF, phase two, workspace back. */
typedef aclnnStatus phase_two_fn(void *workspace, uint64_t bytes, aclOpExecutor *executor,
                                 aclrtStream stream);
extern uint64_t ids_workspace_bytes;
extern aclOpExecutor *ids_executor;
aclnnStatus ids_phase_two(phase_two_fn *phase_two);

/* Both phases must succeed; phase one has set the two above. */
void ids_run(aclnnStatus phase_one, phase_two_fn *phase_two);

/* Phase one is refused so, or (ACLNN_SUCCESS) is not. */
void ids_refused(aclnnStatus phase_one, aclnnStatus expected, const char *words);

#endif
