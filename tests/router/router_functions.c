/* router_functions.c - the table, and calls with random numbers in them. */
#include "router_functions.h"

#include "support/random.h"

#include <math.h>
#include <string.h>

#define FUNCTION(name)                                                                             \
    static moetoken_status run_##name(const void *args, const moetoken_options *options)           \
    {                                                                                              \
        return moetoken_##name(args, options);                                                     \
    }                                                                                              \
    static moetoken_status check_##name(const void *args, const moetoken_options *options)         \
    {                                                                                              \
        return moetoken_##name##_check(args, options);                                             \
    }
FUNCTION(router)
FUNCTION(router_grad)
FUNCTION(router_z_loss)
FUNCTION(router_balance_loss)
FUNCTION(router_update_bias)
FUNCTION(router_drop)

/* clang-format off: a line per tensor */
#define AT(args, field) #field, offsetof(moetoken_router_##args, field)

const struct function functions[FUNCTIONS] = {
    [ROUTER] = {"router",
                run_router,
                check_router,
                9,
                {{AT(args, logits), "TE", FLOATING, false, true, 0},
                 {AT(args, bias), "E", WEIGHTS, false, false, 0},
                 {AT(args, token_mask), "T", MAP, false, false, 0},
                 {AT(args, expert_ids), "TK", INDEX, true, false, 0},
                 {AT(args, weights), "TK", WEIGHTS, true, false, 0},
                 {AT(args, routing_map), "TE", MAP, true, false, 0},
                 {AT(args, probs), "TE", WEIGHTS, true, false, 0},
                 {AT(args, scores), "TE", WEIGHTS, true, false, 0},
                 {AT(args, rows_per_expert), "E", COUNTS, true, false, 0}}},
    [ROUTER_GRAD] = {"router_grad",
                     run_router_grad,
                     check_router_grad,
                     7,
                     {{AT(grad_args, logits), "TE", FLOATING, false, true, 0},
                      {AT(grad_args, token_mask), "T", MAP, false, false, 0},
                      {AT(grad_args, expert_ids), "TK", INDEX, false, true, 0},
                      {AT(grad_args, weights_grad), "TK", WEIGHTS, false, false, 0},
                      {AT(grad_args, probs_grad), "TE", WEIGHTS, false, false, 0},
                      {AT(grad_args, scores_grad), "TE", WEIGHTS, false, false, 0},
                      {AT(grad_args, logits_grad), "TE", LIKE_FIRST, true, true, 0}}},
    [Z_LOSS] = {"z_loss",
                run_router_z_loss,
                check_router_z_loss,
                5,
                {{AT(z_loss_args, logits), "TE", FLOATING, false, true, 0},
                 {AT(z_loss_args, token_mask), "T", MAP, false, false, 0},
                 {AT(z_loss_args, loss_grad), "1", FLOATING, false, false, 0},
                 {AT(z_loss_args, loss), "1", FLOATING, true, false, 0},
                 {AT(z_loss_args, logits_grad), "TE", LIKE_FIRST, true, false, 0}}},
    [BALANCE_LOSS] = {"balance_loss",
                      run_router_balance_loss,
                      check_router_balance_loss,
                      5,
                      {{AT(balance_loss_args, scores), "TE", FLOATING, false, true, 0},
                       {AT(balance_loss_args, rows_per_expert), "E", COUNTS, false, true, 0},
                       {AT(balance_loss_args, loss_grad), "1", FLOATING, false, false, 0},
                       {AT(balance_loss_args, loss), "1", FLOATING, true, false, 0},
                       {AT(balance_loss_args, scores_grad), "TE", LIKE_FIRST, true, false, 0}}},
    [UPDATE_BIAS] = {"update_bias",
                     run_router_update_bias,
                     check_router_update_bias,
                     3,
                     {{AT(update_bias_args, bias), "E", FLOATING, false, true, 0},
                      {AT(update_bias_args, rows_per_expert), "E", COUNTS, false, true, 0},
                      {AT(update_bias_args, updated_bias), "E", LIKE_FIRST, true, true, 1}}},
    [DROP] = {"drop",
              run_router_drop,
              check_router_drop,
              5,
              {{AT(drop_args, weights), "TK", FLOATING, false, true, 0},
               {AT(drop_args, expert_ids), "TK", INDEX, false, true, 0},
               {AT(drop_args, kept_ids), "TK", INDEX, true, false, 2},
               {AT(drop_args, kept_weights), "TK", LIKE_FIRST, true, false, 1},
               {AT(drop_args, rows_per_expert), "E", COUNTS, true, false, 0}}},
};
/* clang-format on */

static int64_t size_of(const struct any_call *call, char letter)
{
    return letter == 'T'   ? call->tokens
           : letter == 'E' ? call->experts
           : letter == 'K' ? call->topk
                           : 1;
}

