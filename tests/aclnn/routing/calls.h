/* calls.h - a call of each operator that is right, of which a test changes one thing: here those
 * of init, finalize and re-routing. */
#ifndef TESTS_ACLNN_ROUTING_CALLS_H
#define TESTS_ACLNN_ROUTING_CALLS_H

#include "support.h"

enum {
    TENSORS_MAX = 8,
    OPTIONS_MAX = 8,
    NUMBERS_MAX = 2
};

struct call {
    struct values tensor[TENSORS_MAX]; /* in the order of the prototype */
    int64_t option[OPTIONS_MAX];       /* the whole numbers of the prototype, in its order */
    double number[NUMBERS_MAX];        /* the others */
    const aclIntArray *range;
    uint64_t bytes;
    aclOpExecutor *executor;
};

struct tested {
    struct call (*make)(void);
    aclnnStatus (*phase_one)(struct call *call);
    phase_two phase_two;
    int first_output;
};

/* T = 3, K = 2, H = 2, E = 3. The padded ones have C = 2. */
extern const struct tested init_v1, init_v2, init_v2_padded, init_v3, init_v3_padded, init_grad,
    finalize_v1, finalize_v2, finalize_grad, finalize_grad_padded, re_routing;
extern const double call_x[6];

/* All that the program is linked with: these, or those of the gating operators. */
extern const struct tested *const all_operators[];
extern const int operators_num;

void call_drop(struct call *call);
/* Another range; what was there is destroyed. */
void call_set_range(struct call *call, const int64_t *values, uint64_t count);
/* Another tensor at `place`; without data: none. */
void call_replace(struct call *call, int place, struct values by);

/* Phase one gives that status and a message that holds `words`: for the call as it is, which is
 * dropped; and for a right call without the tensor at `place`, with another one, with another whole
 * number. */
void expect_refused(const struct tested *tested, struct call *call, aclnnStatus status,
                    const char *words, int line);
void refuse_without(const struct tested *tested, int place, aclnnStatus status, const char *words,
                    int line);
void refuse_with(const struct tested *tested, int place, struct values by, aclnnStatus status,
                 const char *words, int line);
void refuse_option(const struct tested *tested, int number, int64_t value, aclnnStatus status,
                   const char *words, int line);
/* Phase one succeeds with another tensor at `place`; phase two refuses its values, and writes
 * nothing. */
void refuse_values(const struct tested *tested, int place, struct values by, const char *words,
                   int line);
#define REFUSED_WITHOUT(tested, place, status, words)                                              \
    refuse_without(&(tested), place, status, words, __LINE__)
#define REFUSED_WITH(tested, place, by, status, words)                                             \
    refuse_with(&(tested), place, by, status, words, __LINE__)
#define REFUSED_OPTION(tested, number, value, status, words)                                       \
    refuse_option(&(tested), number, value, status, words, __LINE__)
#define INTS(...) ((const double[]){__VA_ARGS__})
#define VALUES_REFUSED(tested, place, by, words)                                                   \
    refuse_values(&(tested), place, by, words, __LINE__)
#define NULLPTR ACLNN_ERR_PARAM_NULLPTR
#define INVALID ACLNN_ERR_PARAM_INVALID
#define TILING  ACLNN_ERR_INNER_TILING_ERROR

#endif
