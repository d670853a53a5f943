/* expert_ids.h - expert_ids [T,K] -> the row of every slot: the stable counting sort of permute. */
#ifndef MOETOKEN_EXPERT_IDS_H
#define MOETOKEN_EXPERT_IDS_H

#include "tensors/tensor.h"
#include "threads/run.h"

/* The experts whose rows are made, and how many rows there are. */
struct moetoken_expert_rows {
    int64_t experts_num; /* E: ids are below */
    int64_t begin, end;  /* of the experts whose rows are made */
    int64_t capacity;    /* C, or 0 */
    int64_t rows_num;    /* R; rows from there on are dropped */
};

/* Index tensors of the caller's, each given or not. */
struct moetoken_expert_outputs {
    const struct moetoken_view *sorted_indices;  /* [T*K] the row of each slot, or -1 */
    const struct moetoken_view *source_slots;    /* [R] the slot of each row that has one */
    const struct moetoken_view *rows_per_expert; /* [E'] the rows of each expert that are kept */
};

/* MOETOKEN_ERR_INDEX for the first id that is below -1 or not below E. row[s], of T*K slots,
 * becomes the row of slot s in the order of experts and, within one, of slots; -1 where it is
 * unused or dropped. scratch: one number per slot. The outputs are written when all ids are right.
 * *used: all rows that are kept. */
moetoken_status moetoken_expert_ids_to_rows(const struct moetoken_view *expert_ids,
                                            const struct moetoken_expert_rows *rows,
                                            const struct moetoken_run *run, int64_t *row,
                                            int64_t *scratch,
                                            const struct moetoken_expert_outputs *outputs,
                                            int64_t *used);

/* The id of slot k of a token, or -1 when it is none of E experts. */
static inline int64_t moetoken_expert_id_of_slot(const struct moetoken_view *expert_ids,
                                                 int64_t token, int64_t k, int64_t experts_num)
{
    int64_t id = moetoken_index_load_at(expert_ids, token, k);
    return id >= 0 && id < experts_num ? id : -1;
}

/* MOETOKEN_ERR_INDEX for the first slot that has a row but no expert of E. row: [T*K]. */
moetoken_status moetoken_expert_ids_check_used(const struct moetoken_view *expert_ids,
                                               const int64_t *row, int64_t experts_num);

#endif
