/* shrink.c - smaller and plainer variants of a problem, kept as long as they fail. See shrink.h. */
#include "shrink.h"

#include <string.h>

struct shrinking {
    struct problem *problem;
    shrink_try *attempt;
    void *context;
    bool stopped;
};

/* Takes the candidate, which is then the problem or freed. */
static bool try_candidate(struct shrinking *shrinking, struct problem *candidate)
{
    enum shrink_answer answer = shrinking->attempt(shrinking->context, candidate);
    shrinking->stopped = answer == SHRINK_STOP;
    if (answer != SHRINK_FAILS) {
        problem_free(candidate);
        return false;
    }
    problem_free(shrinking->problem);
    *shrinking->problem = *candidate;
    return true;
}

/* ---- fewer of something ---------------------------------------------------------------------- */

enum axis {
    AXIS_TOKENS,
    AXIS_EXPERTS,
    AXIS_SLOTS,
    AXIS_COLUMNS,
    AXES_COUNT
};

static int64_t axis_size(const struct problem *problem, enum axis axis)
{
    switch (axis) {
    case AXIS_TOKENS:
        return problem->tokens;
    case AXIS_EXPERTS:
        return problem->experts;
    case AXIS_SLOTS:
        return problem->mode == MODE_PADDED ? problem->capacity : problem->topk;
    default:
        return problem->hidden;
    }
}

/* The `i`-th of what is left when [first, first + count) is gone. */
static int64_t kept(int64_t i, int64_t first, int64_t count)
{
    return i < first ? i : i + count;
}

static void copy_kept(int64_t *to, const int64_t *from, int64_t left, int64_t first, int64_t count)
{
    for (int64_t i = 0; i < left; i++)
        to[i] = from[kept(i, first, count)];
}

static void set_sizes(struct problem *to, enum axis axis, int64_t count)
{
    int64_t *sizes[AXES_COUNT] = {&to->tokens, &to->experts,
                                  to->mode == MODE_PADDED ? &to->capacity : &to->topk, &to->hidden};
    *sizes[axis] -= count;
    if (to->mode == MODE_PADDED && to->capacity > to->tokens)
        to->capacity = to->tokens;
    if (to->mode == MODE_DROPLESS && to->topk > to->experts)
        to->topk = to->experts;
    if (to->mode == MODE_IDS && to->capacity > to->tokens * to->topk && to->capacity > 1)
        to->capacity = to->tokens * to->topk > 0 ? to->tokens * to->topk : 1;
}

/* Dropless: no token may have more experts than slots; the last ones go. */
static void trim_map(struct problem *problem)
{
    for (int64_t t = 0; t < problem->tokens && problem->mode == MODE_DROPLESS; t++) {
        uint8_t *map = problem->map + t * problem->experts;
        int64_t set = 0;
        for (int64_t e = 0; e < problem->experts; e++)
            if (map[e] != PAIR_UNSET && ++set > problem->topk)
                map[e] = PAIR_UNSET;
    }
}

/* The ids that are left, where the experts [first, first + count) may be gone. */
static int64_t kept_expert(int64_t expert, enum axis axis, int64_t first, int64_t count)
{
    if (axis != AXIS_EXPERTS || expert < first)
        return expert;
    return expert < first + count ? -1 : expert - count;
}

static bool without(const struct problem *from, enum axis axis, int64_t first, int64_t count,
                    struct problem *to)
{
    int64_t gone[AXES_COUNT] = {0}, begin[AXES_COUNT] = {0};
    gone[axis] = count;
    begin[axis] = first;
    *to = *from;
    set_sizes(to, axis, count);
    if (!problem_allocate(to)) {
        problem_free(to);
        return false;
    }
    copy_kept(to->token_id, from->token_id, to->tokens, begin[AXIS_TOKENS], gone[AXIS_TOKENS]);
    copy_kept(to->expert_id, from->expert_id, to->experts, begin[AXIS_EXPERTS], gone[AXIS_EXPERTS]);
    copy_kept(to->column_id, from->column_id, to->hidden, begin[AXIS_COLUMNS], gone[AXIS_COLUMNS]);
    bool slots = axis == AXIS_SLOTS && to->mode == MODE_IDS;
    copy_kept(to->slot_id, from->slot_id, to->topk, slots ? first : 0, slots ? count : 0);
    for (int64_t t = 0; t < to->tokens; t++) {
        int64_t token = kept(t, begin[AXIS_TOKENS], gone[AXIS_TOKENS]);
        for (int64_t e = 0; e < to->experts; e++)
            to->map[t * to->experts + e] =
                from->map[token * from->experts + kept(e, begin[AXIS_EXPERTS], gone[AXIS_EXPERTS])];
        for (int64_t k = 0; k < to->topk; k++)
            to->ids[t * to->topk + k] =
                kept_expert(from->ids[token * from->topk + (slots ? kept(k, first, count) : k)],
                            axis, begin[AXIS_EXPERTS], gone[AXIS_EXPERTS]);
    }
    trim_map(to);
    return true;
}

