/* main.c - trains a mixture-of-experts language model on text and prints a table of its progress.
 *
 *   text -> windows -> model (layers, experts by way of the library) -> loss -> gradient -> AdamW
 */
#include <stdio.h>

#ifdef _OPENMP
#include <omp.h>
#endif

#include "checkpoint.h"
#include "options.h"
#include "plot.h"
#include "train.h"

static int use_threads(int64_t threads)
{
#ifdef _OPENMP
    if (threads > 0)
        omp_set_num_threads((int)threads);
    return omp_get_max_threads();
#else
    (void)threads;
    return 1;
#endif
}

static const char *const router_names[] = {"mixtral's", "deepseek-v3's", "a frozen random"};

static void print_heading(const struct trainer *trainer, const struct options *options, int threads)
{
    const struct config *config = &trainer->config;
    printf("text: %lld bytes, %lld validation windows of %lld bytes\n",
           (long long)trainer->text->count,
           (long long)text_validation_windows(trainer->text, config->context),
           (long long)config->context);
    printf("model: %lld parameters, %lld active for a token; %lld of %lld experts, %s router\n",
           (long long)trainer->model->parameters_count,
           (long long)model_active_parameters(trainer->model), (long long)config->topk,
           (long long)config->experts, router_names[config->router]);
    printf("operators: %s rows, %s kernels, %d threads\n",
           config->bfloat16 ? "bfloat16" : "float32",
           moetoken_isa_name(moetoken_isa_chosen(options->isa_mask)), threads);
    printf("\n   step   train loss   val. loss   tokens/s   load entropy   dropped\n");
    fflush(stdout);
}

static void print_row(const struct record *row, const struct config *config)
{
    double entropy = 0;
    for (int layer = 0; layer < config->layers; layer++)
        entropy += record_entropy(row, config, layer) / (double)config->layers;
    printf("%7.0f %12.6f %11.6f %10.0f %14.4f %8.2f%%\n", row->step, row->training_loss,
           row->validation_loss, row->tokens_per_second, entropy,
           100 * row->dropped / row->choices);
    fflush(stdout);
}

static void run_steps(struct trainer *trainer, const struct options *options)
{
    int64_t end = trainer->config.steps;
    if (options->stop_at > 0 && options->stop_at < end)
        end = options->stop_at;
    while (trainer->step < end) {
        bool dumps = options->dump && trainer->step + 1 == options->dump_step;
        trainer_step(trainer, dumps ? options->dump : NULL);
        if (trainer_row_is_due(trainer))
            print_row(trainer_finish_row(trainer), &trainer->config);
        bool due = options->checkpoint_every > 0 && trainer->step % options->checkpoint_every == 0;
        if (options->checkpoint && (due || trainer->step == end))
            checkpoint_write(options->checkpoint, trainer);
    }
}

/* The checksum tells whether two runs ended with the same bits. */
static void print_end(const struct trainer *trainer)
{
    const struct model *model = trainer->model;
    if (trainer->history_count > 0) {
        const struct record *last = &trainer->history[trainer->history_count - 1];
        printf("\nvalidation loss %.6f nats a byte (%.4f bits) after %.0f steps\n",
               last->validation_loss, last->validation_loss / 0.69314718055994531, last->step);
    }
    uint64_t checksum = checksum_add(CHECKSUM_START, model->parameters,
                                     model->parameters_count * (int64_t)sizeof(real));
    printf("step %lld, checksum of the parameters %016llx\n", (long long)trainer->step,
           (unsigned long long)checksum);
}

static bool dump_step_is_ahead(const struct options *options, const struct trainer *trainer)
{
    if (!options->dump ||
        (options->dump_step > trainer->step && options->dump_step <= trainer->config.steps))
        return true;
    fprintf(stderr, "train_moe: --dump-step is %lld; the run is at step %lld of %lld\n",
            (long long)options->dump_step, (long long)trainer->step,
            (long long)trainer->config.steps);
    return false;
}

int main(int argc, char **argv)
{
    struct options options;
    struct text text;
    struct trainer trainer;
    if (!options_parse(&options, argc, argv))
        return 2;
    if (options.help) {
        options_print_help();
        return 0;
    }
    if (!text_read(&text, options.texts, options.texts_count, options.config.context))
        return 1;
    int threads = use_threads(options.threads);
    moetoken_options operators = {.isa_mask = options.isa_mask, .threads = threads};
    trainer_create(&trainer, &options.config, &text, &operators);
    bool ready = (!options.resume || checkpoint_read(options.resume, &trainer)) &&
                 dump_step_is_ahead(&options, &trainer);
    if (ready) {
        print_heading(&trainer, &options, threads);
        run_steps(&trainer, &options);
        print_end(&trainer);
        if (options.plot)
            ready = plot_write(options.plot, &trainer, options.baselines, options.baselines_count);
    }
    trainer_destroy(&trainer);
    text_free(&text);
    return ready ? 0 : 1;
}
