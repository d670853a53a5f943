/* gradcheck.c - gradients against central differences of the forward operator, in float64. */
#include "gradcheck.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comparison.h"
#include "values/random_values.h"

enum {
    STREAM_TOKENS_COTANGENT = 200,
    STREAM_PROBS_COTANGENT = 201,
    STREAM_SAMPLES = 202
};

/* ---- memory ---------------------------------------------------------------------------------- */

static double *new_doubles(int64_t count)
{
    return calloc((size_t)count + 1, sizeof(double));
}

int64_t problem_weights(const struct gradient_problem *problem)
{
    return problem->by_ids ? problem->slots : problem->tokens * problem->experts;
}

bool allocate_problem(struct gradient_problem *problem, char *error)
{
    problem->x = new_doubles(problem->rows * problem->hidden);
    problem->token = new_doubles(problem->tokens * problem->hidden);
    problem->probs = new_doubles(problem_weights(problem));
    problem->ids = calloc((size_t)problem->slots + 1, sizeof *problem->ids);
    problem->residual = new_doubles(problem->tokens * problem->hidden);
    problem->residual2 = new_doubles(problem->tokens * problem->hidden);
    problem->bias = new_doubles(problem->experts * problem->hidden);
    problem->map = calloc((size_t)(problem->tokens * problem->experts) + 1, 1);
    problem->sorted = calloc((size_t)problem->slots + 1, sizeof *problem->sorted);
    if (problem->x != NULL && problem->token != NULL && problem->probs != NULL &&
        problem->map != NULL && problem->sorted != NULL && problem->ids != NULL &&
        problem->residual != NULL && problem->residual2 != NULL && problem->bias != NULL)
        return true;
    snprintf(error, TENSOR_FILE_ERROR_SIZE, "no memory for the tensors in float64");
    return false;
}

void free_problem(struct gradient_problem *problem)
{
    free(problem->x);
    free(problem->token);
    free(problem->probs);
    free(problem->map);
    free(problem->sorted);
    free(problem->ids);
    free(problem->residual);
    free(problem->residual2);
    free(problem->bias);
}

/* ---- one forward operator with its gradients ------------------------------------------------- */

static bool unpermute_forward(struct comparison *c)
{
    struct gradient_problem *p = c->problem;
    int64_t shapes[7][2];
    DLTensor x = comparison_matrix(p->x, MOETOKEN_F64, shapes[0], p->rows, p->hidden);
    DLTensor sorted = comparison_matrix(p->sorted, MOETOKEN_I64, shapes[1], p->slots, -1);
    DLTensor map = comparison_matrix(p->map, MOETOKEN_U8, shapes[2], p->tokens, p->experts);
    DLTensor probs = comparison_matrix(p->probs, MOETOKEN_F64, shapes[3], p->tokens, p->experts);
    DLTensor y = comparison_matrix(c->output[0], MOETOKEN_F64, shapes[4], p->tokens, p->hidden);
    DLTensor out_index = comparison_matrix(c->out_index, MOETOKEN_I64, shapes[5], p->slots, -1);
    DLTensor token_id = comparison_matrix(c->token_id, MOETOKEN_I64, shapes[6], p->slots, -1);
    moetoken_unpermute_args args = {.permuted_tokens = &x,
                                    .sorted_indices = &sorted,
                                    .routing_map = &map,
                                    .probs = p->with_probs ? &probs : NULL,
                                    .drop_and_pad = p->drop_and_pad,
                                    .unpermuted_tokens = &y,
                                    .out_index = &out_index,
                                    .permute_token_id = &token_id};
    return moetoken_unpermute(&args, &c->options) == MOETOKEN_OK;
}

