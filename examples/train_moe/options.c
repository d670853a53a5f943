/* options.c - the command line into struct options. */
#include "options.h"

#include <errno.h>
#include <moetoken/moetoken.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint.h"
#include "ranks/ranks.h"
#include "text.h"

void options_print_help(void)
{
    printf("usage: train_moe [OPTION VALUE]... [TEXT]...\n"
           "\n"
           "Trains a small mixture-of-experts language model on the bytes of the texts\n"
           "(%s).\n"
           "\nthe model and its training:\n",
           TEXT_DEFAULT);
    config_print_options();
    printf("  --dense            no value: one expert as wide as the chosen ones together\n"
           "\nthe run:\n"
           "  --threads          OpenMP threads; 0: as many as OpenMP takes (0)\n"
           "  --isa              highest instruction set of the operators: scalar, avx2, ...\n"
           "  --checkpoint       file to write the run to, at its end\n"
           "  --checkpoint-every steps between further checkpoints\n"
           "  --resume           checkpoint to go on from, with its model and training options\n"
           "  --stop-at          step to stop at, as if interrupted\n"
           "  --dump-step        two values, step and file: writes the inputs of\n"
           "                     moetoken_unpermute_grad in the last layer at that step\n"
           "  --plot             SVG file with the curves of the run\n"
           "  --exact            no value: losses with all their digits\n"
           "  --baseline         checkpoint of another run, to be plotted too; up to %d times\n"
           "  --help             this text\n",
           MAX_BASELINES);
}

static bool parse_count(const char *option, const char *value, int64_t *out)
{
    char *end;
    errno = 0;
    long long number = strtoll(value, &end, 10);
    if (end != value && *end == '\0' && !errno && number >= 0 && number <= 1000000000) {
        *out = number;
        return true;
    }
    complain("%s is %s; expected a whole number from 0 to 1000000000", option, value);
    return false;
}

/* The named instruction set and those below it: their bits rise in that order. */
static bool parse_isa(const char *value, uint32_t *mask)
{
    for (uint32_t bit = 1; bit <= MOETOKEN_ISA_NEON; bit <<= 1)
        if (strcmp(value, moetoken_isa_name(bit)) == 0) {
            *mask = 2 * bit - 1;
            if (moetoken_isa_chosen(*mask) == bit)
                return true;
            complain("--isa is %s, which this CPU or MOETOKEN_ISA lacks", value);
            return false;
        }
    complain("--isa is %s; expected scalar, avx2, avx512 or neon", value);
    return false;
}

static bool add_baseline(struct options *options, const char *value)
{
    if (options->baselines_count == MAX_BASELINES) {
        complain("--baseline is given more than %d times", MAX_BASELINES);
        return false;
    }
    options->baselines[options->baselines_count++] = value;
    return true;
}

/* 1: done, 0: no such option, -1: a message was printed; as config_set */
static int set_run_option(struct options *options, const char *option, const char *value)
{
    const struct {
        const char *name;
        const char **text;
        int64_t *count;
    } table[] = {
        {"--threads", NULL, &options->threads},
        {"--checkpoint", &options->checkpoint, NULL},
        {"--checkpoint-every", NULL, &options->checkpoint_every},
        {"--resume", &options->resume, NULL},
        {"--stop-at", NULL, &options->stop_at},
        {"--plot", &options->plot, NULL},
        {"--dump-step", NULL, &options->dump_step},
    };
    if (strcmp(option, "--isa") == 0)
        return parse_isa(value, &options->isa_mask) ? 1 : -1;
    if (strcmp(option, "--baseline") == 0)
        return add_baseline(options, value) ? 1 : -1;
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        if (strcmp(option, table[i].name) != 0)
            continue;
        if (table[i].count)
            return parse_count(option, value, table[i].count) ? 1 : -1;
        *table[i].text = value;
        return 1;
    }
    return 0;
}

/* An option without a value: its place, or NULL. */
static bool *flag_for(struct options *options, const char *option, bool *dense)
{
    return strcmp(option, "--dense") == 0   ? dense
           : strcmp(option, "--exact") == 0 ? &options->exact
           : strcmp(option, "--help") == 0  ? &options->help
                                            : NULL;
}

/* Reads argv[*at] and its values and moves *at behind them. */
static bool parse_option(struct options *options, int argc, char *const *argv, int *at,
                         const char **decides_numbers, bool *dense)
{
    const char *option = argv[*at];
    bool *flag = flag_for(options, option, dense);
    int values = flag ? 0 : strcmp(option, "--dump-step") == 0 ? 2 : 1;
    if (argc - *at <= values) {
        complain("%s lacks its value", option);
        return false;
    }
    const char *value = argv[*at + (values > 0)];
    *at += 1 + values;
    if (flag) {
        *flag = true;
        *decides_numbers = *dense ? "--dense" : *decides_numbers;
        return true;
    }
    int set = config_set(&options->config, option, value);
    if (set > 0)
        *decides_numbers = option;
    if (set == 0)
        set = set_run_option(options, option, value);
    if (values == 2)
        options->dump = argv[*at - 1];
    if (set == 0)
        complain("unknown option %s; see --help", option);
    return set > 0;
}

static bool settle_config(struct options *options, const char *decides_numbers, bool dense)
{
    if (options->resume && decides_numbers) {
        complain("%s cannot go with --resume: the checkpoint decides it", decides_numbers);
        return false;
    }
    if (options->resume && !checkpoint_read_config(options->resume, &options->config))
        return false;
    if (dense)
        config_make_dense(&options->config);
    return config_check(&options->config);
}

bool options_parse(struct options *options, int argc, char *const *argv)
{
    static char *const default_text[] = {(char *)TEXT_DEFAULT};
    const char *decides_numbers = NULL;
    bool dense = false;
    int at = 1;
    *options = (struct options){.config = config_default()};
    while (at < argc && strncmp(argv[at], "--", 2) == 0)
        if (!parse_option(options, argc, argv, &at, &decides_numbers, &dense))
            return false;
    options->texts = at < argc ? argv + at : default_text;
    options->texts_count = at < argc ? argc - at : 1;
    return options->help || settle_config(options, decides_numbers, dense);
}
