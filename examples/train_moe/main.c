/* main.c - trains a mixture-of-experts language model on text and prints a table of its progress.
 *
 *   text -> windows -> model (layers, experts by way of the library) -> loss -> gradient -> AdamW
 */
#include <stdio.h>

#ifdef _OPENMP
#include <omp.h>
#endif

#include "checkpoint.h"
#include "model/exchange.h"
#include "options.h"
#include "plot.h"
#include "ranks/ranks.h"
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
           (long long)model_all_parameters(trainer->model),
           (long long)model_active_parameters(trainer->model), (long long)config->topk,
           (long long)config->experts, router_names[config->router]);
    printf("operators: %s rows, %s kernels, %d threads", config->bfloat16 ? "bfloat16" : "float32",
           moetoken_isa_name(moetoken_isa_chosen(options->isa_mask)), threads);
    if (ranks_count() > 1)
        printf(" on each of %d ranks", ranks_count());
    printf("\n\n   step   train loss   val. loss   tokens/s   load entropy   dropped\n");
    fflush(stdout);
}

static void print_row(const struct record *row, const struct config *config, bool exact)
{
    double entropy = 0;
    for (int layer = 0; layer < config->layers; layer++)
        entropy += record_entropy(row, config, layer) / (double)config->layers;
    int digits = exact ? 17 : 6;
    printf("%7.0f %12.*f %11.*f %10.0f %14.4f %8.2f%%\n", row->step, digits, row->training_loss,
           digits, row->validation_loss, row->tokens_per_second, entropy,
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
            print_row(trainer_finish_row(trainer), &trainer->config, options->exact);
        bool due = options->checkpoint_every > 0 && trainer->step % options->checkpoint_every == 0;
        if (options->checkpoint && (due || trainer->step == end))
            checkpoint_write(options->checkpoint, trainer);
    }
}

/* In the order of one process, as the norm of the gradient. */
static uint64_t parameters_checksum(const struct model *model)
{
    uint64_t checksum = CHECKSUM_START;
    for (int i = 0; i < model->tensors_count; i++) {
        const struct tensor *tensor = &model->tensors[i];
        if (tensor->of_experts)
            ranks_relay_receive(&checksum, sizeof checksum);
        checksum = checksum_add(checksum, model->parameters + tensor->offset,
                                tensor->count * (int64_t)sizeof(real));
        if (tensor->of_experts) {
            ranks_relay_pass(&checksum, sizeof checksum);
            ranks_relay_finish(&checksum, sizeof checksum);
        }
    }
    return checksum;
}

/* The checksum tells whether two runs ended with the same bits. */
static void print_end(const struct trainer *trainer)
{
    if (trainer->history_count > 0) {
        const struct record *last = &trainer->history[trainer->history_count - 1];
        printf("\nvalidation loss %.6f nats a byte (%.4f bits) after %.0f steps\n",
               last->validation_loss, last->validation_loss / 0.69314718055994531, last->step);
    }
    printf("step %lld, checksum of the parameters %016llx\n", (long long)trainer->step,
           (unsigned long long)parameters_checksum(trainer->model));
}

static bool can_dump(const struct options *options, const struct trainer *trainer)
{
    if (!options->dump)
        return true;
    if (!exchange_dumps()) {
        complain("--dump-step is for train_moe: with MPI there is no call of unpermute_grad");
        return false;
    }
    if (options->dump_step > trainer->step && options->dump_step <= trainer->config.steps)
        return true;
    complain("--dump-step is %lld; the run is at step %lld of %lld", (long long)options->dump_step,
             (long long)trainer->step, (long long)trainer->config.steps);
    return false;
}

static bool experts_fit(const struct config *config)
{
    if (config->experts % ranks_count() == 0)
        return true;
    complain("--experts %lld cannot be spread evenly over %d ranks", (long long)config->experts,
             ranks_count());
    return false;
}

/* What decides the numbers of a run, and when all ranks work on a file together. */
static bool same_run(const struct options *options, const struct trainer *trainer)
{
    const int64_t numbers[] = {(int64_t)trainer->text->checksum, trainer->step,
                               trainer->history_count,           options->stop_at,
                               options->checkpoint_every,        options->checkpoint != NULL};
    uint64_t checksum = checksum_add(CHECKSUM_START, &trainer->config, sizeof trainer->config);
    if (ranks_same(checksum_add(checksum, numbers, sizeof numbers)))
        return true;
    complain("the options, the text or the checkpoint are not those of rank 0");
    return false;
}

static bool train(const struct options *options)
{
    struct text text;
    struct trainer trainer;
    if (!ranks_agree(
            text_read(&text, options->texts, options->texts_count, options->config.context)))
        return false;
    int threads = use_threads(options->threads);
    moetoken_options operators = {.isa_mask = options->isa_mask, .threads = threads};
    trainer_create(&trainer, &options->config, &text, &operators);
    bool good = ranks_agree(!options->resume || checkpoint_read(options->resume, &trainer)) &&
                ranks_agree(same_run(options, &trainer)) &&
                ranks_agree(can_dump(options, &trainer));
    if (good) {
        print_heading(&trainer, options, threads);
        run_steps(&trainer, options);
        print_end(&trainer);
        if (options->plot)
            good = ranks_agree(
                ranks_rank() != 0 ||
                plot_write(options->plot, &trainer, options->baselines, options->baselines_count));
    }
    trainer_destroy(&trainer);
    text_free(&text);
    return good;
}

int main(int argc, char **argv)
{
    struct options options;
    int status = 0;
    ranks_open(&argc, &argv);
    bool good = options_parse(&options, argc, argv);
    if (!ranks_agree(good && (options.help || experts_fit(&options.config))))
        status = 2;
    else if (options.help)
        options_print_help();
    else
        status = train(&options) ? 0 : 1;
    ranks_close();
    return status;
}