/* Takes away as much as it can along an axis; at least one is left. */
static bool shrink_axis(struct shrinking *shrinking, enum axis axis)
{
    bool smaller = false;
    int64_t size = axis_size(shrinking->problem, axis);
    for (int64_t count = size > 2 ? size - 1 : 1; count > 0 && !shrinking->stopped; count /= 2) {
        for (int64_t first = 0; !shrinking->stopped;) {
            struct problem candidate;
            size = axis_size(shrinking->problem, axis);
            if (size <= 1 || first >= size)
                break;
            int64_t here = first + count > size ? size - first : count;
            here = here == size ? size - 1 : here;
            if (!without(shrinking->problem, axis, first, here, &candidate))
                return smaller;
            if (try_candidate(shrinking, &candidate))
                smaller = true;
            else
                first += here;
        }
    }
    return smaller;
}

/* ---- fewer pairs ----------------------------------------------------------------------------- */

enum {
    PAIRS_MOST = 64 /* so many are tried one by one */
};

static bool shrink_pairs(struct shrinking *shrinking)
{
    bool ids = shrinking->problem->mode == MODE_IDS, smaller = false;
    int64_t count =
        shrinking->problem->tokens * (ids ? shrinking->problem->topk : shrinking->problem->experts);
    if (count > PAIRS_MOST)
        return false;
    for (int64_t i = 0; i < count && !shrinking->stopped; i++) {
        struct problem candidate;
        if (ids ? shrinking->problem->ids[i] < 0 : shrinking->problem->map[i] == PAIR_UNSET)
            continue;
        if (!problem_copy(shrinking->problem, &candidate))
            return smaller;
        if (ids)
            candidate.ids[i] = -1;
        else
            candidate.map[i] = PAIR_UNSET;
        smaller = try_candidate(shrinking, &candidate) || smaller;
    }
    return smaller;
}

/* ---- plainer --------------------------------------------------------------------------------- */

/* Makes one thing plain; false when it is so already. */
typedef bool make_plain(struct problem *problem);

static bool plain_rows(struct problem *problem)
{
    bool changes = problem->spare_rows > 0;
    problem->spare_rows = 0;
    return changes;
}

static bool plain_order(struct problem *problem)
{
    bool changes = problem->shuffled;
    problem->shuffled = false;
    return changes;
}

static bool plain_fill(struct problem *problem)
{
    bool changes = problem->random_fill;
    problem->random_fill = false;
    return changes;
}

static bool plain_pairs(struct problem *problem)
{
    bool changes = false;
    for (int64_t i = 0; i < problem->tokens * problem->experts; i++) {
        changes = changes || problem->map[i] == PAIR_DROPPED;
        problem->map[i] = problem->map[i] == PAIR_UNSET ? PAIR_UNSET : PAIR_SET;
    }
    return changes;
}

static bool plain_capacity(struct problem *problem)
{
    bool changes = problem->mode == MODE_IDS && problem->capacity > 0;
    problem->capacity = changes ? 0 : problem->capacity;
    return changes;
}

static bool plain_ones(struct problem *problem)
{
    bool changes = problem->values != VALUES_ONES;
    problem->values = VALUES_ONES;
    return changes;
}

static bool plain_whole(struct problem *problem)
{
    bool changes = problem->values < VALUES_WHOLE;
    problem->values = changes ? VALUES_WHOLE : problem->values;
    return changes;
}

static bool plain_weights(struct problem *problem)
{
    bool changes = problem->weighted && problem->weights != WEIGHTS_ONES;
    problem->weights = WEIGHTS_ONES;
    return changes;
}

static bool plain_weight_type(struct problem *problem)
{
    bool changes = problem->weighted && problem->probs_type != problem->token_type;
    problem->probs_type = problem->token_type;
    return changes;
}

static bool plain_token_type(struct problem *problem)
{
    bool changes = problem->token_type != MOETOKEN_F32;
    problem->token_type = problem->probs_type = MOETOKEN_F32;
    return changes;
}

static bool plain_index_type(struct problem *problem)
{
    bool changes = problem->index_type != MOETOKEN_I32;
    problem->index_type = MOETOKEN_I32;
    return changes;
}

static bool plain_map_type(struct problem *problem)
{
    bool changes = problem->mode != MODE_IDS && problem->map_type != MOETOKEN_BOOL;
    problem->map_type = MOETOKEN_BOOL;
    return changes;
}

static make_plain *const plain[] = {plain_rows,       plain_order,      plain_fill,
                                    plain_pairs,      plain_capacity,   plain_ones,
                                    plain_whole,      plain_weights,    plain_weight_type,
                                    plain_token_type, plain_index_type, plain_map_type};

static bool shrink_plain(struct shrinking *shrinking)
{
    bool smaller = false;
    for (size_t i = 0; i < sizeof plain / sizeof plain[0] && !shrinking->stopped; i++) {
        struct problem candidate;
        if (!problem_copy(shrinking->problem, &candidate))
            return smaller;
        if (plain[i](&candidate))
            smaller = try_candidate(shrinking, &candidate) || smaller;
        else
            problem_free(&candidate);
    }
    return smaller;
}

void shrink(struct problem *problem, shrink_try *attempt, void *context)
{
    struct shrinking shrinking = {.problem = problem, .attempt = attempt, .context = context};
    for (bool smaller = true; smaller && !shrinking.stopped;) {
        smaller = false;
        for (int axis = 0; axis < AXES_COUNT && !shrinking.stopped; axis++)
            smaller = shrink_axis(&shrinking, (enum axis)axis) || smaller;
        smaller = shrink_pairs(&shrinking) || smaller;
        smaller = shrink_plain(&shrinking) || smaller;
    }
}
