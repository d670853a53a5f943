/* gradcheck_ids.c - routing by expert ids for gradcheck: the operators' calls, and the built-in
 * modes' ids, rows and values. */
#include <stdio.h>
#include <string.h>

#include "comparison.h"
#include "values/random_values.h"

enum {
    STREAM_IDS = 220,
    STREAM_WEIGHTS = 221,
    STREAM_VALUES = 222 /* and the next four */
};

/* ---- the operators -------------------------------------------------------------------------- */

static int64_t slots_per_token(const struct gradient_problem *p)
{
    return p->tokens > 0 ? p->slots / p->tokens : 0;
}

bool unpermute_forward_by_ids(struct comparison *c)
{
    struct gradient_problem *p = c->problem;
    const int64_t k = slots_per_token(p);
    int64_t shapes[8][2];
    DLTensor x = comparison_matrix(p->x, MOETOKEN_F64, shapes[0], p->rows, p->hidden);
    DLTensor sorted = comparison_matrix(p->sorted, MOETOKEN_I64, shapes[1], p->slots, -1);
    DLTensor weights = comparison_matrix(p->probs, MOETOKEN_F64, shapes[2], p->tokens, k);
    DLTensor ids = comparison_matrix(p->ids, MOETOKEN_I64, shapes[3], p->tokens, k);
    DLTensor bias = comparison_matrix(p->bias, MOETOKEN_F64, shapes[4], p->experts, p->hidden);
    DLTensor one = comparison_matrix(p->residual, MOETOKEN_F64, shapes[5], p->tokens, p->hidden);
    DLTensor two = comparison_matrix(p->residual2, MOETOKEN_F64, shapes[6], p->tokens, p->hidden);
    DLTensor y = comparison_matrix(c->output[0], MOETOKEN_F64, shapes[7], p->tokens, p->hidden);
    moetoken_unpermute_args args = {.struct_size = sizeof args,
                                    .permuted_tokens = &x,
                                    .sorted_indices = &sorted,
                                    .weights = p->with_probs ? &weights : NULL,
                                    .expert_ids = p->with_bias ? &ids : NULL,
                                    .expert_bias = p->with_bias ? &bias : NULL,
                                    .residual = p->with_residuals ? &one : NULL,
                                    .residual2 = p->with_residuals ? &two : NULL,
                                    .unpermuted_tokens = &y};
    return moetoken_unpermute(&args, &c->options) == MOETOKEN_OK;
}

bool unpermute_backward_by_ids(struct comparison *c)
{
    struct gradient_problem *p = c->problem;
    const int64_t k = slots_per_token(p);
    int64_t shapes[8][2];
    DLTensor g = comparison_matrix(c->cotangent[0], MOETOKEN_F64, shapes[0], p->tokens, p->hidden);
    DLTensor sorted = comparison_matrix(p->sorted, MOETOKEN_I64, shapes[1], p->slots, -1);
    DLTensor x = comparison_matrix(p->x, MOETOKEN_F64, shapes[2], p->rows, p->hidden);
    DLTensor weights = comparison_matrix(p->probs, MOETOKEN_F64, shapes[3], p->tokens, k);
    DLTensor ids = comparison_matrix(p->ids, MOETOKEN_I64, shapes[4], p->tokens, k);
    DLTensor bias = comparison_matrix(p->bias, MOETOKEN_F64, shapes[5], p->experts, p->hidden);
    DLTensor dx =
        comparison_matrix(c->tokens_gradient, MOETOKEN_F64, shapes[6], p->rows, p->hidden);
    DLTensor dw = comparison_matrix(c->probs_gradient, MOETOKEN_F64, shapes[7], p->tokens, k);
    moetoken_unpermute_grad_args args = {.struct_size = sizeof args,
                                         .unpermuted_tokens_grad = &g,
                                         .out_index = &sorted,
                                         .permuted_tokens = &x,
                                         .weights = p->with_probs ? &weights : NULL,
                                         .expert_ids = p->with_bias ? &ids : NULL,
                                         .expert_bias = p->with_bias ? &bias : NULL,
                                         .permuted_tokens_grad = &dx,
                                         .weights_grad = p->with_probs ? &dw : NULL};
    return moetoken_unpermute_grad(&args, &c->options) == MOETOKEN_OK;
}

