/* gradcheck.c - the whole model's gradient against finite differences, in double.
 *
 * The model is that of the training program, compiled with double: its rows go through the
 * library's operators as float64, over the ranks where there are several: a parameter of an expert
 * is moved by the rank that has it. Every parameter (over ranks: some of them) is moved by steps h
 * and 2h to both sides, which gives the derivative with an error of order h^4. The choice of
 * experts is a jump: a step that changes it is made smaller until it does not. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "model/model.h"
#include "ranks/ranks.h"

#define TOLERANCE  1e-6
#define BYTES_USED 11  /* different bytes in the text */
#define STRIDE     113 /* ranks wait for messages in every pass: one parameter in so many */

struct check {
    const char *name;
    int64_t experts, topk;
    double capacity_factor;
    int64_t router;
};

/* Several ranks leave out those whose experts they cannot share evenly. */
static const struct check checks[] = {
    {"dropless, 3 of 5", 5, 3, 0, ROUTER_MIXTRAL},
    {"dropless, 1 of 3", 3, 1, 0, ROUTER_MIXTRAL},
    {"dropless, 2 of 4", 4, 2, 0, ROUTER_MIXTRAL},
    {"dropless, 2 of 21", 21, 2, 0, ROUTER_MIXTRAL},
    {"capacity 0.6, 2 of 4", 4, 2, 0.6, ROUTER_MIXTRAL},
    {"capacity 1.5, 1 of 3", 3, 1, 1.5, ROUTER_MIXTRAL},
    {"deepseek-v3, 3 of 6", 6, 3, 0, ROUTER_DEEPSEEK},
    {"deepseek-v3, 1 of 4, capacity 0.9", 4, 1, 0.9, ROUTER_DEEPSEEK},
};

static struct config tiny_config(const struct check *check, int64_t seed)
{
    struct config config = config_default();
    config.layers = 2;
    config.width = 6;
    config.heads = 2;
    config.context = 5;
    config.batch = 2;
    config.hidden = 5;
    config.experts = check->experts;
    config.topk = check->topk;
    config.capacity_factor = check->capacity_factor;
    config.router = check->router;
    config.aux_weight = 0.3;
    config.seed = seed;
    return config;
}

/* Bytes of which few differ, so that most parameters have a gradient. */
static void draw_bytes(uint8_t *bytes, int64_t count, uint64_t seed)
{
    for (int64_t i = 0; i < count; i++)
        bytes[i] = (uint8_t)(random_bits(seed, (uint64_t)i) % BYTES_USED);
}

/* Larger than training starts with: gates away from even, gradients of all sizes. */
static void spread_weights(struct model *model)
{
    for (int64_t i = 0; i < model->parameters_count; i++)
        model->parameters[i] *=
            1 + (double)(random_bits(77, (uint64_t)i) % 1000) / 1000; /* 1 to 2 */
    for (int layer = 0; layer < model->config.layers; layer++)
        for (int64_t e = 0; model->weights.blocks[layer].moe.bias && e < model->config.experts; e++)
            model->weights.blocks[layer].moe.bias[e] =
                (double)(random_bits(78, (uint64_t)(layer * MAX_EXPERTS + e)) % 1000) / 4000;
}

struct batch {
    uint8_t bytes[64], targets[64];
    int64_t sequences;
    uint64_t *choices; /* the experts of each token, as bits, in all layers */
};

static uint64_t choice(const struct moe *moe, int64_t token)
{
    uint64_t experts = 0;
    for (int64_t k = 0; k < moe->config.topk; k++)
        experts |= UINT64_C(1) << moe->expert_ids[token * moe->config.topk + k];
    return experts;
}

static void copy_choices(const struct model *model, uint64_t *choices)
{
    for (int layer = 0; layer < model->config.layers; layer++)
        for (int64_t t = 0; t < model->blocks[layer].moe.tokens; t++)
            *choices++ = choice(&model->blocks[layer].moe, t);
}

static bool same_own_choices(const struct model *model, const struct batch *batch)
{
    const uint64_t *choices = batch->choices;
    for (int layer = 0; layer < model->config.layers; layer++)
        for (int64_t t = 0; t < model->blocks[layer].moe.tokens; t++)
            if (*choices++ != choice(&model->blocks[layer].moe, t))
                return false;
    return true;
}

static bool same_choices(const struct model *model, const struct batch *batch)
{
    return ranks_largest(same_own_choices(model, batch) ? 0 : 1) == 0;
}

static double objective(struct model *model, const struct batch *batch)
{
    double loss = model_forward(model, batch->bytes, batch->targets, batch->sequences);
    return loss + model_aux_loss(model);
}

/* False when the choice of experts was not the same all the way. Collective, and the result is the
 * same on every rank; those that do not have the parameter move `parameter` to no effect. */
