/* executor_run.c - phase two of every operator. */
#include "executor.h"
#include "runtime/message.h"
#include "runtime/registry.h"
#include "runtime/stream.h"

#include <inttypes.h>
#include <stdint.h>

enum {
    WORKSPACE_ALIGNMENT = 8 /* as moetoken.h wants it */
};

/* The part of the workspace that is used lies apart from every tensor of the call. */
static aclnnStatus check_workspace_apart(const aclOpExecutor *executor, const char *workspace)
{
    char *first;
    size_t bytes;
    for (size_t i = 0; i < executor->description->count; i++)
        if (executor_touches(executor, i) &&
            operand_bytes(&executor->operands[i], &first, &bytes) && workspace < first + bytes &&
            first < workspace + executor->workspace_bytes)
            return fail(ACLNN_ERR_PARAM_INVALID, "workspace shares memory with %s",
                        executor_name(executor, i));
    return ACLNN_SUCCESS;
}

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
    if ((uintptr_t)workspace % WORKSPACE_ALIGNMENT != 0)
        return fail(ACLNN_ERR_PARAM_INVALID, "workspace = %p is not aligned to %d bytes", workspace,
                    WORKSPACE_ALIGNMENT);
    if (!registry_range(workspace, (size_t)size, "workspace"))
        return ACLNN_ERR_RUNTIME_ERROR;
    return check_workspace_apart(executor, workspace);
}

/* With checks on: the tensor still exists, and its elements lie in live memory. */
static aclnnStatus check_operand(const struct operand *operand, const char *name)
{
    char *first;
    size_t bytes;
    if (!registry_hold(RESOURCE_TENSOR, operand->handle, name))
        return ACLNN_ERR_PARAM_INVALID;
    registry_drop(operand->handle);
    if (operand_bytes(operand, &first, &bytes) && !registry_range(first, bytes, name))
        return ACLNN_ERR_RUNTIME_ERROR;
    return ACLNN_SUCCESS;
}

static aclnnStatus check_operands(const aclOpExecutor *executor)
{
    aclnnStatus status = ACLNN_SUCCESS;
    for (size_t i = 0; i < executor->description->count && status == ACLNN_SUCCESS; i++)
        if (executor_touches(executor, i))
            status = check_operand(&executor->operands[i], executor_name(executor, i));
    return status;
}

/* With checks on: what a device cannot reach, named in the message; NULL when it reaches all. */
static const char *unreachable(const aclOpExecutor *executor, const void *workspace)
{
    char *first;
    size_t bytes;
    for (size_t i = 0; i < executor->description->count; i++)
        if (executor_touches(executor, i) &&
            operand_bytes(&executor->operands[i], &first, &bytes) &&
            !registry_known(RESOURCE_DEVICE_MEMORY, first))
            return executor_name(executor, i);
    if (executor->workspace_bytes > 0 && !registry_known(RESOURCE_DEVICE_MEMORY, workspace))
        return "workspace";
    return NULL;
}

static aclnnStatus check_data(const aclOpExecutor *executor)
{
    for (size_t i = 0; i < executor->description->count; i++) {
        const struct operand *operand = &executor->operands[i];
        if ((operand->zero_fill || operand->set_aside) && !operand_is_empty(operand) &&
            operand->tensor.data == NULL)
            return fail(ACLNN_ERR_PARAM_NULLPTR, "%s has no data", executor_name(executor, i));
    }
    return executor_check_unseen(executor); /* addresses may have changed */
}

static aclnnStatus compute(const aclOpExecutor *executor, void *workspace)
{
    const struct operator_description *description = executor->description;
    moetoken_options options = {.flags = description->flags};
    if (executor->workspace_bytes > 0) {
        options.workspace = workspace;
        options.workspace_bytes = (size_t)(executor->workspace_bytes - executor->scratch_bytes);
    }
    aclnnStatus status = check_data(executor);
    if (status != ACLNN_SUCCESS)
        return status;
    status = description->call(executor, &options, false);
    if (status != ACLNN_SUCCESS)
        return status;
    for (size_t i = 0; i < description->count; i++)
        if (executor->operands[i].zero_fill)
            operand_fill_zero(&executor->operands[i]);
    return ACLNN_SUCCESS;
}

