/* router_options.h - the router's settings: on the command line, in files, and written again.
 *
 * What the command line says goes first: --recipe replaces what the files say, and every other
 * option changes that. A file has the settings as attributes of these names, and `recipe` beside
 * them names the model whose settings they change. */
#ifndef MOETOKEN_CLI_ROUTER_OPTIONS_H
#define MOETOKEN_CLI_ROUTER_OPTIONS_H

#include <moetoken/router.h>

#include "case_files.h"
#include "terminal/options.h"

#define SCORE_CHOICES "softmax|sigmoid|sqrtsoftplus|softmax_after"

/* As the command line has them. */
struct router_options {
    const char *recipe;
    int score, normalize, normalize_scores;                  /* -1: not given */
    int64_t topk, groups_num, groups_top, group_score_count; /* -1: not given */
    double eps, scale;                                       /* NaN: not given */
};

struct router_options router_options_default(void);
/* The settings of a case; with_choice: K must be known. false: a line was printed. */
bool router_options_resolve(const struct router_options *options, const struct case_files *files,
                            bool with_choice, moetoken_router_config *config);
/* The settings of a recipe; false after printing a line. */
bool router_recipe(const char *name, moetoken_router_config *config);

#define ROUTER_SETTINGS_COUNT 9
/* The settings as metadata: pairs of key and text, for a file that results from them. */
struct router_metadata {
    const char *keys[ROUTER_SETTINGS_COUNT];
    char text[ROUTER_SETTINGS_COUNT][32];
};
void router_describe(const moetoken_router_config *config, struct router_metadata *metadata);

/* The table entries, for a command whose settings struct `type` has them in `member`. */
#define ROUTER_OFFSET(type, member, field)                                                         \
    (offsetof(type, member) + offsetof(struct router_options, field))
#define ROUTER_RECIPE_OPTION(type, member)                                                         \
    {                                                                                              \
        .name = "recipe", .kind = OPTION_TEXT, .value = "NAME",                                    \
        .offset = ROUTER_OFFSET(type, member, recipe),                                             \
        .help = "the settings of a model: mixtral, qwen3, deepseek-v3, gpt-oss,\n"                 \
                "llama-4, olmoe, kimi-k2 or glm-4.5; the options below change them"                \
    }
/* K and how it is chosen. */
#define ROUTER_CHOICE_OPTIONS(type, member)                                                        \
    {.name = "topk",                                                                               \
     .letter = 'k',                                                                                \
     .kind = OPTION_INTEGER,                                                                       \
     .value = "K",                                                                                 \
     .offset = ROUTER_OFFSET(type, member, topk),                                                  \
     .most = INT64_MAX,                                                                            \
     .help = "experts of each token"},                                                             \
        {.name = "groups-num",                                                                     \
         .kind = OPTION_INTEGER,                                                                   \
         .value = "N",                                                                             \
         .offset = ROUTER_OFFSET(type, member, groups_num),                                        \
         .most = INT64_MAX,                                                                        \
         .help = "groups of experts; 0 or 1: none"},                                               \
        {.name = "groups-top",                                                                     \
         .kind = OPTION_INTEGER,                                                                   \
         .value = "N",                                                                             \
         .offset = ROUTER_OFFSET(type, member, groups_top),                                        \
         .most = INT64_MAX,                                                                        \
         .help = "groups that stay"},                                                              \
    {                                                                                              \
        .name = "group-score-count", .kind = OPTION_INTEGER, .value = "N",                         \
        .offset = ROUTER_OFFSET(type, member, group_score_count), .most = INT64_MAX,               \
        .help = "best choice values that make a group's value"                                     \
    }
/* From the logits to the weights. */
#define ROUTER_WEIGHT_OPTIONS(type, member)                                                        \
    {.name = "score",                                                                              \
     .kind = OPTION_CHOICE,                                                                        \
     .value = SCORE_CHOICES,                                                                       \
     .offset = ROUTER_OFFSET(type, member, score),                                                 \
     .help = "from logits to scores (default softmax)"},                                           \
        {.name = "normalize",                                                                      \
         .kind = OPTION_SWITCH,                                                                    \
         .value = "true|false",                                                                    \
         .offset = ROUTER_OFFSET(type, member, normalize),                                         \
         .help = "divide the weights of a token by (their sum + eps)"},                            \
        {.name = "normalize-scores",                                                               \
         .kind = OPTION_SWITCH,                                                                    \
         .value = "true|false",                                                                    \
         .offset = ROUTER_OFFSET(type, member, normalize_scores),                                  \
         .help = "divide the scores of a token by (their sum + eps)"},                             \
        {.name = "eps",                                                                            \
         .kind = OPTION_DECIMAL,                                                                   \
         .value = "X",                                                                             \
         .offset = ROUTER_OFFSET(type, member, eps),                                               \
         .most = INT64_MAX,                                                                        \
         .help = "see normalize"},                                                                 \
    {                                                                                              \
        .name = "scale", .kind = OPTION_DECIMAL, .value = "X",                                     \
        .offset = ROUTER_OFFSET(type, member, scale), .least = INT64_MIN, .most = INT64_MAX,       \
        .help = "factor of the weights (0: 1)"                                                     \
    }

#endif
