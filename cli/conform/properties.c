/* properties.c - the properties of a case, in the order of the table. */
#include "properties.h"

#include <stddef.h>

enum property {
    DROPLESS,
    PADDED,
    BY_IDS,
    TOKENS_F32,
    TOKENS_F16,
    TOKENS_BF16,
    TOKENS_F64,
    WIDE_WEIGHTS,
    NO_WEIGHTS,
    INDEX_I64,
    MAP_BYTES,
    NO_TOKEN,
    ONE_TOKEN,
    NO_SLOT,
    EMPTY_TOKEN,
    FEW_EXPERTS,
    DROPPED_SLOT,
    UNNAMED_ROWS,
    FEWER_ROWS,
    ANY_ORDER,
    K_IS_1,
    E_IS_1,
    K_IS_E,
    K_BELOW_E,
    H_IS_1,
    H_IS_ODD,
    WIDE,
    LARGE,
    ONE_EXPERT_ALL,
    IDLE_EXPERT,
    FILL_SLOTS,
    PAIR_TWICE,
    CAPACITY_DROPS,
    SKEWED,
    VALUES_FIRST, /* + enum value_rule */
    ZERO_WEIGHTS = VALUES_FIRST + VALUE_RULES_COUNT,
    HUGE_WEIGHTS,
    PROPERTIES_COUNT
};

static const char *const names[PROPERTIES_COUNT] = {
    [DROPLESS] = "dropless, by routing_map",
    [PADDED] = "padded, by routing_map",
    [BY_IDS] = "by expert ids",
    [TOKENS_F32] = "float32 tokens",
    [TOKENS_F16] = "float16 tokens",
    [TOKENS_BF16] = "bfloat16 tokens",
    [TOKENS_F64] = "float64 tokens",
    [WIDE_WEIGHTS] = "float32 weights with narrower tokens",
    [NO_WEIGHTS] = "no weights",
    [INDEX_I64] = "int64 indices",
    [MAP_BYTES] = "routing_map of int8 or uint8",
    [NO_TOKEN] = "no token",
    [ONE_TOKEN] = "one token",
    [NO_SLOT] = "no slot in use",
    [EMPTY_TOKEN] = "a token without a slot",
    [FEW_EXPERTS] = "a token with fewer than K experts",
    [DROPPED_SLOT] = "a set pair whose slot is -1",
    [UNNAMED_ROWS] = "rows that no slot names",
    [FEWER_ROWS] = "fewer rows than slots",
    [ANY_ORDER] = "rows not in expert order",
    [K_IS_1] = "K = 1",
    [E_IS_1] = "E = 1",
    [K_IS_E] = "K = E",
    [K_BELOW_E] = "K < E",
    [H_IS_1] = "H = 1",
    [H_IS_ODD] = "H odd",
    [WIDE] = "H above 1,000",
    [LARGE] = "rows of more than 32,767 elements in all",
    [ONE_EXPERT_ALL] = "one expert has all rows",
    [IDLE_EXPERT] = "an expert without a row",
    [FILL_SLOTS] = "fill slots",
    [PAIR_TWICE] = "a pair of token and expert in two slots",
    [CAPACITY_DROPS] = "slots dropped by the capacity",
    [SKEWED] = "skewed routing",
    [VALUES_FIRST + VALUES_TINY] = "values within 0.001",
    [VALUES_FIRST + VALUES_UNIFORM] = "values within 5",
    [VALUES_FIRST + VALUES_NORMAL] = "values of a normal distribution",
    [VALUES_FIRST + VALUES_OUTLIERS] = "values with outliers",
    [VALUES_FIRST + VALUES_SUBNORMAL] = "subnormal values",
    [VALUES_FIRST + VALUES_NEGATIVE_0] = "values of -0",
    [VALUES_FIRST + VALUES_NAN] = "NaN among the values",
    [VALUES_FIRST + VALUES_INFINITE] = "infinities among the values",
    [VALUES_FIRST + VALUES_WHOLE] = "whole numbers",
    [VALUES_FIRST + VALUES_ONES] = "ones",
    [ZERO_WEIGHTS] = "weights of 0",
    [HUGE_WEIGHTS] = "huge weights",
};

const char *property_name(int i)
{
    return i < PROPERTIES_COUNT ? names[i] : NULL;
}

static void put(uint64_t *set, enum property property, bool value)
{
    *set |= (uint64_t)value << property;
}

static void put_types(const struct problem *problem, uint64_t *set)
{
    put(set, DROPLESS, problem->mode == MODE_DROPLESS);
    put(set, PADDED, problem->mode == MODE_PADDED);
    put(set, BY_IDS, problem->mode == MODE_IDS);
    put(set, TOKENS_F32, problem->token_type == MOETOKEN_F32);
    put(set, TOKENS_F16, problem->token_type == MOETOKEN_F16);
    put(set, TOKENS_BF16, problem->token_type == MOETOKEN_BF16);
    put(set, TOKENS_F64, problem->token_type == MOETOKEN_F64);
    put(set, WIDE_WEIGHTS, problem->weighted && problem->probs_type != problem->token_type);
    put(set, NO_WEIGHTS, !problem->weighted);
    put(set, INDEX_I64, problem->index_type == MOETOKEN_I64);
    put(set, MAP_BYTES, problem->mode != MODE_IDS && problem->map_type != MOETOKEN_BOOL);
    put(set, VALUES_FIRST + problem->values, true);
    put(set, ZERO_WEIGHTS, problem->weighted && problem->weights == WEIGHTS_ZEROS);
    put(set, HUGE_WEIGHTS, problem->weighted && problem->weights == WEIGHTS_HUGE);
}

