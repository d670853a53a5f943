/* recomputation.h - a call on its way to the oracle: its values, and the case that is made of them.
 * For dump_recompute.c, and the functions of dump_family_*.c that know what each argument means. */
#ifndef MOETOKEN_CLI_RECOMPUTATION_H
#define MOETOKEN_CLI_RECOMPUTATION_H

#include "dump_recompute.h"

#define ARGUMENTS_MOST 16
#define RESULTS_MOST   4
#define SCRATCH_MOST   48

struct family_function;

struct recomputation {
    const struct dump *dump;
    const struct dump_call *call;
    const struct dump_judging *judging;
    struct dump_value arguments[ARGUMENTS_MOST]; /* of the forward call, by position */
    struct dump_value results[RESULTS_MOST];     /* of the forward call */
    struct dump_value gradients[RESULTS_MOST];   /* backward: of the results */
    struct dump_value argument_gradients[ARGUMENTS_MOST];
    struct tensor_file *inputs; /* of the case that is being made */
    bool made_well;
    const DLTensor *rows; /* permuted_tokens, where another output depends on how many they are */
    void *scratch[SCRATCH_MOST];
    int scratch_count;
    char error[TENSOR_FILE_ERROR_SIZE];
};

typedef void family_fn(struct recomputation *r);

/* One function of torch_npu. */
struct family_function {
    const char *name;
    const char *arguments[ARGUMENTS_MOST]; /* in the order of positions */
    family_fn *forward, *backward;         /* backward NULL: has no gradient of its own */
};
extern const struct family_function family_by_map[], family_by_ids[];
extern const int family_by_map_count, family_by_ids_count;

/* ---- values ---------------------------------------------------------------------------------- */

/* NULL when it is no tensor. */
static inline const DLTensor *tensor_of(const struct dump_value *value)
{
    return value->kind == VALUE_TENSOR ? value->tensor : NULL;
}
/* The number, or what stands for it where there is none. */
static inline int64_t number_of(const struct dump_value *value, int64_t otherwise)
{
    return value->kind == VALUE_NUMBER ? value->number : otherwise;
}
int64_t size_of(const DLTensor *tensor, int d); /* 0 where there is no such dimension */
int64_t elements_of(const DLTensor *tensor);

/* ---- tensors made of others; they live as long as the recomputation. NULL: no memory ------------
 */

/* Another shape over the same data. */
const DLTensor *reshaped(struct recomputation *r, const DLTensor *tensor, int64_t rows,
                         int64_t columns);
/* int64, of one dimension, to be filled in: its data in *values. */
const DLTensor *new_integers(struct recomputation *r, int64_t count, int64_t **values);
/* The integers of a tensor; those outside [0, end) as -1. */
const DLTensor *integers_within(struct recomputation *r, const DLTensor *tensor, int64_t end);
/* From column order, slot k * T + t, to row order, t * K + k. */
const DLTensor *tokens_first(struct recomputation *r, const DLTensor *tensor, int64_t tokens);
/* Weights of 1, [T,1], of the type of `like`. */
const DLTensor *ones(struct recomputation *r, const DLTensor *like, int64_t tokens);

/* ---- cases ----------------------------------------------------------------------------------- */

void case_begin(struct recomputation *r);
/* NULL tensors are left out. */
void case_put(struct recomputation *r, const char *name, const DLTensor *tensor);
void case_number(struct recomputation *r, const char *key, int64_t value);
void case_flag(struct recomputation *r, const char *key, bool value);
void case_shape(struct recomputation *r, int64_t tokens, int64_t hidden);
/* Judges `actual`, which is output `name` of the operator, and ends the case. */
void case_judge(struct recomputation *r, enum operator_kind kind, const char *name,
                const DLTensor *actual, const char *which);
/* Judges integers against those that were found here; `actual` has as many elements. */
void judge_integers_directly(struct recomputation *r, const char *name, const DLTensor *actual,
                             const DLTensor *golden, const char *which);
void not_checked(struct recomputation *r, const char *name, const char *which, const char *why);

#endif
