/* bench_router.c - how fast the router is, beside the loop that one writes by hand. */
#include "bench_router.h"

#include <inttypes.h>
#include <math.h>
#include <moetoken/router.h>
#include <stdlib.h>
#include <string.h>

#include "bench_measure.h"
#include "bench_team.h"
#include "cases/router_options.h"
#include "values/random_values.h"

#define SECONDS_PER_SAMPLE 1e-3

/* One case in memory: float32 logits, and what the calls write. */
struct router_bench {
    const struct bench_router_case *shape;
    moetoken_router_config config;
    moetoken_options options;
    int64_t te[2], tk[2], e[1];
    DLTensor logits, ids, weights, counts, weights_grad, logits_grad, bias;
    float *scratch; /* [threads, E] of the plain loop */
    int32_t *plain_ids;
    float *plain_weights, *plain_grad;
    int threads;
    bool biased;
};

static DLTensor make_tensor(moetoken_type type, size_t size, int ndim, int64_t *shape)
{
    size_t count = (size_t)shape[0] * (ndim == 2 ? (size_t)shape[1] : 1);
    return moetoken_tensor(calloc(count, size), type, ndim, shape);
}

static bool make(struct router_bench *bench)
{
    const struct bench_router_case *shape = bench->shape;
    struct progress progress = {0};
    size_t bytes = 0, pairs = (size_t)shape->tokens * (size_t)shape->experts;
    size_t slots = (size_t)shape->tokens * (size_t)shape->topk;
    bench->te[0] = bench->tk[0] = shape->tokens;
    bench->te[1] = bench->e[0] = shape->experts;
    bench->tk[1] = shape->topk;
    bench->logits = make_tensor(MOETOKEN_F32, 4, 2, bench->te);
    bench->logits_grad = make_tensor(MOETOKEN_F32, 4, 2, bench->te);
    bench->ids = make_tensor(MOETOKEN_I32, 4, 2, bench->tk);
    bench->weights = make_tensor(MOETOKEN_F32, 4, 2, bench->tk);
    bench->weights_grad = make_tensor(MOETOKEN_F32, 4, 2, bench->tk);
    bench->counts = make_tensor(MOETOKEN_I64, 8, 1, bench->e);
    bench->bias = make_tensor(MOETOKEN_F32, 4, 1, bench->e);
    bench->scratch = calloc((size_t)bench->threads * (size_t)shape->experts, sizeof(float));
    bench->plain_ids = calloc(slots, sizeof *bench->plain_ids);
    bench->plain_weights = calloc(slots, sizeof(float));
    bench->plain_grad = calloc(pairs, sizeof(float));
    bool sized = moetoken_router_workspace_size(shape->tokens, shape->experts, shape->topk,
                                                bench->threads, &bytes) == MOETOKEN_OK;
    bench->options.workspace = sized ? calloc(bytes, 1) : NULL;
    bench->options.workspace_bytes = bytes;
    if (!bench->logits.data || !bench->logits_grad.data || !bench->ids.data ||
        !bench->weights.data || !bench->weights_grad.data || !bench->counts.data ||
        !bench->bias.data || !bench->scratch || !bench->plain_ids || !bench->plain_weights ||
        !bench->plain_grad || !bench->options.workspace)
        return false;
    random_fill(&bench->logits, MOETOKEN_F32, random_key(1, 1), 0, &progress);
    random_fill(&bench->weights_grad, MOETOKEN_F32, random_key(1, 2), 0, &progress);
    return true;
}

static void release(struct router_bench *bench)
{
    void *all[] = {bench->logits.data,  bench->logits_grad.data,  bench->ids.data,
                   bench->weights.data, bench->weights_grad.data, bench->counts.data,
                   bench->bias.data,    bench->options.workspace, bench->scratch,
                   bench->plain_ids,    bench->plain_weights,     bench->plain_grad};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        free(all[i]);
}

/* ---- the two contestants --------------------------------------------------------------------- */

