/* routing.h - random routings that are valid by docs/contract.md: index tensors and maps as plain
 * arrays, with everything irregular that is allowed. */
#ifndef MOETOKEN_TESTS_ROUTING_H
#define MOETOKEN_TESTS_ROUTING_H

#include <stdbool.h>
#include <stdint.h>

struct routing_spec {
    bool padded;
    int64_t tokens, experts;
    int64_t slots;      /* dropless: K, slots of each token; padded: C, rows of each expert */
    bool shuffled;      /* dropless: slots in any order, needs a permute_token_id */
    bool uneven;        /* dropless: any number of slots a token, needs a permute_token_id */
    bool canonical;     /* padded: slots sorted by token, as unpermute leaves them */
    int hole_percent;   /* dropless */
    bool no_map;        /* dropless: rows even where no set expert is left */
    bool mismatch;      /* dropless: map and slots need not belong together */
    bool no_spare_rows; /* dropless: R is the number of rows used, else anything up to N */
};

struct routing {
    int64_t tokens, experts, slots_num, rows_num;
    int64_t *row, *token; /* [slots_num] */
    unsigned char *map;   /* [tokens][experts], any non-zero byte is set */
};

void routing_make(struct routing *routing, const struct routing_spec *spec);
void routing_free(struct routing *routing);

#endif