static void put_sizes(const struct problem *problem, const struct layout *layout, uint64_t *set)
{
    bool counts_slots = problem->mode != MODE_PADDED;
    put(set, NO_TOKEN, problem->tokens == 0);
    put(set, ONE_TOKEN, problem->tokens == 1);
    put(set, K_IS_1, counts_slots && problem->topk == 1);
    put(set, E_IS_1, problem->experts == 1);
    put(set, K_IS_E, counts_slots && problem->topk == problem->experts);
    put(set, K_BELOW_E, counts_slots && problem->topk < problem->experts);
    put(set, H_IS_1, problem->hidden == 1);
    put(set, H_IS_ODD, problem->hidden % 2 == 1);
    put(set, WIDE, problem->hidden > 1000);
    put(set, LARGE, layout->rows * problem->hidden > 32767);
    put(set, NO_SLOT, layout->used == 0);
    put(set, FEWER_ROWS, layout->rows < layout->slots);
    put(set, ANY_ORDER, problem->shuffled && problem->operator_kind != OPERATOR_PERMUTE);
    put(set, SKEWED, problem->skewed);
}

/* Slots of a token: pairs that are set or ids that are used, and how many of them are dropped. */
static void put_token(const struct problem *problem, int64_t token, uint64_t *set)
{
    int64_t experts = 0, dropped = 0, twice = 0;
    for (int64_t e = 0; e < problem->experts && problem->mode != MODE_IDS; e++) {
        experts += problem->map[token * problem->experts + e] != PAIR_UNSET;
        dropped += problem->map[token * problem->experts + e] == PAIR_DROPPED;
    }
    const int64_t *ids = problem->ids + token * problem->topk;
    for (int64_t k = 0; k < problem->topk && problem->mode == MODE_IDS; k++) {
        experts += ids[k] >= 0;
        for (int64_t j = 0; j < k; j++)
            twice += ids[k] >= 0 && ids[j] == ids[k];
    }
    put(set, FEW_EXPERTS, problem->mode != MODE_PADDED && experts < problem->topk);
    put(set, DROPPED_SLOT, dropped > 0 && problem->operator_kind != OPERATOR_PERMUTE);
    put(set, PAIR_TWICE, twice > 0);
}

static bool has_slot(const struct layout *layout, int64_t token)
{
    for (int64_t i = 0; i < layout->slots; i++)
        if (layout->token[i] == token && layout->row[i] >= 0)
            return true;
    return false;
}

/* Of each expert: the rows that it has. */
static void put_experts(const struct problem *problem, const struct layout *layout, uint64_t *set)
{
    int64_t routed = 0;
    for (int64_t e = 0; e < problem->experts; e++) {
        int64_t rows = 0;
        for (int64_t t = 0; t < problem->tokens && problem->mode != MODE_IDS; t++)
            rows += problem->map[t * problem->experts + e] != PAIR_UNSET;
        for (int64_t i = 0; i < problem->tokens * problem->topk && problem->mode == MODE_IDS; i++)
            rows += problem->ids[i] == e;
        routed += rows;
        put(set, IDLE_EXPERT, rows == 0);
        put(set, ONE_EXPERT_ALL,
            problem->experts > 1 && rows > 0 && rows == layout->used &&
                problem->mode != MODE_PADDED);
        if (problem->mode == MODE_PADDED)
            put(set, FILL_SLOTS, rows < problem->capacity);
        if (problem->mode == MODE_PADDED || problem->capacity > 0)
            put(set, CAPACITY_DROPS, rows > problem->capacity);
    }
    put(set, PAIR_TWICE,
        problem->random_fill && problem->mode == MODE_PADDED && layout->slots > routed &&
            problem->operator_kind != OPERATOR_PERMUTE);
}

uint64_t properties_of(const struct problem *problem, const struct layout *layout)
{
    uint64_t set = 0;
    put_types(problem, &set);
    put_sizes(problem, layout, &set);
    for (int64_t t = 0; t < problem->tokens; t++)
        put_token(problem, t, &set);
    for (int64_t t = 0; t < problem->tokens && !(set >> EMPTY_TOKEN & 1); t++)
        put(&set, EMPTY_TOKEN, !has_slot(layout, t));
    for (int64_t r = 0; r < layout->rows; r++)
        put(&set, UNNAMED_ROWS, layout->by_row[r] < 0);
    put_experts(problem, layout, &set);
    return set;
}
