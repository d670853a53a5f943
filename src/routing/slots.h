/* slots.h - index tensors -> slots, the one internal form of a routing.
 *
 * Slots are kept token by token: the rows of token t are row[start[t]] .. row[start[t + 1] - 1], in
 * slot order, -1 for an unused slot. A slot's column is where its weight stands in its token's row
 * of the weights: its expert by map, its ordinal by expert ids. Columns are not stored, they follow
 * from the row (padded), from the routing map, walked along, or from counting: see struct
 * moetoken_column_walk. */
#ifndef MOETOKEN_SLOTS_H
#define MOETOKEN_SLOTS_H

#include "routing/named_rows.h"
#include "routing/routing_map.h"
#include "tensors/workspace.h"
#include "threads/run.h"

enum moetoken_columns {
    MOETOKEN_NO_COLUMNS,     /* all weights are 1, and nobody asks for their gradient */
    MOETOKEN_COLUMNS_OF_MAP, /* dropless: the set experts of the token, ascending */
    MOETOKEN_COLUMNS_OF_ROW, /* padded: row / C */
    MOETOKEN_COLUMNS_COUNTED /* by expert ids: 0, 1, ..., K - 1 */
};

/* A routing as an operator's arguments give it. */
struct moetoken_routing {
    const struct moetoken_view *row;   /* [N] the row of slot i; NULL: row i */
    const struct moetoken_view *token; /* [N] the token of slot i; NULL: i / slots_per_token */
    const struct moetoken_view *map;   /* [T,E], with MOETOKEN_COLUMNS_OF_MAP */
    int64_t tokens_num, slots_num, rows_num, experts_num;
    enum moetoken_columns columns;
    bool padded;            /* drop_and_pad: no unused slots */
    bool by_map;            /* for sure, so that rows are at most slots */
    bool repeated_rows;     /* two slots may name one row */
    bool tolerate_mismatch; /* do not check slots against the map */

    int64_t slots_per_token; /* K, where token is NULL: found by moetoken_routing_check */
    int64_t capacity;        /* C, with MOETOKEN_COLUMNS_OF_ROW: found by moetoken_routing_check */
};

/* Checks how N, T, E and R go together, reading no index; sets slots_per_token and capacity. */
moetoken_status moetoken_routing_check(struct moetoken_routing *routing);

struct moetoken_slots {
    int64_t *start;                   /* [T + 1] */
    int64_t *row;                     /* [N] */
    struct moetoken_named_rows named; /* where rows are given and may not repeat */
    int64_t *scratch;                 /* [N], free for use: `named` is in it until then */
    struct moetoken_workspace workspace;
};

/* Takes the workspace and lays `slots` out in it. T must not be 0. Close in any case. */
moetoken_status moetoken_slots_take(int64_t tokens_num, int64_t slots_num,
                                    const moetoken_options *options, struct moetoken_slots *slots);

/* Slot i has row i and the token that stands in scratch[i], every one in [0, T). */
void moetoken_slots_place(int64_t tokens_num, int64_t slots_num, struct moetoken_slots *slots);

/* Takes the workspace, checks every index, and the slots against the map where they have columns of
 * it, and fills `slots`. All that can be wrong with a routing's values is found here; the caller's
 * index tensors are not looked at again. T may be 0. Close in any case. */
moetoken_status moetoken_slots_open(const struct moetoken_routing *routing,
                                    const moetoken_options *options, const struct moetoken_run *run,
                                    struct moetoken_slots *slots);
void moetoken_slots_close(struct moetoken_slots *slots);

/* Reorders the slots of each token by expert, slot order within an expert (padded only), so that
 * the slots of one (token, expert) pair are neighbours. */
void moetoken_slots_group_by_expert(const struct moetoken_routing *routing,
                                    struct moetoken_slots *slots);

/* The columns of a token's slots, in slot order. */
struct moetoken_column_walk {
    const struct moetoken_routing *routing;
    struct moetoken_map_walk set; /* MOETOKEN_COLUMNS_OF_MAP */
    int64_t ordinal;              /* MOETOKEN_COLUMNS_COUNTED */
};

static inline struct moetoken_column_walk
moetoken_column_walk_begin(const struct moetoken_routing *routing, int64_t token)
{
    return (struct moetoken_column_walk){.routing = routing,
                                         .set = moetoken_map_walk_begin(routing->map, token)};
}

/* The column of the token's next slot, which holds `row`; -1 when it has none, or none is needed.
 */
static inline int64_t moetoken_column_walk_next(struct moetoken_column_walk *walk, int64_t row)
{
    switch (walk->routing->columns) {
    case MOETOKEN_COLUMNS_OF_MAP:
        return moetoken_map_walk_next(&walk->set);
    case MOETOKEN_COLUMNS_OF_ROW:
        return row / walk->routing->capacity;
    case MOETOKEN_COLUMNS_COUNTED:
        return walk->ordinal++;
    default:
        return -1;
    }
}

#endif
