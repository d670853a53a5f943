/* train.c - one step after the other, and what is told of them. */
#include "train.h"

#include <math.h>
#include <string.h>
#include <time.h>

#include "ranks/ranks.h"

#define BETA_FIRST   0.9
#define BETA_SECOND  0.98
#define ADAM_EPSILON 1e-8
#define LARGEST_NORM 1.0 /* longer gradients are shortened to it */
#define LOWEST_RATE  0.1 /* of the highest, at the end of the cosine */

void trainer_create(struct trainer *trainer, const struct config *config, const struct text *text,
                    const moetoken_options *options)
{
    *trainer = (struct trainer){.config = *config, .text = text};
    trainer->model = model_create(config, options);
    trainer->first = allocate(trainer->model->parameters_count, sizeof(real));
    trainer->second = allocate(trainer->model->parameters_count, sizeof(real));
    trainer->history = allocate(config->steps / config->evaluate_every + 1, sizeof(struct record));
}

void trainer_destroy(struct trainer *trainer)
{
    model_destroy(trainer->model);
    free(trainer->first);
    free(trainer->second);
    free(trainer->history);
}

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static void copy_window(uint8_t *bytes, uint8_t *targets, const uint8_t *window, int64_t context)
{
    memcpy(bytes, window, (size_t)context);
    memcpy(targets, window + 1, (size_t)context);
}

/* Step and seed alone decide the batch: a resumed run needs no state of a generator. */
static void draw_batch(const struct trainer *trainer, uint8_t *bytes, uint8_t *targets)
{
    int64_t context = trainer->config.context, batch = trainer->config.batch;
    uint64_t windows = (uint64_t)text_training_windows(trainer->text, context);
    for (int64_t b = 0; b < batch; b++) {
        uint64_t bits = random_bits((uint64_t)trainer->config.seed,
                                    UINT64_C(1) << 32 | (uint64_t)(trainer->step * batch + b));
        const uint8_t *window =
            text_training_window(trainer->text, context, (int64_t)(bits % windows));
        copy_window(bytes + b * context, targets + b * context, window, context);
    }
}

static double learning_rate(const struct config *config, int64_t step)
{
    if (step < config->warmup)
        return config->learning_rate * (double)(step + 1) / (double)config->warmup;
    if (!config->cosine)
        return config->learning_rate;
    double done = (double)(step - config->warmup) / (double)(config->steps - config->warmup);
    double share = LOWEST_RATE + (1 - LOWEST_RATE) * 0.5 * (1 + cos(3.14159265358979 * done));
    return config->learning_rate * share;
}

/* In the order of one process: a tensor of experts goes from rank to rank. */
static double gradient_norm(const struct model *model)
{
    double squares = 0;
    for (int i = 0; i < model->tensors_count; i++) {
        const struct tensor *tensor = &model->tensors[i];
        const real *gradient = model->gradients + tensor->offset;
        if (tensor->of_experts)
            ranks_relay_receive(&squares, sizeof squares);
        for (int64_t j = 0; j < tensor->count; j++)
            squares += (double)gradient[j] * (double)gradient[j];
        if (tensor->of_experts) {
            ranks_relay_pass(&squares, sizeof squares);
            ranks_relay_finish(&squares, sizeof squares);
        }
    }
    return sqrt(squares);
}

static void adamw(struct trainer *trainer, const struct tensor *tensor, double rate, double shrink)
{
    double steps = (double)(trainer->step + 1);
    real *value = trainer->model->parameters + tensor->offset;
    const real *gradient = trainer->model->gradients + tensor->offset;
    real *first = trainer->first + tensor->offset, *second = trainer->second + tensor->offset;
    real scale = (real)shrink, beta1 = (real)BETA_FIRST, beta2 = (real)BETA_SECOND;
    real step_size = (real)(rate / (1 - pow(BETA_FIRST, steps)));
    real unbias = (real)(1 / (1 - pow(BETA_SECOND, steps)));
    real keep = (real)(tensor->decays ? 1 - rate * trainer->config.weight_decay : 1);
#pragma omp parallel for schedule(static) if (tensor->count > 16384)
    for (int64_t i = 0; i < tensor->count; i++) {
        real g = gradient[i] * scale;
        first[i] = beta1 * first[i] + (1 - beta1) * g;
        second[i] = beta2 * second[i] + (1 - beta2) * g * g;
        real root = (real)sqrt((double)(second[i] * unbias));
        value[i] = keep * value[i] - step_size * first[i] / (root + (real)ADAM_EPSILON);
    }
}

