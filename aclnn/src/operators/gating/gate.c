/* gate.c - see gate.h. */
#include "operators/gating/gate.h"

#include "operators/routing/tensors.h"
#include "runtime/message.h"

#include <inttypes.h>

static bool uses(const aclOpExecutor *executor, int place)
{
    return place >= 0 && executor->operands[place].used;
}

/* ---- check ---------------------------------------------------------------------------------- */

/* The shape of x with another last size; of one dimension less when that is 0 and `drop` is set. */
static aclnnStatus expect_like_x(const aclOpExecutor *executor, const struct gate_places *places,
                                 int place, int64_t last, const char *why)
{
    const struct operand *x = &executor->operands[places->x];
    int64_t shape[3];
    if (!uses(executor, place))
        return ACLNN_SUCCESS;
    for (int i = 0; i < x->tensor.ndim; i++)
        shape[i] = x->shape[i];
    if (last < 0)
        return tensors_expect(executor, place, x->tensor.ndim - 1, shape, why);
    shape[x->tensor.ndim - 1] = last;
    return tensors_expect(executor, place, x->tensor.ndim, shape, why);
}

static aclnnStatus expect_shapes(const aclOpExecutor *executor, const struct gate_places *places)
{
    const struct operand *x = &executor->operands[places->x];
    const int64_t experts_num = x->shape[x->tensor.ndim - 1];
    const int64_t topk = executor->attributes.router.topk;
    const int of_slots[] = {places->y, places->expert_idx, places->row_idx};
    aclnnStatus status = ACLNN_SUCCESS;
    for (size_t i = 0; i < sizeof of_slots / sizeof of_slots[0] && status == ACLNN_SUCCESS; i++)
        status = expect_like_x(executor, places, of_slots[i], topk,
                               "the shape of x with k as the last size");
    if (status == ACLNN_SUCCESS)
        status = expect_like_x(executor, places, places->finished, -1,
                               "the shape of x without the last size");
    if (status == ACLNN_SUCCESS)
        status = expect_like_x(executor, places, places->scores, experts_num, "the shape of x");
    if (status == ACLNN_SUCCESS && uses(executor, places->bias))
        status = tensors_expect(executor, places->bias, 1, &experts_num, "[E]");
    return status;
}

static aclnnStatus expect_x(const aclOpExecutor *executor, const struct gate_places *places,
                            int rank_max)
{
    const struct operand *x = &executor->operands[places->x];
    const aclnnStatus status = executor->description->shape_status;
    const char *name = executor_name(executor, (size_t)places->x);
    if (x->tensor.ndim < 2 || x->tensor.ndim > rank_max)
        return fail(status, "%s has rank %d, expected 2%s", name, x->tensor.ndim,
                    rank_max > 2 ? " or 3" : "");
    for (int i = 0; i < x->tensor.ndim; i++)
        if (x->shape[i] > INT32_MAX)
            return fail(status, "%s has size %" PRId64 " in dimension %d, expected at most %d",
                        name, x->shape[i], i, INT32_MAX);
    return ACLNN_SUCCESS;
}

static aclnnStatus check_topk(const aclOpExecutor *executor, const struct gate_places *places)
{
    const struct operand *x = &executor->operands[places->x];
    const int64_t topk = executor->attributes.router.topk;
    const int64_t experts_num = x->shape[x->tensor.ndim - 1];
    if (topk >= 0 && topk <= experts_num)
        return ACLNN_SUCCESS;
    return fail(executor->description->shape_status,
                "k = %" PRId64 ", expected 0 to %" PRId64 ", the last size of x", topk,
                experts_num);
}

/* Rank 3 as rank 2, in x and in everything that has its leading sizes. */
static aclnnStatus merge(aclOpExecutor *executor, const struct gate_places *places)
{
    const int all[] = {places->x,       places->y,      places->expert_idx,
                       places->row_idx, places->scores, places->finished};
    const bool deep = executor->operands[places->x].tensor.ndim == 3;
    aclnnStatus status = ACLNN_SUCCESS;
    if (deep && uses(executor, places->finished)) { /* one column, which goes again */
        struct operand *finished = &executor->operands[places->finished];
        finished->tensor.ndim = 3;
        finished->shape[2] = finished->strides[2] = 1;
    }
    for (size_t i = 0; i < sizeof all / sizeof all[0] && status == ACLNN_SUCCESS; i++)
        if (uses(executor, all[i]))
            status = tensors_merge_rows(executor, all[i]);
    return status;
}

