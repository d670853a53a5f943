/* plot.h - the curves of a run as an SVG picture: losses, expert load, its entropy. */
#ifndef TRAIN_MOE_PLOT_H
#define TRAIN_MOE_PLOT_H

#include <stdbool.h>

#include "train.h"

#define MAX_BASELINES 4

/* baselines: checkpoints of other runs whose validation losses are drawn too, MAX_BASELINES at
 * most. False after a message when one cannot be read. */
bool plot_write(const char *path, const struct trainer *trainer, const char *const *baselines,
                int baselines_count);

#endif
