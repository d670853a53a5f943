/* oracle_router_case.c - CASE and OUT -> the checked inputs of one call of the router.
 * Checks types and shapes on its own: a case that the library wrongly accepted is found here. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "oracle_router.h"
#include "values/number_formats.h"

enum tensor_kind {
    KIND_LOGITS,
    KIND_WEIGHTS,
    KIND_INDEX,
    KIND_COUNT,
    KIND_MAP
};

struct shape_rule {
    const char *name;
    enum tensor_kind kind;
    int ndim;
    int64_t shape[2];
};

static bool has_kind(moetoken_type type, enum tensor_kind kind)
{
    switch (kind) {
    case KIND_LOGITS:
    case KIND_WEIGHTS:
        return type_is_float(type);
    case KIND_INDEX:
        return type == MOETOKEN_I32 || type == MOETOKEN_I64;
    case KIND_COUNT:
        return type == MOETOKEN_I64;
    case KIND_MAP:
        return type == MOETOKEN_BOOL || type == MOETOKEN_I8 || type == MOETOKEN_U8;
    }
    return false;
}

/* What is wrong with the tensor, or "". */
static void find_problem(const DLTensor *tensor, const struct shape_rule *rule, char *problem,
                         size_t size)
{
    moetoken_type type;
    problem[0] = '\0';
    if (!type_of_tensor(tensor, &type) || !has_kind(type, rule->kind))
        snprintf(problem, size, "has the wrong type");
    else if (tensor->ndim != rule->ndim)
        snprintf(problem, size, "has %d dimensions, expected %d", tensor->ndim, rule->ndim);
    else
        for (int d = 0; d < rule->ndim && problem[0] == '\0'; d++)
            if (tensor->shape[d] != rule->shape[d])
                snprintf(problem, size, "has shape[%d] = %" PRId64 ", expected %" PRId64, d,
                         tensor->shape[d], rule->shape[d]);
}

static bool load(const struct case_files *inputs, const struct shape_rule *rule, bool required,
                 const DLTensor **tensor)
{
    char problem[160], message[256];
    if (!case_tensor(inputs, rule->name, required, tensor))
        return false;
    if (*tensor == NULL)
        return true;
    find_problem(*tensor, rule, problem, sizeof problem);
    if (problem[0] == '\0')
        return true;
    snprintf(message, sizeof message, "%s %s", rule->name, problem);
    report_input(inputs, message);
    return false;
}

static bool load_inputs(const struct case_files *inputs, struct router_case *router)
{
    int64_t t = router->tokens, e = router->experts;
    const struct shape_rule mask = {"token_mask", KIND_MAP, 1, {t, 0}},
                            bias = {"bias", KIND_LOGITS, 1, {e, 0}};
    if (!load(inputs, &mask, false, &router->token_mask))
        return false;
    if (!router->is_grad)
        return load(inputs, &bias, false, &router->bias);
    if (!case_tensor(inputs, "expert_ids", false, &router->expert_ids))
        return false;
    int64_t k = router->topk = tensor_dimension(router->expert_ids, 1);
    const struct shape_rule ids = {"expert_ids", KIND_INDEX, 2, {t, k}},
                            weights = {"weights_grad", KIND_WEIGHTS, 2, {t, k}},
                            probs = {"probs_grad", KIND_WEIGHTS, 2, {t, e}},
                            scores = {"scores_grad", KIND_WEIGHTS, 2, {t, e}};
    return load(inputs, &weights, false, &router->weights_grad) &&
           load(inputs, &probs, false, &router->probs_grad) &&
           load(inputs, &scores, false, &router->scores_grad) &&
           load(inputs, &ids, router->weights_grad != NULL || router->probs_grad != NULL,
                &router->expert_ids);
}

static bool check_ids(const struct case_files *inputs, const struct router_case *router)
{
    char message[160];
    int64_t count = router->expert_ids == NULL ? 0 : tensor_elements(router->expert_ids);
    for (int64_t i = 0; i < count; i++) {
        int64_t id = integer_at(router->expert_ids, i);
        if (id >= -1 && id < router->experts)
            continue;
        snprintf(message, sizeof message,
                 "expert_ids[%" PRId64 "] = %" PRId64 " is outside [-1, %" PRId64 ")", i, id,
                 router->experts);
        report_input(inputs, message);
        return false;
    }
    return true;
}

