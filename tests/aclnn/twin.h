/* twin.h - what the tests of the aclnn layer share: device tensors in one call, and unpermute_grad
 * with the worked example's arguments, of which a test changes one. Uses CANN's interface alone. */
#ifndef TESTS_ACLNN_TWIN_H
#define TESTS_ACLNN_TWIN_H

#include "acl/acl.h"
#include "aclnn/aclnn_base.h"
#include "aclnnop/aclnn_moe_token_permute_with_routing_map.h"
#include "aclnnop/aclnn_moe_token_permute_with_routing_map_grad.h"
#include "aclnnop/aclnn_moe_token_unpermute_with_routing_map.h"
#include "aclnnop/aclnn_moe_token_unpermute_with_routing_map_grad.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* cmocka fixtures: aclInit, device and stream; and back, which wants nothing to be left. */
int twin_setup(void **state);
int twin_teardown(void **state);
extern aclrtStream twin_stream;

/* A tensor on the device. */
struct twin_tensor {
    aclTensor *tensor;
    void *data;
    size_t bytes;
};

/* Contiguous, of rank 2, or 1 when columns is negative. host may be NULL: every byte is 0xFF, NaN
 * in each floating-point type. */
struct twin_tensor twin_make(aclDataType type, int64_t rows, int64_t columns, const void *host);
void twin_drop(struct twin_tensor *tensor);
void twin_read(const struct twin_tensor *tensor, void *host);

/* The contract's worked example: T = 3, E = 3, K = 2, R = 5, here with H = 2. */
enum {
    EXAMPLE_T = 3,
    EXAMPLE_H = 2,
    EXAMPLE_E = 3,
    EXAMPLE_N = 6,
    EXAMPLE_R = 5
};
extern const float example_grad[6], example_rows[10], example_probs[9];
extern const int8_t example_map[9];
extern const int32_t example_out_index[6], example_token_id[6];
extern const float example_rows_grad[10], example_probs_grad[9]; /* the results */

/* The arguments of unpermute_grad's phase one, the worked example at first. */
struct grad_call {
    struct twin_tensor grad, out_index, token_id, map, rows, probs, rows_grad, probs_grad;
    bool drop_and_pad;
    const aclIntArray *restore_shape;
    uint64_t workspace_bytes;
    aclOpExecutor *executor;
};
struct grad_call grad_call_make(void);
void grad_call_drop(struct grad_call *call);
aclnnStatus grad_call_phase_one(struct grad_call *call);
/* Workspace, phase two on the test's stream, workspace back. */
aclnnStatus grad_call_phase_two(struct grad_call *call);
/* Takes another tensor instead of the one at `place`, which is dropped. */
void twin_replace(struct twin_tensor *place, struct twin_tensor by);

/* Fails unless the status is that, and the message holds `words`. */
#define assert_fails(status, expected, words) twin_assert_fails(status, expected, words, __LINE__)
void twin_assert_fails(int status, int expected, const char *words, int line);

#endif
