/* problem.h - a generated case that can be made smaller: a routing, and rules for the values.
 *
 * Suite (a seed and a number) or a shrunk copy -> problem -> layout (rows and slots) -> case file.
 * A value depends on the seed and on who its token, expert, slot and column were at first, so that
 * taking some of them away leaves the numbers of the others as they are. */
#ifndef MOETOKEN_CLI_CONFORM_PROBLEM_H
#define MOETOKEN_CLI_CONFORM_PROBLEM_H

#include <stdbool.h>
#include <stdint.h>

#include "cases/operators.h"
#include "io/tensor_file.h"

enum routing_mode {
    MODE_DROPLESS,
    MODE_PADDED,
    MODE_IDS
};
#define MODES_COUNT 3

/* What token-like tensors hold. The first four are those of CANN's commercial standard. */
enum value_rule {
    VALUES_TINY,       /* uniform within 0.001 */
    VALUES_UNIFORM,    /* uniform within 5 */
    VALUES_NORMAL,     /* mean within 100, deviation 1 to 25 */
    VALUES_OUTLIERS,   /* within 5, one in 1000 a thousand times that */
    VALUES_SUBNORMAL,  /* within 5, one in 8 subnormal */
    VALUES_NEGATIVE_0, /* within 5, one in 8 is -0 */
    VALUES_NAN,        /* within 5, one in 64 NaN */
    VALUES_INFINITE,   /* within 5, one in 64 infinite */
    VALUES_WHOLE,      /* whole numbers from -3 to 3 without 0 */
    VALUES_ONES
};
#define VALUE_RULES_COUNT 10

enum weight_rule {
    WEIGHTS_SHARES, /* in (0, 1) */
    WEIGHTS_ZEROS,  /* one in 4 is 0 */
    WEIGHTS_HUGE,   /* some 1000 in float16, 2^40 else */
    WEIGHTS_ONES
};

/* Of a pair of the routing map. */
enum pair_state {
    PAIR_UNSET,
    PAIR_SET,
    PAIR_DROPPED /* set, but its slot has no row (-1) */
};

struct problem {
    enum operator_kind operator_kind;
    enum routing_mode mode;
    moetoken_type token_type, probs_type, index_type, map_type;
    bool weighted;    /* probs or weights */
    bool shuffled;    /* rows in any order; unpermute-grad: slots, too */
    bool random_fill; /* padded: fill slots take any token, a pair may come up twice */
    bool skewed;      /* a few experts are far more popular */
    int64_t tokens, hidden, experts;
    int64_t topk;       /* K; padded: what the routing was drawn with */
    int64_t capacity;   /* C; by ids: 0 is none */
    int64_t spare_rows; /* rows that no slot names, as far as R <= N allows */
    enum value_rule values;
    enum weight_rule weights;
    uint64_t seed;
    int64_t *token_id, *expert_id, *slot_id, *column_id; /* [T], [E], [K], [H]: who they were */
    uint8_t *map;                                        /* [T,E] enum pair_state; by ids unused */
    int64_t *ids;                                        /* [T,K] by ids: an expert or -1 */
};

/* Rows and slots of a problem, as the contract's sections 2, 3 and 8 have them. */
struct layout {
    int64_t slots, rows;  /* N, R */
    int64_t used;         /* slots that have a row */
    int64_t *row, *token; /* [N] of each slot in the order of the index tensors */
    int64_t *by_row;      /* [R] the token of each row, -1: no slot names it */
    int64_t *row_key;     /* [R] what the values of a row depend on */
};

/* Memory for the arrays, identities 0, 1, 2, ..., nothing routed. Sizes are in place. false: none.
 */
bool problem_allocate(struct problem *problem);
bool problem_copy(const struct problem *from, struct problem *to);
void problem_free(struct problem *problem);

bool layout_build(const struct problem *problem, struct layout *layout);
void layout_free(struct layout *layout);

/* Writes the case. false with a line in `error`. */
bool problem_write(const struct problem *problem, const struct layout *layout, const char *path,
                   char error[TENSOR_FILE_ERROR_SIZE]);
/* "dropless float32 T=3 H=4 E=3 K=2 N=6 R=5, values within 5" */
void problem_describe(const struct problem *problem, const struct layout *layout, char *text,
                      size_t size);

#endif
