/* bench_case.h - one case in memory, ready to be run again and again: buffers in huge pages, the
 * operator's arguments, and the bytes its rows move.
 *
 * Generated settings or a case file -> tensors in an arena -> calls. */
#ifndef MOETOKEN_CLI_BENCH_CASE_H
#define MOETOKEN_CLI_BENCH_CASE_H

#include <moetoken/moetoken.h>

#include "bench_ceiling.h"
#include "cases/case_files.h"
#include "cases/generate_case.h"

/* Memory for one case after another. */
struct arena {
    char *begin;
    size_t size, used;
    bool huge_pages; /* requested, and not refused by the system */
};

void arena_free(struct arena *arena);

/* Puts other pages of the machine's memory behind the same addresses, with the same contents: how
 * fast memory is depends on which ones a process gets. false, with everything as it was, where the
 * system has not enough. */
bool arena_redraw(struct arena *arena);

struct bench_tensor {
    const char *name;
    moetoken_type type;
    DLTensor tensor;
    int64_t shape[2];
};

#define BENCH_TENSORS_MOST 12

struct bench_case {
    enum operator_kind operator_kind;
    bool drop_and_pad, probs;
    bool by_ids;   /* expert_ids and weights instead of routing_map and probs */
    bool in_place; /* permuted_tokens_grad is the buffer of permuted_tokens */
    int64_t tokens, hidden, experts, slots, rows;
    moetoken_type token_type;
    struct bench_tensor tensors[BENCH_TENSORS_MOST]; /* inputs, then outputs */
    int inputs_count, count;
    size_t held_bytes; /* of all tensors; a buffer that two of them share counts once */
    moetoken_options options;
    struct traffic traffic;
};

/* Both take the arena's memory from its beginning; the case holds until the next one is made.
 * in_place: only unpermute_grad with probs can be. Without success there is a message in `error`.
 */
bool bench_case_generate(struct bench_case *bench, struct arena *arena,
                         const struct case_settings *settings, bool in_place, char *error,
                         size_t error_size);
bool bench_case_read(struct bench_case *bench, struct arena *arena, const struct case_files *files,
                     bool in_place, char *error, size_t error_size);

/* The first tensor of that name (inputs come before outputs), or NULL. */
const DLTensor *bench_case_tensor(const struct bench_case *bench, const char *name);

/* One call of the operator, with bench->options. */
moetoken_status bench_case_call(const struct bench_case *bench);

/* permute by expert ids: the routing alone, ids to sorted_indices and rows_per_expert. */
bool bench_case_has_routing(const struct bench_case *bench);
moetoken_status bench_case_route(const struct bench_case *bench);

#endif
