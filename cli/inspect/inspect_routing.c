/* inspect_routing.c - the slots of a case: rows of each expert, slots of each token, what is
 * dropped. */
#include <stdio.h>
#include <stdlib.h>

#include "inspect.h"
#include "values/number_formats.h"

struct inspect_blocks inspect_blocks(int64_t things, int64_t most)
{
    struct inspect_blocks blocks = {.things = things, .size = 1, .count = things};
    if (things > most) {
        blocks.size = (things + most - 1) / most;
        blocks.count = (things + blocks.size - 1) / blocks.size;
    }
    return blocks;
}

/* ---- experts --------------------------------------------------------------------------------- */

/* Dropless: the j-th slot of a token belongs to its j-th set expert. */
static void name_from_map(struct inspect_routing *routing)
{
    const struct oracle_case *oracle = routing->oracle;
    for (int64_t t = 0; t < oracle->tokens; t++) {
        int64_t next = routing->slots.start[t], end = routing->slots.start[t + 1];
        for (int64_t e = 0; e < oracle->experts && next < end; e++)
            if (set_at(oracle->routing_map, t * oracle->experts + e))
                routing->expert[routing->slots.order[next++]] = e;
    }
}

static void name_experts(struct inspect_routing *routing)
{
    const struct oracle_case *oracle = routing->oracle;
    int64_t capacity = oracle->experts > 0 ? oracle->slots / oracle->experts : 0;
    for (int64_t i = 0; i < oracle->slots; i++)
        routing->expert[i] = routing->slots.expert[i];
    routing->has_experts = oracle->experts > 0;
    if (oracle->experts <= 0)
        return;
    if (oracle->drop_and_pad && capacity > 0) {
        for (int64_t i = 0; i < oracle->slots; i++)
            routing->expert[i] = routing->slots.row[i] / capacity;
    } else if (oracle->expert_ids != NULL) {
        for (int64_t i = 0; i < oracle->slots; i++) {
            int64_t expert = integer_at(oracle->expert_ids, i);
            routing->expert[i] = expert >= 0 && expert < oracle->experts ? expert : -1;
        }
    } else if (oracle->routing_map != NULL && !oracle->drop_and_pad) {
        name_from_map(routing);
    } else {
        routing->has_experts = false;
    }
}

bool inspect_routing_build(const struct oracle_case *oracle, struct inspect_routing *routing)
{
    *routing = (struct inspect_routing){.oracle = oracle};
    if (!oracle_slots_build(oracle, &routing->slots))
        return false;
    routing->expert = malloc(((size_t)oracle->slots + 1) * sizeof *routing->expert);
    if (routing->expert == NULL) {
        snprintf(oracle->error, TENSOR_FILE_ERROR_SIZE, "no memory to look at the slots");
        return false;
    }
    name_experts(routing);
    return true;
}

void inspect_routing_free(struct inspect_routing *routing)
{
    oracle_slots_free(&routing->slots);
    free(routing->expert);
}

/* ---- places ---------------------------------------------------------------------------------- */

static struct inspect_place place_of_slot(const struct inspect_routing *routing, int64_t slot)
{
    struct inspect_place place = {-1, -1, -1, -1, -1};
    if (slot < 0)
        return place;
    place.slot = slot;
    place.row = routing->slots.row[slot];
    place.token = routing->slots.token[slot];
    place.expert = routing->expert[slot];
    return place;
}

static struct inspect_place place_of_row(const struct inspect_routing *routing, int64_t row)
{
    struct inspect_place place = place_of_slot(routing, routing->slots.slot_of_row[row]);
    place.row = row;
    return place;
}

static struct inspect_place place_of_pair(int64_t element, int64_t experts)
{
    return (struct inspect_place){-1, -1, element / experts, element % experts, -1};
}

static int64_t slot_in_place(const struct inspect_routing *routing, int64_t element)
{
    return routing->oracle->drop_and_pad ? routing->slots.order[element] : element;
}