static bool unpermute_backward(struct comparison *c)
{
    struct gradient_problem *p = c->problem;
    int64_t shapes[8][2];
    DLTensor g = comparison_matrix(c->cotangent[0], MOETOKEN_F64, shapes[0], p->tokens, p->hidden);
    DLTensor out_index = comparison_matrix(c->out_index, MOETOKEN_I64, shapes[1], p->slots, -1);
    DLTensor token_id = comparison_matrix(c->token_id, MOETOKEN_I64, shapes[2], p->slots, -1);
    DLTensor map = comparison_matrix(p->map, MOETOKEN_U8, shapes[3], p->tokens, p->experts);
    DLTensor x = comparison_matrix(p->x, MOETOKEN_F64, shapes[4], p->rows, p->hidden);
    DLTensor probs = comparison_matrix(p->probs, MOETOKEN_F64, shapes[5], p->tokens, p->experts);
    DLTensor dx =
        comparison_matrix(c->tokens_gradient, MOETOKEN_F64, shapes[6], p->rows, p->hidden);
    DLTensor dp =
        comparison_matrix(c->probs_gradient, MOETOKEN_F64, shapes[7], p->tokens, p->experts);
    moetoken_unpermute_grad_args args = {.unpermuted_tokens_grad = &g,
                                         .out_index = &out_index,
                                         .permute_token_id = &token_id,
                                         .routing_map = &map,
                                         .permuted_tokens = &x,
                                         .probs = p->with_probs ? &probs : NULL,
                                         .drop_and_pad = p->drop_and_pad,
                                         .permuted_tokens_grad = &dx,
                                         .probs_grad = p->with_probs ? &dp : NULL};
    return moetoken_unpermute_grad(&args, &c->options) == MOETOKEN_OK;
}

static bool permute_forward(struct comparison *c)
{
    struct gradient_problem *p = c->problem;
    int64_t shapes[6][2];
    DLTensor tokens = comparison_matrix(p->token, MOETOKEN_F64, shapes[0], p->tokens, p->hidden);
    DLTensor map = comparison_matrix(p->map, MOETOKEN_U8, shapes[1], p->tokens, p->experts);
    DLTensor probs = comparison_matrix(p->probs, MOETOKEN_F64, shapes[2], p->tokens, p->experts);
    DLTensor rows = comparison_matrix(c->output[0], MOETOKEN_F64, shapes[3], p->rows, p->hidden);
    DLTensor row_probs = comparison_matrix(c->output[1], MOETOKEN_F64, shapes[4], p->rows, -1);
    DLTensor sorted = comparison_matrix(c->out_index, MOETOKEN_I64, shapes[5], p->slots, -1);
    moetoken_permute_args args = {.tokens = &tokens,
                                  .routing_map = &map,
                                  .probs = p->with_probs ? &probs : NULL,
                                  .num_out_tokens = p->slots,
                                  .drop_and_pad = p->drop_and_pad,
                                  .permuted_tokens = &rows,
                                  .permuted_probs = p->with_probs ? &row_probs : NULL,
                                  .sorted_indices = &sorted};
    return moetoken_permute(&args, &c->options) == MOETOKEN_OK;
}

static bool permute_backward(struct comparison *c)
{
    struct gradient_problem *p = c->problem;
    int64_t shapes[6][2];
    DLTensor rows = comparison_matrix(c->cotangent[0], MOETOKEN_F64, shapes[0], p->rows, p->hidden);
    DLTensor row_probs = comparison_matrix(c->cotangent[1], MOETOKEN_F64, shapes[1], p->rows, -1);
    DLTensor sorted = comparison_matrix(c->out_index, MOETOKEN_I64, shapes[2], p->slots, -1);
    DLTensor map = comparison_matrix(p->map, MOETOKEN_U8, shapes[3], p->tokens, p->experts);
    DLTensor dt =
        comparison_matrix(c->tokens_gradient, MOETOKEN_F64, shapes[4], p->tokens, p->hidden);
    DLTensor dp =
        comparison_matrix(c->probs_gradient, MOETOKEN_F64, shapes[5], p->tokens, p->experts);
    moetoken_permute_grad_args args = {.permuted_tokens_grad = &rows,
                                       .permuted_probs_grad = p->with_probs ? &row_probs : NULL,
                                       .sorted_indices = &sorted,
                                       .routing_map = &map,
                                       .tokens_num = p->tokens,
                                       .experts_num = p->experts,
                                       .drop_and_pad = p->drop_and_pad,
                                       .tokens_grad = &dt,
                                       .probs_grad = p->with_probs ? &dp : NULL};
    return moetoken_permute_grad(&args, &c->options) == MOETOKEN_OK;
}

