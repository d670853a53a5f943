/* gradcheck_router.c - the router's gradient against central differences of its outputs. */
#include "gradcheck_router.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "oracle/oracle_router.h"
#include "values/number_formats.h"
#include "values/random_values.h"

const struct router_mode router_modes[] = {
    {.name = "softmax", .weights = true},
    {.name = "softmax, divided by the sum", .config = {.normalize = true}, .weights = true},
    {.name = "softmax, gradient of the scores", .weights = true, .scores = true},
    {.name = "softmax, scores divided, by map, masked",
     .config = {.normalize = true, .normalize_scores = true, .eps = 0.25, .scale = -3},
     .mask = true,
     .by_map = true,
     .scores = true},
    {.name = "sigmoid, groups, bias",
     .config = {.score = MOETOKEN_SCORE_SIGMOID, .normalize = true, .eps = 1e-20, .scale = 2.5},
     .groups = true,
     .bias = true,
     .weights = true,
     .scores = true},
    {.name = "sigmoid, scores divided",
     .config = {.score = MOETOKEN_SCORE_SIGMOID, .normalize_scores = true},
     .weights = true,
     .by_map = true,
     .scores = true},
    {.name = "sqrtsoftplus",
     .config = {.score = MOETOKEN_SCORE_SQRTSOFTPLUS, .normalize = true},
     .bias = true,
     .weights = true,
     .scores = true},
    {.name = "softmax after the choice",
     .config = {.score = MOETOKEN_SCORE_SOFTMAX_AFTER},
     .weights = true},
    {.name = "softmax after the choice, divided, scores",
     .config = {.score = MOETOKEN_SCORE_SOFTMAX_AFTER, .normalize = true, .eps = 0.5},
     .mask = true,
     .weights = true,
     .scores = true},
};
const int router_modes_count = sizeof router_modes / sizeof router_modes[0];

/* ---- problems -------------------------------------------------------------------------------- */

static double *random_row(uint64_t seed, uint64_t stream, int64_t count)
{
    double *values = malloc(((size_t)count + 1) * sizeof *values);
    struct progress progress = {0};
    if (values == NULL)
        return NULL;
    DLTensor tensor = moetoken_tensor(values, MOETOKEN_F64, 1, &count);
    random_fill(&tensor, MOETOKEN_F64, random_key(seed, stream), 0, &progress);
    return values;
}

static bool no_memory(char *error)
{
    snprintf(error, TENSOR_FILE_ERROR_SIZE, "no memory for the router's gradients");
    return false;
}

static bool allocate(struct router_problem *problem)
{
    problem->ids = calloc((size_t)(problem->tokens * problem->topk) + 1, sizeof *problem->ids);
    problem->logits_grad =
        calloc((size_t)(problem->tokens * problem->experts) + 1, sizeof *problem->logits_grad);
    return problem->ids != NULL && problem->logits_grad != NULL;
}

static bool mask_tokens(struct router_problem *problem)
{
    problem->mask = malloc((size_t)problem->tokens + 1);
    for (int64_t t = 0; problem->mask != NULL && t < problem->tokens; t++)
        problem->mask[t] = t % 3 != 1;
    return problem->mask != NULL;
}

bool make_router_problem(const struct router_mode *mode, const struct case_settings *shape,
                         struct router_problem *problem, char *error)
{
    int64_t pairs = shape->tokens * shape->experts, slots = shape->tokens * shape->topk;
    *problem = (struct router_problem){.config = mode->config,
                                       .tokens = shape->tokens,
                                       .experts = shape->experts,
                                       .topk = shape->topk,
                                       .seed = shape->seed};
    problem->config.topk = shape->topk;
    if (mode->groups && shape->experts % 2 == 0 && shape->experts >= 4 &&
        shape->topk <= shape->experts / 2) {
        problem->config.groups_num = 2;
        problem->config.groups_top = 1;
        problem->config.group_score_count = 2;
    }
    bool good = allocate(problem) && (!mode->mask || mask_tokens(problem));
    problem->logits = random_row(shape->seed, 200, pairs);
    good = good && problem->logits != NULL;
    if (mode->bias)
        good = (problem->bias = random_row(shape->seed, 201, shape->experts)) != NULL && good;
    if (mode->weights)
        good = (problem->weights_grad = random_row(shape->seed, 202, slots)) != NULL && good;
    if (mode->by_map)
        good = (problem->probs_grad = random_row(shape->seed, 203, pairs)) != NULL && good;
    if (mode->scores)
        good = (problem->scores_grad = random_row(shape->seed, 204, pairs)) != NULL && good;
    return good || no_memory(error);
}

