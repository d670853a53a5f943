/* case_options.h - the options that describe a generated case: for generate, gradcheck and bench.
 *
 * Command line -> struct case_settings. The model table fills in what the command line leaves out.
 */
#ifndef MOETOKEN_CLI_CASE_OPTIONS_H
#define MOETOKEN_CLI_CASE_OPTIONS_H

#include "generate_case.h"
#include "terminal/options.h"

/* Values as they come from the command line. The choices are in the order of the *_CHOICES. */
struct case_options {
    const char *model, *recipe;
    int64_t hidden, experts, topk, capacity, tokens, spare_rows, extremes, seed; /* -1: not given */
    double skew;
    int operator_kind, token_type, probs_type, index_type, map_type; /* probs_type -1: not given */
    bool no_probs, drop_and_pad, ids, holes, shuffle, random_fill, logits;
};

#define FLOAT_CHOICES "f32|f16|bf16|f64"

/* The defaults. */
struct case_options case_options_default(void);

/* false, with the reason in `error`, when they do not make a case. */
bool case_options_resolve(const struct case_options *options, struct case_settings *settings,
                          char *error, size_t error_size);

/* The table entries, for a command whose settings struct `type` has them in `member`. */
#define CASE_OFFSET(type, member, field)                                                           \
    (offsetof(type, member) + offsetof(struct case_options, field))
#define CASE_SHAPE_OPTIONS(type, member)                                                           \
    {.name = "model",                                                                              \
     .letter = 'm',                                                                                \
     .kind = OPTION_TEXT,                                                                          \
     .value = "NAME",                                                                              \
     .offset = CASE_OFFSET(type, member, model),                                                   \
     .help = "hidden size, experts and top-K of a real model; NAME list\nprints the table"},       \
        {.name = "tokens",                                                                         \
         .kind = OPTION_INTEGER,                                                                   \
         .value = "T",                                                                             \
         .offset = CASE_OFFSET(type, member, tokens),                                              \
         .most = INT64_MAX,                                                                        \
         .help = "tokens (default 1024)"},                                                         \
        {.name = "hidden",                                                                         \
         .kind = OPTION_INTEGER,                                                                   \
         .value = "H",                                                                             \
         .offset = CASE_OFFSET(type, member, hidden),                                              \
         .most = INT64_MAX,                                                                        \
         .help = "elements of a token"},                                                           \
        {.name = "experts",                                                                        \
         .kind = OPTION_INTEGER,                                                                   \
         .value = "E",                                                                             \
         .offset = CASE_OFFSET(type, member, experts),                                             \
         .least = 1,                                                                               \
         .most = INT64_MAX,                                                                        \
         .help = "experts"},                                                                       \
        {.name = "topk",                                                                           \
         .kind = OPTION_INTEGER,                                                                   \
         .value = "K",                                                                             \
         .offset = CASE_OFFSET(type, member, topk),                                                \
         .least = 1,                                                                               \
         .most = INT64_MAX,                                                                        \
         .help = "experts of each token"},                                                         \
    {                                                                                              \
        .name = "seed", .kind = OPTION_INTEGER, .value = "S",                                      \
        .offset = CASE_OFFSET(type, member, seed), .most = INT64_MAX,                              \
        .help = "the same seed gives the same bytes, everywhere (default 1)"                       \
    }

#endif
