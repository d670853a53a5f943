/* config.c - the router's settings: what zeros stand for, what is allowed, and those of models. */
#include "router/config.h"

#include "status.h"

#include <inttypes.h>
#include <math.h>

moetoken_status moetoken_router_check_finite(double value, const char *name)
{
    if (isfinite(value))
        return MOETOKEN_OK;
    return moetoken_fail(MOETOKEN_ERR_OPTION, "%s = %g, expected a finite number", name, value);
}

moetoken_status moetoken_router_check_ids(const struct moetoken_view *ids, int64_t experts_num)
{
    for (int64_t t = 0; t < ids->shape[0]; t++)
        for (int64_t k = 0; k < ids->shape[1]; k++) {
            int64_t id = moetoken_index_load_at(ids, t, k);
            if (id < -1 || id >= experts_num)
                return moetoken_fail(MOETOKEN_ERR_INDEX,
                                     "expert_ids[%" PRId64 ",%" PRId64 "] = %" PRId64
                                     " is outside [-1, %" PRId64 ")",
                                     t, k, id, experts_num);
        }
    return MOETOKEN_OK;
}

static moetoken_status check_numbers(const moetoken_router_config *config)
{
    if (config->score < MOETOKEN_SCORE_SOFTMAX || config->score > MOETOKEN_SCORE_SOFTMAX_AFTER)
        return moetoken_fail(MOETOKEN_ERR_OPTION,
                             "config.score = %" PRId32 ", expected a moetoken_score, 0 to 3",
                             config->score);
    if (config->eps < 0)
        return moetoken_fail(MOETOKEN_ERR_OPTION, "config.eps = %g, expected at least 0",
                             config->eps);
    moetoken_status status = moetoken_router_check_finite(config->eps, "config.eps");
    if (status == MOETOKEN_OK)
        status = moetoken_router_check_finite(config->scale, "config.scale");
    return status;
}

/* `value` in [1, most], where `most` is what `text` says. E = 0 allows anything. */
static moetoken_status check_count(int64_t value, int64_t most, const char *name, const char *text)
{
    if (value >= 1 && value <= most)
        return MOETOKEN_OK;
    return moetoken_fail(MOETOKEN_ERR_OPTION, "%s = %" PRId64 ", expected 1 to %s = %" PRId64, name,
                         value, text, most);
}

static moetoken_status check_groups(const moetoken_router_config *config, int64_t experts_num)
{
    if (config->groups_num < 1)
        return moetoken_fail(MOETOKEN_ERR_OPTION,
                             "config.groups_num = %" PRId64 ", expected at least 0",
                             config->groups_num);
    if (experts_num % config->groups_num != 0)
        return moetoken_fail(MOETOKEN_ERR_OPTION,
                             "config.groups_num = %" PRId64 " does not divide E = %" PRId64,
                             config->groups_num, experts_num);
    if (config->groups_num == 1 || experts_num == 0)
        return MOETOKEN_OK;
    moetoken_status status =
        check_count(config->groups_top, config->groups_num, "config.groups_top", "groups_num");
    if (status == MOETOKEN_OK)
        status = check_count(config->group_score_count, experts_num / config->groups_num,
                             "config.group_score_count", "E / groups_num");
    return status;
}

static moetoken_status check_topk(const moetoken_router_config *config, int64_t experts_num)
{
    if (config->topk > experts_num)
        return moetoken_fail(MOETOKEN_ERR_OPTION,
                             "config.topk = %" PRId64 ", expected at most E = %" PRId64,
                             config->topk, experts_num);
    if (config->groups_num == 1)
        return MOETOKEN_OK; /* groups_top has not been looked at, and may be any number */
    int64_t eligible = experts_num / config->groups_num * config->groups_top;
    if (config->topk > eligible)
        return moetoken_fail(MOETOKEN_ERR_OPTION,
                             "config.topk = %" PRId64 ", expected at most the %" PRId64
                             " experts of groups_top = %" PRId64 " groups",
                             config->topk, eligible, config->groups_top);
    return MOETOKEN_OK;
}

moetoken_status moetoken_router_check_config(const moetoken_router_config *config,
                                             int64_t experts_num, bool with_choice,
                                             moetoken_router_config *resolved)
{
    *resolved = *config;
    resolved->scale = config->scale == 0 ? 1 : config->scale;
    resolved->groups_num = config->groups_num == 0 ? 1 : config->groups_num;
    resolved->groups_top = config->groups_top == 0 ? 1 : config->groups_top;
    resolved->group_score_count = config->group_score_count == 0 ? 1 : config->group_score_count;
    moetoken_status status = check_numbers(resolved);
    if (status == MOETOKEN_OK && with_choice)
        status = check_groups(resolved, experts_num);
    if (status == MOETOKEN_OK && with_choice)
        status = check_topk(resolved, experts_num);
    return status;
}

/* ---- models --------------------------------------------------------------------------------- */

#define SIGMOID       .score = MOETOKEN_SCORE_SIGMOID
#define SOFTMAX       .score = MOETOKEN_SCORE_SOFTMAX
#define SOFTMAX_AFTER .score = MOETOKEN_SCORE_SOFTMAX_AFTER

static const struct {
    const char *name;
    moetoken_router_config config;
} recipes[] = {
    {"mixtral", {.topk = 2, SOFTMAX, .normalize = true}},
    {"qwen3", {.topk = 8, SOFTMAX, .normalize = true}},
    {"deepseek-v3",
     {.topk = 8,
      SIGMOID,
      .normalize = true,
      .groups_num = 8,
      .groups_top = 4,
      .group_score_count = 2,
      .eps = 1e-20,
      .scale = 2.5}},
    {"gpt-oss", {.topk = 4, SOFTMAX_AFTER}},
    {"llama-4", {.topk = 1, SIGMOID}},
    {"olmoe", {.topk = 8, SOFTMAX}},
    {"kimi-k2", {.topk = 8, SIGMOID, .normalize = true, .eps = 1e-20, .scale = 2.827}},
    {"glm-4.5", {.topk = 8, SIGMOID, .normalize = true, .eps = 1e-20, .scale = 2.5}},
};

moetoken_status moetoken_router_recipe(const char *name, moetoken_router_config *config)
{
    if (name == NULL || config == NULL)
        return moetoken_fail(MOETOKEN_ERR_NULL, "%s is NULL", name == NULL ? "name" : "config");
    for (size_t i = 0; i < sizeof recipes / sizeof recipes[0]; i++) {
        if (strcmp(recipes[i].name, name) == 0) {
            *config = recipes[i].config;
            return MOETOKEN_OK;
        }
    }
    return moetoken_fail(MOETOKEN_ERR_OPTION,
                         "no recipe is named \"%.64s\", expected mixtral, qwen3, deepseek-v3, "
                         "gpt-oss, llama-4, olmoe, kimi-k2 or glm-4.5",
                         name);
}
