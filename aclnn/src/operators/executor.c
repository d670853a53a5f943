/* executor.c - phase one of every operator: from the program's tensors to a checked executor. */
#include "executor.h"

#include "product_rules.h"
#include "products/limits.h"
#include "runtime/message.h"
#include "runtime/registry.h"
#include "status.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* Puts the function's name in front of the message. */
static aclnnStatus named(const struct operator_description *description, aclnnStatus status)
{
    return fail(status, "%sGetWorkspaceSize: %s", description->name, recent_message());
}

static aclnnStatus check_pointers(const struct operator_description *description,
                                  const aclTensor *const tensors[])
{
    for (size_t i = 0; i < description->count; i++)
        if (tensors[i] == NULL && description->parameters[i].required)
            return fail(ACLNN_ERR_PARAM_NULLPTR, "%s is NULL", description->parameters[i].name);
    return ACLNN_SUCCESS;
}

static void drop_tensors(const aclTensor *const tensors[], size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (tensors[i])
            registry_drop(tensors[i]);
}

/* Holds all tensors that are given, or none. */
static aclnnStatus hold_tensors(const struct operator_description *description,
                                const aclTensor *const tensors[])
{
    for (size_t i = 0; i < description->count; i++)
        if (tensors[i] &&
            !registry_hold(RESOURCE_TENSOR, tensors[i], description->parameters[i].name)) {
            drop_tensors(tensors, i);
            return ACLNN_ERR_PARAM_INVALID;
        }
    return ACLNN_SUCCESS;
}

static aclnnStatus check_types(const struct operator_description *description,
                               const aclTensor *const tensors[])
{
    aclnnStatus status = ACLNN_SUCCESS;
    for (size_t i = 0; i < description->count && status == ACLNN_SUCCESS; i++)
        if (tensors[i])
            status = operand_check(tensors[i], &description->parameters[i]);
    return status;
}

static aclnnStatus check_product(const struct operator_description *description)
{
    const char *name = getenv("MOETOKEN_SOC");
    const struct product *product = limits_find_product(name);
    if (product == NULL)
        return fail(ACLNN_ERR_INNER_FIND_KERNEL_ERROR, "MOETOKEN_SOC = %s is none of %s", name,
                    LIMITS_PRODUCT_NAMES);
    const char *absent_from = description->absent_from, *also_on = description->also_on;
    const bool has = product->has_operators || (also_on && strcmp(product->name, also_on) == 0);
    if (!has || (absent_from && strcmp(product->name, absent_from) == 0))
        return fail(ACLNN_ERR_INNER_FIND_KERNEL_ERROR,
                    "MOETOKEN_SOC = %s (%s) does not have this operator", product->name,
                    product->sold_as);
    return ACLNN_SUCCESS;
}

/* An executor for tensors that are held and of types that the operator takes. */
static aclnnStatus create(const struct operator_description *description,
                          const aclTensor *const tensors[], aclOpExecutor **created)
{
    aclOpExecutor *executor = registry_create(RESOURCE_EXECUTOR, sizeof *executor, NULL);
    if (executor == NULL)
        return fail(ACLNN_ERR_INNER, "no memory");
    executor->description = description;
    for (size_t i = 0; i < description->count; i++)
        if (tensors[i])
            operand_set(&executor->operands[i], tensors[i]);
    *created = executor;
    return ACLNN_SUCCESS;
}

static aclnnStatus open_held(const struct operator_description *description,
                             const aclTensor *const tensors[], aclOpExecutor **opened)
{
    aclnnStatus status = check_types(description, tensors);
    if (status == ACLNN_SUCCESS)
        status = check_product(description);
    if (status == ACLNN_SUCCESS)
        status = create(description, tensors, opened);
    return status;
}

aclnnStatus executor_open(const struct operator_description *description,
                          const aclTensor *const tensors[], const uint64_t *workspace_size,
                          aclOpExecutor **out, aclOpExecutor **opened)
{
    if (workspace_size == NULL || out == NULL) {
        fail(0, "%s is NULL", out ? "workspaceSize" : "executor");
        return named(description, ACLNN_ERR_PARAM_NULLPTR);
    }
    aclnnStatus status = check_pointers(description, tensors);
    if (status == ACLNN_SUCCESS)
        status = hold_tensors(description, tensors);
    if (status != ACLNN_SUCCESS)
        return named(description, status);
    status = open_held(description, tensors, opened);
    drop_tensors(tensors, description->count);
    return status == ACLNN_SUCCESS ? status : named(description, status);
}

