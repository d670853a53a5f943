/* operator_command.h - what the commands of operators and router share: options, output file,
 * summary.
 *
 * Files -> operator_job (inputs, attributes, shapes of the outputs) -> one library call that
 * writes straight into the output file. cmd_<operator>.c says what is special to each. */
#ifndef MOETOKEN_CLI_OPERATOR_COMMAND_H
#define MOETOKEN_CLI_OPERATOR_COMMAND_H

#include "cases/case_files.h"
#include "cases/operators.h"
#include "cases/router_options.h"
#include "terminal/options.h"

struct operator_settings {
    const char *output;  /* path */
    const char *outputs; /* names of the wanted output tensors, or NULL: all */
    const char *restore_shape;
    int drop_and_pad, mask_fill_slots, tolerate_routing_mismatch; /* -1: not given */
    int isa;                                                      /* -1: not given */
    int stores;     /* 0 auto, 1 cached, 2 streaming */
    int index_type; /* -1, 0: int32, 1: int64 */
    int64_t threads, repeat;
    int64_t tokens_num, experts_num, num_out_tokens; /* -1: not given */
    int64_t expert_begin, expert_end, capacity;      /* -1: not given */
    int weights_type; /* router: -1, 0: float32, 1: float64, 2: logits' */
    struct router_options router;
    bool quiet, json;
};

struct operator_job {
    const struct operator_settings *settings;
    struct case_files files;
    moetoken_options options;
    bool drop_and_pad, mask_fill_slots, tolerate_routing_mismatch;
    bool has_restore_shape;
    int64_t restore_shape[2];
    int64_t tokens_num, hidden_size, experts_num; /* T, H, E as far as known; E -1: unknown */
    int64_t slots_num, rows_num;                  /* N, R */
    bool ranged;                                  /* permute by expert ids, with: */
    int64_t expert_begin, expert_end, capacity;
    moetoken_router_config config; /* router */
    int64_t input_bytes;
    moetoken_type token_type;
    struct tensor_spec specs[OUTPUTS_MOST]; /* by operator_outputs; name NULL: not written */
    const DLTensor *outputs[OUTPUTS_MOST];
};

/* What differs between the operators. */
struct operator_calls {
    enum operator_kind kind;
    /* Finds the inputs and sets sizes and specs. false: a line was printed. */
    bool (*prepare)(struct operator_job *job, void *args);
    /* Sets the outputs in args and calls moetoken_<operator>, or its _check. */
    moetoken_status (*call)(const struct operator_job *job, void *args, bool check_only);
};

/* args is the operator's argument struct, zero. Returns the exit status. */
int run_operator_command(const struct command *command, const struct operator_calls *calls,
                         void *args, int argc, char **argv);

/* An input tensor, which counts for the bytes read. */
bool job_input(struct operator_job *job, const char *name, bool required, const DLTensor **tensor);
/* The type of a tensor as outputs of its kind have it. */
moetoken_type tensor_type(const DLTensor *tensor);
/* Router: the type of weights, probs and scores. */
moetoken_type weights_type(const struct operator_job *job, const DLTensor *logits);
/* Declares output number i of the operator. */
void job_output(struct operator_job *job, enum operator_kind kind, int i, moetoken_type type,
                int ndim, int64_t first, int64_t second);

#define SETTING(member) offsetof(struct operator_settings, member)

/* The options of every command, for the head of its table. */
#define COMMON_OPTIONS                                                                             \
    {.name = "output",                                                                             \
     .letter = 'o',                                                                                \
     .kind = OPTION_TEXT,                                                                          \
     .value = "OUT",                                                                               \
     .offset = SETTING(output),                                                                    \
     .help = "the file to write: .npz when it ends so, else safetensors"},                         \
        {.name = "outputs",                                                                        \
         .kind = OPTION_TEXT,                                                                      \
         .value = "NAME,...",                                                                      \
         .offset = SETTING(outputs),                                                               \
         .help = "compute only these output tensors"},                                             \
        {.name = "threads",                                                                        \
         .letter = 't',                                                                            \
         .kind = OPTION_INTEGER,                                                                   \
         .value = "N",                                                                             \
         .offset = SETTING(threads),                                                               \
         .least = 1,                                                                               \
         .most = 4096,                                                                             \
         .help = "at most N threads"},                                                             \
        {.name = "isa",                                                                            \
         .kind = OPTION_CHOICE,                                                                    \
         .value = "scalar|avx2|avx512|neon",                                                       \
         .offset = SETTING(isa),                                                                   \
         .help = "the highest instruction set to use"},                                            \
        {.name = "stores",                                                                         \
         .kind = OPTION_CHOICE,                                                                    \
         .value = "auto|cached|streaming",                                                         \
         .offset = SETTING(stores),                                                                \
         .help = "how outputs are written (default auto: by size)"},                               \
        {.name = "repeat",                                                                         \
         .kind = OPTION_INTEGER,                                                                   \
         .value = "N",                                                                             \
         .offset = SETTING(repeat),                                                                \
         .least = 1,                                                                               \
         .most = 1000000,                                                                          \
         .help = "run N times and report the fastest (default 1)"},                                \
        {.name = "quiet",                                                                          \
         .letter = 'q',                                                                            \
         .kind = OPTION_FLAG,                                                                      \
         .offset = SETTING(quiet),                                                                 \
         .help = "no summary line"},                                                               \
    {                                                                                              \
        .name = "json", .kind = OPTION_FLAG, .offset = SETTING(json),                              \
        .help = "the summary as one JSON object"                                                   \
    }

/* Of the four operators. */
#define OPERATOR_OPTIONS                                                                           \
    COMMON_OPTIONS,                                                                                \
    {                                                                                              \
        .name = "drop-and-pad", .kind = OPTION_SWITCH, .value = "true|false",                      \
        .offset = SETTING(drop_and_pad),                                                           \
        .help = "padded mode; wins over drop_and_pad in the file's metadata"                       \
    }

#define MISMATCH_OPTION                                                                            \
    {                                                                                              \
        .name = "tolerate-routing-mismatch", .kind = OPTION_SWITCH, .value = "true|false",         \
        .offset = SETTING(tolerate_routing_mismatch),                                              \
        .help = "slots beyond the set experts of their token have weight 0,\n"                     \
                "surplus experts are ignored, instead of an error"                                 \
    }
#define MASK_OPTION                                                                                \
    {                                                                                              \
        .name = "mask-fill-slots", .kind = OPTION_SWITCH, .value = "true|false",                   \
        .offset = SETTING(mask_fill_slots),                                                        \
        .help = "padded: slots whose pair routing_map does not set have weight 0"                  \
    }
#define SHAPE_OPTION                                                                               \
    {                                                                                              \
        .name = "restore-shape", .kind = OPTION_TEXT, .value = "T,H",                              \
        .offset = SETTING(restore_shape), .help = "the shape of the unpermuted tensor"             \
    }
#define INDEX_OPTION                                                                               \
    {                                                                                              \
        .name = "index-dtype", .kind = OPTION_CHOICE, .value = "i32|i64",                          \
        .offset = SETTING(index_type), .help = "the type of index tensors that are written"        \
    }

#endif
