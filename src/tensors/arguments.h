/* arguments.h - one table per operator, and every check that follows from it.
 *
 * A table has a line for each tensor of the operator's argument struct: its name, its sizes as
 * letters, its types, when it is required and when its elements are read. From it presence, views,
 * types, sizes, overlap and the amount of memory that a call moves are worked out and reported
 * here, once for all operators. What an operator checks itself is what no table can say. */
#ifndef MOETOKEN_ARGUMENTS_H
#define MOETOKEN_ARGUMENTS_H

#include "tensors/tensor.h"
#include "threads/run.h"

#define MOETOKEN_ARGUMENTS_MAX 16

/* Facts about a call, as bits: bit i says that argument i of the table is given; the others: */
#define FACT(argument) (1u << (argument))
#define FACT_ALWAYS    (1u << 31)
#define FACT_PADDED    (1u << 30) /* drop_and_pad */
#define FACT_DROPLESS  (1u << 29)
#define FACT_MASKED    (1u << 28) /* drop_and_pad with MOETOKEN_MASK_FILL_SLOTS */
#define FACT_BY_MAP    (1u << 27) /* not by expert ids */
#define FACT_BY_IDS    (1u << 26) /* by expert ids */

#define MOETOKEN_CASES_MAX 3

enum moetoken_direction {
    MOETOKEN_INPUT,
    MOETOKEN_OUTPUT
};

struct moetoken_argument {
    const char *name;
    size_t offset;     /* of the DLTensor pointer in the argument struct */
    const char *sizes; /* a letter per dimension, as in the header: "TH"; L is E', 1 the number */
    unsigned types;    /* a set: 1u << moetoken_type each */
    enum moetoken_direction direction;
    /* Cases, each of them facts that must hold together, in which the tensor must be given; and in
     * which the elements of an input are read. Outputs that are given are always written. */
    unsigned required[MOETOKEN_CASES_MAX];
    unsigned read[MOETOKEN_CASES_MAX];
    /* Arguments, as facts, of which the first one given has the type that this one is to have; or
     * whose type goes with this one's as that of tokens goes with that of probs; or that has its
     * type unless it is float32 or float64. */
    unsigned same_type, goes_with, weights_of;
    unsigned may_replace; /* an output that may be the very buffer of this argument */
};

/* The beginning of a line for an input, and for an output. */
/* NOLINTBEGIN(bugprone-macro-parentheses): a member's name */
#define INPUT(args, field, letters, type_set)                                                      \
    .name = #field, .offset = offsetof(args, field), .sizes = letters, .types = type_set
#define OUTPUT(args, field, letters, type_set)                                                     \
    INPUT(args, field, letters, type_set), .direction = MOETOKEN_OUTPUT
/* NOLINTEND(bugprone-macro-parentheses) */

struct moetoken_table {
    const struct moetoken_argument *arguments;
    int count;
    size_t args_size;           /* of the argument struct */
    size_t drop_and_pad_offset; /* of the bool in it; 0: there is none */
    uint32_t flags_taken;
    unsigned by_map, by_ids; /* arguments that belong to one spelling of a routing alone */
    unsigned one_of;         /* inputs of which at least one must be given */
};

/* The size that a letter stands for, and the argument that it comes from. */
struct moetoken_size {
    int64_t value;
    const char *source; /* NULL: not known yet */
};

/* What is known of a call; every operator's own struct begins with it. */
struct moetoken_call {
    const struct moetoken_table *table;
    struct moetoken_view view[MOETOKEN_ARGUMENTS_MAX];
    struct moetoken_size size['Z' - 'A' + 1];
    unsigned facts;
    bool need_data; /* the call will run, so that data pointers must be there */
    moetoken_options options;
};

/* Copies the caller's argument struct, whose first member is its size, into `taken`, the struct as
 * this version has it, and the options into call->options; checks the options, that the spelling of
 * the routing is one, that all tensors are given that must be, their descriptions and types. Fills
 * in facts and views. need_data: the call will run. */
moetoken_status moetoken_call_read(struct moetoken_call *call, const struct moetoken_table *table,
                                   const void *args, void *taken, const moetoken_options *options,
                                   bool need_data);

/* A letter's size that comes from elsewhere than a tensor. MOETOKEN_ERR_SHAPE when it is negative.
 */
moetoken_status moetoken_call_set_size(struct moetoken_call *call, char letter, int64_t value,
                                       const char *source);

/* Every dimension against its letter. A letter that is not set has the size of the first tensor of
 * the table that is given and has it. */
moetoken_status moetoken_call_check_sizes(struct moetoken_call *call);

/* Outputs against every other tensor and the workspace, which is to serve T tokens and N slots. */
moetoken_status moetoken_call_check_memory(const struct moetoken_call *call, int64_t tokens_num,
                                           int64_t slots_num);

/* The same with a workspace of `workspace_bytes`. */
moetoken_status moetoken_call_check_memory_of(const struct moetoken_call *call,
                                              size_t workspace_bytes);

/* MOETOKEN_ERR_SHAPE unless N = T * K, where a tensor of K columns is given. */
moetoken_status moetoken_call_check_slots(const struct moetoken_call *call);

/* Kernels, threads and stores, from what the call reads and writes. */
void moetoken_call_plan(const struct moetoken_call *call, struct moetoken_run *run);

static inline bool moetoken_call_given(const struct moetoken_call *call, int argument)
{
    return call->view[argument].given;
}

static inline int64_t moetoken_call_size(const struct moetoken_call *call, char letter)
{
    return call->size[letter - 'A'].value;
}

static inline bool moetoken_call_knows_size(const struct moetoken_call *call, char letter)
{
    return call->size[letter - 'A'].source != NULL;
}

#endif