void free_router_problem(struct router_problem *problem)
{
    void *all[] = {problem->logits,     problem->bias,        problem->weights_grad,
                   problem->probs_grad, problem->scores_grad, problem->logits_grad,
                   problem->mask,       problem->ids};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        free(all[i]);
}

/* A tensor of the case as float64, or NULL where there is none. */
static bool copy_floats(const struct case_files *files, const char *name, int ndim, int64_t first,
                        int64_t second, bool required, double **values)
{
    const DLTensor *tensor;
    moetoken_type type;
    char message[160];
    if (!case_tensor(files, name, required, &tensor))
        return false;
    if (tensor == NULL)
        return true;
    if (!type_of_tensor(tensor, &type) || !type_is_float(type) || tensor->ndim != ndim ||
        tensor->shape[0] != first || (ndim > 1 && tensor->shape[1] != second)) {
        snprintf(message, sizeof message, "%s: expected floating-point numbers of the case's shape",
                 name);
        report_input(files, message);
        return false;
    }
    int64_t count = tensor_elements(tensor);
    *values = malloc(((size_t)count + 1) * sizeof **values);
    if (*values == NULL)
        return report_error("no memory for the case"), false;
    floats_at(tensor, 0, count, *values);
    return true;
}

static bool copy_mask(const struct case_files *files, struct router_problem *problem)
{
    const DLTensor *mask;
    if (!case_tensor(files, "token_mask", false, &mask))
        return false;
    if (mask == NULL)
        return true;
    if (mask->ndim != 1 || mask->shape[0] != problem->tokens || mask->dtype.bits != 8)
        return report_input(files, "token_mask: expected [T] of bool, int8 or uint8"), false;
    if (!mask_tokens(problem))
        return report_error("no memory for the case"), false;
    for (int64_t t = 0; t < problem->tokens; t++)
        problem->mask[t] = set_at(mask, t);
    return true;
}

static bool copy_ids(const struct case_files *files, struct router_problem *problem)
{
    const DLTensor *ids;
    moetoken_type type;
    if (!case_tensor(files, "expert_ids", false, &ids))
        return false;
    if (ids != NULL && (!type_of_tensor(ids, &type) || type_is_float(type) || ids->ndim != 2 ||
                        ids->shape[0] != problem->tokens))
        return report_input(files, "expert_ids: expected [T,K] of int32 or int64"), false;
    if (ids != NULL)
        problem->topk = ids->shape[1];
    if (!allocate(problem))
        return report_error("no memory for the case"), false;
    for (int64_t i = 0; ids != NULL && i < tensor_elements(ids); i++)
        problem->ids[i] = integer_at(ids, i);
    problem->has_ids = ids != NULL;
    return true;
}