/* Before evaluation overwrites it. */
static void note_load(struct trainer *trainer)
{
    struct record *pending = &trainer->pending;
    for (int layer = 0; layer < trainer->config.layers; layer++) {
        const struct moe *moe = &trainer->model->blocks[layer].moe;
        for (int64_t e = 0; e < trainer->config.experts; e++) {
            pending->load[layer][e] += (double)moe->load[e];
            pending->choices += (double)moe->load[e];
        }
        pending->dropped += (double)moe->dropped;
    }
}

void trainer_step(struct trainer *trainer, const char *dump)
{
    double start = now();
    struct model *model = trainer->model;
    int64_t tokens = trainer->config.batch * trainer->config.context;
    uint8_t *bytes = allocate(2 * tokens, 1), *targets = bytes + tokens;
    draw_batch(trainer, bytes, targets);
    trainer->pending.training_loss += model_forward(model, bytes, targets, trainer->config.batch);
    note_load(trainer);
    model->blocks[trainer->config.layers - 1].moe.dump = dump;
    model_backward(model, bytes);
    free(bytes);

    double rate = learning_rate(&trainer->config, trainer->step), norm = gradient_norm(model);
    double shrink = norm > LARGEST_NORM ? LARGEST_NORM / norm : 1;
    for (int i = 0; i < model->tensors_count; i++)
        if (!model->tensors[i].frozen)
            adamw(trainer, &model->tensors[i], rate, shrink);
    model_update_biases(model);
    trainer->step++;
    trainer->pending.steps++;
    trainer->seconds += now() - start;
}

double trainer_validation_loss(struct trainer *trainer)
{
    int64_t context = trainer->config.context, batch = trainer->config.batch;
    int64_t windows = text_validation_windows(trainer->text, context);
    uint8_t *bytes = allocate(2 * batch * context, 1), *targets = bytes + batch * context;
    double total = 0;
    for (int64_t first = 0; first < windows; first += batch) {
        int64_t count = windows - first < batch ? windows - first : batch;
        for (int64_t b = 0; b < count; b++)
            copy_window(bytes + b * context, targets + b * context,
                        text_validation_window(trainer->text, context, first + b), context);
        total += (double)count * model_forward(trainer->model, bytes, targets, count);
    }
    free(bytes);
    return total / (double)windows;
}

bool trainer_row_is_due(const struct trainer *trainer)
{
    return trainer->step % trainer->config.evaluate_every == 0 ||
           trainer->step == trainer->config.steps;
}

const struct record *trainer_finish_row(struct trainer *trainer)
{
    struct record *row = &trainer->history[trainer->history_count++];
    double tokens = (double)(trainer->config.batch * trainer->config.context);
    *row = trainer->pending;
    row->step = (double)trainer->step;
    row->training_loss /= row->steps;
    row->tokens_per_second = trainer->seconds > 0 ? row->steps * tokens / trainer->seconds : 0;
    row->validation_loss = trainer_validation_loss(trainer);
    trainer->pending = (struct record){0};
    trainer->seconds = 0;
    return row;
}

double record_entropy(const struct record *record, const struct config *config, int layer)
{
    double total = 0, entropy = 0;
    for (int64_t e = 0; e < config->experts; e++)
        total += record->load[layer][e];
    for (int64_t e = 0; e < config->experts; e++) {
        double share = record->load[layer][e] / total;
        entropy -= share > 0 ? share * log(share) : 0;
    }
    return config->experts > 1 ? entropy / log((double)config->experts) : 1;
}
