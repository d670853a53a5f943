/* map_rows.h - routing_map [T,E] -> the row of every slot, as permute makes them. */
#ifndef MOETOKEN_MAP_ROWS_H
#define MOETOKEN_MAP_ROWS_H

#include "routing/slots.h"

/* Dropless: slots->row[t*K + j] becomes the row of the j-th set expert of token t, in the order of
 * experts and, within one, of tokens; -1 in the slots left over. *used: the set pairs.
 * MOETOKEN_ERR_ROUTING for the first token with more set experts than slots. */
moetoken_status moetoken_map_to_rows_dropless(const struct moetoken_view *map,
                                              int64_t slots_per_token,
                                              const struct moetoken_run *run,
                                              struct moetoken_slots *slots, int64_t *used);

/* Padded: each expert takes its first C set tokens, ascending, and then its lowest ones that are
 * not set. Row e*C + c is the c-th of them; slots come token by token. C <= T. */
void moetoken_map_to_rows_padded(const struct moetoken_view *map, int64_t capacity,
                                 const struct moetoken_run *run, struct moetoken_slots *slots);

#endif
