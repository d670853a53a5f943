/* compute_expert_tokens.c - aclnnMoeComputeExpertTokens: where each expert's slots end in a sorted
 * list of them. */
#include "../../../include/aclnnop/aclnn_moe_compute_expert_tokens.h"
#include "operators/product_rules.h"
#include "operators/routing/tensors.h"
#include "runtime/message.h"

#include <inttypes.h>

enum {
    SORTED,
    OUT
};

enum {
    EXPERTS_MAX = 2048, /* what a product takes */
    SLOTS_MAX = 1 << 24
};

static const struct parameter parameters[] = {
    [SORTED] = {"sortedExperts", &index_types, false, true},
    [OUT] = {"out", &index_types, true, true},
};

static aclnnStatus check_sorted(const aclOpExecutor *executor)
{
    for (int64_t i = 1; i < executor->operands[SORTED].shape[0]; i++) {
        const int64_t before = tensors_load_index(executor, SORTED, i - 1, 0);
        const int64_t here = tensors_load_index(executor, SORTED, i, 0);
        if (here < before)
            return fail(ACLNN_ERR_INNER_TILING_ERROR,
                        "sortedExperts[%" PRId64 "] = %" PRId64 " comes after %" PRId64
                        ", expected an ascending order",
                        i, here, before);
    }
    return ACLNN_SUCCESS;
}

/* One pass: experts and list both ascend. An id that no expert has, as a finished token's, is
 * counted in no end or in all. */
static aclnnStatus call(const aclOpExecutor *executor, const moetoken_options *options,
                        bool check_only)
{
    const int64_t slots = executor->operands[SORTED].shape[0];
    int64_t end = 0;
    (void)options;
    if (check_only || executor_outputs_empty(executor))
        return ACLNN_SUCCESS;
    aclnnStatus status = check_sorted(executor);
    if (status != ACLNN_SUCCESS)
        return status;
    for (int64_t e = 0; e < executor->operands[OUT].shape[0]; e++) {
        while (end < slots && tensors_load_index(executor, SORTED, end, 0) <= e)
            end++;
        tensors_store_index(executor, OUT, e, 0, end);
    }
    return ACLNN_SUCCESS;
}

static moetoken_status no_workspace(const aclOpExecutor *executor, size_t *bytes)
{
    (void)executor;
    *bytes = 0;
    return MOETOKEN_OK;
}

static const struct operator_description description = {
    .name = "aclnnMoeComputeExpertTokens",
    .parameters = parameters,
    .count = sizeof parameters / sizeof parameters[0],
    .shape_status = ACLNN_ERR_INNER_TILING_ERROR,
    .workspace_bytes = no_workspace,
    .call = call};

static aclnnStatus check(aclOpExecutor *executor, int64_t experts_num)
{
    const int64_t slots = executor->operands[SORTED].shape[0];
    const int64_t experts_max = product_named() ? EXPERTS_MAX : INT32_MAX;
    const int64_t slots_max = product_named() ? SLOTS_MAX : INT32_MAX;
    aclnnStatus status = tensors_expect(executor, SORTED, 1, (int64_t[]){-1}, "[N]");
    if (status == ACLNN_SUCCESS && (experts_num < 1 || experts_num > experts_max))
        status = fail(ACLNN_ERR_INNER_TILING_ERROR,
                      "numExperts = %" PRId64 ", expected 1 to %" PRId64, experts_num, experts_max);
    if (status == ACLNN_SUCCESS && slots > slots_max)
        status = fail(ACLNN_ERR_INNER_TILING_ERROR,
                      "sortedExperts has %" PRId64 " values, expected at most %" PRId64, slots,
                      slots_max);
    if (status == ACLNN_SUCCESS)
        status = tensors_expect(executor, OUT, 1, &experts_num, "[numExperts]");
    executor->operands[SORTED].set_aside = executor->operands[OUT].set_aside = true;
    return status == ACLNN_SUCCESS ? executor_check(executor) : status;
}

aclnnStatus aclnnMoeComputeExpertTokensGetWorkspaceSize(const aclTensor *sortedExperts,
                                                        int64_t numExperts, const aclTensor *out,
                                                        uint64_t *workspaceSize,
                                                        aclOpExecutor **executor)
{
    const aclTensor *const tensors[] = {[SORTED] = sortedExperts, [OUT] = out};
    aclOpExecutor *opened;
    aclnnStatus status = executor_open(&description, tensors, workspaceSize, executor, &opened);
    if (status != ACLNN_SUCCESS)
        return status;
    return executor_finish(opened, check(opened, numExperts), 0, 0, workspaceSize, executor);
}

aclnnStatus aclnnMoeComputeExpertTokens(void *workspace, uint64_t workspaceSize,
                                        aclOpExecutor *executor, aclrtStream stream)
{
    return executor_run(&description, workspace, workspaceSize, executor, stream);
}
