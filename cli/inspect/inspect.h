/* inspect.h - what `moetoken inspect` finds in a case and its outputs, as JSON for the page.
 *
 * Files -> tensors (inspect_tensors.c); the oracle's slots -> routing (inspect_routing.c); every
 * element that the oracle compares -> errors (inspect_errors.c); all of it -> one page that needs
 * nothing else (inspect_page.c, page.html). What grows with the case is added up into at most so
 * many bars and cells, and the page says how many each stands for. */
#ifndef MOETOKEN_CLI_INSPECT_H
#define MOETOKEN_CLI_INSPECT_H

#include <cjson/cJSON.h>
#include <stdbool.h>

#include "oracle/oracle.h"

#define INSPECT_BARS_MOST    256 /* of a chart */
#define INSPECT_ROWS_MOST    64  /* of a map: blocks of tokens */
#define INSPECT_COLUMNS_MOST 64  /* of a map: blocks of experts or columns */
#define INSPECT_TENSORS_MOST 100
#define INSPECT_WORST_MOST   20 /* elements in the table of an output */

/* Where an element or slot belongs; -1: nowhere. */
struct inspect_place {
    int64_t row, slot, token, expert, column;
};

/* The routing of the case, with the expert of each slot also where the operator needs none. */
struct inspect_routing {
    const struct oracle_case *oracle;
    struct oracle_slots slots;
    int64_t *expert; /* [N] */
    bool has_experts;
};

/* Equal consecutive blocks of `size` things: 0..size into at most `most` blocks. */
struct inspect_blocks {
    int64_t things, size, count;
};
struct inspect_blocks inspect_blocks(int64_t things, int64_t most);

/* All tensors of the files, in an array; "left_out" counts those beyond the limit. */
void inspect_tensors(const struct case_files *files, cJSON *page);

/* false with the reason in oracle->error. Free in any case. */
bool inspect_routing_build(const struct oracle_case *oracle, struct inspect_routing *routing);
void inspect_routing_free(struct inspect_routing *routing);
void inspect_routing_describe(const struct inspect_routing *routing, cJSON *page);
/* Of element number `element` of output i. */
struct inspect_place inspect_place_of(const struct inspect_routing *routing, int output,
                                      int64_t element, int64_t last_size);

/* The outputs that the case has, compared. false: no memory. */
bool inspect_errors(const struct inspect_routing *routing, struct progress *progress, cJSON *page);

/* Text of a file, which may be no UTF-8, as JSON. */
void inspect_add_text(cJSON *object, const char *key, const char *text);
/* Writes the page. false after printing a line. */
bool inspect_write_page(const char *path, const cJSON *page);

#endif
