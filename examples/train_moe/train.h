/* train.h - training: batches, AdamW, evaluation, and the table of what happened. */
#ifndef TRAIN_MOE_TRAIN_H
#define TRAIN_MOE_TRAIN_H

#include <stdbool.h>
#include <stdint.h>

#include "model/config.h"
#include "model/model.h"
#include "text.h"

/* A row of the table: the steps since the row before it. Doubles only: goes to the checkpoint. */
struct record {
    double step;             /* steps done */
    double steps;            /* of this row */
    double training_loss;    /* mean, nats a byte */
    double validation_loss;  /* nats a byte */
    double choices, dropped; /* (token, expert) pairs chosen, and those without a place */
    double tokens_per_second;
    double load[MAX_LAYERS][MAX_EXPERTS]; /* choices by layer and expert */
};

struct trainer {
    struct config config;
    const struct text *text;
    struct model *model;
    real *first, *second;  /* AdamW's moments, [parameters_count] */
    int64_t step;          /* steps done */
    struct record pending; /* sums since the last row */
    struct record *history;
    int64_t history_count;
    double seconds; /* since the last row */
};

void trainer_create(struct trainer *trainer, const struct config *config, const struct text *text,
                    const moetoken_options *options);
void trainer_destroy(struct trainer *trainer);

/* One step. dump: where the last layer's inputs of unpermute_grad go, or NULL. */
void trainer_step(struct trainer *trainer, const char *dump);

/* Whether the last step ends a row of the table. */
bool trainer_row_is_due(const struct trainer *trainer);
/* Evaluates, ends the row, adds it to the history and returns it. */
const struct record *trainer_finish_row(struct trainer *trainer);

/* Mean loss over all validation windows, nats a byte. */
double trainer_validation_loss(struct trainer *trainer);

/* Entropy of a layer's load in a row, 1 for an even one. */
double record_entropy(const struct record *record, const struct config *config, int layer);

#endif