bool permute_forward_by_ids(struct comparison *c)
{
    struct gradient_problem *p = c->problem;
    const int64_t k = slots_per_token(p);
    int64_t shapes[6][2];
    DLTensor tokens = comparison_matrix(p->token, MOETOKEN_F64, shapes[0], p->tokens, p->hidden);
    DLTensor ids = comparison_matrix(p->ids, MOETOKEN_I64, shapes[1], p->tokens, k);
    DLTensor weights = comparison_matrix(p->probs, MOETOKEN_F64, shapes[2], p->tokens, k);
    DLTensor rows = comparison_matrix(c->output[0], MOETOKEN_F64, shapes[3], p->rows, p->hidden);
    DLTensor row_weights = comparison_matrix(c->output[1], MOETOKEN_F64, shapes[4], p->rows, -1);
    DLTensor sorted = comparison_matrix(c->out_index, MOETOKEN_I64, shapes[5], p->slots, -1);
    moetoken_permute_args args = {.struct_size = sizeof args,
                                  .tokens = &tokens,
                                  .expert_ids = &ids,
                                  .weights = p->with_probs ? &weights : NULL,
                                  .experts_num = p->experts,
                                  .expert_begin = p->expert_begin,
                                  .expert_end = p->expert_end,
                                  .capacity = p->capacity,
                                  .permuted_tokens = &rows,
                                  .permuted_probs = p->with_probs ? &row_weights : NULL,
                                  .sorted_indices = &sorted};
    return moetoken_permute(&args, &c->options) == MOETOKEN_OK;
}

bool permute_backward_by_ids(struct comparison *c)
{
    struct gradient_problem *p = c->problem;
    int64_t shapes[5][2];
    DLTensor rows = comparison_matrix(c->cotangent[0], MOETOKEN_F64, shapes[0], p->rows, p->hidden);
    DLTensor row_weights = comparison_matrix(c->cotangent[1], MOETOKEN_F64, shapes[1], p->rows, -1);
    DLTensor sorted = comparison_matrix(c->out_index, MOETOKEN_I64, shapes[2], p->slots, -1);
    DLTensor dt =
        comparison_matrix(c->tokens_gradient, MOETOKEN_F64, shapes[3], p->tokens, p->hidden);
    DLTensor dw = comparison_matrix(c->probs_gradient, MOETOKEN_F64, shapes[4], p->tokens,
                                    slots_per_token(p));
    moetoken_permute_grad_args args = {.struct_size = sizeof args,
                                       .permuted_tokens_grad = &rows,
                                       .permuted_probs_grad = p->with_probs ? &row_weights : NULL,
                                       .sorted_indices = &sorted,
                                       .tokens_num = p->tokens,
                                       .tokens_grad = &dt,
                                       .weights_grad = p->with_probs ? &dw : NULL};
    return moetoken_permute_grad(&args, &c->options) == MOETOKEN_OK;
}

/* ---- the built-in modes --------------------------------------------------------------------- */

static void fill_values(double *values, int64_t count, uint64_t seed, uint64_t stream)
{
    int64_t shape[1] = {count};
    DLTensor tensor = moetoken_tensor(values, MOETOKEN_F64, 1, shape);
    struct progress quiet = {0};
    random_fill(&tensor, MOETOKEN_F64, random_key(seed, stream), 0, &quiet);
}