static bool difference(struct model *model, const struct batch *batch, real *parameter, double h,
                       double *result)
{
    static const double places[4] = {-2, -1, 1, 2}, factors[4] = {1, -8, 8, -1};
    real kept = *parameter;
    double sum = 0;
    bool same = true;
    for (int i = 0; i < 4 && same; i++) {
        *parameter = kept + (real)(places[i] * h);
        sum += factors[i] * objective(model, batch);
        same = same_choices(model, batch);
    }
    *parameter = kept;
    *result = sum / (12 * h);
    return same;
}

/* Largest difference within a tensor, over the tensor's largest gradient. */
static double tensor_error(struct model *model, const struct batch *batch,
                           const struct tensor *tensor, const real *gradients)
{
    double largest = 0, worst = 0;
    int64_t parts = tensor->of_experts ? ranks_count() : 1;
    int64_t before = tensor->of_experts ? ranks_rank() * tensor->count : 0;
    const int64_t count = parts * tensor->count, step = ranks_count() > 1 ? STRIDE : 1;
    for (int64_t i = 0; i < count; i += step) {
        double h = 1e-3, numeric = 0;
        real nobodys = 0;
        bool own = i >= before && i < before + tensor->count;
        int64_t place = tensor->offset + i - before;
        real *parameter = own ? &model->parameters[place] : &nobodys;
        /* The embedding of a byte that the text lacks has no part in the loss. */
        bool moves = strcmp(tensor->name, "embedding") != 0 || i < BYTES_USED * model->config.width;
        while (moves && !difference(model, batch, parameter, h, &numeric) && h > 1e-6)
            h /= 4;
        if (!own)
            continue;
        double error = fabs(numeric - gradients[place]);
        worst = error <= worst || isnan(worst) ? worst : error;
        largest = fabs(gradients[place]) > largest ? fabs(gradients[place]) : largest;
    }
    worst = ranks_largest(worst);
    largest = ranks_largest(largest);
    return largest > 0 ? worst / largest : worst;
}

static double worst_error(struct model *model, const struct batch *batch, const char **where)
{
    real *gradients = allocate(model->parameters_count, sizeof(real));
    double worst = 0;
    memcpy(gradients, model->gradients, (size_t)model->parameters_count * sizeof(real));
    for (int i = 0; i < model->tensors_count; i++) {
        double error = tensor_error(model, batch, &model->tensors[i], gradients);
        if (!(error <= worst) && !isnan(worst)) {
            worst = error;
            *where = model->tensors[i].name;
        }
    }
    free(gradients);
    return worst;
}

/* That the cases which are easily got wrong are there. */
static void print_routing(const struct model *model)
{
    int64_t dropped = 0, empty = 0, idle = 0;
    for (int layer = 0; layer < model->config.layers; layer++) {
        const struct moe *moe = &model->blocks[layer].moe;
        dropped += moe->dropped;
        for (int64_t e = 0; e < model->config.experts; e++) {
            empty += moe->load[e] < moe->capacity ? moe->capacity - moe->load[e] : 0;
            idle += moe->load[e] == 0;
        }
    }
    printf(" %2lld choices dropped, %2lld rows empty, %2lld experts idle;", (long long)dropped,
           (long long)empty, (long long)idle);
}

static bool run_check(const struct check *check, int64_t seed)
{
    struct config config = tiny_config(check, seed);
    moetoken_options options = {.threads = 1};
    struct model *model = model_create(&config, &options);
    struct batch batch = {.sequences = config.batch};
    int64_t tokens = config.batch * config.context;
    const char *where = "-";
    spread_weights(model);
    draw_bytes(batch.bytes, tokens, (uint64_t)seed + 1);
    draw_bytes(batch.targets, tokens, (uint64_t)seed + 2);
    batch.choices = allocate(config.layers * tokens, sizeof *batch.choices);

    objective(model, &batch);
    copy_choices(model, batch.choices);
    printf("%-34s", check->name);
    print_routing(model);
    model_backward(model, batch.bytes);
    double worst = worst_error(model, &batch, &where);
    printf(" %lld parameters, worst relative error %.2e (%s)\n",
           (long long)model_all_parameters(model), worst, where);
    free(batch.choices);
    model_destroy(model);
    return worst < TOLERANCE;
}

int main(int argc, char **argv)
{
    bool good = true;
    ranks_open(&argc, &argv);
    int64_t seed = argc > 1 ? strtoll(argv[1], NULL, 10) : 1;
    printf("seed %lld (the first argument sets it)\n", (long long)seed);
    for (size_t i = 0; i < sizeof checks / sizeof checks[0]; i++)
        if (checks[i].experts % ranks_count() == 0)
            good = run_check(&checks[i], seed) && good;
    printf("%s: every error is to be below %g\n", good ? "passed" : "FAILED", TOLERANCE);
    ranks_close();
    return good ? 0 : 1;
}
