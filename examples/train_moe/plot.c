/* plot.c - three panels above one another: losses, shares of the experts, entropy of the load. */
#include "plot.h"

#include <string.h>

#include "checkpoint.h"
#include "model/output_file.h"
#include "ranks/ranks.h"

#define WIDTH 760.0
#define LEFT  64.0
#define RIGHT 16.0

struct panel {
    FILE *stream;
    double top, height;
    double last_step, low, high; /* what the axes span */
};

struct run {
    struct config config;
    struct record *history;
    int64_t count;
    const char *color;
};

static double across(const struct panel *panel, double step)
{
    return LEFT + (WIDTH - LEFT - RIGHT) * step / panel->last_step;
}

static double down(const struct panel *panel, double value)
{
    return panel->top + panel->height * (panel->high - value) / (panel->high - panel->low);
}

static void draw_frame(const struct panel *panel, const char *title)
{
    fprintf(panel->stream, "<text x='%.0f' y='%.0f' font-weight='bold'>%s</text>\n", LEFT,
            panel->top - 8, title);
    for (int i = 0; i <= 4; i++) {
        double value = panel->low + (panel->high - panel->low) * i / 4;
        double step = panel->last_step * i / 4;
        fprintf(panel->stream, "<path d='M%.1f %.1fH%.1f' stroke='#ddd'/>\n", LEFT,
                down(panel, value), WIDTH - RIGHT);
        fprintf(panel->stream, "<text x='%.1f' y='%.1f' text-anchor='end'>%.3g</text>\n", LEFT - 6,
                down(panel, value) + 4, value);
        fprintf(panel->stream, "<text x='%.1f' y='%.1f' text-anchor='middle'>%.0f</text>\n",
                across(panel, step), panel->top + panel->height + 16, step);
    }
}

/* The line of one number of each record. */
typedef double value_of(const struct record *record, const struct config *config, int i);

static void draw_line(const struct panel *panel, const struct run *run, value_of *value, int i,
                      const char *style)
{
    fprintf(panel->stream, "<polyline fill='none' stroke='%s' %s points='", run->color, style);
    for (int64_t r = 0; r < run->count; r++)
        fprintf(panel->stream, "%.1f,%.1f ", across(panel, run->history[r].step),
                down(panel, value(&run->history[r], &run->config, i)));
    fprintf(panel->stream, "'/>\n");
}

static double training_loss(const struct record *record, const struct config *config, int i)
{
    (void)config;
    (void)i;
    return record->training_loss;
}

static double validation_loss(const struct record *record, const struct config *config, int i)
{
    (void)config;
    (void)i;
    return record->validation_loss;
}

static double entropy(const struct record *record, const struct config *config, int layer)
{
    return record_entropy(record, config, layer);
}

/* Of the choices in the last layer. */
static double expert_share(const struct record *record, const struct config *config, int expert)
{
    const double *load = record->load[config->layers - 1];
    double total = 0;
    for (int64_t e = 0; e < config->experts; e++)
        total += load[e];
    return load[expert] / total;
}

static double span(const struct run *run, value_of *value, int i, double so_far, bool largest)
{
    for (int64_t r = 0; r < run->count; r++) {
        double v = value(&run->history[r], &run->config, i);
        so_far = (largest ? v > so_far : v < so_far) ? v : so_far;
    }
    return so_far;
}

static void draw_legend(const struct panel *panel, const struct run *run, int line)
{
    static const char *const names[] = {"mixtral's router", "deepseek-v3's router",
                                        "frozen random router"};
    const struct config *config = &run->config;
    double y = panel->top + 16 + 18 * line, x = WIDTH - RIGHT - 330;
    char routing[32] = "";
    if (config->capacity_factor > 0)
        snprintf(routing, sizeof routing, ", capacity %g", config->capacity_factor);
    fprintf(panel->stream, "<path d='M%.0f %.0fh24' stroke='%s' stroke-width='2'/>\n", x, y - 4,
            run->color);
    fprintf(panel->stream, "<text x='%.0f' y='%.0f'>", x + 30, y);
    if (config->experts == 1)
        fprintf(panel->stream, "dense");
    else
        fprintf(panel->stream, "%lld of %lld experts, %s%s", (long long)config->topk,
                (long long)config->experts, names[config->router], routing);
    fprintf(panel->stream, ": %.3f</text>\n", run->history[run->count - 1].validation_loss);
}

