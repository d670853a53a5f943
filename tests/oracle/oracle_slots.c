/* oracle_slots.c - the oracle's routing: index tensors and routing map -> slots. */
#include "oracle_slots.h"

#include "support/tensors.h"
#include <stdio.h>
#include <stdlib.h>

void *oracle_allocate(int64_t count, size_t size)
{
    void *memory = calloc((size_t)count + 1, size);
    if (memory == NULL) {
        perror("oracle");
        exit(99);
    }
    return memory;
}

bool oracle_is_set(const DLTensor *map, int64_t token, int64_t expert)
{
    return tensor_get_bits(map, token, expert) != 0;
}

/* The j-th set expert of a token, or -1. */
static int64_t set_expert(const DLTensor *map, int64_t token, int64_t j)
{
    for (int64_t expert = 0; expert < map->shape[1]; expert++) {
        if (oracle_is_set(map, token, expert) && j-- == 0) {
            return expert;
        }
    }
    return -1;
}

static int64_t count_set(const DLTensor *map, int64_t token)
{
    int64_t count = 0;
    for (int64_t expert = 0; expert < map->shape[1]; expert++) {
        count += oracle_is_set(map, token, expert);
    }
    return count;
}

static void accuse(struct oracle_routing *routing, moetoken_status fault, bool guilty)
{
    if (guilty && routing->fault == MOETOKEN_OK) {
        routing->fault = fault;
    }
}

static void find_duplicates(struct oracle_routing *routing, int64_t rows_num)
{
    bool *taken = oracle_allocate(rows_num, sizeof *taken);
    for (int64_t i = 0; i < routing->slots_num && routing->fault == MOETOKEN_OK; i++) {
        if (!routing->slots[i].hole) {
            accuse(routing, MOETOKEN_ERR_DUPLICATE, taken[routing->slots[i].row]);
            taken[routing->slots[i].row] = true;
        }
    }
    free(taken);
}

static struct oracle_routing read_indices(const DLTensor *row_index, const DLTensor *token_id,
                                          int64_t tokens_num, int64_t rows_num, bool holes)
{
    int64_t slots_num = (row_index != NULL ? row_index : token_id)->shape[0];
    struct oracle_routing routing = {.slots_num = slots_num};
    routing.slots = oracle_allocate(slots_num, sizeof *routing.slots);
    int64_t per_token = tokens_num > 0 ? slots_num / tokens_num : 0;
    for (int64_t i = 0; i < slots_num; i++) {
        struct oracle_slot *slot = &routing.slots[i];
        slot->row = row_index != NULL ? tensor_get_index(row_index, i) : i;
        slot->token =
            token_id != NULL ? tensor_get_index(token_id, i) : (per_token > 0 ? i / per_token : 0);
        slot->expert = -1;
        slot->hole = holes && slot->row == -1;
        accuse(&routing, MOETOKEN_ERR_INDEX,
               !slot->hole && (slot->row < 0 || slot->row >= rows_num));
        accuse(&routing, MOETOKEN_ERR_INDEX, slot->token < 0 || slot->token >= tokens_num);
    }
    find_duplicates(&routing, rows_num);
    return routing;
}

static void assign_experts(struct oracle_routing *routing, const DLTensor *map, bool tolerate)
{
    int64_t *ordinal = oracle_allocate(map->shape[0], sizeof *ordinal);
    for (int64_t i = 0; i < routing->slots_num; i++) {
        struct oracle_slot *slot = &routing->slots[i];
        slot->expert = set_expert(map, slot->token, ordinal[slot->token]++);
        accuse(routing, MOETOKEN_ERR_ROUTING, !tolerate && !slot->hole && slot->expert < 0);
    }
    for (int64_t token = 0; token < map->shape[0]; token++) {
        accuse(routing, MOETOKEN_ERR_ROUTING, !tolerate && count_set(map, token) > ordinal[token]);
    }
    free(ordinal);
}

struct oracle_routing oracle_route_dropless(const DLTensor *row_index, const DLTensor *token_id,
                                            const DLTensor *map, int64_t tokens_num,
                                            int64_t rows_num, bool tolerate)
{
    struct oracle_routing routing = read_indices(row_index, token_id, tokens_num, rows_num, true);
    if (routing.fault == MOETOKEN_OK && map != NULL) {
        assign_experts(&routing, map, tolerate);
    }
    return routing;
}

struct oracle_routing oracle_route_padded(const DLTensor *row_index, const DLTensor *token_id,
                                          int64_t tokens_num, int64_t rows_num, int64_t experts_num)
{
    struct oracle_routing routing = read_indices(row_index, token_id, tokens_num, rows_num, false);
    int64_t capacity = experts_num > 0 ? routing.slots_num / experts_num : 0;
    for (int64_t i = 0; routing.fault == MOETOKEN_OK && i < routing.slots_num; i++) {
        struct oracle_slot *slot = &routing.slots[i];
        slot->expert = capacity > 0 ? slot->row / capacity : -1;
    }
    return routing;
}
