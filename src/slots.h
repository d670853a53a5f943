/* slots.h - index tensors and routing map -> slots, the one internal form of a routing.
 *
 * Slots are kept token by token: the rows of token t are row[start[t]] .. row[start[t + 1] - 1], in
 * slot order, -1 for an unused slot. A slot's expert is not stored: it follows from the row
 * (padded) or from the routing map, walked along (dropless), see struct moetoken_expert_walk. */
#ifndef MOETOKEN_SLOTS_H
#define MOETOKEN_SLOTS_H

#include "run.h"
#include "tensor.h"
#include "workspace.h"

/* A routing as an operator's arguments give it. */
struct moetoken_routing {
    const struct moetoken_view *row;   /* [N] the row of slot i; NULL: row i */
    const struct moetoken_view *token; /* [N] the token of slot i; NULL: i / slots_per_token */
    const struct moetoken_view *map;   /* [T,E]; needed where dropless slots have experts */
    int64_t tokens_num, slots_num, rows_num, experts_num;
    bool with_experts;      /* the slots' experts are needed */
    bool padded;            /* drop_and_pad: no unused slots, expert = row / C */
    bool tolerate_mismatch; /* dropless: do not check slots against the map */

    int64_t slots_per_token; /* K, where token is NULL: found by moetoken_routing_check */
    int64_t capacity;        /* C, where padded with experts: found by moetoken_routing_check */
};

/* Checks how N, T, E and R go together, reading no index; sets slots_per_token and capacity. */
moetoken_status moetoken_routing_check(struct moetoken_routing *routing);

struct moetoken_slots {
    int64_t *start;      /* [T + 1] */
    int64_t *row;        /* [N] */
    uint64_t *named;     /* [R] bits: some slot names the row; NULL where rows are not given */
    int64_t named_count; /* rows that some slot names */
    void *scratch;       /* 8 bytes a slot, free for use: `named` is in it until then */
    struct moetoken_workspace workspace;
};

/* Takes the workspace and lays `slots` out in it. T must not be 0. Close in any case. */
moetoken_status moetoken_slots_take(int64_t tokens_num, int64_t slots_num,
                                    const moetoken_options *options, struct moetoken_slots *slots);

/* Checks every index, and the slots against the map where they have experts, and fills `slots`.
 * All that can be wrong with a routing's values is found here. */
moetoken_status moetoken_slots_build(const struct moetoken_routing *routing,
                                     const struct moetoken_run *run, struct moetoken_slots *slots);

/* Both of the above; T may be 0. Close in any case. */
moetoken_status moetoken_slots_open(const struct moetoken_routing *routing,
                                    const moetoken_options *options, const struct moetoken_run *run,
                                    struct moetoken_slots *slots);
void moetoken_slots_close(struct moetoken_slots *slots);

/* Reorders the slots of each token by expert, slot order within an expert (padded only), so that
 * the slots of one (token, expert) pair are neighbours. */
void moetoken_slots_group_by_expert(const struct moetoken_routing *routing,
                                    struct moetoken_slots *slots);

static inline bool moetoken_slots_is_named(const struct moetoken_slots *slots, int64_t row)
{
    return slots->named[row / 64] >> (row % 64) & 1;
}

/* ---- the routing map ------------------------------------------------------------------------ */

/* Experts that are looked at together. */
#define MOETOKEN_EXPERTS_PER_MASK 64

/* Bit j: routing_map[token, first + j] is set; of the experts in [first, end), at most 64. */
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
    int64_t end;   /* the experts below have been looked at */
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

/* The experts of a token's slots, in slot order. */
struct moetoken_expert_walk {
    const struct moetoken_routing *routing;
    struct moetoken_map_walk set; /* dropless */
};

static inline struct moetoken_expert_walk
moetoken_expert_walk_begin(const struct moetoken_routing *routing, int64_t token)
{
    return (struct moetoken_expert_walk){routing, moetoken_map_walk_begin(routing->map, token)};
}

/* The expert of the token's next slot, which holds `row`; -1 when it has none, or none is needed.
 */
static inline int64_t moetoken_expert_walk_next(struct moetoken_expert_walk *walk, int64_t row)
{
    if (!walk->routing->with_experts)
        return -1;
    if (walk->routing->padded)
        return row / walk->routing->capacity;
    return moetoken_map_walk_next(&walk->set);
}

#endif