/* In the executor's turn. With checks on, memory that a device cannot reach is what it is there:
 * not computed with, and an exception when the stream is synchronised. */
static aclnnStatus run(const aclOpExecutor *executor, void *workspace, struct stream *stream)
{
    if (!registry_checks())
        return compute(executor, workspace);
    aclnnStatus status = check_operands(executor);
    if (status != ACLNN_SUCCESS)
        return status;
    const char *name = unreachable(executor, workspace);
    if (name == NULL)
        return compute(executor, workspace);
    fail(0, "%s: %s is not in device memory", executor->description->name, name);
    registry_report(recent_message());
    stream_set_fault(stream, ACL_ERROR_RT_AICORE_EXCEPTION);
    return ACLNN_SUCCESS;
}

#define CONSUMED_NAME "executor (its first run consumes it unless it is repeatable)"

/* Between the checks and the run: from here on nobody else can run an executor that is not
 * repeatable. */
static aclnnStatus claim(const aclOpExecutor *copy, const aclOpExecutor *executor)
{
    if (copy->repeatable)
        return ACLNN_SUCCESS;
    if (!registry_take(RESOURCE_EXECUTOR, executor, CONSUMED_NAME))
        return ACLNN_ERR_PARAM_INVALID;
    registry_drop(executor);
    return ACLNN_SUCCESS;
}

/* With executor and stream held. */
static aclnnStatus run_in_turn(const aclOpExecutor *copy, const aclOpExecutor *executor,
                               void *workspace, struct stream *stream)
{
    uint64_t turn;
    if (stream_reserve_turn(stream, "stream", &turn) != ACL_SUCCESS)
        return ACLNN_ERR_RUNTIME_ERROR;
    aclnnStatus status = claim(copy, executor);
    stream_await_turn(stream, turn);
    if (status == ACLNN_SUCCESS)
        status = run(copy, workspace, stream);
    stream_end_turn(stream);
    return status;
}

/* With the executor held. */
static aclnnStatus check_and_run(const struct operator_description *description, void *workspace,
                                 uint64_t size, const aclOpExecutor *executor, void *stream)
{
    struct stream *target;
    aclOpExecutor copy;
    if (executor->description != description)
        return fail(ACLNN_ERR_PARAM_INVALID, "executor is one of %s", executor->description->name);
    executor_copy(&copy, executor);
    aclnnStatus status = check_workspace(&copy, workspace, size);
    if (status != ACLNN_SUCCESS)
        return status;
    if (copy.scratch_bytes > 0)
        copy.scratch = (char *)workspace + (copy.workspace_bytes - copy.scratch_bytes);
    if (stream_hold(stream, "stream", &target) != ACL_SUCCESS)
        return ACLNN_ERR_RUNTIME_ERROR;
    status = run_in_turn(&copy, executor, workspace, target);
    stream_drop(target);
    return status;
}

aclnnStatus executor_run(const struct operator_description *description, void *workspace,
                         uint64_t workspace_size, aclOpExecutor *executor, void *stream)
{
    aclnnStatus status = ACLNN_ERR_PARAM_INVALID;
    if (executor == NULL)
        status = fail(ACLNN_ERR_PARAM_NULLPTR, "executor is NULL");
    else if (registry_hold(RESOURCE_EXECUTOR, executor, CONSUMED_NAME)) {
        status = check_and_run(description, workspace, workspace_size, executor, stream);
        registry_drop(executor);
    }
    return status == ACLNN_SUCCESS ? status
                                   : fail(status, "%s: %s", description->name, recent_message());
}