/* ---- central differences --------------------------------------------------------------------- */

static double largest(const double *values, int64_t count)
{
    double most = 0;
    for (int64_t i = 0; i < count; i++)
        if (fabs(values[i]) > most)
            most = fabs(values[i]);
    return most;
}

/* The change of the loss from `minus` (in output) to plus (in output_plus). Outputs that do not
 * change cancel exactly. */
static double loss_change(const struct comparison *c)
{
    double change = 0;
    for (int k = 0; k < 2; k++)
        for (int64_t i = 0; i < c->output_count[k]; i++)
            change += c->cotangent[k][i] * (c->output_plus[k][i] - c->output[k][i]);
    return change;
}

static bool difference_quotient(struct comparison *c, double *variable, double step,
                                double *quotient)
{
    double kept = *variable, plus = kept + step, minus = kept - step;
    *variable = plus;
    bool good = c->forward(c);
    for (int k = 0; k < 2; k++)
        memcpy(c->output_plus[k], c->output[k], (size_t)c->output_count[k] * sizeof(double));
    *variable = minus;
    good = good && c->forward(c);
    *variable = kept;
    *quotient = loss_change(c) / (plus - minus);
    return good;
}

/* Sample number s: any element, or, every other time, one whose gradient is not 0. */
static int64_t sample(const struct gradient_problem *problem, const double *gradient, int64_t count,
                      int64_t s)
{
    if (problem->samples == 0 || problem->samples >= count)
        return s;
    uint64_t key = random_key(problem->seed, STREAM_SAMPLES);
    int64_t i = (int64_t)(random_bits(key, (uint64_t)s) % (uint64_t)count);
    for (int64_t k = 0; s % 2 == 0 && k < count; k++)
        if (gradient[(i + k) % count] != 0)
            return (i + k) % count;
    return i;
}

static bool compare(struct comparison *c, double *variable, const double *gradient, int64_t count,
                    struct gradient_result *result)
{
    const struct gradient_problem *problem = c->problem;
    double step = largest(variable, count), floor = 1e-3 * largest(gradient, count);
    step = step > 0 ? step / 2 : 0.5;
    int64_t samples = problem->samples == 0 || problem->samples > count ? count : problem->samples;
    result->worst = 0;
    for (int64_t s = 0; s < samples; s++) {
        int64_t i = sample(problem, gradient, count, s);
        double quotient;
        if (!difference_quotient(c, &variable[i], step, &quotient))
            return false;
        double scale = fmax(fmax(fabs(quotient), fabs(gradient[i])), floor);
        double error = scale > 0 ? fabs(quotient - gradient[i]) / scale : 0;
        if (!(error <= result->worst)) /* NaN too */
            result->worst = error;
    }
    result->checked = samples;
    return true;
}

static void fill(double *values, int64_t count, uint64_t seed, uint64_t stream)
{
    int64_t shape[1] = {count};
    DLTensor tensor = moetoken_tensor(values, MOETOKEN_F64, 1, shape);
    struct progress quiet = {0};
    random_fill(&tensor, MOETOKEN_F64, random_key(seed, stream), 0, &quiet);
}

static bool allocate_comparison(struct comparison *c)
{
    bool good = true;
    for (int k = 0; k < 2; k++) {
        c->output[k] = new_doubles(c->output_count[k]);
        c->output_plus[k] = new_doubles(c->output_count[k]);
        c->cotangent[k] = new_doubles(c->output_count[k]);
        good = good && c->output[k] != NULL && c->output_plus[k] != NULL && c->cotangent[k] != NULL;
    }
    c->tokens_gradient = new_doubles(c->tokens_count);
    c->probs_gradient = new_doubles(c->probs_count);
    c->out_index = calloc((size_t)c->problem->slots + 1, sizeof *c->out_index);
    c->token_id = calloc((size_t)c->problem->slots + 1, sizeof *c->token_id);
    return good && c->tokens_gradient != NULL && c->probs_gradient != NULL &&
           c->out_index != NULL && c->token_id != NULL;
}