static moetoken_status call_forward(const struct router_bench *bench)
{
    moetoken_router_args args = {.logits = &bench->logits,
                                 .bias = bench->biased ? &bench->bias : NULL,
                                 .config = bench->config,
                                 .expert_ids = &bench->ids,
                                 .weights = &bench->weights,
                                 .rows_per_expert = &bench->counts};
    return moetoken_router(&args, &bench->options);
}

static moetoken_status call_library(const struct router_bench *bench)
{
    if (bench->shape->kind == OPERATOR_ROUTER)
        return call_forward(bench);
    moetoken_router_grad_args args = {.logits = &bench->logits,
                                      .expert_ids = &bench->ids,
                                      .config = bench->config,
                                      .weights_grad = &bench->weights_grad,
                                      .logits_grad = &bench->logits_grad};
    return moetoken_router_grad(&args, &bench->options);
}

static void plain_softmax(const float *logits, int64_t count, float *scores)
{
    float largest = logits[0], sum = 0;
    for (int64_t e = 1; e < count; e++)
        largest = logits[e] > largest ? logits[e] : largest;
    for (int64_t e = 0; e < count; e++)
        sum += scores[e] = expf(logits[e] - largest);
    for (int64_t e = 0; e < count; e++)
        scores[e] /= sum;
}

static void plain_forward(const struct router_bench *bench, int64_t t, float *scores)
{
    int64_t experts = bench->te[1], topk = bench->tk[1];
    float *weights = bench->plain_weights + t * topk, sum = 0;
    plain_softmax((const float *)bench->logits.data + t * experts, experts, scores);
    for (int64_t k = 0; k < topk; k++) {
        int64_t best = 0;
        for (int64_t e = 1; e < experts; e++)
            best = scores[e] > scores[best] ? e : best;
        bench->plain_ids[t * topk + k] = (int32_t)best;
        sum += weights[k] = scores[best];
        scores[best] = -1;
    }
    for (int64_t k = 0; k < topk; k++)
        weights[k] /= sum;
}

/* Of the weights, which the sum divides, through the softmax to the logits. */
static void plain_backward(const struct router_bench *bench, int64_t t, float *scores)
{
    int64_t experts = bench->te[1], topk = bench->tk[1];
    const float *grads = (const float *)bench->weights_grad.data + t * topk;
    const int32_t *ids = (const int32_t *)bench->ids.data + t * topk;
    float *out = bench->plain_grad + t * experts, sum = 0, mean = 0;
    plain_softmax((const float *)bench->logits.data + t * experts, experts, scores);
    for (int64_t k = 0; k < topk; k++)
        sum += scores[ids[k]];
    for (int64_t k = 0; k < topk; k++)
        mean += grads[k] * scores[ids[k]] / sum;
    memset(out, 0, (size_t)experts * sizeof *out);
    for (int64_t k = 0; k < topk; k++)
        out[ids[k]] = scores[ids[k]] * (grads[k] - mean) / sum;
}

static void plain_part(const void *context, int member, int members)
{
    const struct router_bench *bench = context;
    int64_t tokens = bench->te[0];
    float *scores = bench->scratch + (int64_t)member * bench->te[1];
    for (int64_t t = tokens * member / members; t < tokens * (member + 1) / members; t++) {
        if (bench->shape->kind == OPERATOR_ROUTER)
            plain_forward(bench, t, scores);
        else
            plain_backward(bench, t, scores);
    }
}

static void call_plain(const struct router_bench *bench)
{
    team_run(bench->threads, plain_part, bench);
}

/* ---- measuring ------------------------------------------------------------------------------- */

static double time_calls(const struct router_bench *bench, bool plain, int calls)
{
    double began = seconds_now();
    for (int i = 0; i < calls; i++) {
        if (plain)
            call_plain(bench);
        else
            (void)call_library(bench);
    }
    return (seconds_now() - began) / calls;
}

