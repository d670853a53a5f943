/* routing_map.h - routing_map [T,E] -> the set experts of a token. */
#ifndef MOETOKEN_ROUTING_MAP_H
#define MOETOKEN_ROUTING_MAP_H

#include "tensors/tensor.h"

/* Experts that are read together. */
#define MOETOKEN_EXPERTS_PER_MASK 64

/* Bit j: routing_map[token, first + j] is set, for the experts in [first, end), at most 64. */
uint64_t moetoken_map_mask(const struct moetoken_view *map, int64_t token, int64_t first,
                           int64_t end);

/* Whether routing_map[token, expert] is set. */
static inline bool moetoken_map_is_set(const struct moetoken_view *map, int64_t token,
                                       int64_t expert)
{
    return *moetoken_view_at(map, token, expert) != 0;
}

/* How many experts of a token are set. */
int64_t moetoken_map_count_set(const struct moetoken_view *map, int64_t token);

/* The set experts of a token, ascending. */
struct moetoken_map_walk {
    const struct moetoken_view *map;
    int64_t token;
    int64_t end;   /* the experts below this one have been read */
    uint64_t mask; /* of them, those of the last 64 that are still to come */
    int64_t first; /* the expert of bit 0 of the mask */
};

static inline struct moetoken_map_walk moetoken_map_walk_begin(const struct moetoken_view *map,
                                                               int64_t token)
{
    return (struct moetoken_map_walk){.map = map, .token = token};
}

/* The next set expert, or -1. */
static inline int64_t moetoken_map_walk_next(struct moetoken_map_walk *walk)
{
    while (walk->mask == 0) {
        if (walk->end >= walk->map->shape[1])
            return -1;
        walk->first = walk->end;
        walk->end += MOETOKEN_EXPERTS_PER_MASK;
        walk->mask = moetoken_map_mask(walk->map, walk->token, walk->first, walk->map->shape[1]);
    }
    int64_t expert = walk->first + __builtin_ctzll(walk->mask);
    walk->mask &= walk->mask - 1; /* without its lowest bit */
    return expert;
}

#endif
