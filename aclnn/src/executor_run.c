/* executor_run.c - phase two of every operator, and what programs do with executors between the
 * phases. */
#include "executor.h"
#include "message.h"
#include "registry.h"
#include "status.h"
#include "stream.h"

#include <inttypes.h>

static aclnnStatus check_workspace(const aclOpExecutor *executor, const void *workspace,
                                   uint64_t size)
{
    if (executor->workspace_bytes == 0)
        return ACLNN_SUCCESS;
    if (workspace == NULL)
        return fail(ACLNN_ERR_PARAM_NULLPTR, "workspace is NULL, expected %" PRIu64 " bytes",
                    executor->workspace_bytes);
    if (size < executor->workspace_bytes)
        return fail(ACLNN_ERR_PARAM_INVALID, "workspaceSize = %" PRIu64 ", expected %" PRIu64, size,
                    executor->workspace_bytes);
    if (!registry_range(workspace, (size_t)size, "workspace"))
        return ACLNN_ERR_RUNTIME_ERROR;
    return ACLNN_SUCCESS;
}

static aclnnStatus check_executor(const struct operator_description *description,
                                  const aclOpExecutor *executor)
{
    if (executor == NULL)
        return fail(ACLNN_ERR_PARAM_NULLPTR, "executor is NULL");
    if (!registry_live(RESOURCE_EXECUTOR, executor,
                       "executor (its first run consumes it unless it is repeatable)"))
        return ACLNN_ERR_PARAM_INVALID;
    if (executor->description != description)
        return fail(ACLNN_ERR_PARAM_INVALID, "executor is one of %s", executor->description->name);
    return ACLNN_SUCCESS;
}

/* With checks on: the tensors still exist, and their elements lie in live memory. */
static aclnnStatus check_operand(const struct operand *operand, const char *name)
{
    char *first;
    size_t bytes;
    if (!registry_live(RESOURCE_TENSOR, operand->handle, name))
        return ACLNN_ERR_PARAM_INVALID;
    if (operand_bytes(operand, &first, &bytes) && !registry_range(first, bytes, name))
        return ACLNN_ERR_RUNTIME_ERROR;
    return ACLNN_SUCCESS;
}

static aclnnStatus check_operands(const aclOpExecutor *executor)
{
    aclnnStatus status = ACLNN_SUCCESS;
    if (!registry_checks())
        return status;
    for (size_t i = 0; i < executor->description->count && status == ACLNN_SUCCESS; i++) {
        const struct operand *operand = &executor->operands[i];
        if (operand->used || (operand->handle && operand == executor->zero_filled))
            status = check_operand(operand, executor->description->parameters[i].name);
    }
    return status;
}

static aclnnStatus compute(const aclOpExecutor *executor, void *workspace, uint64_t size)
{
    const struct operator_description *description = executor->description;
    const struct operand *zero = executor->zero_filled;
    moetoken_options options = {.flags = description->flags};
    if (executor->workspace_bytes > 0) {
        options.workspace = workspace;
        options.workspace_bytes = (size_t)size;
    }
    if (zero && !operand_is_empty(zero) && zero->tensor.data == NULL)
        return fail(ACLNN_ERR_PARAM_NULLPTR, "%s has no data",
                    description->parameters[zero - executor->operands].name);
    aclnnStatus status = executor_check_zero_filled(executor); /* addresses may have changed */
    if (status != ACLNN_SUCCESS)
        return status;
    moetoken_status result = description->call(executor, &options, false);
    if (result != MOETOKEN_OK)
        return fail(status_of_run(result, description->shape_status), "%s", moetoken_last_error());
    if (zero)
        operand_fill_zero(zero);
    return ACLNN_SUCCESS;
}

static aclnnStatus run_in_turn(aclOpExecutor *executor, void *workspace, uint64_t size,
                               struct stream *stream)
{
    stream_begin(stream);
    aclnnStatus status = check_operands(executor);
    if (status == ACLNN_SUCCESS)
        status = compute(executor, workspace, size);
    stream_end(stream);
    if (!executor->repeatable)
        registry_release(RESOURCE_EXECUTOR, executor, "executor", NULL);
    return status;
}

