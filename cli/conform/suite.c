/* suite.c - draws the problems of a suite. See suite.h. */
#include "suite.h"

#include "values/random_values.h"

enum theme {
    THEME_PLAIN,
    THEME_HOLES,   /* tokens with fewer than K experts */
    THEME_NORMAL,  /* the four kinds of values of the commercial standard, */
    THEME_UNIFORM, /* in its proportions */
    THEME_OUTLIERS,
    THEME_DROPPED,    /* slots of -1 although their pair is set; by ids and padded: a capacity */
    THEME_NORMAL_ODD, /* H odd */
    THEME_NO_SLOT,
    THEME_ONE_EXPERT, /* has all rows */
    THEME_UNIFORM_K1,
    THEME_E1,
    THEME_NORMAL_H1,
    THEME_TINY,
    THEME_SPARE_ROWS, /* that no slot names */
    THEME_NEGATIVE_0,
    THEME_SUBNORMAL,
    THEME_NAN,
    THEME_INFINITE,
    THEME_ZERO_WEIGHTS,
    THEME_HUGE_WEIGHTS,
    THEME_SKEW,
    THEME_TWICE, /* a pair of token and expert in two slots */
    THEME_ONE_TOKEN,
    THEME_WIDE,        /* thousands of columns */
    THEME_TOKENS,      /* thousands of tokens */
    THEME_ALL_EXPERTS, /* K = E */
    THEME_NO_TOKEN,
    THEMES_COUNT
};

struct draws {
    uint64_t key, next;
};

static uint64_t draw(struct draws *draws, uint64_t count)
{
    return random_bits(draws->key, draws->next++) % count;
}

/* In [least, most], small numbers as often as large ones. */
static int64_t draw_size(struct draws *draws, int64_t least, int64_t most)
{
    int64_t span = most - least + 1, bits = 0;
    while (span >> bits > 1)
        bits++;
    int64_t end = INT64_C(1) << draw(draws, (uint64_t)bits + 1);
    int64_t size = least + (int64_t)draw(draws, (uint64_t)(2 * end)) % span;
    return size > most ? most : size;
}

static bool is_chance(struct draws *draws, uint64_t one_in)
{
    return draw(draws, one_in) == 0;
}

/* ---- sizes, types, values -------------------------------------------------------------------- */

static void draw_sizes(struct draws *draws, enum theme theme, struct problem *problem)
{
    problem->tokens = draw_size(draws, 1, 40);
    problem->hidden = draw_size(draws, 1, 160);
    problem->experts = draw_size(draws, 1, 16);
    if (theme == THEME_ONE_TOKEN || theme == THEME_NO_TOKEN)
        problem->tokens = theme == THEME_ONE_TOKEN;
    if (theme == THEME_WIDE) {
        problem->tokens = 6 + (int64_t)draw(draws, 3); /* more than 2^15 elements in K * T rows */
        problem->hidden = 6000 + (int64_t)draw(draws, 4000);
    }
    if (theme == THEME_TOKENS) {
        problem->tokens = 500 + (int64_t)draw(draws, 2000);
        problem->hidden = draw_size(draws, 1, 12);
    }
    if (theme == THEME_NORMAL_H1)
        problem->hidden = 1;
    if (theme == THEME_NORMAL_ODD)
        problem->hidden |= 1;
    if (theme == THEME_E1)
        problem->experts = 1;
    if (theme == THEME_SKEW || theme == THEME_ONE_EXPERT)
        problem->experts += 3;
    problem->topk = draw_size(draws, 1, problem->experts < 8 ? problem->experts : 8);
    if (theme == THEME_UNIFORM_K1)
        problem->topk = 1;
    if (theme == THEME_ALL_EXPERTS)
        problem->topk = problem->experts;
    if (theme == THEME_TWICE && problem->mode == MODE_IDS)
        problem->topk += problem->topk == 1;
    if (theme == THEME_TWICE && problem->mode == MODE_PADDED) { /* many fill slots */
        problem->tokens += 3;
        problem->experts += 1;
        problem->topk = 1;
    }
    if (theme == THEME_SPARE_ROWS)
        problem->spare_rows = draw_size(draws, 1, 8);
}

static void draw_capacity(struct draws *draws, enum theme theme, struct problem *problem)
{
    int64_t tokens = problem->tokens, experts = problem->experts;
    int64_t mean = (tokens * problem->topk + experts - 1) / experts;
    if (problem->mode == MODE_DROPLESS)
        return;
    if (problem->mode == MODE_IDS && (problem->operator_kind != OPERATOR_PERMUTE ||
                                      !(theme == THEME_DROPPED || is_chance(draws, 4))))
        return;
    int64_t capacity = theme == THEME_DROPPED ? (mean + 1) / 2
                       : theme == THEME_TWICE ? tokens
                       : is_chance(draws, 8)  ? tokens
                                              : mean;
    problem->capacity = capacity < tokens ? capacity : tokens;
    if (problem->mode == MODE_IDS && problem->capacity == 0)
        problem->capacity = 1;
}

static bool is_narrow(moetoken_type type)
{
    return type == MOETOKEN_F16 || type == MOETOKEN_BF16;
}

static void draw_types(const struct suite *suite, struct draws *draws, struct problem *problem)
{
    problem->token_type = suite->token_types[draw(draws, (uint64_t)suite->token_types_count)];
    problem->index_type = suite->index_types[draw(draws, (uint64_t)suite->index_types_count)];
    problem->map_type = suite->map_types[draw(draws, (uint64_t)suite->map_types_count)];
    problem->probs_type = problem->token_type;
    if (is_narrow(problem->token_type) && is_chance(draws, 2))
        problem->probs_type = MOETOKEN_F32;
}

