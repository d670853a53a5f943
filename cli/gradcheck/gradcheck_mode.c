/* gradcheck_mode.c - the built-in modes of gradcheck: routings with everything that can be special.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gradcheck.h"
#include "values/random_values.h"

enum {
    STREAM_X = 210,
    STREAM_TOKEN_VALUES = 211,
    STREAM_PROB_VALUES = 212,
    STREAM_CHANGES = 213
};

const struct gradient_mode gradient_modes[] = {
    {.name = "dropless"},
    {.name = "dropless, no probs", .without_probs = true},
    {.name = "dropless, probs 0 and negative", .odd_probs = true},
    {.name = "dropless, holes", .holes = true, .unpermute_only = true},
    {.name = "dropless, holes, no probs",
     .holes = true,
     .without_probs = true,
     .unpermute_only = true},
    {.name = "dropless, empty experts and tokens", .empty = true, .odd_probs = true},
    {.name = "dropless, mismatch tolerated", .mismatch = true, .unpermute_only = true},
    {.name = "padded", .drop_and_pad = true},
    {.name = "padded, no probs", .drop_and_pad = true, .without_probs = true},
    {.name = "padded, probs 0 and negative", .drop_and_pad = true, .odd_probs = true},
    {.name = "padded, empty experts and tokens",
     .drop_and_pad = true,
     .empty = true,
     .odd_probs = true},
    {.name = "padded, repeated pairs",
     .drop_and_pad = true,
     .holes = true,
     .random_fill = true,
     .unpermute_only = true},
    {.name = "padded, mask_fill_slots",
     .drop_and_pad = true,
     .holes = true,
     .mask = true,
     .unpermute_only = true},
    {.name = "padded, mask_fill_slots, no probs",
     .drop_and_pad = true,
     .holes = true,
     .mask = true,
     .without_probs = true,
     .unpermute_only = true},
    {.name = "padded, mask_fill_slots, repeated pairs",
     .drop_and_pad = true,
     .holes = true,
     .random_fill = true,
     .mask = true,
     .odd_probs = true,
     .unpermute_only = true},
    {.name = "by ids", .by_ids = true},
    {.name = "by ids, no weights", .by_ids = true, .without_probs = true},
    {.name = "by ids, weights 0 and negative", .by_ids = true, .odd_probs = true},
    {.name = "by ids, unused slots", .by_ids = true, .holes = true},
    {.name = "by ids, residuals and biases", .by_ids = true, .holes = true, .extras = true},
    {.name = "by ids, a range of experts", .by_ids = true, .holes = true, .range = true},
    {.name = "by ids, capacity", .by_ids = true, .holes = true, .capacity = true},
};
const int gradient_modes_count = sizeof gradient_modes / sizeof gradient_modes[0];

static void fill_values(double *values, int64_t count, uint64_t seed, uint64_t stream)
{
    int64_t shape[1] = {count};
    DLTensor tensor = moetoken_tensor(values, MOETOKEN_F64, 1, shape);
    struct progress quiet = {0};
    random_fill(&tensor, MOETOKEN_F64, random_key(seed, stream), 0, &quiet);
}

/* Weights in (0, 1], or a third 0, a third of either sign. */
static void fill_probs(struct gradient_problem *problem, bool odd)
{
    uint64_t key = random_key(problem->seed, STREAM_PROB_VALUES);
    for (int64_t i = 0; i < problem->tokens * problem->experts; i++) {
        problem->probs[i] = random_unit(key, (uint64_t)i);
        if (odd)
            problem->probs[i] *= (double)(i % 3 - 1);
    }
}

/* No token goes to every fourth expert, and every fifth token goes nowhere. */
static void empty_experts_and_tokens(struct gradient_problem *problem)
{
    for (int64_t t = 0; t < problem->tokens; t++)
        for (int64_t e = 0; e < problem->experts; e++)
            if (e % 4 == 1 || t % 5 == 2)
                problem->map[t * problem->experts + e] = 0;
}

/* Takes experts away from some tokens and gives others more, without a change of slots. */
static void mismatch_map(struct gradient_problem *problem)
{
    uint64_t key = random_key(problem->seed, STREAM_CHANGES);
    for (int64_t i = 0; i < problem->tokens * problem->experts; i++)
        if (random_bits(key, (uint64_t)i) % 4 == 0)
            problem->map[i] ^= 1;
}

