/* router_options.c - the router's settings: on the command line, in files, and written again. */
#include "router_options.h"

#include <inttypes.h>
#include <math.h>

struct router_options router_options_default(void)
{
    return (struct router_options){.score = -1,
                                   .normalize = -1,
                                   .normalize_scores = -1,
                                   .topk = -1,
                                   .groups_num = -1,
                                   .groups_top = -1,
                                   .group_score_count = -1,
                                   .eps = NAN,
                                   .scale = NAN};
}

bool router_recipe(const char *name, moetoken_router_config *config)
{
    if (moetoken_router_recipe(name, config) == MOETOKEN_OK)
        return true;
    report_error(moetoken_last_error());
    return false;
}

/* Each setting, where it is given, on top of what config holds. */
static bool change(const struct router_options *options, const struct case_files *files,
                   moetoken_router_config *config)
{
    int score = config->score;
    bool good = case_choice(files, "score", SCORE_CHOICES, options->score, &score) &&
                case_integer(files, "topk", options->topk, &config->topk) &&
                case_switch(files, "normalize", options->normalize, &config->normalize) &&
                case_switch(files, "normalize_scores", options->normalize_scores,
                            &config->normalize_scores) &&
                case_integer(files, "groups_num", options->groups_num, &config->groups_num) &&
                case_integer(files, "groups_top", options->groups_top, &config->groups_top) &&
                case_integer(files, "group_score_count", options->group_score_count,
                             &config->group_score_count) &&
                case_decimal(files, "eps", options->eps, &config->eps) &&
                case_decimal(files, "scale", options->scale, &config->scale);
    config->score = score;
    return good;
}

bool router_options_resolve(const struct router_options *options, const struct case_files *files,
                            bool with_choice, moetoken_router_config *config)
{
    const struct case_files none = {.count = 0};
    const char *recipe = options->recipe != NULL ? options->recipe : case_metadata(files, "recipe");
    *config = (moetoken_router_config){.topk = -1};
    if (recipe != NULL && !router_recipe(recipe, config))
        return false;
    if (!change(options, options->recipe != NULL ? &none : files, config))
        return false;
    if (config->topk < 0 && with_choice) {
        report_input(files, "the number of experts of a token is not known: give --topk or "
                            "--recipe");
        return false;
    }
    config->topk = config->topk < 0 ? 0 : config->topk;
    return true;
}

static const char *text_of_bool(bool value)
{
    return value ? "true" : "false";
}

void router_describe(const moetoken_router_config *config, struct router_metadata *metadata)
{
    static const char *const keys[ROUTER_SETTINGS_COUNT] = {
        "topk",       "score",      "normalize",         "normalize_scores",
        "groups_num", "groups_top", "group_score_count", "eps",
        "scale"};
    static const char *const scores[] = {"softmax", "sigmoid", "sqrtsoftplus", "softmax_after"};
    char(*text)[sizeof metadata->text[0]] = metadata->text;
    const size_t size = sizeof text[0];
    for (int i = 0; i < ROUTER_SETTINGS_COUNT; i++)
        metadata->keys[i] = keys[i];
    snprintf(text[0], size, "%" PRId64, config->topk);
    snprintf(text[1], size, "%s", scores[config->score]);
    snprintf(text[2], size, "%s", text_of_bool(config->normalize));
    snprintf(text[3], size, "%s", text_of_bool(config->normalize_scores));
    snprintf(text[4], size, "%" PRId64, config->groups_num);
    snprintf(text[5], size, "%" PRId64, config->groups_top);
    snprintf(text[6], size, "%" PRId64, config->group_score_count);
    snprintf(text[7], size, "%.17g", config->eps);
    snprintf(text[8], size, "%.17g", config->scale);
}