struct inspect_place inspect_place_of(const struct inspect_routing *routing, int output,
                                      int64_t element, int64_t last_size)
{
    const struct oracle_case *oracle = routing->oracle;
    struct inspect_place place = {-1, -1, -1, -1, -1};
    int64_t line = last_size > 0 ? element / last_size : element;
    switch (4 * (int)oracle->operator_kind + (output < 3 ? output : 3)) {
    case 4 * OPERATOR_UNPERMUTE_GRAD:
    case 4 * OPERATOR_PERMUTE:
    case 4 * OPERATOR_PERMUTE + 1:
        place = place_of_row(routing, line);
        break;
    case 4 * OPERATOR_UNPERMUTE_GRAD + 1:
    case 4 * OPERATOR_PERMUTE_GRAD + 1:
        return place_of_pair(element, last_size);
    case 4 * OPERATOR_UNPERMUTE:
    case 4 * OPERATOR_PERMUTE_GRAD:
        place.token = line;
        break;
    case 4 * OPERATOR_UNPERMUTE + 1:
    case 4 * OPERATOR_UNPERMUTE + 2:
        return place_of_slot(routing, slot_in_place(routing, element));
    case 4 * OPERATOR_PERMUTE + 3: /* source_slots, rows_per_expert */
        if (output == 3)
            return place_of_row(routing, element);
        place.expert = oracle->expert_begin + element;
        return place;
    default:
        return place_of_slot(routing, element);
    }
    place.column = last_size > 0 ? element % last_size : -1;
    return place;
}

/* ---- the page -------------------------------------------------------------------------------- */

static void add_blocks(cJSON *object, const char *key, const struct inspect_blocks *blocks,
                       const int64_t *values)
{
    cJSON *array = cJSON_AddArrayToObject(object, key);
    for (int64_t i = 0; i < blocks->count; i++)
        cJSON_AddItemToArray(array, cJSON_CreateNumber((double)values[i]));
}

static bool is_fill_slot(const struct inspect_routing *routing, int64_t slot)
{
    const struct oracle_case *oracle = routing->oracle;
    return oracle->drop_and_pad && oracle->routing_map != NULL && routing->expert[slot] >= 0 &&
           !set_at(oracle->routing_map,
                   routing->slots.token[slot] * oracle->experts + routing->expert[slot]);
}

/* Rows of each expert: those of routed tokens and, padded, fill slots. */
static void describe_experts(const struct inspect_routing *routing, cJSON *object)
{
    const struct oracle_case *oracle = routing->oracle;
    struct inspect_blocks blocks = inspect_blocks(oracle->experts, INSPECT_BARS_MOST);
    int64_t used[INSPECT_BARS_MOST] = {0}, fill[INSPECT_BARS_MOST] = {0};
    int64_t *rows = calloc((size_t)oracle->experts + 1, sizeof *rows);
    int64_t most = 0, sum = 0, idle = 0;
    for (int64_t i = 0; rows != NULL && i < oracle->slots; i++) {
        if (routing->slots.row[i] < 0 || routing->expert[i] < 0)
            continue;
        bool is_fill = is_fill_slot(routing, i);
        (is_fill ? fill : used)[routing->expert[i] / blocks.size]++;
        rows[routing->expert[i]] += !is_fill;
    }
    for (int64_t e = 0; rows != NULL && e < oracle->experts; e++) {
        most = rows[e] > most ? rows[e] : most;
        sum += rows[e];
        idle += rows[e] == 0;
    }
    free(rows);
    cJSON *experts = cJSON_AddObjectToObject(object, "experts");
    cJSON_AddNumberToObject(experts, "things", (double)blocks.things);
    cJSON_AddNumberToObject(experts, "size", (double)blocks.size);
    add_blocks(experts, "rows", &blocks, used);
    add_blocks(experts, "fill", &blocks, fill);
    cJSON_AddNumberToObject(experts, "most", (double)most);
    cJSON_AddNumberToObject(experts, "mean", (double)sum / (double)oracle->experts);
    cJSON_AddNumberToObject(experts, "idle", (double)idle);
}