bool load_router_problem(const struct case_files *files, uint64_t seed,
                         struct router_problem *problem)
{
    const struct router_options none = router_options_default();
    const DLTensor *logits, *ids;
    *problem = (struct router_problem){.seed = seed};
    if (!case_tensor(files, "logits", true, &logits) ||
        !case_tensor(files, "expert_ids", false, &ids) ||
        !router_options_resolve(&none, files, ids == NULL, &problem->config))
        return false;
    int64_t t = problem->tokens = tensor_dimension(logits, 0);
    int64_t e = problem->experts = tensor_dimension(logits, 1);
    problem->topk = problem->config.topk;
    if (logits->ndim != 2 || problem->topk > e)
        return report_input(files, "logits: expected [T,E], and topk at most E"), false;
    if (!case_justifies(files, 0, 64.0 * (double)e + 24.0 * (double)t * (double)(e + 1)))
        return false;
    if (!copy_ids(files, problem) || !copy_mask(files, problem) ||
        !copy_floats(files, "logits", 2, t, e, true, &problem->logits) ||
        !copy_floats(files, "bias", 1, e, 0, false, &problem->bias) ||
        !copy_floats(files, "weights_grad", 2, t, problem->topk, false, &problem->weights_grad) ||
        !copy_floats(files, "probs_grad", 2, t, e, false, &problem->probs_grad) ||
        !copy_floats(files, "scores_grad", 2, t, e, false, &problem->scores_grad))
        return false;
    if (problem->weights_grad == NULL && problem->probs_grad == NULL &&
        problem->scores_grad == NULL) {
        problem->weights_grad = random_row(seed, 202, t * problem->topk);
        problem->scores_grad = random_row(seed, 204, t * e);
        if (problem->weights_grad == NULL || problem->scores_grad == NULL)
            return report_error("no memory for the case"), false;
    }
    return true;
}

/* ---- the library's gradient ------------------------------------------------------------------ */

struct router_tensors {
    int64_t te[2], tk[2], e[1], t[1];
    DLTensor logits, bias, mask, ids, weights_grad, probs_grad, scores_grad, logits_grad;
};

static void bind(const struct router_problem *problem, struct router_tensors *tensors)
{
    *tensors = (struct router_tensors){.te = {problem->tokens, problem->experts},
                                       .tk = {problem->tokens, problem->topk},
                                       .e = {problem->experts},
                                       .t = {problem->tokens}};
    tensors->logits = moetoken_tensor(problem->logits, MOETOKEN_F64, 2, tensors->te);
    tensors->bias = moetoken_tensor(problem->bias, MOETOKEN_F64, 1, tensors->e);
    tensors->mask = moetoken_tensor(problem->mask, MOETOKEN_U8, 1, tensors->t);
    tensors->ids = moetoken_tensor(problem->ids, MOETOKEN_I64, 2, tensors->tk);
    tensors->weights_grad = moetoken_tensor(problem->weights_grad, MOETOKEN_F64, 2, tensors->tk);
    tensors->probs_grad = moetoken_tensor(problem->probs_grad, MOETOKEN_F64, 2, tensors->te);
    tensors->scores_grad = moetoken_tensor(problem->scores_grad, MOETOKEN_F64, 2, tensors->te);
    tensors->logits_grad = moetoken_tensor(problem->logits_grad, MOETOKEN_F64, 2, tensors->te);
}

static bool library_gradient(const struct router_problem *problem, char *error)
{
    struct router_tensors tensors;
    bind(problem, &tensors);
    moetoken_router_args forward = {.logits = &tensors.logits,
                                    .bias = problem->bias ? &tensors.bias : NULL,
                                    .token_mask = problem->mask ? &tensors.mask : NULL,
                                    .config = problem->config,
                                    .expert_ids = &tensors.ids};
    moetoken_router_grad_args backward = {
        .logits = &tensors.logits,
        .token_mask = problem->mask ? &tensors.mask : NULL,
        .expert_ids = &tensors.ids,
        .config = problem->config,
        .weights_grad = problem->weights_grad ? &tensors.weights_grad : NULL,
        .probs_grad = problem->probs_grad ? &tensors.probs_grad : NULL,
        .scores_grad = problem->scores_grad ? &tensors.scores_grad : NULL,
        .logits_grad = &tensors.logits_grad};
    if ((problem->has_ids || moetoken_router(&forward, NULL) == MOETOKEN_OK) &&
        moetoken_router_grad(&backward, NULL) == MOETOKEN_OK)
        return true;
    snprintf(error, TENSOR_FILE_ERROR_SIZE, "%s", moetoken_last_error());
    return false;
}

/* ---- the differences ------------------------------------------------------------------------- */

struct scratch {
    long double *logits, *scores, *weights; /* [E], [E], [K] */
    int64_t *used;                          /* [K] */
};