/* What zeros stand for, and what makes no choice. */
static bool settle_config(const struct case_files *attributes, struct router_case *router)
{
    moetoken_router_config *config = &router->config;
    config->scale = config->scale == 0 ? 1 : config->scale;
    config->groups_num = config->groups_num == 0 ? 1 : config->groups_num;
    config->groups_top = config->groups_top == 0 ? 1 : config->groups_top;
    config->group_score_count = config->group_score_count == 0 ? 1 : config->group_score_count;
    int64_t eligible = router->experts;
    if (!router->is_grad && config->groups_num > 1) {
        if (router->experts % config->groups_num != 0 || config->groups_top > config->groups_num) {
            report_input(attributes, "groups_num and groups_top: expected a divisor of the number "
                                     "of experts, and not more than that");
            return false;
        }
        eligible = router->experts / config->groups_num * config->groups_top;
    }
    if (!router->is_grad && config->topk > eligible) {
        report_input(attributes, "topk: expected at most the experts of the groups that stay");
        return false;
    }
    if (config->eps >= 0)
        return true;
    report_input(attributes, "eps: expected at least 0");
    return false;
}

bool oracle_router_load(enum operator_kind kind, const struct router_options *options,
                        const struct case_files *inputs, const struct case_files *output,
                        const struct case_files *attributes, struct router_case *router)
{
    moetoken_type type;
    *router = (struct router_case){.is_grad = kind == OPERATOR_ROUTER_GRAD};
    if (!router_options_resolve(options, attributes, !router->is_grad, &router->config) ||
        !case_tensor(inputs, "logits", true, &router->logits))
        return false;
    if (router->logits->ndim != 2 || !type_of_tensor(router->logits, &type) ||
        !type_is_float(type)) {
        report_input(inputs, "logits: expected floating-point numbers [T,E]");
        return false;
    }
    router->tokens = router->logits->shape[0];
    router->experts = router->logits->shape[1];
    router->topk = router->config.topk;
    for (int i = 0; i < OUTPUTS_MOST; i++) {
        const char *name = operator_outputs[kind].outputs[i];
        if (name != NULL && !case_tensor(output, name, false, &router->output[i]))
            return false;
    }
    return case_justifies(attributes, 0, 400.0 * (double)router->experts) &&
           settle_config(attributes, router) && load_inputs(inputs, router) &&
           check_ids(inputs, router) && case_justifies(attributes, 0, 64.0 * (double)router->topk);
}

void oracle_router_shapes(const struct router_case *router, const bool wanted[OUTPUTS_MOST],
                          struct output_report *reports, bool checked[OUTPUTS_MOST])
{
    const int64_t t = router->tokens, e = router->experts, k = router->topk;
    const struct shape_rule forward[OUTPUTS_MOST] = {
        {"expert_ids", KIND_INDEX, 2, {t, k}}, {"weights", KIND_WEIGHTS, 2, {t, k}},
        {"scores", KIND_WEIGHTS, 2, {t, e}},   {"rows_per_expert", KIND_COUNT, 1, {e, 0}},
        {"routing_map", KIND_MAP, 2, {t, e}},  {"probs", KIND_WEIGHTS, 2, {t, e}}};
    const struct shape_rule backward = {"logits_grad", KIND_LOGITS, 2, {t, e}};
    for (int i = 0; i < OUTPUTS_MOST; i++) {
        const struct shape_rule *rule = router->is_grad ? &backward : &forward[i];
        struct output_report *report = &reports[i];
        bool by_map = !router->is_grad && i >= 4; /* made when asked for */
        checked[i] = false;
        if (!wanted[i] || (by_map && router->output[i] == NULL))
            continue;
        report->name = rule->name;
        if (router->output[i] == NULL)
            snprintf(report->problem, sizeof report->problem, "is missing");
        else
            find_problem(router->output[i], rule, report->problem, sizeof report->problem);
        if (report->problem[0] != '\0')
            continue;
        type_of_tensor(router->output[i], &report->type);
        report->last_size = rule->ndim == 2 ? rule->shape[1] : 0;
        checked[i] = true;
    }
}
