/* config.c - the options that decide a run's numbers, as one table. */
#include "config.h"

#include <errno.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ranks/ranks.h"

enum kind {
    WHOLE,
    FRACTION,
    SCHEDULE,
    DTYPE,
    ROUTER
};

#define WORDS_MOST 3

/* The words of an option that takes one of them; their positions are its values. */
static const char *const words[][WORDS_MOST] = {
    [WHOLE] = {NULL},
    [FRACTION] = {NULL},
    [SCHEDULE] = {"constant", "cosine"},
    [DTYPE] = {"float32", "bfloat16"},
    [ROUTER] = {"mixtral", "deepseek-v3", "frozen-random"},
};

struct option {
    const char *name, *help;
    enum kind kind;
    size_t offset;
    double least, most;
};

static const struct option table[] = {
    {"--layers", "blocks", WHOLE, offsetof(struct config, layers), 1, MAX_LAYERS},
    {"--width", "hidden size", WHOLE, offsetof(struct config, width), 1, 4096},
    {"--heads", "attention heads", WHOLE, offsetof(struct config, heads), 1, 64},
    {"--context", "bytes of a sequence", WHOLE, offsetof(struct config, context), 2, 512},
    {"--experts", "experts of a layer", WHOLE, offsetof(struct config, experts), 1, MAX_EXPERTS},
    {"--topk", "experts of a token", WHOLE, offsetof(struct config, topk), 1, MAX_EXPERTS},
    {"--hidden", "width of an expert", WHOLE, offsetof(struct config, hidden), 1, 65536},
    {"--batch", "sequences of a step", WHOLE, offsetof(struct config, batch), 1, 4096},
    {"--steps", "steps of the whole run", WHOLE, offsetof(struct config, steps), 1, 1e9},
    {"--warmup", "steps of rising rate", WHOLE, offsetof(struct config, warmup), 0, 1e9},
    {"--schedule", "of the rate", SCHEDULE, offsetof(struct config, cosine), 0, 1},
    {"--evaluate-every", "steps of a table's row", WHOLE, offsetof(struct config, evaluate_every),
     1, 1e9},
    {"--dtype", "of the rows that go to experts", DTYPE, offsetof(struct config, bfloat16), 0, 1},
    {"--router", "", ROUTER, offsetof(struct config, router), 0, 2},
    {"--seed", "of weights and batches", WHOLE, offsetof(struct config, seed), 0, 9e15},
    {"--capacity-factor", "an expert's rows over an even load's; 0: dropless", FRACTION,
     offsetof(struct config, capacity_factor), 0, 64},
    {"--aux", "mixtral: weight of the load-balancing loss", FRACTION,
     offsetof(struct config, aux_weight), 0, 100},
    {"--bias-rate", "deepseek-v3: step of the load-balancing bias", FRACTION,
     offsetof(struct config, bias_rate), 0, 1},
    {"--learning-rate", "at its highest", FRACTION, offsetof(struct config, learning_rate), 0, 10},
    {"--weight-decay", "of the matrices", FRACTION, offsetof(struct config, weight_decay), 0, 10},
};
#define OPTIONS (sizeof table / sizeof table[0])

/* The value in a config, of whichever type it is. */
static double value_in(const struct config *config, const struct option *option)
{
    const char *member = (const char *)config + option->offset;
    return option->kind == FRACTION ? *(const double *)(const void *)member
                                    : (double)*(const int64_t *)(const void *)member;
}

struct config config_default(void)
{
    return (struct config){.layers = 2,
                           .width = 64,
                           .heads = 4,
                           .context = 128,
                           .experts = 16,
                           .topk = 2,
                           .hidden = 64,
                           .batch = 16,
                           .steps = 1000,
                           .warmup = 50,
                           .cosine = 1,
                           .evaluate_every = 50,
                           .seed = 1,
                           .aux_weight = 0.01,
                           .bias_rate = 0.01,
                           .learning_rate = 4e-3,
                           .weight_decay = 0.1};
}

/* "cosine or constant", "mixtral, deepseek-v3 or frozen-random". */
static const char *list_words(char text[96], const char *const allowed[WORDS_MOST])
{
    int count = 0;
    while (count < WORDS_MOST && allowed[count])
        count++;
    text[0] = '\0';
    for (int i = 0; i < count; i++) {
        strcat(text, i == 0 ? "" : i + 1 < count ? ", " : " or ");
        strcat(text, allowed[i]);
    }
    return text;
}

static bool parse_word(const struct option *option, const char *value, double *out)
{
    const char *const *allowed = words[option->kind];
    char text[96];
    for (int i = 0; i < WORDS_MOST && allowed[i]; i++)
        if (strcmp(value, allowed[i]) == 0) {
            *out = i;
            return true;
        }
    complain("%s is %s; expected %s", option->name, value, list_words(text, allowed));
    return false;
}

static bool parse_number(const struct option *option, const char *value, double *out)
{
    char *end;
    errno = 0;
    *out = strtod(value, &end);
    bool whole = option->kind != WHOLE || *out == floor(*out);
    if (end != value && *end == '\0' && !errno && whole && *out >= option->least &&
        *out <= option->most)
        return true;
    complain("%s is %s; expected a %s from %g to %g", option->name, value,
             option->kind == WHOLE ? "whole number" : "number", option->least, option->most);
    return false;
}

int config_set(struct config *config, const char *option, const char *value)
{
    for (size_t i = 0; i < OPTIONS; i++) {
        if (strcmp(option, table[i].name) != 0)
            continue;
        char *member = (char *)config + table[i].offset;
        double number;
        bool word = words[table[i].kind][0] != NULL;
        if (!(word ? parse_word : parse_number)(&table[i], value, &number))
            return -1;
        if (table[i].kind == FRACTION)
            *(double *)(void *)member = number;
        else
            *(int64_t *)(void *)member = (int64_t)number;
        return 1;
    }
    return 0;
}

bool config_check(const struct config *config)
{
    for (size_t i = 0; i < OPTIONS; i++) {
        double value = value_in(config, &table[i]);
        if (!(value >= table[i].least && value <= table[i].most)) {
            complain("%s is %g, outside %g to %g", table[i].name, value, table[i].least,
                     table[i].most);
            return false;
        }
    }
    if (config->topk > config->experts) {
        complain("--topk %lld is more than --experts %lld", (long long)config->topk,
                 (long long)config->experts);
        return false;
    }
    if (config->width % config->heads != 0) {
        complain("--width %lld is not a multiple of --heads %lld", (long long)config->width,
                 (long long)config->heads);
        return false;
    }
    return true;
}

void config_print_options(void)
{
    struct config config = config_default();
    for (size_t i = 0; i < OPTIONS; i++) {
        const char *const *allowed = words[table[i].kind];
        double value = value_in(&config, &table[i]);
        char text[96];
        printf("  %-18s %s", table[i].name, table[i].help);
        if (allowed[0])
            printf("%s%s (%s)\n", table[i].help[0] ? ": " : "", list_words(text, allowed),
                   allowed[(int)value]);
        else
            printf(" (%g)\n", value);
    }
}

void config_make_dense(struct config *config)
{
    config->hidden *= config->topk;
    config->experts = 1;
    config->topk = 1;
    config->capacity_factor = 0;
}