static moetoken_type type_of(const struct any_call *call, enum kind kind, int field)
{
    static const moetoken_type floating[] = {MOETOKEN_F32, MOETOKEN_F64, MOETOKEN_F16,
                                             MOETOKEN_BF16};
    static const moetoken_type maps[] = {MOETOKEN_BOOL, MOETOKEN_U8, MOETOKEN_I8};
    const moetoken_type weights[] = {MOETOKEN_F32, MOETOKEN_F64, call->type};
    switch (kind) {
    case FLOATING:
        return field == 0 ? call->type : floating[random_below(4)];
    case LIKE_FIRST:
        return call->type;
    case WEIGHTS:
        return weights[random_below(3)];
    case INDEX: /* an output that replaces an input has its type */
        return call->function == &functions[DROP] && field == 2 ? call->tensors[1].type
               : random_chance(50)                              ? MOETOKEN_I32
                                                                : MOETOKEN_I64;
    case MAP:
        return maps[random_below(3)];
    default:
        return MOETOKEN_I64;
    }
}

static void fill(const struct any_call *call, const DLTensor *tensor, enum kind kind)
{
    for (int64_t i = 0; i < tensor->shape[0]; i++)
        for (int64_t j = 0; j < tensor_columns(tensor); j++) {
            if (kind == INDEX)
                tensor_set(tensor, i, j, (double)(random_below(call->experts + 1) - 1));
            else if (kind == MAP)
                tensor_set(tensor, i, j, random_chance(80));
            else if (kind == COUNTS)
                tensor_set(tensor, i, j, (double)random_below(1000));
            else
                tensor_set(tensor, i, j, (double)random_below(1 << 20) * 0x1p-17 - 4);
        }
}

static moetoken_router_config random_config(const struct any_call *call)
{
    moetoken_router_config config = {.topk = call->topk,
                                     .score = (int32_t)random_below(4),
                                     .normalize = random_chance(50),
                                     .normalize_scores = random_chance(50),
                                     .eps = random_chance(50) ? 1e-20 : 0.25,
                                     .scale = random_chance(50) ? 2.5 : 0};
    if (call->experts % 2 == 0 && call->topk <= call->experts / 2)
        config.groups_num = random_chance(50) ? 2 : 0;
    return config;
}

static void set_numbers(struct any_call *call)
{
    switch (call->function - functions) {
    case ROUTER:
        call->args.router.config = random_config(call);
        break;
    case ROUTER_GRAD:
        call->args.grad.config = random_config(call);
        break;
    case Z_LOSS:
        call->args.z_loss.coeff = 0.375;
        break;
    case BALANCE_LOSS:
        call->args.balance_loss.coeff = 0.375;
        call->args.balance_loss.topk = call->topk;
        break;
    case UPDATE_BIAS:
        call->args.update_bias.rate = 0.375;
        break;
    default:
        call->args.drop.experts_num = call->experts;
        call->args.drop.capacity = call->tokens * call->topk / (2 * call->experts) + 1;
        break;
    }
}

void any_call_set(struct any_call *call, int field, const DLTensor *tensor)
{
    memcpy((char *)&call->args + call->function->fields[field].offset, &tensor, sizeof(void *));
}

static void make_tensor(struct any_call *call, int i, moetoken_type type, bool layouts)
{
    const struct field *field = &call->function->fields[i];
    struct layout layout = layout_random(true);
    int ndim = (int)strlen(field->sizes);
    tensor_make(&call->tensors[i], type, ndim, size_of(call, field->sizes[0]),
                ndim == 2 ? size_of(call, field->sizes[1]) : 1, layouts ? &layout : NULL);
    any_call_set(call, i, &call->tensors[i].dl);
}

void any_call_make(struct any_call *call, int which, int64_t tokens, int64_t experts, int64_t topk,
                   moetoken_type type, bool layouts)
{
    memset(call, 0, sizeof *call);
    call->function = &functions[which];
    call->type = type, call->tokens = tokens, call->experts = experts, call->topk = topk;
    for (int i = 0; i < call->function->count; i++) {
        const struct field *field = &call->function->fields[i];
        make_tensor(call, i, type_of(call, field->kind, i), layouts);
        if (!field->output)
            fill(call, &call->tensors[i].dl, field->kind);
    }
    set_numbers(call);
    any_call_poison(call);
}

void any_call_copy(struct any_call *call, const struct any_call *from)
{
    *call = *from;
    for (int i = 0; i < call->function->count; i++) {
        const DLTensor *source = &from->tensors[i].dl;
        make_tensor(call, i, from->tensors[i].type, true);
        for (int64_t t = 0; t < source->shape[0] && !call->function->fields[i].output; t++)
            for (int64_t j = 0; j < tensor_columns(source); j++)
                tensor_set_bits(&call->tensors[i].dl, t, j, tensor_get_bits(source, t, j));
    }
    any_call_poison(call);
}

void any_call_free(struct any_call *call)
{
    for (int i = 0; i < call->function->count; i++)
        tensor_free(&call->tensors[i]);
}

void any_call_poison(struct any_call *call)
{
    for (int i = 0; i < call->function->count; i++) {
        if (call->function->fields[i].output)
            tensor_fill_poison(&call->tensors[i].dl);
        tensor_snapshot(&call->tensors[i]);
    }
}
