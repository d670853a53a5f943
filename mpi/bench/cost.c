/* cost.c - what a layer sends, by counting it on a simulated routing. */
#include "bench.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* splitmix64's step: a number's well mixed bits. */
static uint64_t mix(uint64_t x)
{
    x += UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}

/* The expert at place u of (0, 1): with skew the first experts get most, by the continuous law. */
static int64_t place_expert(double u, int64_t experts, double skew)
{
    double n = (double)experts, at = u * n;
    if (skew > 0) {
        double power = 1 - skew;
        at = fabs(power) < 1e-9 ? exp(u * log(n + 1)) - 1
                                : pow(1 + u * (pow(n + 1, power) - 1), 1 / power) - 1;
    }
    int64_t expert = (int64_t)at;
    return expert < experts ? expert : experts - 1;
}

void bench_route(int64_t token, int64_t topk, int64_t experts, double skew, int64_t *ids)
{
    uint64_t draw = (uint64_t)token << 20;
    for (int64_t k = 0; k < topk; k++) {
        bool seen = true;
        while (seen) {
            double u = (double)(mix(draw++) >> 11) * 0x1p-53;
            /* Popular experts lie anywhere, not all on the first rank. */
            int64_t expert = place_expert(u, experts, skew) * 7919 % experts;
            if (experts % 7919 == 0)
                expert = place_expert(u, experts, skew);
            seen = false;
            for (int64_t before = 0; before < k; before++)
                seen |= ids[before] == expert;
            ids[k] = expert;
        }
    }
}

struct traffic {
    double once, every, busiest; /* rows a rank sends; rows of the busiest rank over the mean */
};

static struct traffic count(const struct model_shape *shape, int64_t ranks, int64_t tokens,
                            double skew)
{
    int64_t own = shape->experts_num / ranks, ids[64], *load = calloc((size_t)ranks, sizeof *load);
    struct traffic traffic = {0};
    if (!load)
        return traffic;
    int64_t most = 0;
    for (int64_t t = 0; t < tokens; t++) {
        bench_route(t, shape->topk_num, shape->experts_num, skew, ids);
        for (int64_t k = 0; k < shape->topk_num; k++) {
            int64_t rank = ids[k] / own;
            bool first = true;
            for (int64_t before = 0; before < k; before++)
                first &= ids[before] / own != rank;
            most = ++load[rank] > most ? load[rank] : most;
            traffic.every += 1;
            traffic.once += first;
        }
    }
    free(load);
    /* One in P of all rows stays, whichever rank the token is on. */
    double away = (double)(ranks - 1) / (double)ranks / (double)tokens;
    traffic.busiest = (double)most * (double)ranks / (double)(tokens * shape->topk_num);
    traffic.every *= away;
    traffic.once *= away;
    return traffic;
}

static void print_rows(const struct model_shape *shape, const struct bench_options *options)
{
    const int64_t sample = 20000;
    const int64_t element_bytes = moetoken_dtype(options->type).bits / 8;
    double row = (double)(shape->hidden_size * element_bytes);
    for (int64_t ranks = 2; ranks <= 4096; ranks *= 2) {
        if (shape->experts_num % ranks)
            continue;
        struct traffic even = count(shape, ranks, sample, 0);
        struct traffic skewed = count(shape, ranks, sample, 0.8);
        double tokens = (double)options->tokens, mega = 1e-6 * tokens * row;
        printf("%-22s %6" PRId64 " %9.0f %9.1f %9.1f %9.1f %8.2f %8.2f %9.1f\n", shape->name, ranks,
               even.once * tokens, even.once * mega, even.every * mega, even.every * mega,
               even.busiest, skewed.busiest, skewed.once * mega);
    }
}

void bench_print_cost(const struct bench_options *options)
{
    printf("A rank of %" PRId64 " tokens; rows and MB (10^6 bytes) that it sends to others.\n"
           "dispatch: a token once a rank; every slot: without that; combine: one row a slot;\n"
           "busiest: rows of the busiest rank over the mean, even routing and Zipf 0.8 (the last\n"
           "column: dispatch then). Backward sends the same again. More ranks than experts, or\n"
           "others than divide them: several groups of ranks, each with all experts.\n\n",
           options->tokens);
    printf("%-22s %6s %9s %9s %9s %9s %8s %8s %9s\n", "model", "ranks", "rows", "dispatch",
           "ev. slot", "combine", "busiest", "skewed", "dispatch");
    for (size_t i = 0; i < MODEL_SHAPES_COUNT; i++)
        if (!options->shape || options->shape == &model_shapes[i])
            print_rows(&model_shapes[i], options);
}
