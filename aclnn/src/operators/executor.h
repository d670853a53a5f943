/* executor.h - one checked operator call: made by phase one, run by phase two. The operators' files
 * bring their parameter lists and rules; what all of them share is here. */
#ifndef ACLNN_EXECUTOR_H
#define ACLNN_EXECUTOR_H

#include "operand.h"

#include <moetoken/router.h>

enum {
    OPERANDS_MAX = 12
};

struct operator_description {
    const char *name; /* of the phase-two function */
    const struct parameter *parameters;
    size_t count;
    aclnnStatus shape_status; /* what a wrong shape gets */
    uint32_t flags;           /* of moetoken_options */
    const char *absent_from;  /* a product that has some of these operators but not this one */
    const char *also_on;      /* a product that has this operator and none of the others */
    /* What the calls of moetoken.h want; NULL: moetoken_workspace_size(). */
    moetoken_status (*workspace_bytes)(const aclOpExecutor *executor, size_t *bytes);
    /* Runs the operator through moetoken.h; with check_only, only the checks that need no data.
     * moetoken.h's status goes through executor_result(), which also sets the message. */
    aclnnStatus (*call)(const aclOpExecutor *executor, const moetoken_options *options,
                        bool check_only);
};

/* What phase one is given besides tensors. Each operator sets those it has. */
struct attributes {
    bool drop_and_pad, restore_given, range_given;
    int64_t restore_shape[2], range[2]; /* of a range: begin, end */
    int64_t num_out_tokens, tokens_num, experts_num, topk;
    int64_t active_num, capacity, drop_pad_mode, row_idx_type, count_type;
    moetoken_router_config router;
};

struct aclOpExecutor {
    const struct operator_description *description;
    bool repeatable;
    uint64_t workspace_bytes; /* in all: first moetoken.h's, then scratch_bytes */
    uint64_t scratch_bytes;   /* what the operator itself needs: copies of index tensors */
    void *scratch;            /* phase two: where they are, aligned to 8 bytes */
    struct operand operands[OPERANDS_MAX];
    struct attributes attributes;
};

/* Phase one begins: required pointers, types, formats, and whether the product of MOETOKEN_SOC has
 * the operator. tensors[] is in the order of the parameters; those that are to be ignored are NULL
 * in it. */
aclnnStatus executor_open(const struct operator_description *description,
                          const aclTensor *const tensors[], const uint64_t *workspace_size,
                          aclOpExecutor **out, aclOpExecutor **opened);

/* The operand for moetoken.h: NULL when it is not used. */
const DLTensor *executor_tensor(const aclOpExecutor *executor, int place);

/* `place` has the type of `like` (or is not used); else ACLNN_ERR_PARAM_INVALID. */
aclnnStatus executor_same_type(const aclOpExecutor *executor, int place, int like);

/* probs have the type of the tokens, or float32 with 16-bit tokens (on a named product: with
 * bfloat16 alone); else `status`. */
aclnnStatus executor_probs_type(const aclOpExecutor *executor, int probs, int tokens,
                                aclnnStatus status);

/* Copies an array of two values; without one, or with one of size 0, *given stays false. Other
 * sizes: `status`. */
aclnnStatus executor_pair(const aclIntArray *array, const char *name, int64_t pair[2], bool *given,
                          aclnnStatus status);

/* The same for {T, H}. */
aclnnStatus executor_restore_shape(aclOpExecutor *executor, const aclIntArray *array,
                                   aclnnStatus status);

/* An optional operand of shape [0] is none: programs pass that for what they do not have. */
void executor_drop_vacant(aclOpExecutor *executor, int place);

/* Makes `place` an output that is only filled with zeros. */
void executor_zero_fill(aclOpExecutor *executor, int place);

/* For `call`: moetoken.h's status and message in aclnn's terms. */
aclnnStatus executor_result(const aclOpExecutor *executor, bool check_only, moetoken_status status);

/* Room for `count` elements of `size` bytes more in the scratch, rounded up to 8 bytes. */
aclnnStatus executor_need_scratch(aclOpExecutor *executor, int64_t count, size_t size);

/* All checks of `call` that need no data, and the next one. */
aclnnStatus executor_check(const aclOpExecutor *executor);

/* What moetoken.h checks of its tensors, for those it does not see (zero_fill, set_aside): that
 * they lie apart where either of two is an output. */
aclnnStatus executor_check_unseen(const aclOpExecutor *executor);

/* Whether there is nothing to write. Then no workspace is asked for. */
bool executor_outputs_empty(const aclOpExecutor *executor);

/* The name of an operand, and whether it is to be read or written at all. */
const char *executor_name(const aclOpExecutor *executor, size_t place);
bool executor_touches(const aclOpExecutor *executor, size_t place);

/* Finishes phase one: with any status but ACLNN_SUCCESS the executor is freed; otherwise it becomes
 * *out, and *workspace_size the size of its workspace. */
aclnnStatus executor_finish(aclOpExecutor *executor, aclnnStatus status, int64_t tokens_num,
                            int64_t slots_num, uint64_t *workspace_size, aclOpExecutor **out);

/* The copy that a run works on, as on a device: changes made meanwhile apply to the next run. */
void executor_copy(aclOpExecutor *copy, const aclOpExecutor *executor);

/* Phase two. */
aclnnStatus executor_run(const struct operator_description *description, void *workspace,
                         uint64_t workspace_size, aclOpExecutor *executor, void *stream);

#endif