const DLTensor *executor_tensor(const aclOpExecutor *executor, int place)
{
    return executor->operands[place].used ? &executor->operands[place].tensor : NULL;
}

aclnnStatus executor_same_type(const aclOpExecutor *executor, int place, int like)
{
    const struct operand *operand = &executor->operands[place], *model = &executor->operands[like];
    if (!operand->used || operand->type == model->type)
        return ACLNN_SUCCESS;
    return fail(ACLNN_ERR_PARAM_INVALID, "%s has data type %d, expected %d, the type of %s",
                executor->description->parameters[place].name, (int)operand->type, (int)model->type,
                executor->description->parameters[like].name);
}

aclnnStatus executor_probs_type(const aclOpExecutor *executor, int probs, int tokens,
                                aclnnStatus status)
{
    const struct operand *operand = &executor->operands[probs];
    aclDataType token_type = executor->operands[tokens].type;
    if (!operand->used || operand->type == token_type)
        return ACLNN_SUCCESS;
    if (operand->type == ACL_FLOAT && token_type != ACL_BF16 && product_named())
        return fail(status, "%s is of ACL_FLOAT: a product takes that with bfloat16 tokens only",
                    executor_name(executor, (size_t)probs));
    if (operand->type == ACL_FLOAT)
        return ACLNN_SUCCESS;
    return fail(status, "%s has data type %d, expected %d, the type of %s, or ACL_FLOAT",
                executor->description->parameters[probs].name, (int)operand->type, (int)token_type,
                executor->description->parameters[tokens].name);
}

static aclnnStatus copy_pair(const aclIntArray *array, const char *name, int64_t pair[2],
                             bool *given, aclnnStatus status)
{
    if (array->size == 0)
        return ACLNN_SUCCESS;
    if (array->size != 2)
        return fail(status, "%s has %" PRIu64 " values, expected 2", name, array->size);
    *given = true;
    pair[0] = array->values[0];
    pair[1] = array->values[1];
    return ACLNN_SUCCESS;
}

aclnnStatus executor_pair(const aclIntArray *array, const char *name, int64_t pair[2], bool *given,
                          aclnnStatus status)
{
    if (array == NULL)
        return ACLNN_SUCCESS;
    if (!registry_hold(RESOURCE_INT_ARRAY, array, name))
        return ACLNN_ERR_PARAM_INVALID;
    status = copy_pair(array, name, pair, given, status);
    registry_drop(array);
    return status;
}

aclnnStatus executor_restore_shape(aclOpExecutor *executor, const aclIntArray *array,
                                   aclnnStatus status)
{
    struct attributes *attributes = &executor->attributes;
    return executor_pair(array, "restoreShape", attributes->restore_shape,
                         &attributes->restore_given, status);
}

void executor_drop_vacant(aclOpExecutor *executor, int place)
{
    struct operand *operand = &executor->operands[place];
    if (operand->tensor.ndim == 1 && operand->shape[0] == 0)
        operand->used = false;
}

void executor_zero_fill(aclOpExecutor *executor, int place)
{
    executor->operands[place].used = false;
    executor->operands[place].zero_fill = true;
}

const char *executor_name(const aclOpExecutor *executor, size_t place)
{
    return executor->description->parameters[place].name;
}

bool executor_touches(const aclOpExecutor *executor, size_t place)
{
    return executor->operands[place].used || executor->operands[place].zero_fill;
}

aclnnStatus executor_result(const aclOpExecutor *executor, bool check_only, moetoken_status status)
{
    aclnnStatus shape_status = executor->description->shape_status;
    if (status == MOETOKEN_OK)
        return ACLNN_SUCCESS;
    return fail(check_only ? status_of_check(status, shape_status)
                           : status_of_run(status, shape_status),
                "%s", moetoken_last_error());
}

/* Whether an operand that moetoken.h does not see has strides that will do, and shares memory with
 * another one. */
