/* choice.c - the best groups, then the best experts in them. */
#include "router/choice.h"

#include <string.h>

/* Behind every value that is as good: those have lower indices. */
static void insert(struct moetoken_best *best, int64_t index, double value)
{
    int64_t at = best->count < best->wanted ? best->count++ : best->count - 1;
    for (; at > 0 && moetoken_ranks_above(value, best->value[at - 1]); at--) {
        best->index[at] = best->index[at - 1];
        best->value[at] = best->value[at - 1];
    }
    best->index[at] = index;
    best->value[at] = value;
}

void moetoken_best_of(const double *values, int64_t first, int64_t end, struct moetoken_best *best)
{
    int64_t i = first;
    if (best->wanted == 0)
        return;
    for (; i < end && best->count < best->wanted; i++)
        insert(best, i, values[i]);
    while (i < end) {
        double worst = best->value[best->wanted - 1]; /* what most values do not reach */
        while (i < end && !moetoken_ranks_above(values[i], worst))
            i++;
        if (i < end)
            insert(best, i, values[i]);
        i++;
    }
}

/* The sum of a group's best values, best first. */
static double value_of_group(const double *values, int64_t first, int64_t end,
                             struct moetoken_best best,
                             const struct moetoken_score_kernels *kernels)
{
    if (kernels->best_two && best.wanted == 2) {
        double sum = kernels->best_two(values + first, end - first);
        if (sum == sum)
            return sum;
    }
    moetoken_best_of(values, first, end, &best);
    double sum = best.value[0];
    for (int64_t i = 1; i < best.count; i++)
        sum += best.value[i];
    return sum;
}

static void sort_ascending(int64_t *values, int64_t count)
{
    for (int64_t i = 1; i < count; i++) {
        int64_t value = values[i], at = i;
        for (; at > 0 && values[at - 1] > value; at--)
            values[at] = values[at - 1];
        values[at] = value;
    }
}

/* scratch->group_index = the best groups, ascending. */
static void choose_groups(const double *values, int64_t size, const struct moetoken_groups *groups,
                          const struct moetoken_choice_scratch *scratch, int64_t *chosen)
{
    struct moetoken_best of_group = {chosen, scratch->best_value, groups->score_count, 0};
    for (int64_t g = 0; g < groups->num; g++)
        scratch->group_value[g] =
            value_of_group(values, g * size, (g + 1) * size, of_group, scratch->kernels);
    struct moetoken_best top = {scratch->group_index, scratch->best_value, groups->top, 0};
    moetoken_best_of(scratch->group_value, 0, groups->num, &top);
    sort_ascending(scratch->group_index, groups->top);
}

/* The quick way through the groups that stay: their values in a row. */
static bool choose_quickly(const double *values, int64_t size, const struct moetoken_groups *groups,
                           int64_t topk, const struct moetoken_choice_scratch *scratch,
                           int64_t *chosen)
{
    if (!scratch->kernels->best)
        return false;
    for (int64_t i = 0; i < groups->top; i++)
        memcpy(scratch->eligible + i * size, values + scratch->group_index[i] * size,
               (size_t)size * sizeof *values);
    if (!scratch->kernels->best(scratch->eligible, groups->top * size, 1, topk, chosen))
        return false;
    for (int64_t k = 0; k < topk; k++)
        chosen[k] = scratch->group_index[chosen[k] / size] * size + chosen[k] % size;
    return true;
}

void moetoken_choose(const double *values, int64_t experts_num,
                     const struct moetoken_groups *groups, int64_t topk,
                     const struct moetoken_choice_scratch *scratch, int64_t *chosen)
{
    struct moetoken_best best = {chosen, scratch->best_value, topk, 0};
    if (groups->num <= 1 || experts_num == 0) {
        if (!scratch->kernels->best ||
            !scratch->kernels->best(values, experts_num, 1, topk, chosen))
            moetoken_best_of(values, 0, experts_num, &best);
        return;
    }
    int64_t size = experts_num / groups->num;
    choose_groups(values, size, groups, scratch, chosen);
    if (choose_quickly(values, size, groups, topk, scratch, chosen))
        return;
    for (int64_t i = 0; i < groups->top; i++) {
        int64_t group = scratch->group_index[i];
        moetoken_best_of(values, group * size, (group + 1) * size, &best);
    }
}