/* The numbers that rowIdxOut holds are int32. */
static aclnnStatus check_row_idx(const aclOpExecutor *executor, const struct gate_places *places)
{
    const int64_t tokens_num = executor->operands[places->x].shape[0];
    const int64_t topk = executor->attributes.router.topk;
    int64_t slots;
    if (!uses(executor, places->row_idx) ||
        (!__builtin_mul_overflow(tokens_num, topk, &slots) && slots <= INT32_MAX))
        return ACLNN_SUCCESS;
    return fail(executor->description->shape_status,
                "%s: T * k = %" PRId64 " * %" PRId64 " does not fit in 31 bits",
                executor_name(executor, (size_t)places->row_idx), tokens_num, topk);
}

aclnnStatus gate_expect(aclOpExecutor *executor, const struct gate_places *places, int rank_max)
{
    aclnnStatus status = executor_same_type(executor, places->y, places->x);
    if (status == ACLNN_SUCCESS && places->bias >= 0)
        status = executor_same_type(executor, places->bias, places->x);
    if (status == ACLNN_SUCCESS)
        status = expect_x(executor, places, rank_max);
    if (status == ACLNN_SUCCESS)
        status = check_topk(executor, places);
    if (status == ACLNN_SUCCESS)
        status = expect_shapes(executor, places);
    if (status == ACLNN_SUCCESS)
        status = merge(executor, places);
    return status == ACLNN_SUCCESS ? check_row_idx(executor, places) : status;
}

aclnnStatus gate_check(aclOpExecutor *executor, const struct gate_places *places, int rank_max)
{
    aclnnStatus status = gate_expect(executor, places, rank_max);
    const int unseen[] = {places->finished, places->row_idx};
    for (size_t i = 0; i < sizeof unseen / sizeof unseen[0]; i++)
        if (uses(executor, unseen[i]))
            executor->operands[unseen[i]].set_aside = true;
    return status == ACLNN_SUCCESS ? executor_check(executor) : status;
}

/* ---- call ----------------------------------------------------------------------------------- */

/* A finished token's experts are number E; its weights stay. */
static void store_finished(const aclOpExecutor *executor, const struct gate_places *places)
{
    const int64_t *x = executor->operands[places->x].shape;
    for (int64_t t = 0; t < x[0]; t++)
        for (int64_t k = 0; k < executor->attributes.router.topk &&
                            *tensors_at(&executor->operands[places->finished], t, 0) != 0;
             k++)
            tensors_store_index(executor, places->expert_idx, t, k, x[1]);
}

/* Slots in column order, as aclnnMoeInitRouting takes them. */
static void store_row_idx(const aclOpExecutor *executor, const struct gate_places *places)
{
    const int64_t tokens_num = executor->operands[places->x].shape[0];
    for (int64_t t = 0; t < tokens_num; t++)
        for (int64_t k = 0; k < executor->attributes.router.topk; k++)
            tensors_store_index(executor, places->row_idx, t, k, k * tokens_num + t);
}

static const DLTensor *tensor(const aclOpExecutor *executor, int place)
{
    return place < 0 ? NULL : executor_tensor(executor, place);
}

aclnnStatus gate_call(const aclOpExecutor *executor, const struct gate_places *places,
                      const moetoken_options *options, bool check_only)
{
    const moetoken_router_args args = {.struct_size = sizeof args,
                                       .logits = tensor(executor, places->x),
                                       .bias = tensor(executor, places->bias),
                                       .config = executor->attributes.router,
                                       .expert_ids = tensor(executor, places->expert_idx),
                                       .weights = tensor(executor, places->y),
                                       .scores = tensor(executor, places->scores)};
    if (check_only)
        return executor_result(executor, true, moetoken_router_check(&args, options));
    if (executor_outputs_empty(executor))
        return ACLNN_SUCCESS;
    aclnnStatus status = executor_result(executor, false, moetoken_router(&args, options));
    if (status != ACLNN_SUCCESS)
        return status;
    if (uses(executor, places->finished))
        store_finished(executor, places);
    if (uses(executor, places->row_idx))
        store_row_idx(executor, places);
    return ACLNN_SUCCESS;
}

moetoken_status gate_workspace(const aclOpExecutor *executor, size_t *bytes)
{
    const int64_t *x = executor->operands[0].shape;
    const int64_t most = x[0] > 0 ? x[0] : 1;
    int32_t threads = moetoken_threads_chosen(0);
    threads = threads < most ? threads : (int32_t)most;
    return moetoken_router_workspace_size(x[0], x[1], executor->attributes.router.topk, threads,
                                          bytes);
}
