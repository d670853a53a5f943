/* oracle.h - recomputes what an operator wrote, straight from docs/contract.md, and compares.
 *
 * The tool's own arithmetic throughout: no code of the library is used, so that verify can find its
 * mistakes. CASE and OUT -> oracle_case (checked) -> oracle_slots -> an output_report per tensor.
 */
#ifndef MOETOKEN_CLI_ORACLE_H
#define MOETOKEN_CLI_ORACLE_H

#include <stdbool.h>
#include <stdint.h>

#include "cases/case_files.h"
#include "cases/operators.h"
#include "terminal/progress.h"

/* How OUT was made, as far as the command line tells. */
struct oracle_options {
    int operator_kind, drop_and_pad, mask_fill_slots, tolerate_routing_mismatch; /* -1: not given */
    int64_t tokens_num, experts_num, num_out_tokens;                             /* -1: not given */
    int64_t expert_begin, expert_end, capacity;                                  /* -1: not given */
    const char *restore_shape;                                                   /* or NULL */
};

/* Told of each element compared: from several threads at a time, once for each place. want: what
 * belongs there before the last rounding; ulp: how far off `got` is, infinite where no number says
 * it. */
typedef void oracle_observer(void *context, int output, int64_t place, uint64_t got, double want,
                             bool right, double ulp);

/* The inputs of one operator call. Tensors that the operator does not take are NULL. */
struct oracle_case {
    enum operator_kind operator_kind;
    bool drop_and_pad, mask_fill_slots, tolerate_routing_mismatch;
    int64_t tokens, hidden, experts, slots, rows; /* T, H, E, N, R; -1 where unknown */
    const DLTensor *unpermuted_tokens_grad, *out_index, *permute_token_id, *routing_map,
        *permuted_tokens, *probs, *sorted_indices, *plain_tokens, *permuted_tokens_grad,
        *permuted_probs_grad;
    bool by_ids; /* a routing by expert ids: */
    const DLTensor *expert_ids, *weights, *residual, *residual2, *expert_bias;
    int64_t topk;                               /* K, -1 where unknown */
    int64_t expert_begin, expert_end, capacity; /* permute */
    const DLTensor *output[OUTPUTS_MOST];       /* as found in OUT, NULL when missing */
    oracle_observer *observe;                   /* or NULL */
    void *observe_context;
    char *error; /* [TENSOR_FILE_ERROR_SIZE] */
};

/* Every slot of the call. */
struct oracle_slots {
    int64_t *row;         /* [N] -1: hole */
    int64_t *token;       /* [N] */
    int64_t *expert;      /* [N] -1: none */
    double *weight;       /* [N] */
    bool *masked;         /* [N] a fill slot under mask_fill_slots */
    int64_t *start;       /* [T+1] the slots of token t, in slot order, are */
    int64_t *order;       /* [N]   order[start[t]] .. order[start[t+1] - 1] */
    int64_t *slot_of_row; /* [R] -1: no slot names the row */
};

/* What verify says about one output. */
struct output_report {
    const char *name;
    moetoken_type type;
    int64_t checked, wrong;
    int64_t last_size;   /* of the last dimension, for places; 0 for rank 1 */
    int64_t first_wrong; /* element number */
    uint64_t got;        /* its bits */
    double want;         /* what belongs there, before the last rounding */
    double worst_ulp;
    char problem[256]; /* why nothing was compared, or "" */
    int output;        /* its number */
    oracle_observer *observe;
    void *observe_context;
};

/* Fills `oracle` from the files; false after printing a line. attributes: OUT, then the case. */
bool oracle_case_load(const struct case_files *inputs, const struct case_files *output,
                      const struct case_files *attributes, const struct oracle_options *options,
                      struct oracle_case *oracle);

/* The operator that wrote OUT: from the command line, OUT's metadata, or what OUT holds. */
bool oracle_find_kind(const struct case_files *output, int given, enum operator_kind *kind);

/* Slots of the case; false with the reason in oracle->error when the indices are wrong or memory is
 * short. Free in any case. */
bool oracle_slots_build(const struct oracle_case *oracle, struct oracle_slots *slots);
void oracle_slots_free(struct oracle_slots *slots);
/* permute: the sorted_indices that the routing map calls for, into [N]. */
bool oracle_sorted_indices(const struct oracle_case *oracle, int64_t *sorted);
/* The same from expert_ids. */
bool oracle_sorted_by_ids(const struct oracle_case *oracle, int64_t *sorted);

/* Compares one row of unpermute_grad's permuted_tokens_grad, which is output[0]. scratch: [H]. */
void oracle_check_gradient_row(const struct oracle_case *oracle, const struct oracle_slots *slots,
                               int64_t row, double *scratch, struct output_report *report);

/* Compares every output that `wanted` asks for. false with a reason in oracle->error when it could
 * not be done; else `reports` says what was found. */
bool oracle_verify(const struct oracle_case *oracle, const bool wanted[OUTPUTS_MOST],
                   struct output_report reports[OUTPUTS_MOST], struct progress *progress);

/* What output i of the case must look like, without data: the type that it has at least (indices:
 * either index type will do) and the shape. false when the operator does not write it here. */
bool oracle_output_spec(const struct oracle_case *oracle, int i, struct tensor_spec *spec);

#endif