/* Any expert in any slot, so that some tokens name one twice; a fifth unused with holes. */
static void draw_ids(const struct gradient_mode *mode, struct gradient_problem *problem)
{
    uint64_t key = random_key(problem->seed, STREAM_IDS);
    for (int64_t s = 0; s < problem->slots && problem->experts > 0; s++) {
        uint64_t bits = random_bits(key, (uint64_t)s);
        problem->ids[s] = (int64_t)(bits % (uint64_t)problem->experts);
        if (mode->holes && (bits >> 40) % 5 == 0)
            problem->ids[s] = -1;
    }
}

/* Weights in (0, 1], or a third 0 and a third negative. */
static void draw_weights(const struct gradient_mode *mode, struct gradient_problem *problem)
{
    uint64_t key = random_key(problem->seed, STREAM_WEIGHTS);
    for (int64_t s = 0; s < problem->slots; s++) {
        problem->probs[s] = random_unit(key, (uint64_t)s);
        if (mode->odd_probs)
            problem->probs[s] *= (double)(s % 3 - 1);
    }
}

/* The rows that the ids fill, or E' * C. */
static bool sort_ids(struct gradient_problem *p, char *error)
{
    int64_t tk[2] = {p->tokens, slots_per_token(p)}, n[1] = {p->slots};
    DLTensor ids = moetoken_tensor(p->ids, MOETOKEN_I64, 2, tk);
    DLTensor sorted = moetoken_tensor(p->sorted, MOETOKEN_I64, 1, n);
    moetoken_permute_args args = {.struct_size = sizeof args,
                                  .expert_ids = &ids,
                                  .experts_num = p->experts,
                                  .expert_begin = p->expert_begin,
                                  .expert_end = p->expert_end,
                                  .capacity = p->capacity,
                                  .sorted_indices = &sorted};
    if (moetoken_permute(&args, NULL) == MOETOKEN_OK)
        return true;
    snprintf(error, TENSOR_FILE_ERROR_SIZE, "%s", moetoken_last_error());
    return false;
}

static int64_t count_rows(const struct gradient_problem *p)
{
    int64_t end = p->expert_end > 0 ? p->expert_end : p->experts, rows = 0;
    for (int64_t s = 0; s < p->slots; s++)
        rows += p->ids[s] >= p->expert_begin && p->ids[s] < end;
    return p->capacity > 0 ? (end - p->expert_begin) * p->capacity : rows;
}

bool fill_problem_by_ids(const struct gradient_mode *mode, const struct case_settings *shape,
                         struct gradient_problem *problem, char *error)
{
    *problem = (struct gradient_problem){
        .tokens = shape->tokens,
        .hidden = shape->hidden,
        .experts = shape->experts,
        .slots = shape->tokens * shape->topk,
        .rows = shape->tokens * shape->topk + (mode->capacity ? 4 * shape->experts : 0),
        .seed = shape->seed,
        .with_probs = !mode->without_probs,
        .by_ids = true,
        .with_residuals = mode->extras,
        .with_bias = mode->extras,
        .expert_begin = mode->range ? shape->experts / 3 : 0,
        .expert_end = mode->range ? shape->experts : 0,
        .capacity = mode->capacity ? 4 : 0,
    };
    if (!allocate_problem(problem, error))
        return false;
    draw_ids(mode, problem);
    draw_weights(mode, problem);
    problem->rows = count_rows(problem);
    if (!sort_ids(problem, error))
        return false;
    fill_values(problem->x, problem->rows * problem->hidden, problem->seed, STREAM_VALUES);
    fill_values(problem->token, problem->tokens * problem->hidden, problem->seed,
                STREAM_VALUES + 1);
    fill_values(problem->residual, problem->tokens * problem->hidden, problem->seed,
                STREAM_VALUES + 2);
    fill_values(problem->residual2, problem->tokens * problem->hidden, problem->seed,
                STREAM_VALUES + 3);
    fill_values(problem->bias, problem->experts * problem->hidden, problem->seed,
                STREAM_VALUES + 4);
    return true;
}
