/* oracle_slots.h - the oracle's routing: index tensors and routing map -> slots, by
 * docs/contract.md's table and nothing cleverer. Internal to the oracle. */
#ifndef MOETOKEN_TESTS_ORACLE_SLOTS_H
#define MOETOKEN_TESTS_ORACLE_SLOTS_H

#include <moetoken/moetoken.h>

struct oracle_slot {
    int64_t row, token;
    int64_t expert; /* -1: no set expert is left for it, or nothing needs it */
    bool hole;
};

struct oracle_routing {
    struct oracle_slot *slots; /* [slots_num] */
    int64_t slots_num;
    moetoken_status fault;
};

/* Dropless. token_id NULL: i / K. map NULL: no experts wanted. */
struct oracle_routing oracle_route_dropless(const DLTensor *row_index, const DLTensor *token_id,
                                            const DLTensor *map, int64_t tokens_num,
                                            int64_t rows_num, bool tolerate);

/* Padded. row_index NULL: slot i has row i. experts_num <= 0: no experts wanted. */
struct oracle_routing oracle_route_padded(const DLTensor *row_index, const DLTensor *token_id,
                                          int64_t tokens_num, int64_t rows_num,
                                          int64_t experts_num);

bool oracle_is_set(const DLTensor *map, int64_t token, int64_t expert);

void *oracle_allocate(int64_t count, size_t size);

#endif