static void free_comparison(struct comparison *c)
{
    for (int k = 0; k < 2; k++) {
        free(c->output[k]);
        free(c->output_plus[k]);
        free(c->cotangent[k]);
    }
    free(c->tokens_gradient);
    free(c->probs_gradient);
    free(c->out_index);
    free(c->token_id);
}

/* The gradient of a residual is that of the sum itself. */
static bool compare_residuals(struct comparison *c, struct gradient_result *results, int *count)
{
    struct gradient_problem *p = c->problem;
    const int64_t elements = p->tokens * p->hidden;
    results[*count] = (struct gradient_result){"unpermute", "residual", 0, 0};
    results[*count + 1] = (struct gradient_result){"unpermute", "residual2", 0, 0};
    *count += 2;
    return compare(c, p->residual, c->cotangent[0], elements, &results[*count - 2]) &&
           compare(c, p->residual2, c->cotangent[0], elements, &results[*count - 1]);
}

static bool run_comparison(struct comparison *c, struct gradient_result *results, int *count)
{
    fill(c->cotangent[0], c->output_count[0], c->problem->seed, STREAM_TOKENS_COTANGENT);
    fill(c->cotangent[1], c->output_count[1], c->problem->seed, STREAM_PROBS_COTANGENT);
    *count = 1;
    if (!c->forward(c) || !c->backward(c) ||
        !compare(c, c->tokens_variable, c->tokens_gradient, c->tokens_count, &results[0]))
        return false;
    if (c->problem->with_probs) {
        *count = 2;
        if (!compare(c, c->probs_variable, c->probs_gradient, c->probs_count, &results[1]))
            return false;
    }
    return !c->with_residuals || compare_residuals(c, results, count);
}

static bool finish(struct comparison *c, struct gradient_result *results, int *count, char *error)
{
    bool allocated = allocate_comparison(c);
    bool good = allocated && run_comparison(c, results, count);
    if (!good)
        snprintf(error, TENSOR_FILE_ERROR_SIZE, "%s",
                 allocated ? moetoken_last_error() : "no memory for the gradients");
    free_comparison(c);
    return good;
}

bool check_unpermute_gradients(struct gradient_problem *problem, struct gradient_result *results,
                               int *count, char *error)
{
    struct comparison comparison = {
        .problem = problem,
        .options = {.flags = problem->flags},
        .tokens_variable = problem->x,
        .tokens_count = problem->rows * problem->hidden,
        .probs_variable = problem->probs,
        .probs_count = problem_weights(problem),
        .output_count = {problem->tokens * problem->hidden, 0},
        .with_residuals = problem->with_residuals,
        .forward = problem->by_ids ? unpermute_forward_by_ids : unpermute_forward,
        .backward = problem->by_ids ? unpermute_backward_by_ids : unpermute_backward,
    };
    results[0] = (struct gradient_result){"unpermute", "permuted_tokens_grad", 0, 0};
    results[1] = (struct gradient_result){"unpermute",
                                          problem->by_ids ? "weights_grad" : "probs_grad", 0, 0};
    return finish(&comparison, results, count, error);
}

bool check_permute_gradients(struct gradient_problem *problem, struct gradient_result *results,
                             int *count, char *error)
{
    struct comparison comparison = {
        .problem = problem,
        .tokens_variable = problem->token,
        .tokens_count = problem->tokens * problem->hidden,
        .probs_variable = problem->probs,
        .probs_count = problem_weights(problem),
        .output_count = {problem->rows * problem->hidden, problem->with_probs ? problem->rows : 0},
        .forward = problem->by_ids ? permute_forward_by_ids : permute_forward,
        .backward = problem->by_ids ? permute_backward_by_ids : permute_backward,
    };
    results[0] = (struct gradient_result){"permute", "tokens_grad", 0, 0};
    results[1] =
        (struct gradient_result){"permute", problem->by_ids ? "weights_grad" : "probs_grad", 0, 0};
    return finish(&comparison, results, count, error);
}
