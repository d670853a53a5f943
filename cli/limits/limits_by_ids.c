/* limits_by_ids.c - see limits_by_ids.h. The case's shapes and types -> products/limits_by_ids.h,
 * whose numbers phase one of the aclnn layer goes by -> a line a product and operator. */
#include "limits_by_ids.h"

#include <inttypes.h>

#include "products/limits_by_ids.h"
#include "terminal/options.h"
#include "values/number_formats.h"

enum {
    REASON_SIZE = 512
};

/* The tensors that tell which operator it is and what it is given. */
struct tensors {
    const DLTensor *tokens, *ids, *weights, *sorted, *residual, *bias;
};

static bool holds(const struct case_files *files, const char *name)
{
    const DLTensor *tensor;
    return case_tensor(files, name, false, &tensor) && tensor != NULL;
}

/* The operator's tokens tell the step: no other step has a tensor of that name among its inputs but
 * permuted_tokens, which unpermute_grad has too. */
static const char *const tokens_names[] = {
    [LIMITS_PERMUTE] = "tokens",
    [LIMITS_PERMUTE_GRAD] = "permuted_tokens_grad",
    [LIMITS_UNPERMUTE] = "permuted_tokens",
    [LIMITS_UNPERMUTE_GRAD] = "unpermuted_tokens_grad",
};

static enum limits_step step_of(const struct case_files *files)
{
    enum limits_step step = LIMITS_UNPERMUTE_GRAD;
    if (holds(files, tokens_names[step]))
        return step;
    for (step = LIMITS_PERMUTE; step < LIMITS_UNPERMUTE; step++)
        if (holds(files, tokens_names[step]))
            return step;
    return LIMITS_UNPERMUTE;
}

bool limits_are_by_ids(const struct case_files *files)
{
    const enum limits_step step = step_of(files);
    if (holds(files, "routing_map") || holds(files, "probs") || !holds(files, tokens_names[step]))
        return false;
    if (step == LIMITS_PERMUTE)
        return holds(files, "expert_ids");
    return step == LIMITS_UNPERMUTE_GRAD ? holds(files, "weights") : holds(files, "sorted_indices");
}

static bool find_tensors(const struct case_files *files, enum limits_step step,
                         struct tensors *tensors)
{
    const bool gradient = step == LIMITS_PERMUTE_GRAD, permutes = step == LIMITS_PERMUTE;
    const char *sorted = step == LIMITS_UNPERMUTE_GRAD ? "out_index" : "sorted_indices";
    return case_tensor(files, tokens_names[step], true, &tensors->tokens) &&
           case_tensor(files, "expert_ids", permutes, &tensors->ids) &&
           case_tensor(files, gradient ? "permuted_probs_grad" : "weights", false,
                       &tensors->weights) &&
           case_tensor(files, sorted, !permutes, &tensors->sorted) &&
           case_tensor(files, "residual", false, &tensors->residual) &&
           case_tensor(files, "expert_bias", false, &tensors->bias);
}

/* ---- the call ------------------------------------------------------------------------------- */

/* T, of the tensors that have it, else of restore_shape or tokens_num; else each slot is a token.
 */
static bool find_tokens_num(const struct case_files *files, const struct tensors *tensors,
                            struct limits_ids_call *call)
{
    int64_t restore_shape[2];
    bool present = false;
    const int64_t slots = tensor_dimension(tensors->sorted, 0);
    if (call->step == LIMITS_PERMUTE || call->step == LIMITS_UNPERMUTE_GRAD) {
        call->tokens_num = tensor_dimension(tensors->tokens, 0);
    } else if (call->step == LIMITS_PERMUTE_GRAD) {
        call->tokens_num = slots;
        if (!case_integer(files, "tokens_num", -1, &call->tokens_num))
            return false;
    } else if (tensors->weights != NULL) {
        call->tokens_num = tensor_dimension(tensors->weights, 0);
    } else {
        if (!case_restore_shape(files, NULL, restore_shape, &present))
            return false;
        call->tokens_num = present ? restore_shape[0] : slots;
    }
    call->topk = call->tokens_num > 0 ? slots / call->tokens_num : 0;
    return true;
}