static int64_t used_slots(const struct inspect_routing *routing, int64_t token)
{
    int64_t used = 0;
    for (int64_t s = routing->slots.start[token]; s < routing->slots.start[token + 1]; s++)
        used += routing->slots.row[routing->slots.order[s]] >= 0;
    return used;
}

/* How many tokens have 0, 1, 2, ... used slots. */
static void describe_tokens(const struct inspect_routing *routing, cJSON *object)
{
    const struct oracle_case *oracle = routing->oracle;
    int64_t most = 0, without = 0, tokens[INSPECT_BARS_MOST] = {0};
    for (int64_t t = 0; t < oracle->tokens; t++) {
        int64_t used = used_slots(routing, t);
        most = used > most ? used : most;
        without += used == 0;
    }
    struct inspect_blocks blocks = inspect_blocks(most + 1, INSPECT_BARS_MOST);
    for (int64_t t = 0; t < oracle->tokens; t++)
        tokens[used_slots(routing, t) / blocks.size]++;
    cJSON *slots = cJSON_AddObjectToObject(object, "slots");
    cJSON_AddNumberToObject(slots, "things", (double)blocks.things);
    cJSON_AddNumberToObject(slots, "size", (double)blocks.size);
    add_blocks(slots, "tokens", &blocks, tokens);
    cJSON_AddNumberToObject(slots, "without", (double)without);
}

/* Slots in blocks of tokens by blocks of experts. */
static void describe_map(const struct inspect_routing *routing, cJSON *object)
{
    const struct oracle_case *oracle = routing->oracle;
    struct inspect_blocks lines = inspect_blocks(oracle->tokens, INSPECT_ROWS_MOST);
    struct inspect_blocks columns = inspect_blocks(oracle->experts, INSPECT_COLUMNS_MOST);
    int64_t cells[INSPECT_ROWS_MOST * INSPECT_COLUMNS_MOST] = {0};
    for (int64_t i = 0; i < oracle->slots; i++)
        if (routing->slots.row[i] >= 0 && routing->expert[i] >= 0)
            cells[routing->slots.token[i] / lines.size * columns.count +
                  routing->expert[i] / columns.size]++;
    struct inspect_blocks all = {.count = lines.count * columns.count};
    cJSON *map = cJSON_AddObjectToObject(object, "map");
    cJSON_AddNumberToObject(map, "tokens", (double)lines.things);
    cJSON_AddNumberToObject(map, "tokens_size", (double)lines.size);
    cJSON_AddNumberToObject(map, "experts", (double)columns.things);
    cJSON_AddNumberToObject(map, "experts_size", (double)columns.size);
    add_blocks(map, "cells", &all, cells);
}

void inspect_routing_describe(const struct inspect_routing *routing, cJSON *page)
{
    const struct oracle_case *oracle = routing->oracle;
    cJSON *object = cJSON_AddObjectToObject(page, "routing");
    int64_t used = 0, fill = 0;
    for (int64_t i = 0; i < oracle->slots; i++) {
        used += routing->slots.row[i] >= 0;
        fill += routing->slots.row[i] >= 0 && is_fill_slot(routing, i);
    }
    int64_t named = 0;
    for (int64_t r = 0; r < oracle->rows; r++)
        named += routing->slots.slot_of_row[r] >= 0;
    cJSON_AddNumberToObject(object, "slots_num", (double)oracle->slots);
    cJSON_AddNumberToObject(object, "unused", (double)(oracle->slots - used));
    cJSON_AddNumberToObject(object, "fill", (double)fill);
    cJSON_AddNumberToObject(object, "unnamed_rows", (double)(oracle->rows - named));
    describe_tokens(routing, object);
    if (!routing->has_experts)
        return;
    describe_experts(routing, object);
    describe_map(routing, object);
}
