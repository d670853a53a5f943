/* checkpoint.h - a run on file: config, step, history, parameters and AdamW's moments.
 *
 * Numbers are stored as this machine has them. A checkpoint is written by temporary file and
 * rename: there is the old one or the new one, never half of one. Rank 0 writes it, every rank
 * reads it; any number of ranks can go on from it. */
#ifndef TRAIN_MOE_CHECKPOINT_H
#define TRAIN_MOE_CHECKPOINT_H

#include <stdbool.h>

#include "train.h"

/* Collective. Ends the program with a message when it cannot. */
void checkpoint_write(const char *path, const struct trainer *trainer);

/* Reads what is needed before a trainer can be made, and nothing of the parameters. */
bool checkpoint_read_config(const char *path, struct config *config);

/* Fills a trainer made from that config and the same text. Complains and returns false
 * when the file is damaged or belongs to another text. */
bool checkpoint_read(const char *path, struct trainer *trainer);

/* The rows of another run, for plots; to be freed. NULL after a message. */
struct record *checkpoint_read_history(const char *path, struct config *config, int64_t *count);

#endif
