/* parts.h - a call's threads, each with rows of its own: "parts" that take tokens until none is
 * left.
 *
 * What a part computes for a token depends on the token alone, so it does not matter which takes
 * it.
 */
#ifndef MOETOKEN_ROUTER_PARTS_H
#define MOETOKEN_ROUTER_PARTS_H

#include "router/scores/scores.h"
#include "tensors/arguments.h"
#include "tensors/workspace.h"

/* The memory of one part: rows of max(E, K), those of whole numbers last. counts begins as zeros.
 */
struct moetoken_router_part {
    double *logits, *scores, *values, *rests, *spare, *weights, *grads;
    int64_t *chosen, *order, *counts;
};

typedef void moetoken_router_token_fn(const void *call, const struct moetoken_router_part *part,
                                      int64_t token);

struct moetoken_router_parts {
    struct moetoken_workspace memory;
    size_t part_bytes;
    int64_t parts_num, row_length, tokens_num;
    double *tail; /* the numbers that the call asked for besides */
    int64_t next; /* the first token that nobody has taken */
    struct moetoken_run run;
    const struct moetoken_score_kernels *kernels;
    moetoken_router_token_fn *body;
    const void *call;
};

/* Bytes for one part with rows of row_length, and `tail` numbers; SIZE_MAX when that is no number.
 */
size_t moetoken_router_least_bytes(int64_t row_length, int64_t tail);

/* Outputs against every other tensor and the workspace, of which all that is given is used, and
 * which must have `least` bytes if there is one. */
moetoken_status moetoken_router_check_memory(const struct moetoken_call *known, size_t least);

/* Decides threads and kernels for a call, and takes the memory. The caller's workspace has been
 * checked against moetoken_router_least_bytes. */
moetoken_status moetoken_router_parts_open(const struct moetoken_call *known, int64_t tokens_num,
                                           int64_t row_length, int64_t tail,
                                           struct moetoken_router_parts *parts);
/* body(call, part, token) for every token. */
void moetoken_router_parts_run(struct moetoken_router_parts *parts, moetoken_router_token_fn *body,
                               const void *call);
/* counts[e] of all parts together. */
int64_t moetoken_router_parts_count(const struct moetoken_router_parts *parts, int64_t expert);
void moetoken_router_parts_close(struct moetoken_router_parts *parts);

/* Row t of a view of `count` columns, as binary64; and back, rounded once. */
static inline void load_row(const struct moetoken_score_kernels *kernels,
                            const struct moetoken_view *view, int64_t t, int64_t count, double *to)
{
    kernels->load(view->type, moetoken_view_at(view, t, 0), view->stride[1], count, to);
}

static inline void store_row(const struct moetoken_score_kernels *kernels,
                             const struct moetoken_view *view, int64_t t, int64_t count,
                             const double *from)
{
    kernels->store(view->type, from, count, moetoken_view_at(view, t, 0), view->stride[1]);
}

static inline bool is_routed(const struct moetoken_view *token_mask, int64_t t)
{
    return !token_mask->given || *moetoken_view_at(token_mask, t, 0) != 0;
}

#endif