/* The token's part of the loss: the outputs times their gradients. */
static long double token_loss(const struct router_problem *problem, const struct scratch *scratch,
                              int64_t t)
{
    const moetoken_router_config *config = &problem->config;
    moetoken_router_config resolved = *config;
    long double loss = 0;
    int64_t experts = problem->experts, used = 0;
    resolved.scale = config->scale == 0 ? 1 : config->scale;
    for (int64_t k = 0; k < problem->topk; k++)
        if (problem->ids[t * problem->topk + k] >= 0)
            scratch->used[used++] = problem->ids[t * problem->topk + k];
    router_scores(config->score, scratch->logits, experts, scratch->scores);
    router_weights(&resolved, scratch->logits, scratch->scores, scratch->used, used,
                   scratch->weights);
    used = 0;
    for (int64_t k = 0; k < problem->topk; k++) {
        int64_t slot = t * problem->topk + k, id = problem->ids[slot];
        if (id < 0)
            continue;
        if (problem->weights_grad != NULL)
            loss += problem->weights_grad[slot] * scratch->weights[used];
        if (problem->probs_grad != NULL)
            loss += problem->probs_grad[t * experts + id] * scratch->weights[used];
        used++;
    }
    if (problem->scores_grad != NULL && config->normalize_scores)
        router_normalize(scratch->scores, experts, config->eps);
    for (int64_t e = 0; problem->scores_grad != NULL && e < experts; e++)
        loss += problem->scores_grad[t * experts + e] * scratch->scores[e];
    return loss;
}

static long double loss_at(const struct router_problem *problem, const struct scratch *scratch,
                           int64_t t, int64_t e, long double step)
{
    for (int64_t i = 0; i < problem->experts; i++)
        scratch->logits[i] = problem->logits[t * problem->experts + i];
    scratch->logits[e] += step;
    return token_loss(problem, scratch, t);
}

/* Of fourth order: the error is that of the fifth derivative, 1e-16 of it. */
static double difference(const struct router_problem *problem, const struct scratch *scratch,
                         int64_t t, int64_t e)
{
    const long double h = 2e-4L;
    if (problem->mask != NULL && problem->mask[t] == 0)
        return 0;
    long double near = loss_at(problem, scratch, t, e, h) - loss_at(problem, scratch, t, e, -h);
    long double far =
        loss_at(problem, scratch, t, e, 2 * h) - loss_at(problem, scratch, t, e, -2 * h);
    return (double)((8 * near - far) / (12 * h));
}

static void compare(const struct router_problem *problem, const struct scratch *scratch,
                    struct gradient_result *result)
{
    int64_t count = problem->tokens * problem->experts, samples = problem->samples;
    double largest = 0;
    for (int64_t i = 0; i < count; i++)
        largest = fmax(largest, fabs(problem->logits_grad[i]));
    samples = samples == 0 || samples > count ? count : samples;
    for (int64_t n = 0; n < samples; n++) {
        int64_t i = samples == count
                        ? n
                        : (int64_t)(random_bits(random_key(problem->seed, 205), (uint64_t)n) %
                                    (uint64_t)count);
        double got = problem->logits_grad[i];
        double want = difference(problem, scratch, i / problem->experts, i % problem->experts);
        double scale = fmax(fmax(fabs(got), fabs(want)), 1e-3 * largest);
        double error = scale == 0 ? 0 : fabs(got - want) / scale;
        if (!(error <= result->worst)) /* NaN is the worst */
            result->worst = error;
    }
    result->checked = samples;
}

bool check_router_gradient(struct router_problem *problem, struct gradient_result *result,
                           char *error)
{
    size_t experts = (size_t)problem->experts + 1, topk = (size_t)problem->topk + 1;
    struct scratch scratch = {.logits = calloc(2 * experts + topk, sizeof *scratch.logits),
                              .used = calloc(topk, sizeof *scratch.used)};
    *result = (struct gradient_result){.operator_name = "router", .gradient = "logits_grad"};
    bool good = scratch.logits != NULL && scratch.used != NULL;
    if (!good)
        no_memory(error);
    else if ((good = library_gradient(problem, error))) {
        scratch.scores = scratch.logits + experts;
        scratch.weights = scratch.scores + experts;
        compare(problem, &scratch, result);
    }
    free(scratch.logits);
    free(scratch.used);
    return good;
}