static aclnnStatus check_unseen(const aclOpExecutor *executor, size_t place)
{
    char *first, *other;
    size_t bytes, other_bytes;
    const struct operand *unseen = &executor->operands[place];
    const struct parameter *parameters = executor->description->parameters;
    aclnnStatus status = executor->description->shape_status;
    if (operand_is_empty(unseen) || unseen->tensor.data == NULL)
        return ACLNN_SUCCESS;
    if (!operand_bytes(unseen, &first, &bytes))
        return fail(status, "%s: sizes and strides do not fit in 64 bits",
                    executor_name(executor, place));
    if (!operand_strides_fit(unseen, parameters[place].output))
        return fail(status, "%s: a stride is negative, or two of its elements share memory",
                    executor_name(executor, place));
    for (size_t i = 0; i < executor->description->count; i++)
        if (i != place && (parameters[i].output || parameters[place].output) &&
            executor_touches(executor, i) &&
            operand_bytes(&executor->operands[i], &other, &other_bytes) &&
            first < other + other_bytes && other < first + bytes)
            return fail(status, "%s shares memory with %s", executor_name(executor, place),
                        executor_name(executor, i));
    return ACLNN_SUCCESS;
}

aclnnStatus executor_check_unseen(const aclOpExecutor *executor)
{
    aclnnStatus status = ACLNN_SUCCESS;
    for (size_t i = 0; i < executor->description->count && status == ACLNN_SUCCESS; i++)
        if (executor->operands[i].zero_fill || executor->operands[i].set_aside)
            status = check_unseen(executor, i);
    return status;
}

aclnnStatus executor_check(const aclOpExecutor *executor)
{
    moetoken_options options = {.flags = executor->description->flags};
    aclnnStatus status = executor->description->call(executor, &options, true);
    return status == ACLNN_SUCCESS ? executor_check_unseen(executor) : status;
}

aclnnStatus executor_need_scratch(aclOpExecutor *executor, int64_t count, size_t size)
{
    uint64_t bytes;
    if (__builtin_mul_overflow(count, size, &bytes) ||
        __builtin_add_overflow(bytes, UINT64_C(7) + executor->scratch_bytes, &bytes))
        return fail(executor->description->shape_status,
                    "workspace for %" PRId64 " elements does not fit in 64 bits", count);
    executor->scratch_bytes = bytes & ~UINT64_C(7);
    return ACLNN_SUCCESS;
}

bool executor_outputs_empty(const aclOpExecutor *executor)
{
    for (size_t i = 0; i < executor->description->count; i++)
        if (executor->description->parameters[i].output && executor->operands[i].handle &&
            !operand_is_empty(&executor->operands[i]))
            return false;
    return true;
}

static aclnnStatus find_workspace(aclOpExecutor *executor, int64_t tokens_num, int64_t slots_num)
{
    size_t bytes;
    if (executor_outputs_empty(executor)) {
        executor->scratch_bytes = 0;
        return ACLNN_SUCCESS;
    }
    moetoken_status status = executor->description->workspace_bytes
                                 ? executor->description->workspace_bytes(executor, &bytes)
                                 : moetoken_workspace_size(tokens_num, slots_num, &bytes);
    if (status != MOETOKEN_OK)
        return executor_result(executor, true, status);
    if (__builtin_add_overflow(bytes, executor->scratch_bytes, &executor->workspace_bytes))
        return fail(executor->description->shape_status,
                    "workspace: %zu and %" PRIu64 " bytes do not fit in 64 bits", bytes,
                    executor->scratch_bytes);
    return ACLNN_SUCCESS;
}

aclnnStatus executor_finish(aclOpExecutor *executor, aclnnStatus status, int64_t tokens_num,
                            int64_t slots_num, uint64_t *workspace_size, aclOpExecutor **out)
{
    const struct operator_description *description = executor->description;
    if (status == ACLNN_SUCCESS)
        status = find_workspace(executor, tokens_num, slots_num);
    if (status != ACLNN_SUCCESS) {
        named(description, status);
        registry_release(RESOURCE_EXECUTOR, executor, description->name, NULL);
        return status;
    }
    *workspace_size = executor->workspace_bytes;
    *out = executor;
    return ACLNN_SUCCESS;
}
