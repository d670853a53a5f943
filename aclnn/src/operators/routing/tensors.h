/* tensors.h - what the init, finalize and re-routing operators do with single tensors: shapes by
 * the document, elements of index tensors, index tensors as the slots that moetoken.h takes. */
#ifndef ACLNN_ROUTING_TENSORS_H
#define ACLNN_ROUTING_TENSORS_H

#include "operators/executor.h"

/* The operand has that shape; -1 in it means any size. Operands that are not used pass. Else the
 * operator's shape status. `why` names the sizes: "[T,K]". */
aclnnStatus tensors_expect(const aclOpExecutor *executor, int place, int rank, const int64_t *shape,
                           const char *why);

/* value >= least, else the operator's shape status. */
aclnnStatus tensors_expect_least(const aclOpExecutor *executor, const char *name, int64_t value,
                                 int64_t least);

/* [E,C,H] as [E*C,H]; the operator's shape status where no stride goes through both. */
aclnnStatus tensors_merge_rows(aclOpExecutor *executor, int place);

/* Element [row, column] of an int32 or int64 operand of rank 2, [row] of rank 1. */
int64_t tensors_load_index(const aclOpExecutor *executor, int place, int64_t row, int64_t column);
void tensors_store_index(const aclOpExecutor *executor, int place, int64_t row, int64_t column,
                         int64_t value);

/* The address of that element, of any type. */
char *tensors_at(const struct operand *operand, int64_t row, int64_t column);

/* Slots as an index tensor [T*K] lists them. */
struct slot_order {
    int64_t tokens_num, topk;
    bool by_column;   /* slot k * T + t; else t * K + k */
    int64_t rows_end; /* values are in [-1, rows_end) */
    int64_t rows_num; /* rows that are there; the slots of further ones are unused */
};

/* [T*K] in row order; -1 for an unused slot. ACLNN_ERR_INNER_TILING_ERROR for a value that is out
 * of range. */
aclnnStatus tensors_copy_slots(const aclOpExecutor *executor, int place,
                               const struct slot_order *order, int32_t *slots);

/* Types of scales beside those of the rows: any on 950 and the host; on Atlas A2 and A3 those of
 * the rows, or, where `wide` is set, float32 with bfloat16 rows. */
aclnnStatus tensors_scales_type(const aclOpExecutor *executor, int scales, int rows, bool wide);

#endif
