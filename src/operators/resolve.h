/* resolve.h - from the checked tensors of a call to its routing, for the operators that take index
 * tensors. */
#ifndef MOETOKEN_RESOLVE_H
#define MOETOKEN_RESOLVE_H

#include "routing/slots.h"
#include "tensors/arguments.h"

/* The tensors that say where slots go, as numbers of the operator's arguments. */
struct moetoken_routing_arguments {
    int rows;    /* the row of each slot, or of both modes: in padded mode its token; */
    int tokens;  /* then there is no such argument: -1. Else the token of each slot */
    int map;     /* routing_map, or -1 */
    int probs;   /* what has a number for each pair: probs or probs_grad */
    int weights; /* what has a number for each slot: weights or weights_grad */
};

/* Fills in *routing and checks how its sizes go together, and that no output shares memory with
 * anything else. */
moetoken_status moetoken_resolve_routing(const struct moetoken_call *call,
                                         const struct moetoken_routing_arguments *arguments,
                                         bool repeated_rows, struct moetoken_routing *routing);

/* The one of two arguments that is given, or NULL. */
const struct moetoken_view *moetoken_either_given(const struct moetoken_call *call, int one,
                                                  int other);

#endif
