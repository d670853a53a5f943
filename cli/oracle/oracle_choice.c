/* oracle_choice.c - is this choice of experts right? Compares one by one: slow, and simple. */
#include <math.h>

#include "oracle_router.h"

enum order {
    BEHIND,
    BEFORE,
    EQUAL,    /* the lower index comes first */
    UNDECIDED /* the difference is within what binary64 may be off */
};

static enum order compare(long double a, long double a_error, long double b, long double b_error)
{
    if (isnan(a) || isnan(b))
        return isnan(a) && isnan(b) ? EQUAL : isnan(b) ? BEFORE : BEHIND;
    if (a == b)
        return EQUAL;
    if (isfinite(a) && isfinite(b) && fabsl(a - b) <= a_error + b_error)
        return UNDECIDED;
    return a > b ? BEFORE : BEHIND;
}

static enum order compare_experts(const struct router_token *token, int64_t a, int64_t b)
{
    return compare(token->choice[a], token->choice_tolerance[a], token->choice[b],
                   token->choice_tolerance[b]);
}

/* Whether `a` may stand before `b`. */
static bool may_precede(const struct router_token *token, int64_t a, int64_t b)
{
    enum order order = compare_experts(token, a, b);
    return order == BEFORE || order == UNDECIDED || (order == EQUAL && a < b);
}

/* Whether the oracle itself puts a before b. */
static bool precedes(const long double *values, int64_t a, int64_t b)
{
    enum order order = compare(values[a], 0, values[b], 0);
    return order == BEFORE || (order == EQUAL && a < b);
}

/* The sum of the group's best choice values. */
static void value_group(const struct router_token *token, int64_t group)
{
    const moetoken_router_config *config = &token->router->config;
    int64_t size = token->router->experts / config->groups_num, first = group * size;
    long double sum = 0, error = 0;
    for (int64_t e = first; e < first + size; e++) {
        int64_t better = 0;
        for (int64_t other = first; other < first + size; other++)
            better += other != e && precedes(token->choice, other, e);
        if (better >= config->group_score_count)
            continue;
        sum += token->choice[e];
        error += token->choice_tolerance[e] + fabsl(token->choice[e]) * 0x1p-50L;
    }
    token->group[group] = sum;
    token->group_tolerance[group] = error;
}

/* How many groups certainly stand before the group, and how many may. */
static void count_better(const struct router_token *token, int64_t group, int64_t *surely,
                         int64_t *perhaps)
{
    *surely = *perhaps = 0;
    for (int64_t other = 0; other < token->router->config.groups_num; other++) {
        enum order order = compare(token->group[other], token->group_tolerance[other],
                                   token->group[group], token->group_tolerance[group]);
        if (other == group)
            continue;
        *surely += order == BEFORE || (order == EQUAL && other < group);
        *perhaps += order == UNDECIDED;
    }
}

enum standing {
    OUT,
    PERHAPS_IN,
    IN
};

static enum standing group_standing(const struct router_token *token, int64_t group)
{
    int64_t surely, perhaps, top = token->router->config.groups_top;
    count_better(token, group, &surely, &perhaps);
    return surely >= top ? OUT : surely + perhaps >= top ? PERHAPS_IN : IN;
}

static int64_t group_of(const struct router_token *token, int64_t expert)
{
    return expert / (token->router->experts / token->router->config.groups_num);
}

static bool has_groups(const struct router_token *token)
{
    return token->router->config.groups_num > 1;
}

/* The oracle's own choice. */
static void choose(const struct router_token *token)
{
    int64_t experts = token->router->experts;
    for (int64_t e = 0; e < experts; e++) {
        int64_t better = 0, groups = has_groups(token) ? token->router->config.groups_num : 0;
        for (int64_t g = 0; g < groups; g++)
            better += g != group_of(token, e) && precedes(token->group, g, group_of(token, e));
        token->taken[e] = groups > 0 && better >= token->router->config.groups_top;
    }
    for (int64_t k = 0; k < token->router->topk; k++) {
        int64_t best = -1;
        for (int64_t e = 0; e < experts; e++)
            if (!token->taken[e] && (best < 0 || precedes(token->choice, e, best)))
                best = e;
        token->own_ids[k] = best;
        if (best >= 0)
            token->taken[best] = true;
    }
}

/* Every id is an expert of a group that may stay, none comes twice, and the best comes first. */
static bool is_in_order(const struct router_token *token)
{
    for (int64_t k = 0; k < token->router->topk; k++) {
        int64_t id = token->ids[k];
        if (id < 0 || id >= token->router->experts || token->taken[id])
            return false;
        if (has_groups(token) && group_standing(token, group_of(token, id)) == OUT)
            return false;
        if (k > 0 && !may_precede(token, token->ids[k - 1], id))
            return false;
        token->taken[id] = true;
    }
    return true;
}

/* No expert that was left out had to come before the last one. */
static bool is_complete(const struct router_token *token)
{
    int64_t topk = token->router->topk;
    for (int64_t e = 0; topk > 0 && e < token->router->experts; e++) {
        if (token->taken[e] || may_precede(token, token->ids[topk - 1], e))
            continue;
        if (!has_groups(token) || group_standing(token, group_of(token, e)) == IN)
            return false;
    }
    return true;
}

bool router_choice_is_right(const struct router_token *token)
{
    for (int64_t g = 0; has_groups(token) && g < token->router->config.groups_num; g++)
        value_group(token, g);
    choose(token);
    bool same = true;
    for (int64_t k = 0; k < token->router->topk; k++)
        same = same && token->ids[k] == token->own_ids[k];
    for (int64_t e = 0; e < token->router->experts; e++)
        token->taken[e] = false;
    return same || (is_in_order(token) && is_complete(token));
}