/* 10 % tiny, 30 % uniform, 40 % normal, 20 % outliers, where the theme has none of its own. */
static void draw_values(struct draws *draws, enum theme theme, struct problem *problem)
{
    static const enum value_rule rules[THEMES_COUNT] = {[THEME_NORMAL] = VALUES_NORMAL,
                                                        [THEME_OUTLIERS] = VALUES_OUTLIERS,
                                                        [THEME_UNIFORM] = VALUES_UNIFORM,
                                                        [THEME_NORMAL_ODD] = VALUES_NORMAL,
                                                        [THEME_NORMAL_H1] = VALUES_NORMAL,
                                                        [THEME_UNIFORM_K1] = VALUES_UNIFORM,
                                                        [THEME_SUBNORMAL] = VALUES_SUBNORMAL,
                                                        [THEME_NEGATIVE_0] = VALUES_NEGATIVE_0,
                                                        [THEME_NAN] = VALUES_NAN,
                                                        [THEME_INFINITE] = VALUES_INFINITE};
    uint64_t tenth = draw(draws, 10);
    problem->values = tenth == 0  ? VALUES_TINY
                      : tenth < 4 ? VALUES_UNIFORM
                      : tenth < 8 ? VALUES_NORMAL
                                  : VALUES_OUTLIERS;
    if (rules[theme] != VALUES_TINY)
        problem->values = rules[theme];
    problem->weighted = theme == THEME_ZERO_WEIGHTS || theme == THEME_HUGE_WEIGHTS ||
                        theme == THEME_TWICE || problem->mode == MODE_IDS || !is_chance(draws, 6);
    problem->weights = theme == THEME_ZERO_WEIGHTS   ? WEIGHTS_ZEROS
                       : theme == THEME_HUGE_WEIGHTS ? WEIGHTS_HUGE
                                                     : WEIGHTS_SHARES;
    problem->shuffled = is_chance(draws, 4);
    problem->skewed = theme == THEME_SKEW;
    problem->random_fill = theme == THEME_TWICE && problem->mode == MODE_PADDED;
}

/* ---- routing --------------------------------------------------------------------------------- */

static int64_t draw_expert(struct draws *draws, const struct problem *problem)
{
    uint64_t experts = (uint64_t)problem->experts;
    uint64_t expert = draw(draws, experts);
    if (problem->skewed) { /* the least of four */
        for (int i = 0; i < 3; i++) {
            uint64_t other = draw(draws, experts);
            expert = other < expert ? other : expert;
        }
    }
    return (int64_t)expert;
}

/* Another expert than those that the token has. */
static int64_t draw_new_expert(struct draws *draws, const struct problem *problem,
                               const uint8_t *taken)
{
    int64_t expert = draw_expert(draws, problem);
    while (taken[expert] != PAIR_UNSET)
        expert = (expert + 1) % problem->experts;
    return expert;
}

static void route_token(struct draws *draws, enum theme theme, struct problem *problem,
                        int64_t token)
{
    uint8_t *map = problem->map + token * problem->experts;
    int64_t *ids = problem->ids + token * problem->topk;
    bool holes = theme == THEME_HOLES || theme == THEME_SPARE_ROWS || theme == THEME_SKEW;
    int64_t wanted = holes ? (int64_t)draw(draws, (uint64_t)problem->topk + 1) : problem->topk;
    wanted = theme == THEME_SPARE_ROWS && token == 0 ? 0 : wanted;
    wanted = theme == THEME_NO_SLOT ? 0 : theme == THEME_ONE_EXPERT ? 1 : wanted;
    for (int64_t k = 0; k < wanted; k++) {
        bool twice = theme == THEME_TWICE && problem->mode == MODE_IDS && k > 0 &&
                     (k >= problem->experts || is_chance(draws, 2));
        int64_t expert = theme == THEME_ONE_EXPERT ? problem->experts / 2
                         : twice                   ? ids[k - 1]
                                                   : draw_new_expert(draws, problem, map);
        bool drops = theme == THEME_DROPPED && is_chance(draws, 4);
        map[expert] = drops && problem->mode == MODE_DROPLESS ? PAIR_DROPPED : PAIR_SET;
        ids[k] = expert;
        if (drops && problem->mode == MODE_IDS && problem->capacity == 0)
            ids[k] = -1;
    }
}

/* Whether the theme can be seen in the mode. */
static bool suits(enum theme theme, enum routing_mode mode)
{
    return !(theme == THEME_TWICE && mode == MODE_DROPLESS) &&
           !(theme == THEME_SPARE_ROWS && mode == MODE_PADDED);
}

bool suite_problem(const struct suite *suite, int64_t number, struct problem *problem)
{
    uint64_t seed = random_key(suite->seed, (uint64_t)number);
    struct draws draws = {.key = random_key(seed, 0)};
    enum theme theme = (enum theme)(number % THEMES_COUNT);
    *problem = (struct problem){.operator_kind = suite->operator_kind, .seed = seed};
    problem->mode = suite->modes[draw(&draws, (uint64_t)suite->modes_count)];
    for (int i = 0; i < 8 && !suits(theme, problem->mode); i++)
        problem->mode = suite->modes[draw(&draws, (uint64_t)suite->modes_count)];
    draw_sizes(&draws, theme, problem);
    draw_types(suite, &draws, problem);
    draw_capacity(&draws, theme, problem);
    draw_values(&draws, theme, problem);
    if (!problem_allocate(problem)) {
        problem_free(problem);
        return false;
    }
    for (int64_t t = 0; t < problem->tokens; t++)
        route_token(&draws, theme, problem, t);
    return true;
}
