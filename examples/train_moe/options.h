/* options.h - the command line. */
#ifndef TRAIN_MOE_OPTIONS_H
#define TRAIN_MOE_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

#include "model/config.h"
#include "plot.h"

/* What the run does besides what config.h says; nothing here changes a number of the model. */
struct options {
    struct config config;
    int64_t threads;   /* 0: as many as OpenMP would take */
    uint32_t isa_mask; /* 0: all */
    const char *checkpoint;
    int64_t checkpoint_every; /* steps; 0: at the end only */
    const char *resume;
    int64_t stop_at; /* steps after which the run ends early, or 0 */
    int64_t dump_step;
    const char *dump; /* NULL: no dump */
    const char *plot;
    const char *baselines[MAX_BASELINES]; /* checkpoints whose curves go into the plot too */
    int baselines_count;
    char *const *texts;
    int texts_count;
    bool exact, help;
};

/* False after a message. Reads the config of the checkpoint when resuming. */
bool options_parse(struct options *options, int argc, char *const *argv);
void options_print_help(void);

#endif
