/* executor_change.c - what programs do with executors between the phases: make them repeatable,
 * give their tensors other addresses, destroy them. */
#include "executor.h"
#include "runtime/message.h"
#include "runtime/registry.h"

#include <pthread.h>

/* Held while any executor is changed or copied. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

void executor_copy(aclOpExecutor *copy, const aclOpExecutor *executor)
{
    pthread_mutex_lock(&lock);
    *copy = *executor;
    pthread_mutex_unlock(&lock);
    for (size_t i = 0; i < OPERANDS_MAX; i++)
        operand_own_arrays(&copy->operands[i]);
}

aclnnStatus aclSetAclOpExecutorRepeatable(aclOpExecutor *executor)
{
    if (executor == NULL)
        return fail(ACLNN_ERR_INNER_NULLPTR, "%s: executor is NULL", __func__);
    if (!registry_hold(RESOURCE_EXECUTOR, executor, __func__))
        return ACLNN_ERR_PARAM_INVALID;
    pthread_mutex_lock(&lock);
    executor->repeatable = true;
    pthread_mutex_unlock(&lock);
    registry_drop(executor);
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

/* With the lock. */
static aclnnStatus move_named(aclOpExecutor *executor, size_t index, aclTensor *tensor, void *addr,
                              enum direction direction, const char *function)
{
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

/* Both held, or neither. */
static bool hold_both(const aclOpExecutor *executor, const aclTensor *tensor, const char *function)
{
    if (!registry_hold(RESOURCE_EXECUTOR, executor, function))
        return false;
    if (registry_hold(RESOURCE_TENSOR, tensor, function))
        return true;
    registry_drop(executor);
    return false;
}

static aclnnStatus set_address(aclOpExecutor *executor, size_t index, aclTensor *tensor, void *addr,
                               enum direction direction, const char *function)
{
    if (executor == NULL || tensor == NULL)
        return fail(ACLNN_ERR_INNER_NULLPTR, "%s: %s is NULL", function,
                    tensor ? "executor" : "tensor");
    if (!hold_both(executor, tensor, function))
        return ACLNN_ERR_PARAM_INVALID;
    pthread_mutex_lock(&lock);
    aclnnStatus status = move_named(executor, index, tensor, addr, direction, function);
    pthread_mutex_unlock(&lock);
    registry_drop(tensor);
    registry_drop(executor);
    return status;
}

/* An element of a list. No operator here takes lists: the tensor stands where the executor uses it.
 */
static aclnnStatus set_element_address(aclOpExecutor *executor, size_t irIndex,
                                       size_t relativeIndex, aclTensorList *tensors, void *addr,
                                       enum direction direction, const char *function)
{
    if (tensors == NULL)
        return fail(ACLNN_ERR_INNER_NULLPTR, "%s: tensors is NULL", function);
    if (!registry_hold(RESOURCE_TENSOR_LIST, tensors, function))
        return ACLNN_ERR_PARAM_INVALID;
    aclnnStatus status;
    if (relativeIndex < tensors->size)
        status = set_address(executor, irIndex, tensors->values[relativeIndex], addr, direction,
                             function);
    else
        status = fail(ACLNN_ERR_PARAM_INVALID, "%s: relativeIndex = %zu, the list has %llu tensors",
                      function, relativeIndex, (unsigned long long)tensors->size);
    registry_drop(tensors);
    return status;
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

aclnnStatus aclSetDynamicInputTensorAddr(aclOpExecutor *executor, size_t irIndex,
                                         const size_t relativeIndex, aclTensorList *tensors,
                                         void *addr)
{
    return set_element_address(executor, irIndex, relativeIndex, tensors, addr, INPUTS, __func__);
}

aclnnStatus aclSetDynamicOutputTensorAddr(aclOpExecutor *executor, size_t irIndex,
                                          const size_t relativeIndex, aclTensorList *tensors,
                                          void *addr)
{
    return set_element_address(executor, irIndex, relativeIndex, tensors, addr, OUTPUTS, __func__);
}

aclnnStatus aclSetDynamicTensorAddr(aclOpExecutor *executor, size_t irIndex,
                                    const size_t relativeIndex, aclTensorList *tensors, void *addr)
{
    return set_element_address(executor, irIndex, relativeIndex, tensors, addr, BOTH, __func__);
}

/* ---- the same under the names with a capital ------------------------------------------------ */

aclnnStatus AclSetInputTensorAddr(aclOpExecutor *executor, const size_t index, aclTensor *tensor,
                                  void *addr)
{
    return set_address(executor, index, tensor, addr, INPUTS, __func__);
}

aclnnStatus AclSetDynamicInputTensorAddr(aclOpExecutor *executor, size_t irIndex,
                                         const size_t relativeIndex, aclTensorList *tensors,
                                         void *addr)
{
    return set_element_address(executor, irIndex, relativeIndex, tensors, addr, INPUTS, __func__);
}

aclnnStatus AclSetOutputTensorAddr(aclOpExecutor *executor, const size_t index, aclTensor *tensor,
                                   void *addr)
{
    return set_address(executor, index, tensor, addr, OUTPUTS, __func__);
}

aclnnStatus AclSetDynamicOutputTensorAddr(aclOpExecutor *executor, size_t irIndex,
                                          const size_t relativeIndex, aclTensorList *tensors,
                                          void *addr)
{
    return set_element_address(executor, irIndex, relativeIndex, tensors, addr, OUTPUTS, __func__);
}

aclnnStatus AclSetTensorAddr(aclOpExecutor *executor, const size_t index, aclTensor *tensor,
                             void *addr)
{
    return set_address(executor, index, tensor, addr, BOTH, __func__);
}

aclnnStatus AclSetDynamicTensorAddr(aclOpExecutor *executor, size_t irIndex,
                                    const size_t relativeIndex, aclTensorList *tensors, void *addr)
{
    return set_element_address(executor, irIndex, relativeIndex, tensors, addr, BOTH, __func__);
}