/* sorted_indices for a map that no longer is the plan's, from permute itself; sets R too. */
static bool sort_again(struct gradient_problem *problem, char *error)
{
    int64_t map_shape[2] = {problem->tokens, problem->experts}, n[1] = {problem->slots};
    int64_t token_shape[2] = {problem->tokens, problem->hidden};
    if (!problem->drop_and_pad) {
        problem->rows = 0;
        for (int64_t i = 0; i < problem->tokens * problem->experts; i++)
            problem->rows += problem->map[i] != 0;
    }
    int64_t row_shape[2] = {problem->rows, problem->hidden};
    DLTensor map = moetoken_tensor(problem->map, MOETOKEN_U8, 2, map_shape);
    DLTensor tokens = moetoken_tensor(problem->token, MOETOKEN_F64, 2, token_shape);
    DLTensor rows = moetoken_tensor(problem->x, MOETOKEN_F64, 2, row_shape);
    DLTensor sorted = moetoken_tensor(problem->sorted, MOETOKEN_I64, 1, n);
    moetoken_permute_args args = {.tokens = &tokens,
                                  .routing_map = &map,
                                  .num_out_tokens = problem->slots,
                                  .drop_and_pad = problem->drop_and_pad,
                                  .permuted_tokens = &rows,
                                  .sorted_indices = &sorted};
    if (moetoken_permute(&args, NULL) == MOETOKEN_OK)
        return true;
    snprintf(error, TENSOR_FILE_ERROR_SIZE, "%s", moetoken_last_error());
    return false;
}

static void take_plan(const struct generated_case *plan, const struct gradient_mode *mode,
                      struct gradient_problem *problem)
{
    const struct case_settings *settings = &plan->settings;
    problem->tokens = settings->tokens;
    problem->hidden = settings->hidden;
    problem->experts = settings->experts;
    problem->slots = plan->slots;
    problem->rows = plan->rows;
    problem->seed = settings->seed;
    problem->drop_and_pad = mode->drop_and_pad;
    problem->with_probs = !mode->without_probs;
    problem->flags = (mode->mask ? MOETOKEN_MASK_FILL_SLOTS : 0) |
                     (mode->mismatch ? MOETOKEN_TOLERATE_ROUTING_MISMATCH : 0);
}

static bool fill_problem(const struct generated_case *plan, const struct gradient_mode *mode,
                         struct gradient_problem *problem, char *error)
{
    take_plan(plan, mode, problem);
    if (!allocate_problem(problem, error))
        return false;
    memcpy(problem->map, plan->map, (size_t)(problem->tokens * problem->experts));
    memcpy(problem->sorted, mode->drop_and_pad ? plan->by_row : plan->row,
           (size_t)problem->slots * sizeof *problem->sorted);
    fill_values(problem->token, problem->tokens * problem->hidden, problem->seed,
                STREAM_TOKEN_VALUES);
    fill_probs(problem, mode->odd_probs);
    if (mode->empty) {
        empty_experts_and_tokens(problem);
        if (!sort_again(problem, error))
            return false;
    }
    if (mode->mismatch)
        mismatch_map(problem);
    fill_values(problem->x, problem->rows * problem->hidden, problem->seed, STREAM_X);
    return true;
}

bool make_mode_problem(const struct gradient_mode *mode, const struct case_settings *shape,
                       struct gradient_problem *problem, char *error)
{
    if (mode->by_ids)
        return fill_problem_by_ids(mode, shape, problem, error);
    struct case_settings settings = *shape;
    settings.operator_kind = OPERATOR_UNPERMUTE;
    settings.token_type = settings.probs_type = MOETOKEN_F64;
    settings.index_type = MOETOKEN_I64;
    settings.drop_and_pad = mode->drop_and_pad;
    settings.without_probs = mode->without_probs;
    settings.holes = mode->holes;
    settings.random_fill_slots = mode->random_fill;
    settings.shuffle = mode->holes && !mode->drop_and_pad;
    memset(problem, 0, sizeof *problem);
    struct generated_case plan;
    if (!plan_case(&plan, &settings, error, TENSOR_FILE_ERROR_SIZE))
        return false;
    bool good = fill_problem(&plan, mode, problem, error);
    free_case(&plan);
    return good;
}