static void draw_losses(struct panel panel, const struct run *runs, int count)
{
    panel.low = panel.high = runs[0].history[0].validation_loss;
    for (int i = 0; i < count; i++) {
        panel.low = span(&runs[i], validation_loss, 0, panel.low, false);
        panel.high = span(&runs[i], validation_loss, 0, panel.high, true);
    }
    panel.low = span(&runs[0], training_loss, 0, panel.low, false);
    panel.high = span(&runs[0], training_loss, 0, panel.high, true) + 1e-3;
    draw_frame(&panel, "loss, nats a byte: validation; dotted: training of the first");
    draw_line(&panel, &runs[0], training_loss, 0, "stroke-width='1' stroke-dasharray='2 3'");
    for (int i = 0; i < count; i++) {
        draw_line(&panel, &runs[i], validation_loss, 0, "stroke-width='2'");
        draw_legend(&panel, &runs[i], i);
    }
}

static void draw_shares(struct panel panel, const struct run *run)
{
    int experts = (int)run->config.experts;
    panel.low = 0;
    panel.high = 1.0 / experts;
    for (int e = 0; e < experts; e++)
        panel.high = span(run, expert_share, e, panel.high, true);
    draw_frame(&panel, "share of the choices, each expert of the last layer; dashed: even");
    for (int e = 0; e < experts; e++)
        draw_line(&panel, run, expert_share, e, "stroke-width='1' stroke-opacity='0.6'");
    fprintf(panel.stream, "<path d='M%.1f %.1fH%.1f' stroke='#000' stroke-dasharray='6 4'/>\n",
            LEFT, down(&panel, 1.0 / experts), WIDTH - RIGHT);
}

static void draw_entropy(struct panel panel, const struct run *run)
{
    panel.high = 1;
    panel.low = 0.999;
    for (int layer = 0; layer < run->config.layers; layer++)
        panel.low = span(run, entropy, layer, panel.low, false);
    draw_frame(&panel, "entropy of the load, each layer; 1: even");
    for (int layer = 0; layer < run->config.layers; layer++)
        draw_line(&panel, run, entropy, layer, "stroke-width='1.5'");
}

static void draw(FILE *stream, const struct run *runs, int count)
{
    struct panel panel = {.stream = stream, .last_step = runs[0].history[runs[0].count - 1].step};
    fprintf(stream,
            "<svg xmlns='http://www.w3.org/2000/svg' width='%.0f' height='690' "
            "font-family='sans-serif' font-size='12'>\n"
            "<rect width='100%%' height='100%%' fill='#fff'/>\n",
            WIDTH);
    panel.top = 30;
    panel.height = 270;
    draw_losses(panel, runs, count);
    panel.top = 360;
    panel.height = 130;
    draw_shares(panel, &runs[0]);
    panel.top = 550;
    panel.height = 90;
    draw_entropy(panel, &runs[0]);
    fprintf(stream, "<text x='%.0f' y='682' text-anchor='middle'>step</text>\n</svg>\n", WIDTH / 2);
}

bool plot_write(const char *path, const struct trainer *trainer, const char *const *baselines,
                int baselines_count)
{
    static const char *const colors[1 + MAX_BASELINES] = {"#1f5fbf", "#d1661a", "#2a8a4a",
                                                          "#8a3fa0", "#777777"};
    struct run runs[1 + MAX_BASELINES] = {
        {trainer->config, trainer->history, trainer->history_count, colors[0]}};
    int count = 1;
    bool good = trainer->history_count > 0;
    if (!good)
        complain("--plot %s: the run has no row of the table yet", path);
    for (; good && count <= baselines_count; count++) {
        struct run *run = &runs[count];
        run->color = colors[count];
        run->history = checkpoint_read_history(baselines[count - 1], &run->config, &run->count);
        good = run->history && run->count > 0;
    }
    if (good) {
        struct output_file file = output_file_open(path);
        draw(file.stream, runs, count);
        output_file_commit(&file);
    }
    for (int i = 1; i < count; i++)
        free(runs[i].history);
    return good;
}