static bool has_unused_slots(const DLTensor *ids, int64_t experts_num)
{
    for (int64_t i = 0; i < tensor_elements(ids); i++)
        if (integer_at(ids, i) < 0 || integer_at(ids, i) >= experts_num)
            return true;
    return false;
}

static bool find_experts(const struct case_files *files, const struct tensors *tensors,
                         struct limits_ids_call *call)
{
    int64_t begin = 0, end = 0;
    call->experts_num = -1;
    if (!case_integer(files, "experts_num", -1, &call->experts_num) ||
        !case_integer(files, "expert_begin", -1, &begin) ||
        !case_integer(files, "expert_end", -1, &end) ||
        !case_integer(files, "capacity", -1, &call->capacity))
        return false;
    if (call->experts_num < 0) {
        report_input(files, "the number of experts is not known: experts_num is missing");
        return false;
    }
    call->topk = tensor_dimension(tensors->ids, 1);
    call->range = begin != 0 || (end != 0 && end != call->experts_num);
    call->unused_slots = has_unused_slots(tensors->ids, call->experts_num);
    return true;
}

static bool has_type(const DLTensor *tensor, moetoken_type type)
{
    moetoken_type found;
    return tensor != NULL && type_of_tensor(tensor, &found) && found == type;
}

static bool is_index(const DLTensor *tensor)
{
    return tensor == NULL || has_type(tensor, MOETOKEN_I32) || has_type(tensor, MOETOKEN_I64);
}

static bool find_call(const struct case_files *files, const struct tensors *tensors,
                      struct limits_ids_call *call)
{
    if (!is_index(tensors->ids) || !is_index(tensors->sorted)) {
        report_input(files, "expert_ids and sorted_indices are to be int32 or int64");
        return false;
    }
    call->wide_ids = has_type(tensors->ids, MOETOKEN_I64);
    call->tokens_bfloat16 = has_type(tensors->tokens, MOETOKEN_BF16);
    call->weights = tensors->weights != NULL;
    call->weights_float32 = has_type(tensors->weights, MOETOKEN_F32);
    moetoken_type token_type;
    call->weights_of_token_type =
        type_of_tensor(tensors->tokens, &token_type) && has_type(tensors->weights, token_type);
    call->residual = tensors->residual != NULL;
    call->expert_bias = tensors->bias != NULL;
    return find_tokens_num(files, tensors, call) &&
           (call->step != LIMITS_PERMUTE || find_experts(files, tensors, call));
}

/* Types that the interface does not have, on no product. */
static const char *unknown_type(const struct tensors *tensors)
{
    if (has_type(tensors->tokens, MOETOKEN_F64))
        return "tokens of type float64: float32, float16 and bfloat16 are taken";
    if (has_type(tensors->sorted, MOETOKEN_I64))
        return "indices of type int64: int32 is taken";
    return NULL;
}

/* ---- lines ---------------------------------------------------------------------------------- */

/* Whether the product takes the case by any of its operators. */
static bool print_product(const struct product *product, const struct tensors *tensors,
                          const struct limits_ids_call *call)
{
    const char *type = unknown_type(tensors);
    bool taken = false;
    for (size_t i = 0; limits_ids_operator(call->step, i) != NULL; i++) {
        char reason[REASON_SIZE] = "";
        bool accepted = limits_ids_accept(product, i, call, reason, sizeof reason);
        if (product->has_operators && type != NULL) {
            snprintf(reason, sizeof reason, "%s", type);
            accepted = false;
        }
        printf("%-14s%-32s%s%s%s\n", product->name, limits_ids_operator(call->step, i),
               accepted                 ? "accepted"
               : product->has_operators ? "refused"
                                        : "absent",
               reason[0] ? ": " : "", reason);
        taken = taken || accepted;
    }
    return taken;
}

int limits_by_ids(const struct case_files *files, const char *soc)
{
    struct limits_ids_call call = {.step = step_of(files)};
    struct tensors tensors;
    if (!find_tensors(files, call.step, &tensors) || !find_call(files, &tensors, &call))
        return EXIT_INPUT;
    if (soc != NULL)
        return print_product(limits_find_product(soc), &tensors, &call) ? EXIT_DONE : EXIT_INPUT;
    for (size_t i = 0; limits_product(i) != NULL; i++)
        print_product(limits_product(i), &tensors, &call);
    return EXIT_DONE;
}