static int compare_doubles(const void *left, const void *right)
{
    double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

static struct spread spread_of(double *values, int count)
{
    qsort(values, (size_t)count, sizeof *values, compare_doubles);
    return (struct spread){values[count / 2], values[0], values[count - 1]};
}

/* Both in turn, round by round: spreads[0] of the library, [1] of the plain loop, [2] how many
 * times as long the latter takes. */
static void measure(const struct router_bench *bench, int rounds, struct spread spreads[3])
{
    double seconds[3][ROUNDS_MOST];
    int calls[2];
    for (int plain = 0; plain < 2; plain++)
        calls[plain] = 1 + (int)(SECONDS_PER_SAMPLE / time_calls(bench, plain != 0, 2));
    for (int r = 0; r < rounds; r++) {
        for (int plain = 0; plain < 2; plain++)
            seconds[plain][r] = time_calls(bench, plain != 0, calls[plain]);
        seconds[2][r] = seconds[1][r] / seconds[0][r];
    }
    for (int i = 0; i < 3; i++)
        spreads[i] = spread_of(seconds[i], rounds);
}

/* ---- the report ------------------------------------------------------------------------------ */

static int cases_printed;

void bench_router_begin(const moetoken_options *options, bool json)
{
    const char *isa = moetoken_isa_name(moetoken_isa_chosen(options->isa_mask));
    cases_printed = 0;
    if (json) {
        printf("{\"version\": \"%s\", \"isa\": \"%s\", \"cases\": [", moetoken_version(), isa);
        return;
    }
    printf("moetoken %s, %s kernels; the plain loop is the same by hand, in float32 with expf\n\n"
           "%-20s %6s %5s %3s %3s %9s %19s %8s %12s %s\n",
           moetoken_version(), isa, "case", "tokens", "E", "K", "thr", "us", "[spread]", "ns/logit",
           "plain us", "times as long [spread]");
}

static void print_case(const struct router_bench *bench, const struct spread spreads[3], bool json)
{
    const struct bench_router_case *shape = bench->shape;
    double logits = (double)shape->tokens * (double)shape->experts;
    if (!json) {
        printf("%-20s %6" PRId64 " %5" PRId64 " %3" PRId64 " %3d %9.1f [%8.1f %8.1f] %8.2f %12.1f "
               "%.2f [%.2f %.2f]\n",
               shape->name, shape->tokens, shape->experts, shape->topk, bench->threads,
               spreads[0].median * 1e6, spreads[0].least * 1e6, spreads[0].most * 1e6,
               spreads[0].median * 1e9 / logits, spreads[1].median * 1e6, spreads[2].median,
               spreads[2].least, spreads[2].most);
        fflush(stdout);
        return;
    }
    printf("%s\n  {\"name\": \"%s\", \"operator\": \"%s\", \"tokens\": %" PRId64
           ", \"experts\": %" PRId64 ", \"topk\": %" PRId64 ", \"threads\": %d",
           cases_printed++ == 0 ? "" : ",", shape->name, operator_outputs[shape->kind].name,
           shape->tokens, shape->experts, shape->topk, bench->threads);
    printf(", \"seconds\": %.9g, \"seconds_least\": %.9g, \"plain_seconds\": %.9g, "
           "\"times_as_long\": %.4f}",
           spreads[0].median, spreads[0].least, spreads[1].median, spreads[2].median);
}

void bench_router_end(bool json)
{
    if (json)
        printf("\n]}\n");
}

bool bench_router_run(const struct bench_router_case *shape, const moetoken_options *options,
                      int rounds, bool json)
{
    struct router_bench bench = {.shape = shape,
                                 .options = *options,
                                 .threads = moetoken_threads_chosen(options->threads),
                                 .config = {.normalize = true}};
    struct spread spreads[3];
    if (shape->recipe != NULL && !router_recipe(shape->recipe, &bench.config))
        return false;
    bench.config.topk = shape->topk;
    bench.biased = bench.config.score == MOETOKEN_SCORE_SIGMOID && bench.config.normalize;
    bool made = make(&bench);
    bool good = made && call_forward(&bench) == MOETOKEN_OK && call_library(&bench) == MOETOKEN_OK;
    if (!good)
        report_error(made ? moetoken_last_error() : "no memory for the router's case");
    if (good) {
        measure(&bench, rounds, spreads);
        print_case(&bench, spreads, json);
    }
    release(&bench);
    return good;
}