aclnnStatus executor_run(const struct operator_description *description, void *workspace,
                         uint64_t workspace_size, aclOpExecutor *executor, void *stream)
{
    struct stream *target;
    aclnnStatus status = check_executor(description, executor);
    if (status == ACLNN_SUCCESS)
        status = check_workspace(executor, workspace, workspace_size);
    if (status == ACLNN_SUCCESS && stream_of(stream, "stream", &target) != ACL_SUCCESS)
        status = ACLNN_ERR_RUNTIME_ERROR;
    if (status == ACLNN_SUCCESS)
        status = run_in_turn(executor, workspace, workspace_size, target);
    return status == ACLNN_SUCCESS ? status
                                   : fail(status, "%s: %s", description->name, recent_message());
}

aclnnStatus aclSetAclOpExecutorRepeatable(aclOpExecutor *executor)
{
    if (executor == NULL)
        return fail(ACLNN_ERR_PARAM_NULLPTR, "%s: executor is NULL", __func__);
    if (!registry_live(RESOURCE_EXECUTOR, executor, __func__))
        return ACLNN_ERR_PARAM_INVALID;
    executor->repeatable = true;
    return ACLNN_SUCCESS;
}

aclnnStatus aclDestroyAclOpExecutor(aclOpExecutor *executor)
{
    if (executor == NULL)
        return ACLNN_SUCCESS;
    bool live = registry_release(RESOURCE_EXECUTOR, executor, __func__, NULL);
    return live ? ACLNN_SUCCESS : ACLNN_ERR_PARAM_INVALID;
}

enum direction {
    INPUTS,
    OUTPUTS,
    BOTH
};

/* The operand that has number `index` among the inputs, the outputs or all; NULL when none has. */
static struct operand *operand_at(aclOpExecutor *executor, size_t index, enum direction direction)
{
    for (size_t i = 0; i < executor->description->count; i++) {
        bool output = executor->description->parameters[i].output;
        if ((direction == INPUTS && output) || (direction == OUTPUTS && !output))
            continue;
        if (index-- == 0)
            return &executor->operands[i];
    }
    return NULL;
}

/* Gives the address to every operand that is this tensor; false when none is. */
static bool move_operands(aclOpExecutor *executor, const aclTensor *tensor, void *addr)
{
    bool found = false;
    for (size_t i = 0; i < executor->description->count; i++) {
        struct operand *operand = &executor->operands[i];
        if (operand->handle == tensor) {
            operand->tensor.data = addr;
            found = true;
        }
    }
    return found;
}

static aclnnStatus set_address(aclOpExecutor *executor, size_t index, aclTensor *tensor, void *addr,
                               enum direction direction, const char *function)
{
    if (executor == NULL || tensor == NULL)
        return fail(ACLNN_ERR_INNER_NULLPTR, "%s: %s is NULL", function,
                    tensor ? "executor" : "tensor");
    if (!registry_live(RESOURCE_EXECUTOR, executor, function) ||
        !registry_live(RESOURCE_TENSOR, tensor, function))
        return ACLNN_ERR_PARAM_INVALID;
    struct operand *named = operand_at(executor, index, direction);
    if (named == NULL)
        return fail(ACLNN_ERR_PARAM_INVALID, "%s: index = %zu is behind the last tensor of %s",
                    function, index, executor->description->name);
    if (!move_operands(executor, tensor, addr)) { /* another description of the same tensor */
        if (named->handle == NULL)
            return fail(ACLNN_ERR_PARAM_INVALID, "%s: the executor has no tensor at index = %zu",
                        function, index);
        named->handle = tensor;
        named->tensor.data = addr;
    }
    tensor->data = addr;
    return ACLNN_SUCCESS;
}

aclnnStatus aclSetInputTensorAddr(aclOpExecutor *executor, const size_t index, aclTensor *tensor,
                                  void *addr)
{
    return set_address(executor, index, tensor, addr, INPUTS, __func__);
}

aclnnStatus aclSetOutputTensorAddr(aclOpExecutor *executor, const size_t index, aclTensor *tensor,
                                   void *addr)
{
    return set_address(executor, index, tensor, addr, OUTPUTS, __func__);
}

aclnnStatus aclSetTensorAddr(aclOpExecutor *executor, const size_t index, aclTensor *tensor,
                             void *addr)
{
    return set_address(executor, index, tensor, addr, BOTH, __func__);
}
